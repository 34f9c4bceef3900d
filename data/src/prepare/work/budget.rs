//! The division of `partition.memory`.
//!
//! First come the arrays over all nodes that exist throughout the preparation, then the state of the partitioner or of a filter, then buckets
//! and buffers. The dictionary of ids is in memory if it takes at most a quarter of the budget and leaves enough for the others. Otherwise
//! it is on disk (see [`crate::ids`]), and each loaded group of it may take that quarter.

use super::Preparation;
use crate::error::{Error, Result};
use crate::group::ProcessGroup;
use crate::partitioner::Goal;
use crate::prepare::scan::Scan;
use crate::prepare::{PrepareSettings, clean};

/// Minimum size of a bucket with its own file.
const SMALLEST_BUCKET: u64 = 4 << 10;
/// Memory of the program without data.
const PROGRAM: u64 = 48 << 20;
/// Memory of a reading thread.
const READER: u64 = 16 << 20;
/// The inverse of the dictionary's share of the budget.
const SHARE: u64 = 4;

/// The memory budget of a preparation with a known number of nodes, in bytes.
pub(super) struct Budget {
    /// For the partitioner, in addition to its few dozen bytes per node.
    pub(super) partitioner: u64,
    /// For buckets and buffers, after partitioning.
    pub(super) buffers: u64,
}

impl Budget {
    /// Maximum size of a bucket that is sorted in memory. Sorting takes up to three times as much, in every thread.
    pub(super) fn bucket(&self) -> u64 {
        (self.buffers / (4 * rayon::current_num_threads() as u64)).max(SMALLEST_BUCKET)
    }
}

/// Returns the bytes of the arrays over all nodes, ids excluded: global id, split, a bit for halos.
pub(in crate::prepare) fn held(nodes: u64) -> u64 {
    5 * nodes + nodes / 8
}

impl<C: ProcessGroup> Preparation<'_, C> {
    /// Returns [`held`] plus the bytes of node types, if parts are balanced by them.
    fn held(&self, nodes: u64) -> u64 {
        held(nodes) + if self.settings.balance.types.is_some() { 2 * nodes } else { 0 }
    }

    /// Returns the maximum bytes of memory of the dictionary of `nodes` nodes.
    pub(super) fn dictionary_limit(&self, nodes: u64) -> u64 {
        let Self { settings, source, partitioner, .. } = self;
        let index = if source.drops_nodes() { 4 * nodes } else { 0 };
        let state = partitioner.state_bytes(nodes, &self.goal(settings.memory)).max(clean::state_bytes(nodes, source));
        (settings.memory / SHARE).min(settings.memory.saturating_sub(self.held(nodes) + index + state))
    }

    /// Divides the memory that remains beside the arrays over all nodes and `state`, the bytes of a temporary state.
    pub(super) fn budget(&self, scan: &Scan, state: u64) -> Result<Budget> {
        let n = scan.ids.len() as u64;
        let held = self.held(n) + scan.ids.index_bytes();
        // Without the dictionary, which can be on disk.
        let needed = held + state;
        if needed > self.settings.memory {
            return Err(Error::Budget { nodes: n, needed, memory: self.settings.memory });
        }
        let rest = self.settings.memory.saturating_sub(held + scan.ids.dictionary_bytes());
        // The number of threads of this machine must not affect the partitioner's result.
        let reserve = |wanted: u64| wanted.min(rest / 2);
        let reader = READER + self.nodes.read_ahead().max(self.edges.read_ahead());
        let readers = PROGRAM + rayon::current_num_threads() as u64 * reader;
        Ok(Budget { partitioner: rest - reserve(PROGRAM + 4 * READER), buffers: rest - reserve(readers) })
    }

    pub(super) fn goal(&self, memory: u64) -> Goal {
        let PrepareSettings { parts, seed, balance, .. } = *self.settings;
        Goal { parts, seed, memory, balance }
    }
}
