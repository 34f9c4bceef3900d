//! `gnnflow init`: writes a pipeline file for Parquet tables.

use super::context::Context;
use super::output::{print, print_json};
use crate::error::Error;
use gnnflow_data::init::{self, ColumnNames};
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  gnnflow init dump
  gnnflow init dump --task link-prediction --out links.toml
  gnnflow init --nodes users.parquet --edges follows.parquet --src follower --dst followed";

/// Write a commented pipeline file for Parquet tables of nodes and edges.
///
/// Columns are recognized by their names, types and first values. The labels decide the task.
#[derive(Debug, clap::Args)]
#[command(before_long_help = EXAMPLES)]
pub(super) struct Init {
    /// Folder with nodes.parquet and edges.parquet (files or folders), nodes/ and edges/, or nodes*.parquet and edges*.parquet.
    #[arg(required_unless_present_all = ["nodes", "edges"])]
    dir: Option<PathBuf>,
    /// Nodes: a Parquet file, a folder or a URL; may be repeated.
    #[arg(long, value_name = "PATH")]
    nodes: Vec<PathBuf>,
    /// Edges: a Parquet file, a folder or a URL; may be repeated.
    #[arg(long, value_name = "PATH")]
    edges: Vec<PathBuf>,
    /// The pipeline file, which must not exist.
    #[arg(long, value_name = "FILE", default_value = "pipeline.toml")]
    out: PathBuf,
    /// What to learn [default: from the labels; link-prediction without labels].
    #[arg(long, value_enum)]
    task: Option<Task>,
    /// Nodes: column of the id [default: a column with a usual name].
    #[arg(long, value_name = "COLUMN")]
    id: Option<String>,
    /// Nodes: column of the label [default: a column with a usual name].
    #[arg(long, value_name = "COLUMN")]
    label: Option<String>,
    /// Nodes: column of the split [default: a column with a usual name].
    #[arg(long, value_name = "COLUMN")]
    split: Option<String>,
    /// Edges: column of the source [default: a column with a usual name].
    #[arg(long, value_name = "COLUMN")]
    src: Option<String>,
    /// Edges: column of the destination [default: a column with a usual name].
    #[arg(long, value_name = "COLUMN")]
    dst: Option<String>,
    /// Edges: column of the type [default: a column with a usual name].
    #[arg(long, value_name = "COLUMN")]
    edge_type: Option<String>,
    /// Edges: column of the time [default: a column with a usual name].
    #[arg(long, value_name = "COLUMN")]
    time: Option<String>,
    /// Edges: column of the split [default: a column with a usual name].
    #[arg(long, value_name = "COLUMN")]
    edge_split: Option<String>,
    /// Edges: column of the label [default: a column with a usual name].
    #[arg(long, value_name = "COLUMN")]
    edge_label: Option<String>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Task {
    NodeClassification,
    NodeRegression,
    EdgeClassification,
    LinkPrediction,
}

impl Init {
    pub(super) fn execute(self, context: &Context) -> Result<(), Error> {
        let task = |task| match task {
            Task::NodeClassification => init::Task::NodeClassification,
            Task::NodeRegression => init::Task::NodeRegression,
            Task::EdgeClassification => init::Task::EdgeClassification,
            Task::LinkPrediction => init::Task::LinkPrediction,
        };
        let init = init::Init {
            folder: self.dir,
            nodes: self.nodes,
            edges: self.edges,
            out: self.out,
            columns: ColumnNames {
                id: self.id,
                label: self.label,
                split: self.split,
                src: self.src,
                dst: self.dst,
                edge_type: self.edge_type,
                time: self.time,
                edge_split: self.edge_split,
                edge_label: self.edge_label,
            },
            task: self.task.map(task),
        };
        let written = init.run()?;
        written.notes.iter().for_each(|note| context.console.say(&format!("note: {note}")));
        if context.json { print_json(&written) } else { print(&format!("{written}\n")) }
    }
}
