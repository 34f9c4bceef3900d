//! Updates a prepared dataset: adds nodes, changes values of nodes, removes edges and nodes, and adds edges.
//!
//! ```text
//! update files ──► look up ids ──► find the touched edges ──► apply the policies to each
//!                                                                       │
//!   assign partitions to new nodes ◄────────────────────────────────────┤
//!   changed partitions: merge old lists and sorted changes ──► topology.arrow, halo.arrow
//!   other partitions: link the same files
//!   affected.parquet: nodes whose neighborhood has changed
//! ```
//!
//! The result equals a preparation of the changed dump in which every node stays in its partition. In the changed dump,
//! removed edges and nodes are missing, and added edges and nodes are rows at the end. New nodes follow the old nodes of
//! their partition. Batches take effect in order. Each batch adds nodes, changes values of nodes, removes edges, removes
//! nodes with all their edges, and adds edges, in this order.
//!
//! **Cost**: the ids of all nodes are read once. Topologies are read and written once for each changed partition: those
//! of the destinations, or of both ends in an undirected graph. New and removed nodes shift the global ids of other nodes,
//! and then all topologies and halos are written; with removed nodes, all topologies are read twice. Files with other labels,
//! splits or features are written once. **Memory**: the rows of the update, the removed edges, and about one bit per node
//! and thread.
//!
//! Datasets with these settings are refused: k-core, largest component, isolated nodes and reverse edges, which depend on
//! the entire graph; times of nodes; splits and labels of edges. New nodes and other features are refused if each type of
//! nodes has its own features. Standardized features keep the means and deviations of the preparation. If the splits were
//! drawn, new nodes are in no split.
//! Edges that name unknown nodes are refused even if the preparation creates such nodes; [`Batch::nodes`] adds nodes.

mod assign;
mod batch;
mod changes;
mod ids;
mod input;
mod merge;
mod new_nodes;
mod new_values;
mod node_columns;
mod policy;
mod reach;
mod removed_nodes;
#[cfg(test)]
mod tests;
mod touched;
mod type_codes;
mod work;
mod write_nodes;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use batch::Batch;
pub use changes::{ChangeReader, ChangedEdge, Changes, batch_files};
pub use ids::NewIds;
pub use policy::{Change, EdgeKey, Outcome, settle};

use crate::dataset::{Manifest, UpdateCounts};
use crate::error::Result;
use crate::progress::Progress;

/// Name of the file in the dataset's folder that lists the nodes affected by the last update.
pub const AFFECTED: &str = "affected.parquet";

/// Policy for removals of edges and nodes that do not exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Missing {
    /// Fail with the place of the first one.
    #[default]
    Fail,
    /// Count and skip them.
    Ignore,
}

/// Settings of an update.
#[derive(Clone, Debug, PartialEq)]
pub struct UpdateSettings {
    /// Folder of the updated dataset; `None` replaces the old one.
    pub out: Option<PathBuf>,
    /// Policy for removals of edges and nodes that do not exist.
    pub missing: Missing,
    /// A node is affected if its in-neighborhood of this many hops has changed. Use the number of layers of the model,
    /// plus one for models that use the degrees of in-neighbors (GCN).
    pub hops: u32,
    /// The partition of each new node, in the order of rows, removed ones included; `None` chooses them.
    pub partitions: Option<Vec<usize>>,
}

impl Default for UpdateSettings {
    /// In place, two hops, [`Missing::Fail`].
    fn default() -> Self {
        Self { out: None, missing: Missing::default(), hops: 2, partitions: None }
    }
}

/// Result of an update.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Updated {
    /// The folder of the dataset.
    pub dataset: PathBuf,
    /// Numbers of added and removed nodes and edges.
    pub counts: UpdateCounts,
    /// Number of nodes after the update.
    pub nodes: u64,
    /// Number of directed edges after the update.
    pub edges: u64,
    /// Number of nodes in [`AFFECTED`].
    pub affected: u64,
    /// Partitions of which a file was written. The other partitions have the same files as before.
    pub rewritten: Vec<usize>,
    /// Wall-clock time.
    pub seconds: f64,
    /// The manifest after the update.
    #[serde(skip)]
    pub manifest: Manifest,
}

/// Applies `batches` in order to the dataset in folder `dir`.
///
/// The new dataset appears completely or not at all. Readers that have the old dataset open keep reading it.
///
/// # Errors
/// When the input is invalid (with its place), the dataset is damaged, or the disk is full; and
/// [`Error::Occupied`](crate::Error::Occupied).
pub fn update(dir: &Path, batches: &[Batch], settings: &UpdateSettings, progress: &dyn Progress) -> Result<Updated> {
    work::run(dir, batches, settings, progress)
}
