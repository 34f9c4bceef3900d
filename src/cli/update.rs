//! `gnnflow update`: a prepared dataset, kept right while edges come and go and nodes come.

use super::{Context, print, print_json};
use crate::{Error, report};
use gnnflow_data::prepare::Quality;
use gnnflow_data::update::{AFFECTED, Batch, Missing, UpdateSettings, update};
use gnnflow_dataflow::incremental::Differential;
use gnnflow_pipelines::Error as PipelineError;
use std::path::{Path, PathBuf};

/// Bring a prepared dataset up to date without preparing it again: edges that come and go, nodes that come. Their columns
/// are those that the dataset was prepared from. Nodes whose neighbourhood has changed are listed in its affected.parquet.
#[derive(Debug, clap::Args)]
pub(super) struct Update {
    /// The folder of the dataset.
    dataset: PathBuf,
    /// Edges that come: Parquet files, or folders of them.
    #[arg(long, value_name = "PATH", num_args = 1..)]
    edges: Vec<PathBuf>,
    /// Edges that go, before others come: both ends and, where edges have types, the type.
    #[arg(long, value_name = "PATH", num_args = 1..)]
    remove: Vec<PathBuf>,
    /// Nodes that come, before any edge does.
    #[arg(long, value_name = "PATH", num_args = 1..)]
    nodes: Vec<PathBuf>,
    /// Several batches, one after the other: a folder of folders, in order of their names, each of which holds
    /// edges.parquet, remove.parquet or nodes.parquet (files, or folders of them).
    #[arg(long, value_name = "DIR", conflicts_with_all = ["edges", "remove", "nodes"])]
    batches: Option<PathBuf>,
    /// Leave the dataset as it is, and write the new one here.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// What to do when an edge that is to be removed is not there.
    #[arg(long, value_name = "POLICY", value_enum, default_value_t)]
    missing: Policy,
    /// List the nodes whose neighbourhood of so many hops has changed: the layers of the model, and one more for GCN.
    #[arg(long, value_name = "K", default_value_t = 2)]
    hops: u32,
}

#[derive(Clone, Copy, Debug, Default, clap::ValueEnum)]
enum Policy {
    #[default]
    Fail,
    Ignore,
}

impl Update {
    pub(super) fn execute(self, context: &Context) -> Result<(), Error> {
        let batches = match &self.batches {
            Some(folder) => batches(folder)?,
            None => vec![Batch { nodes: self.nodes, remove: self.remove, edges: self.edges }],
        };
        let settings = UpdateSettings {
            out: self.out,
            missing: match self.missing {
                Policy::Fail => Missing::Fail,
                Policy::Ignore => Missing::Ignore,
            },
            hops: self.hops,
        };
        let workers = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let updated = update(&self.dataset, &batches, &Differential { workers }, &settings, &context.console)?;
        report::write_partition(&updated.dataset, &Quality::read(&updated.dataset)?)?;
        if context.json {
            return print_json(&updated);
        }
        if context.console.is_silent() {
            return Ok(());
        }
        let counts = &updated.counts;
        let mut text = format!(
            "{}: {} nodes (+{}), {} edges (+{} −{}); {} of {} partitions written in {:.2} s\n",
            updated.dataset.display(),
            updated.nodes,
            counts.nodes_added,
            updated.edges,
            counts.edges_added,
            counts.edges_removed,
            updated.rewritten.len(),
            updated.manifest.parts(),
            updated.seconds,
        );
        for (count, what) in [
            (counts.duplicates_dropped, "added edges were there already"),
            (counts.unknown_dropped, "added rows name unknown nodes"),
            (counts.self_loops_dropped, "added rows lead from a node to itself"),
            (counts.missing_ignored, "rows to be removed were not there"),
        ] {
            if count > 0 {
                text += &format!("left out: {count} {what}\n");
            }
        }
        let affected = updated.dataset.join(AFFECTED);
        print(&format!("{text}{}: {} nodes within {} hops\n", affected.display(), updated.affected, settings.hops))
    }
}

/// The batches in a folder.
fn batches(folder: &Path) -> Result<Vec<Batch>, Error> {
    let list = |e| PipelineError::io("list", folder)(e);
    let mut folders = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(list)? {
        let path = entry.map_err(list)?.path();
        if path.is_dir() {
            folders.push(path);
        }
    }
    folders.sort();
    let there = |path: PathBuf| if path.exists() { vec![path] } else { Vec::new() };
    let batch = |folder: PathBuf| Batch {
        nodes: there(folder.join("nodes.parquet")),
        remove: there(folder.join("remove.parquet")),
        edges: there(folder.join("edges.parquet")),
    };
    Ok(folders.into_iter().map(batch).collect())
}
