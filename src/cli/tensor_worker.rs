//! `gnnflow tensor-worker`: arithmetic on nodes, for runs that ask for it.

use super::{Context, print};
use crate::Error;
use crate::cluster::Secret;
use crate::tensor::{Limits, Post, listen, listens_towards};
use std::path::PathBuf;
use std::time::Duration;

/// Do the arithmetic on nodes for runs over whole graphs: for those whose `train.tensor_workers.hosts` name this process, until it is ended; or for the
/// one whose `train.tensor_workers.accept` is given here, until that is over. It holds nothing: runs may come, and it may come and go, at any time.
///
/// It speaks Arrow Flight, to whoever proves the secret; nothing is encrypted. Prints where it listens, with whom it has enlisted, and when that is over.
#[derive(Debug, clap::Args)]
pub(super) struct TensorWorker {
    /// Where to listen; port 0 is any that is free. With `--connect`, where the run's processes reach this one [default: this machine's
    /// address in their direction, any port].
    #[arg(long, value_name = "HOST:PORT", required_unless_present = "connect")]
    listen: Option<String>,
    /// Enlist with the run whose `train.tensor_workers.accept` this is, and end when it is over.
    #[arg(long, value_name = "HOST:PORT")]
    connect: Option<String>,
    /// How long the run is looked for, before it is there and when it is lost.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, requires = "connect")]
    wait: u32,
    /// Threads of arithmetic [default: the machine's cores].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
    /// File with the secret, unless GNNFLOW_SECRET has it.
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
    /// End when standard input does: for those that a run launches.
    #[arg(long, hide = true)]
    until_input_ends: bool,
}

impl TensorWorker {
    pub(super) fn execute(self, context: Context) -> Result<(), Error> {
        crate::panics::tell_at_once();
        let secret = Secret::find(|name| std::env::var(name).ok(), self.secret_file.as_deref())?;
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        let patience = Duration::from_secs(self.wait.into());
        let limits = Limits {
            threads: self.threads.map_or_else(cores, usize::from),
            with_input: self.until_input_ends,
            post: self.connect.clone().map(|at| Post { at, patience }),
        };
        let (key, address) = match (self.listen, self.connect) {
            (Some(listen), _) => ("--listen", listen),
            (None, connect) => ("--connect", listens_towards(&connect.unwrap_or_default(), secret.as_ref())?),
        };
        listen((key, &address), secret, context.registry, limits, |line| print(&format!("{line}\n")))
    }
}
