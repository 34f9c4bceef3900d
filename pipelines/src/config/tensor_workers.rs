//! `[train.tensor_workers]`: processes that compute node tasks.

use super::device::Device;
use super::section::{section, words};
use super::values::Span;

/// Number of workers that memory is planned for with `accept`.
const ACCEPTED: usize = 4;

section! {
    /// Tensor workers: stateless processes that compute node tasks for `full-graph` and `tensor-parallel`.
    pub struct Tensor {
        /// Workers to launch for each process, on the same machine. Give this, `hosts` or `accept`.
        #[schemars(range(min = 1, max = 1000), extend("x-results" = false), extend("examples" = [4]))]
        pub workers: Option<usize> = None,
        /// Addresses of running workers (`gnnflow tensor-worker --listen HOST:PORT`).
        /// They need the secret of `cluster.secret_file` or `GNNFLOW_SECRET`; without one, only workers of this machine are used.
        #[schemars(length(min = 1), extend("x-results" = false), extend("examples" = [["10.0.0.7:7000"]]))]
        pub hosts: Option<Vec<String>> = None,
        /// Address at which workers register with the first process, at any time (`gnnflow tensor-worker --connect HOST:PORT`).
        /// They need the same secret as with `hosts`.
        #[schemars(extend("x-results" = false), extend("examples" = ["10.0.0.1:7100"]))]
        pub accept: Option<String> = None,
        /// Threads of each launched worker.
        #[schemars(range(min = 1, max = 4096), extend("x-results" = false))]
        pub threads: usize = 1,
        /// The device on which tensor workers compute: `"cpu"` or a GPU, as `train.device`. It is that of launched workers; other workers choose their GPU
        /// with `--device`. Unset: `train.device`. If only one of both is a GPU, processes must not compute tasks.
        #[schemars(extend("examples" = ["cuda"]))]
        pub device: Option<Device> = None,
        /// A process computes tasks, too, when its compute thread is idle. If false, tensor workers compute all tasks.
        #[schemars(extend("x-results" = false))]
        pub local_tasks: bool = true,
        /// Search the number of workers with the best value of an epoch, 1 / (time × cost) with `[price]`, else with the shortest epoch. It
        /// begins with one per interval, at most 100, and may choose 0 if `local_tasks` is set.
        #[schemars(extend("x-results" = false))]
        pub autotune: bool = true,
        /// A call that takes this many times the median is sent to a second worker, too; the first reply counts.
        #[schemars(range(min = 1.0), extend("x-results" = false))]
        pub late: f64 = 4.0,
        /// A worker that has not replied for this long is lost.
        #[schemars(extend("x-results" = false))]
        pub timeout: Span = Span::seconds(30),
        /// How often each launched worker is restarted when it is lost. Unset: 3.
        #[schemars(range(max = 1000), extend("x-results" = false), extend("examples" = [5]))]
        pub relaunch: Option<u32> = None,
        /// What to do when all workers are lost.
        #[schemars(extend("x-results" = false))]
        pub when_gone: WhenGone = WhenGone::Local,
    }
}

/// How often a launched worker is restarted by default.
const RELAUNCH: u32 = 3;

impl Tensor {
    /// How often a launched worker is restarted.
    pub fn relaunch(&self) -> u32 {
        self.relaunch.unwrap_or(RELAUNCH)
    }

    /// The device on which workers of a run compute whose processes compute on `run`.
    pub fn device(&self, run: Device) -> Device {
        self.device.unwrap_or(run)
    }

    /// Number of workers that memory is planned for.
    pub(crate) fn expected(&self) -> usize {
        let accepted = if self.accept.is_some() { ACCEPTED } else { 0 };
        self.workers.unwrap_or(0) + self.hosts.as_ref().map_or(0, Vec::len) + accepted
    }
}

words! {
    /// What to do when all tensor workers are lost.
    pub enum WhenGone {
        /// Each process computes its own tasks, with a warning.
        Local = "local",
        /// The run ends with an error.
        Fail = "fail",
    }
}
