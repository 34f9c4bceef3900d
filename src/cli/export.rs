//! `gnnflow export`: converts a prepared dataset to Parquet.

use super::context::Context;
use super::output::{print, print_json};
use crate::error::Error;
use gnnflow_data::format::plural;
use gnnflow_data::{Dataset, export};
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  gnnflow export prepared/cora --out cora";

/// Convert a prepared dataset to Parquet, with the partition of every node, and write a pipeline file that reads it.
#[derive(Debug, clap::Args)]
#[command(before_long_help = EXAMPLES)]
pub(super) struct Export {
    /// Folder of the dataset.
    dataset: PathBuf,
    /// Output folder for nodes.parquet, edges.parquet and pipeline.toml.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Maximum number of rows per Parquet file.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    file_rows: Option<u64>,
}

impl Export {
    pub(super) fn execute(&self, context: &Context) -> Result<(), Error> {
        let dataset = Dataset::open(&self.dataset)?;
        let exported = export::export(&dataset, &self.out, self.file_rows, &context.console)?;
        exported.note.iter().for_each(|note| context.console.say(&format!("note: {note}")));
        if context.json {
            return print_json(&exported);
        }
        let (nodes, edges) = (exported.nodes_path.display(), exported.edges_path.display());
        print(&format!(
            "{nodes}: {} in {}\n{edges}: {}\n",
            plural(exported.nodes as usize, "node"),
            plural(exported.parts, "partition"),
            plural(exported.edges as usize, "edge"),
        ))
    }
}
