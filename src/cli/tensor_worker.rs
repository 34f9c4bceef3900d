//! `gnnflow tensor-worker`: a process that runs node tasks for training runs.

use super::context::Context;
use crate::error::Error;
use gnnflow_pipelines::config::Device;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  gnnflow tensor-worker --listen 10.0.0.7:4000 --secret-file secret
  gnnflow tensor-worker --connect 10.0.0.1:4100";

/// Compute node tasks for full-graph and tensor-parallel training.
///
/// With `--listen`, it serves all runs whose `train.tensor_workers.hosts` names it, until it is stopped. With `--connect`, it registers
/// with the run whose `train.tensor_workers.accept` is this address, and ends with that run. It may start and stop at any time.
///
/// It speaks Arrow Flight with clients that prove the secret. Connections to other machines are encrypted,
/// unless `cluster.encrypt` of the run is false.
#[derive(Debug, clap::Args)]
#[command(before_long_help = EXAMPLES)]
pub(super) struct TensorWorker {
    /// Address to listen at; port 0 is any free port [default with `--connect`: this machine's address toward the run, any port].
    /// With `--connect`, the run's processes must reach this address.
    #[arg(long, value_name = "HOST:PORT", required_unless_present = "connect")]
    listen: Option<String>,
    /// Register with the run whose `train.tensor_workers.accept` is this address, and end when the run is over.
    #[arg(long, value_name = "HOST:PORT")]
    connect: Option<String>,
    /// Maximum time to look for the run, before it has started and after it is lost.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, requires = "connect")]
    wait: u32,
    /// The device that computes: `cpu`; `cuda`, the first GPU; or `cuda:1`, the GPU with this number. All workers of a run must compute on the same kind of
    /// device, that of `train.tensor_workers.device`.
    #[arg(long, value_name = "DEVICE", default_value_t = Device::Cpu, value_parser = one_device)]
    device: Device,
    /// Compute threads [default: the machine's cores].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
    /// File with the secret, if GNNFLOW_SECRET is not set.
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
    /// End when standard input ends; set for workers that a run launches.
    #[arg(long, hide = true)]
    until_input_ends: bool,
}

/// Reads the device of one process.
fn one_device(text: &str) -> Result<Device, String> {
    match text.parse()? {
        Device::CudaOfRank => Err("a worker has no rank; name its GPU, such as cuda:1".to_owned()),
        device => Ok(device),
    }
}

impl TensorWorker {
    #[cfg(feature = "tensor-workers")]
    pub(super) fn execute(self, context: Context) -> Result<(), Error> {
        use crate::cluster::Secret;
        use crate::tensor_workers::{Limits, RegisterAt, default_listen_address, listen};
        use std::time::Duration;

        crate::panics::print_immediately();
        let secret = Secret::find(|name| std::env::var(name).ok(), self.secret_file.as_deref())?;
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        let wait = Duration::from_secs(self.wait.into());
        let limits = Limits {
            device: self.device,
            threads: self.threads.map_or_else(cores, usize::from),
            until_input_ends: self.until_input_ends,
            register_at: self.connect.clone().map(|address| RegisterAt { address, wait }),
        };
        let (key, address) = match (self.listen, self.connect) {
            (Some(listen), _) => ("--listen", listen),
            (None, connect) => ("--connect", default_listen_address(&connect.unwrap_or_default(), secret.as_ref())?),
        };
        listen((key, &address), secret, context.registry, limits, |line| super::output::print(&format!("{line}\n")))
    }

    #[cfg(not(feature = "tensor-workers"))]
    pub(super) fn execute(self, _: Context) -> Result<(), Error> {
        Err(gnnflow_pipelines::Error::Usage(crate::tensor_workers::ABSENT.to_owned()).into())
    }
}
