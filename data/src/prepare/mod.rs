//! Dump → prepared dataset.
//!
//! ```text
//! nodes ──► ids, splits, label kinds ──► created and dropped nodes (see `clean`)
//! edges ──► ends looked up, where the dictionary is on disk
//! edges ──► pairs of indexes on disk ──► partitioner, as many passes as it likes ──► global ids
//! nodes ──► nodes.arrow, features.arrow of every partition
//! edges ──► buckets by destination, on disk when memory runs short ──► topology.arrow, one partition after the other
//! ```
//!
//! **Memory**: all of it is bounded by [`PrepareSettings::memory`]: 5 bytes per node, and what the partitioner needs; the dictionary
//! of ids while it takes no more than a quarter, else it is on disk (see [`crate::ids`]); buckets and buffers in the rest. Beyond
//! the budget goes only a single node whose in-edges do not fit. Never anything per edge.
//!
//! **Determinism**: the bytes depend on dump, settings and seed alone, not on threads or processes; on memory only where a
//! partitioner says so.
//!
//! **Several processes** make one dataset together ([`prepare_with`] and a [`ProcessGroup`]): each reads its share of the row groups, the
//! edges' order being kept, and writes its share of the partitions.
//!
//! **Killed** preparations go on at their last whole pass (see `journal`).

mod arrange;
mod buckets;
mod clean;
mod edge_pass;
mod ends;
mod fingerprint;
mod folder;
mod halo;
mod journal;
mod key_counts;
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

pub use fingerprint::{Fingerprint, State, fingerprint, state};

pub use quality::{Balance, InDegrees, Quality};
pub use recorder::PassRecord;

// What an update of a dataset has in common with its preparation.
pub(crate) use fingerprint::{hex, input_files};
pub(crate) use folder::{Growing, Lock, SCRATCH, write_file};
pub(crate) use halo::{HaloFeatures, write_halo};
pub(crate) use quality::{PAIRS, peak_rss};
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

/// How to prepare.
#[derive(Clone, Debug, PartialEq)]
pub struct PrepareSettings {
    /// Number of partitions, at least one.
    pub parts: u32,
    /// Folder of the dataset.
    pub out: PathBuf,
    /// Bytes of memory for the whole preparation, of every process.
    pub memory: u64,
    /// Seed of the partitioner.
    pub seed: u64,
    /// How even the partitions have to be.
    pub balance: Targets,
    /// Store the features of every partition's halo nodes with it, and not only their ids.
    pub halo_features: bool,
}

impl PrepareSettings {
    /// So many partitions in folder `out`, with everything else at its default.
    pub fn new(out: impl Into<PathBuf>, parts: u32) -> Self {
        let Goal { seed, memory, balance, .. } = Goal::new(parts);
        Self { parts, out: out.into(), memory, seed, balance, halo_features: false }
    }
}

/// What a dump needs, from its footers alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// Number of nodes.
    pub nodes: u64,
    /// Number of edge rows.
    pub edge_rows: u64,
    /// Number of edges in the dataset at most.
    pub edges: u64,
    /// Values per node.
    pub feature_dim: usize,
    /// Bytes of memory while preparing, at most.
    pub memory: u64,
    /// Bytes of the dataset on disk, about.
    pub disk: u64,
    /// Bytes on disk while preparing, besides.
    pub scratch: u64,
}

/// What preparing `source` needs. Reads footers only.
///
/// # Errors
/// Missing or broken files, missing columns, columns of the wrong type.
pub fn estimate(source: &GraphSource, settings: &PrepareSettings) -> Result<Estimate> {
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
        memory: settings.memory.max(work::held(n)),
        disk: features + 21 * n + most * (record.stride as u64 - 4),
        scratch: most * record.stride as u64 + 8 * rows,
    })
}

/// Prepares the dataset in `settings.out`, unless the very same is there already.
///
/// One process at a time: others wait, and find it done. A stale dataset is replaced; a folder that holds something else is
/// left alone. Until everything has reached the disk, `settings.out` stays as it was.
///
/// # Errors
/// Bad input, with its place; a full disk; a budget that is too small; [`Error::Occupied`].
pub fn prepare(
    source: &GraphSource,
    partitioner: &dyn Partitioner,
    settings: &PrepareSettings,
    progress: &dyn Progress,
) -> Result<Manifest> {
    prepare_with(&SingleProcess, source, partitioner, settings, progress)
}

/// [`prepare`] by several processes together, all of which call this with the same arguments, see the same input files, and
/// write into the same folder.
///
/// # Errors
/// As [`prepare`].
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
