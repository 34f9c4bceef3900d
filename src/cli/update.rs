//! `gnnflow update`: applies added and removed edges and nodes, and new values of nodes, to a prepared dataset.

use super::context::Context;
use super::output::{print, print_json};
use crate::error::Error;
use crate::report;
use gnnflow_data::prepare::Quality;
use gnnflow_data::update::{AFFECTED, Batch, Missing, UpdateSettings, update};
use gnnflow_pipelines::Error as PipelineError;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  gnnflow update prepared/cora --edges new.parquet --remove old.parquet
  gnnflow update prepared/cora --values new-features.parquet
  gnnflow update prepared/cora --batches monday --out prepared/cora-monday";

/// Apply added and removed edges and nodes, and new values of nodes, to a prepared dataset, without preparing it again.
///
/// The input files have the columns of the files from which the dataset was prepared. The nodes whose neighborhood has changed are
/// written to affected.parquet in the dataset's folder.
#[derive(Debug, clap::Args)]
#[command(before_long_help = EXAMPLES)]
pub(super) struct Update {
    /// Folder of the dataset.
    dataset: PathBuf,
    /// Edges to add: Parquet files, or folders of them.
    #[arg(long, value_name = "PATH", num_args = 1..)]
    edges: Vec<PathBuf>,
    /// Edges to remove, before any are added: both ends and, if edges have types, the type.
    #[arg(long, value_name = "PATH", num_args = 1..)]
    remove: Vec<PathBuf>,
    /// Nodes to add, before any edges are added.
    #[arg(long, value_name = "PATH", num_args = 1..)]
    nodes: Vec<PathBuf>,
    /// New values of nodes, set after nodes are added: the id, and all features, the label or the split.
    #[arg(long, value_name = "PATH", num_args = 1..)]
    values: Vec<PathBuf>,
    /// Nodes to remove with all their edges, after edges are removed and before any are added: the id.
    #[arg(long, value_name = "PATH", num_args = 1..)]
    remove_nodes: Vec<PathBuf>,
    /// Folder of batches, applied in the order of their names; a batch is a folder with edges.parquet, remove.parquet,
    /// nodes.parquet, values.parquet or remove_nodes.parquet (files, or folders of them).
    #[arg(long, value_name = "DIR", conflicts_with_all = ["edges", "remove", "nodes", "values", "remove_nodes"])]
    batches: Option<PathBuf>,
    /// Write the new dataset to this folder, and keep the old one.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// What to do if an edge or node to remove does not exist.
    #[arg(long, value_name = "POLICY", value_enum, default_value_t)]
    missing: Policy,
    /// Hops over which a change affects nodes: the model's number of layers, one more for GCN.
    #[arg(long, value_name = "K", default_value_t = 2)]
    hops: u32,
}

#[derive(Clone, Copy, Debug, Default, clap::ValueEnum)]
pub(super) enum Policy {
    #[default]
    Fail,
    Ignore,
}

impl From<Policy> for Missing {
    fn from(policy: Policy) -> Self {
        match policy {
            Policy::Fail => Self::Fail,
            Policy::Ignore => Self::Ignore,
        }
    }
}

impl Update {
    pub(super) fn execute(self, context: &Context) -> Result<(), Error> {
        let lists = [&self.edges, &self.remove, &self.nodes, &self.values, &self.remove_nodes];
        if self.batches.is_none() && lists.iter().all(|list| list.is_empty()) {
            let message = "nothing to do; give --edges, --remove, --nodes, --values, --remove-nodes or --batches";
            return Err(PipelineError::Usage(message.into()).into());
        }
        let batches = match &self.batches {
            Some(folder) => Batch::all_in(folder)?,
            None => vec![Batch {
                nodes: self.nodes,
                values: self.values,
                remove: self.remove,
                remove_nodes: self.remove_nodes,
                edges: self.edges,
            }],
        };
        let settings =
            UpdateSettings { out: self.out, missing: self.missing.into(), hops: self.hops, partitions: None };
        let updated = update(&self.dataset, &batches, &settings, &context.console)?;
        report::write_partition(&updated.dataset, &Quality::read(&updated.dataset)?)?;
        if context.json {
            return print_json(&updated);
        }
        if context.console.is_silent() {
            return Ok(());
        }
        let counts = &updated.counts;
        let mut text = format!(
            "{}: {} nodes (+{} −{}), {} with new values, {} edges (+{} −{}); {} of {} partitions changed in {:.2} s\n",
            updated.dataset.display(),
            updated.nodes,
            counts.nodes_added,
            counts.nodes_removed,
            counts.nodes_changed,
            updated.edges,
            counts.edges_added,
            counts.edges_removed,
            updated.rewritten.len(),
            updated.manifest.parts(),
            updated.seconds,
        );
        for (count, what) in [
            (counts.duplicates_dropped, "added edges that existed already"),
            (counts.unknown_dropped, "added edges of unknown nodes"),
            (counts.self_loops_dropped, "added self-loops"),
            (counts.missing_ignored, "edges to remove that did not exist"),
            (counts.missing_nodes_ignored, "nodes to remove that did not exist"),
        ] {
            if count > 0 {
                text += &format!("skipped: {count} {what}\n");
            }
        }
        let affected = updated.dataset.join(AFFECTED);
        print(&format!("{text}{}: {} nodes within {} hops\n", affected.display(), updated.affected, settings.hops))
    }
}
