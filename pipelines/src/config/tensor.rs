//! `[train.tensor]`: tensor workers.

use super::section::{section, words};
use super::values::Span;

/// Workers that room is made for where any number may enlist.
pub(crate) const ENLISTED: usize = 4;

section! {
    /// Tensor workers: stateless processes that do the arithmetic on nodes for `full-graph` and `tensor-parallel`. Without this table, each process does its own.
    pub struct Tensor {
        /// How many to launch beside each process, on the same machine. This or `hosts`, `enlist`, or one of them and `enlist`.
        #[schemars(range(min = 1, max = 1000), extend("x-results" = false), extend("examples" = [4]))]
        pub workers: Option<usize> = None,
        /// Where they listen that run elsewhere (`gnnflow tensor-worker --listen HOST:PORT`). They prove the secret of `cluster.secret_file` or `GNNFLOW_SECRET`; without one, only this machine's are asked.
        #[schemars(length(min = 1), extend("x-results" = false), extend("examples" = [["10.0.0.7:7000"]]))]
        pub hosts: Option<Vec<String>> = None,
        /// Where the first process listens for workers that come by themselves, at any time, and go (`gnnflow tensor-worker --connect HOST:PORT`); they are told where the other processes are. They prove the same secret; without one, only this machine's may come.
        #[schemars(extend("x-results" = false), extend("examples" = ["10.0.0.1:7100"]))]
        pub enlist: Option<String> = None,
        /// Threads of each worker that is launched.
        #[schemars(range(min = 1, max = 4096), extend("x-results" = false))]
        pub threads: usize = 1,
        /// Find out how many of them to use: as many as there are intervals at first, at most 100; fewer when their answers pile up, more when nothing waits.
        #[schemars(extend("x-results" = false))]
        pub autotune: bool = true,
        /// A call that takes so many times the median is made once more, elsewhere; the first answer counts.
        #[schemars(range(min = 1.0), extend("x-results" = false))]
        pub late: f64 = 4.0,
        /// A worker that has not answered for so long is lost.
        #[schemars(extend("x-results" = false))]
        pub timeout: Span = Span::seconds(30),
        /// How often each worker that was launched is started again when it is lost, after 0.2 s, 0.4 s and so on, at most 10 s. Unset: 3.
        #[schemars(range(max = 1000), extend("x-results" = false), extend("examples" = [5]))]
        pub relaunch: Option<u32> = None,
        /// What to do when all are gone.
        #[schemars(extend("x-results" = false))]
        pub when_gone: WhenGone = WhenGone::Local,
    }
}

/// How often a launched worker is started again where nobody has said.
const RELAUNCH: u32 = 3;

impl Tensor {
    /// How often a launched worker is started again.
    pub fn relaunch(&self) -> u32 {
        self.relaunch.unwrap_or(RELAUNCH)
    }

    /// How many workers room is made for.
    pub(crate) fn expected(&self) -> usize {
        let enlisted = if self.enlist.is_some() { ENLISTED } else { 0 };
        self.workers.unwrap_or(0) + self.hosts.as_ref().map_or(0, Vec::len) + enlisted
    }
}

words! {
    /// What to do when all tensor workers are gone.
    pub enum WhenGone {
        /// Each process does its own arithmetic, and says so.
        Local = "local",
        /// The run ends, as for a fault of the machine.
        Fail = "fail",
    }
}
