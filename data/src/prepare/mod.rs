//! Prepares a dataset from a dump.
//!
//! ```text
//! nodes ──► ids, splits, kinds of labels ──► nodes created and dropped (see `clean`)
//! edges ──► lookup of source and destination ids, if the dictionary is on disk
//! edges ──► pairs of indexes on disk ──► partitioner, in any number of passes ──► global ids
//! nodes ──► nodes.arrow, features.arrow of every partition
//! edges ──► buckets by destination, on disk if memory is short ──► topology.arrow, one partition after another
//! ```
//!
//! **Memory** is bounded by [`PrepareSettings::memory`]: the program and its reading threads, 5 bytes per node, and what the partitioner
//! needs; the dictionary of ids if it needs at most a quarter, else it is on disk (see [`crate::ids`]); buckets and buffers in the rest.
//! A budget that is too small is refused with the amount that is needed. Only a single node whose in-edges do not fit exceeds the budget.
//! No array in memory has an entry per edge.
//!
//! **Determinism**: the bytes of a dataset depend only on dump, settings and seed, not on the number of threads or processes, and not on
//! the memory budget. [`PrepareSettings::method_memory`] changes them if the partitioner says so.
//!
//! **Several processes** prepare one dataset together ([`prepare_with`] and a [`ProcessGroup`]). Each reads its share of the row groups
//! and writes its share of the partitions. The order of the edges is that of the dump.
//!
//! **Killed** preparations resume after their last completed pass (see `journal`).

mod arrange;
mod buckets;
mod clean;
mod edge_scan;
mod encode_like;
mod ends;
mod fingerprint;
mod folder;
mod halo;
mod journal;
mod key_counts;
mod labels;
mod lock;
mod pairs;
mod quality;
mod record;
mod recorder;
mod relabel;
mod scale;
mod scan;
mod stream;
#[cfg(test)]
mod tests;
mod types;
mod work;
mod write_nodes;
mod write_topology;

use std::path::PathBuf;

pub use fingerprint::{Fingerprint, State, fingerprint, graph_settings, state};

pub use quality::{Balance, InDegrees, Quality};
pub use recorder::PassRecord;

// Shared with updates of a dataset.
pub(crate) use fingerprint::input_files;
pub(crate) use folder::{SCRATCH, StagingFolder, lock, restore, write_file};
pub(crate) use halo::{HaloFeatures, PAIRS, count_halo, write_halo};
pub(crate) use lock::Lock;
pub(crate) use recorder::Recorder;
pub(crate) use scale::Scale;
pub(crate) use write_nodes::NodeFiles;
pub(crate) use write_topology::topology_schema;

use crate::dataset::Manifest;
use crate::dump::{EdgeReader, NodeReader};
use crate::error::{Error, Result};
use crate::group::{ProcessGroup, SingleProcess};
use crate::partitioner::{Goal, MAX_PARTS, Partitioner, Targets};
use crate::progress::Progress;
use crate::source::{GraphSource, SelfLoops};
use record::Record;

/// Settings of a preparation.
#[derive(Clone, Debug, PartialEq)]
pub struct PrepareSettings {
    /// Number of partitions, at least one.
    pub parts: u32,
    /// Folder of the dataset.
    pub out: PathBuf,
    /// Memory budget of every process, in bytes. It never changes the dataset.
    pub memory: u64,
    /// Memory of the program without a graph, in bytes, as a part of `memory`. Then the buffers of reading threads count, too, and
    /// `memory` bounds the process. `None`: `memory` is for data only, and half of what remains is left for such buffers.
    pub program: Option<u64>,
    /// Memory that the partitioner plans with, in bytes. The dataset depends on it if the partitioner says so.
    pub method_memory: u64,
    /// Seed of the partitioner.
    pub seed: u64,
    /// Balance constraints of the partitions.
    pub balance: Targets,
    /// Whether to store the features of halo nodes, and not only their ids, with every partition.
    pub halo_features: bool,
}

impl PrepareSettings {
    /// Whether parts are balanced by the types of their nodes.
    fn balance_types(&self) -> bool {
        self.balance.types.is_some()
    }

    /// Creates settings for `parts` partitions in folder `out`, with defaults otherwise.
    pub fn new(out: impl Into<PathBuf>, parts: u32) -> Self {
        let Goal { seed, memory, balance, .. } = Goal::new(parts);
        let out = out.into();
        Self { parts, out, memory, program: None, method_memory: memory, seed, balance, halo_features: false }
    }
}

/// Sizes of a dataset and of its preparation, estimated from the footers of the dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// Number of nodes.
    pub nodes: u64,
    /// Number of edge rows.
    pub edge_rows: u64,
    /// Upper bound of the number of edges in the dataset.
    pub edges: u64,
    /// Values per node.
    pub feature_dim: usize,
    /// Upper bound of the memory of the preparation, in bytes.
    pub memory: u64,
    /// Approximate size of the dataset on disk, in bytes.
    pub disk: u64,
    /// Additional bytes on disk during the preparation.
    pub scratch: u64,
}

/// Estimates the sizes of the dataset from `source`, prepared by `processes` processes. Reads only footers. Without a partitioner, the
/// estimate of the memory is the budget.
///
/// # Errors
/// Missing or broken files, missing columns, columns of the wrong type.
pub fn estimate(
    source: &GraphSource,
    partitioner: Option<&dyn Partitioner>,
    settings: &PrepareSettings,
    processes: usize,
) -> Result<Estimate> {
    let nodes = NodeReader::open(source)?;
    let edges = EdgeReader::open(source, Some(nodes.id_kind()))?;
    let record = Record::new(source, edges.feature_width());
    let (n, rows) = (nodes.rows(), edges.rows());
    let loops = if source.self_loops == SelfLoops::Add { n } else { 0 };
    let most = rows * (1 + u64::from(source.both_ways())) + loops;
    let features = n * nodes.feature_layout().row_bytes() as u64;
    Ok(Estimate {
        nodes: n,
        edge_rows: rows,
        edges: most,
        feature_dim: nodes.feature_width(),
        memory: match partitioner {
            Some(partitioner) => {
                let needs = work::Needs::new((&nodes, &edges), (source, settings), partitioner, processes);
                needs.largest(n, rows, most * record.stride as u64).min(settings.memory)
            }
            None => settings.memory,
        },
        disk: features + 21 * n + most * (record.stride as u64 - 4),
        scratch: most * record.stride as u64 + 8 * rows,
    })
}

/// Prepares the dataset in `settings.out` unless it is current.
///
/// Only one process prepares at a time; others wait, and then find the dataset current. A stale dataset is replaced. An updated dataset, and a
/// folder with other content, are not changed. `settings.out` stays unchanged until all new files are on the disk.
///
/// # Errors
/// Invalid input, with its place; a full disk; a budget that is too small; [`Error::Occupied`]; [`Error::Updated`].
pub fn prepare(
    source: &GraphSource,
    partitioner: &dyn Partitioner,
    settings: &PrepareSettings,
    progress: &dyn Progress,
) -> Result<Manifest> {
    prepare_with(&SingleProcess, source, partitioner, settings, progress)
}

/// Like [`prepare`], by several processes together. All must call this function with the same arguments, have access to the same input
/// files, and write into the same folder.
///
/// # Errors
/// Those of [`prepare`].
pub fn prepare_with<C: ProcessGroup>(
    processes: &C,
    source: &GraphSource,
    partitioner: &dyn Partitioner,
    settings: &PrepareSettings,
    progress: &dyn Progress,
) -> Result<Manifest> {
    source.check()?;
    if settings.parts == 0 || settings.parts > MAX_PARTS {
        let reason = format!("is {}, but must be in 1..={MAX_PARTS}", settings.parts);
        return Err(Error::Setting { key: "partition.parts", reason });
    }
    work::run(processes, source, partitioner, settings, progress)
}
