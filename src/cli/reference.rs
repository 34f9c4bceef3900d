//! `gnnflow reference`: prints all configuration keys.

use super::context::Context;
use super::output::{print, print_json};
use crate::error::Error;
use gnnflow_pipelines::config::reference;

/// Print all keys of a pipeline file with type, default and meaning; with --json, as a JSON Schema.
#[derive(Debug, clap::Args)]
pub(super) struct Reference {}

impl Reference {
    pub(super) fn execute(&self, context: &Context) -> Result<(), Error> {
        if context.json { print_json(reference::schema()) } else { print(&reference::markdown()) }
    }
}
