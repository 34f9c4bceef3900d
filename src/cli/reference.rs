//! `gnnflow reference`: prints all configuration keys.

use super::context::Context;
use super::output::{print, print_json};
use crate::error::Error;
use gnnflow_pipelines::config::reference;

const EXAMPLES: &str = "\
Examples:
  gnnflow reference
  gnnflow reference --json";

/// Print all keys of a pipeline file with type, default and meaning; with --json, as a JSON Schema.
#[derive(Debug, clap::Args)]
#[command(before_long_help = EXAMPLES)]
pub(super) struct Reference {}

impl Reference {
    pub(super) fn execute(&self, context: &Context) -> Result<(), Error> {
        if context.json { print_json(reference::schema()) } else { print(&reference::markdown()) }
    }
}
