//! `gnnflow compare`: shows several runs side by side.

use super::context::Context;
use super::output::{print, print_json};
use crate::compare::Comparison;
use crate::error::Error;
use crate::report;
use crate::sweep::begun_runs;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  gnnflow compare runs/sage runs/gat
  gnnflow compare runs/sage runs/gat --html compare.html
  gnnflow compare runs/sage runs/sage/earlier/1 --json
  gnnflow compare runs/sage-sweep                  all runs of a sweep";

/// Compare runs: their results, times, and the keys in which their pipelines differ.
///
/// Runs that differ only in train.seed also have a mean. A run that has not ended is compared by its epochs so far.
#[derive(Debug, clap::Args)]
#[command(before_long_help = EXAMPLES)]
pub(super) struct Compare {
    /// Run folders. The folder of a sweep stands for its runs.
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<PathBuf>,
    /// Also write a page with charts of all epochs to this file.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

impl Compare {
    pub(super) fn execute(&self, context: &Context) -> Result<(), Error> {
        let mut runs = Vec::new();
        for folder in &self.runs {
            match begun_runs(folder)? {
                begun if begun.is_empty() => runs.push(folder.clone()),
                begun => runs.extend(begun),
            }
        }
        show(context, &Comparison::read(&runs, &context.registry.names())?, self.html.as_deref())
    }
}

/// Prints a comparison, unless the user wants only errors, and writes its page.
pub(super) fn show(context: &Context, compared: &Comparison, html: Option<&std::path::Path>) -> Result<(), Error> {
    if let Some(path) = html {
        report::write_comparison(path, compared)?;
    }
    match context.json {
        true => print_json(compared),
        false if context.console.is_silent() => Ok(()),
        false => print(&report::comparison_table(compared)),
    }
}
