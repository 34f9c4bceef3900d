//! `gnnflow calibrate`: measures the rates by which `train.schedule = "auto"` compares schedules.

use super::context::Context;
use super::output::{print, print_json};
use crate::error::Error;
use gnnflow_data::format::plural;
use gnnflow_pipelines::plan::calibrate;
use std::num::NonZeroUsize;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  gnnflow calibrate                   one process, all cores
  gnnflow calibrate --processes 4     four processes share the cores";

/// Measure what a process does per second on this machine, for `train.schedule = "auto"`.
///
/// It takes a few seconds. The result is a table for the pipeline file, `[train.schedule.rates]`. So the choice of a schedule stays a function of that file.
#[derive(Debug, clap::Args)]
#[command(before_long_help = EXAMPLES)]
pub(super) struct Calibrate {
    /// Number of processes of a run on this machine; they are measured at the same time.
    #[arg(long, default_value = "1", value_name = "N")]
    processes: NonZeroUsize,
    /// Threads of each process [default: the machine's cores, divided among its processes].
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
    /// Folder whose disk is measured.
    #[arg(long, default_value = ".", value_name = "FOLDER")]
    folder: PathBuf,
}

impl Calibrate {
    pub(super) fn execute(&self, context: &Context) -> Result<(), Error> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let processes = self.processes.get();
        let threads = self.threads.map_or_else(|| cores.div_ceil(processes), NonZeroUsize::get);
        let measured = format!("{} of {}", plural(processes, "process"), plural(threads, "thread"));
        context.console.say(&format!("measuring {measured}"));
        let rates = calibrate::measure(processes, threads, &self.folder)?;
        if context.json {
            return print_json(&rates);
        }
        let table = calibrate::table(&rates)?;
        print(&format!(
            "# Measured with {measured} on one machine. The bandwidth is that of the loopback interface, and the latency is not\n\
             # measured: for several machines, write those of your network.\n{table}"
        ))
    }
}
