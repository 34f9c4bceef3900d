//! `gnnflow tensor-worker`: arithmetic on nodes, for runs that ask for it.

use super::{Context, print};
use crate::Error;
use crate::cluster::Secret;
use crate::tensor::{Limits, listen};
use std::path::PathBuf;

/// Do the arithmetic on nodes for runs whose `train.tensor.hosts` name this process, until it is ended. It holds nothing: runs may come,
/// and it may go, at any time.
///
/// It speaks Arrow Flight, to whoever proves the secret; nothing is encrypted. Prints where it listens.
#[derive(Debug, clap::Args)]
pub(super) struct TensorWorker {
    /// Where to listen; port 0 is any that is free.
    #[arg(long, value_name = "HOST:PORT")]
    listen: String,
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
        let secret = Secret::find(|name| std::env::var(name).ok(), self.secret_file.as_deref())?;
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        let limits =
            Limits { threads: self.threads.map_or_else(cores, usize::from), with_input: self.until_input_ends };
        listen(&self.listen, secret, context.registry, limits, |address| print(&format!("listening at {address}\n")))
    }
}
