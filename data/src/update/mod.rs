//! A prepared dataset, kept right while edges come and go and nodes come.
//!
//! ```text
//! update files ──► ids looked up ──► the edges that they touch ──► what becomes of each (Incremental)
//!                                                                       │
//!   new nodes get partitions ◄──────────────────────────────────────────┤
//!   changed partitions: old lists and sorted changes ──► topology.arrow, halo.arrow
//!   other partitions: the same files, linked
//!   affected.parquet: nodes whose neighbourhood has changed
//! ```
//!
//! The result is what preparing the changed dump would give, were every node to stay in its partition and every new one to
//! come behind the others of its partition: edges that go are gone from the dump, edges and nodes that come are new rows at its end.
//! Batches take effect one after the other; in each of them nodes come, then edges go, then edges come.
//!
//! **Cost**: ids of all nodes are read once; of the topologies, the partitions that change are read and written once. New nodes
//! push later partitions' numbers up, so that then all topologies and halos are written. Without new nodes it is the
//! partitions of the edges' destinations (of both ends in an undirected graph). **Memory**: the update's rows, and a bit or so per
//! node and thread; never the graph.
//!
//! Not maintained: what depends on the whole graph (k-core, largest component, isolated nodes) and reverse edges: such datasets are
//! refused, and those with times of nodes, splits or labels of edges; standardised features (new nodes are refused), drawn splits (new nodes are in none unless there is a split column).
//! Edges that name unknown nodes are refused where preparing would have created the nodes: they come by [`Batch::nodes`].

mod assign;
mod ids;
mod incremental;
mod input;
mod merge;
mod new_nodes;
mod reach;
#[cfg(test)]
mod tests;
mod touched;
mod work;
mod write_nodes;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use incremental::{Change, Direct, EdgeKey, Incremental, Outcome, settle};

use crate::dataset::{Manifest, UpdateCounts};
use crate::error::Result;
use crate::progress::Progress;

/// Name of the file in the dataset's folder that lists the nodes that the last update has affected.
pub const AFFECTED: &str = "affected.parquet";

/// What changes together. Each list is files, or folders of `*.parquet`, with the columns that the dataset was prepared from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Nodes that come.
    pub nodes: Vec<PathBuf>,
    /// Edges that go: both ends and, where edges have types, the type.
    pub remove: Vec<PathBuf>,
    /// Edges that come.
    pub edges: Vec<PathBuf>,
}

/// What to do when an edge is to be removed that is not there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Missing {
    /// Stop with the first one's place.
    #[default]
    Fail,
    /// Count it.
    Ignore,
}

/// How to update.
#[derive(Clone, Debug, PartialEq)]
pub struct UpdateSettings {
    /// Where the updated dataset goes; `None` = in the place of the old.
    pub out: Option<PathBuf>,
    /// What to do with removals of what is not there.
    pub missing: Missing,
    /// Nodes count as affected whose in-neighborhood of so many hops has changed: as many as a model has layers. One more
    /// for models that look at the degrees of in-neighbors (GCN).
    pub hops: u32,
}

impl Default for UpdateSettings {
    /// In place, two hops, and what is not there must not be removed.
    fn default() -> Self {
        Self { out: None, missing: Missing::default(), hops: 2 }
    }
}

/// What an update has done.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Updated {
    /// The folder of the dataset.
    pub dataset: PathBuf,
    /// What came and went.
    pub counts: UpdateCounts,
    /// Number of nodes now.
    pub nodes: u64,
    /// Number of directed edges now.
    pub edges: u64,
    /// Nodes in [`AFFECTED`].
    pub affected: u64,
    /// Partitions whose topology was written; those of the others are the same files as before.
    pub rewritten: Vec<usize>,
    /// Wall time.
    pub seconds: f64,
    /// What the dataset holds now.
    #[serde(skip)]
    pub manifest: Manifest,
}

/// Brings the dataset in folder `dir` up to date with `batches`, which take effect in their order.
///
/// The new dataset appears whole or not at all; who has the old one open keeps what they see.
///
/// # Errors
/// Bad input, with its place; a damaged dataset; a full disk; [`Error::Occupied`](crate::Error::Occupied).
pub fn update(
    dir: &Path,
    batches: &[Batch],
    incremental: &dyn Incremental,
    settings: &UpdateSettings,
    progress: &dyn Progress,
) -> Result<Updated> {
    work::run(dir, batches, incremental, settings, progress)
}
