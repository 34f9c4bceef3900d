//! `gnnflow top`: shows what a running job does.

use super::context::Context;
use super::output::{print, print_json};
use crate::error::Error;
use crate::status::RunStatus;
use crate::top;
use std::io::IsTerminal;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  gnnflow top runs/sage                            refreshed every second; q ends it
  gnnflow top runs/sage --once                     one table
  gnnflow top runs/sage --once --json              all numbers, for programs";

/// Show what a running job does: its stage and remaining time, and memory, CPU, traffic, cache and steps of each process.
///
/// It reads status.json in the run folder, which rank 0 of `run`, `infer`, `refresh` and `follow` writes every second. If stdout is not a terminal, it
/// prints one table and ends.
#[derive(Debug, clap::Args)]
#[command(before_long_help = EXAMPLES)]
pub(super) struct Top {
    /// Run folder, or the output folder of another command.
    run: PathBuf,
    /// Print one table and end.
    #[arg(long)]
    once: bool,
}

impl Top {
    pub(super) fn execute(self, context: &Context) -> Result<(), Error> {
        let status = RunStatus::read(&self.run)?;
        if context.json {
            return print_json(&status);
        }
        if self.once || !std::io::stdout().is_terminal() {
            return print(&top::text(&status));
        }
        top::show(&self.run, status)
    }
}
