//! `gnnflow check-cluster`: checks the hosts of a run.

use super::context::Context;
use super::output::{print, print_json};
use crate::check_cluster::{CheckOptions, check_cluster};
use crate::error::Error;
use crate::report::cluster_text;
use std::path::PathBuf;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  gnnflow check-cluster hosts.txt --rank 0        the same on each host, with its own rank
  gnnflow check-cluster hosts.txt --seconds 5     in a job of Slurm or MPI, which gives the ranks";

/// The exit code if a run would suffer from something that was found.
const UNFIT: u8 = 5;

/// Check the hosts of a hosts file: measure all links between them, and compare clocks, memory, disks and limits.
///
/// Start it once per line of the hosts file, as `gnnflow run --hosts`, with the same secret. The processes measure each link in both directions, on the
/// connections that a run uses. Rank 0 prints tables and what should be mended. The exit code is 5 if a run would suffer from it.
#[derive(Debug, clap::Args)]
#[command(before_long_help = EXAMPLES)]
pub(super) struct CheckCluster {
    /// File with one line `host:port` per process.
    hosts: PathBuf,
    /// This process's line in the hosts file, from 0 [default: from the variables of Slurm, MPI, torchrun or Kubernetes].
    #[arg(long, value_name = "K")]
    rank: Option<usize>,
    /// How long data is sent over each link in each direction, from 0.1 to 60; equal for all processes.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    seconds: Duration,
    /// Maximum time until all processes have started.
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u32).range(1..))]
    wait: u32,
    /// File with the secret, if GNNFLOW_SECRET is not set.
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
    /// Whether connections are encrypted, as `cluster.encrypt` [default: unless all addresses are loopback addresses].
    #[arg(long, value_name = "true|false")]
    encrypt: Option<bool>,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.1..=60.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "expected a number from 0.1 to 60".into())
}

impl CheckCluster {
    pub(super) fn execute(self, context: Context) -> Result<u8, Error> {
        let quiet = context.console.is_silent();
        let check = check_cluster(&CheckOptions {
            hosts: self.hosts,
            rank: self.rank,
            secret_file: self.secret_file,
            encrypt: self.encrypt,
            wait: Duration::from_secs(self.wait.into()),
            time: self.seconds,
            console: context.console,
        })?;
        if check.rank == 0 {
            if context.json {
                print_json(&check.report)?;
            } else if !quiet {
                print(&cluster_text(&check.report))?;
            }
        }
        Ok(if check.report.is_fit() { 0 } else { UNFIT })
    }
}
