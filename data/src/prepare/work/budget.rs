//! How `partition.memory` is shared out.
//!
//! First what is held of every node from the beginning to the end, then what the partitioner or a filter holds, then buckets and
//! buffers. The dictionary of ids is in memory while it takes at most a quarter of the budget and leaves room for the others;
//! else it is on disk (see [`crate::ids`]), and the same quarter is what a piece of it may take.

use super::Work;
use crate::error::{Error, Result};
use crate::group::ProcessGroup;
use crate::partitioner::Goal;
use crate::prepare::scan::Scan;
use crate::prepare::{PrepareSettings, clean};

/// Smallest bucket that is worth a file.
const SMALLEST_BUCKET: u64 = 4 << 10;
/// What the program takes before any data.
const PROGRAM: u64 = 48 << 20;
/// What a reading thread takes.
const READER: u64 = 16 << 20;
/// The dictionary's share of the budget: one over this.
const SHARE: u64 = 4;

/// The budget of a preparation once its nodes are known.
pub(super) struct Budget {
    /// For the partitioner, beside its few dozen bytes a node.
    pub(super) partitioner: u64,
    /// For buckets and buffers when it is done.
    pub(super) buffers: u64,
}

impl Budget {
    /// Bytes of a bucket that is sorted in one piece: sorting takes up to three times as much, in every thread at once.
    pub(super) fn bucket(&self) -> u64 {
        (self.buffers / (4 * rayon::current_num_threads() as u64)).max(SMALLEST_BUCKET)
    }
}

/// Bytes that are held of `nodes` from the beginning to the end, but for their ids: global id, split, a bit for halos.
pub(in crate::prepare) fn held(nodes: u64) -> u64 {
    5 * nodes + nodes / 8
}

impl<C: ProcessGroup> Work<'_, C> {
    /// [`held`], and the types where parts are balanced by them.
    fn held(&self, nodes: u64) -> u64 {
        held(nodes) + if self.settings.balance.types.is_some() { 2 * nodes } else { 0 }
    }

    /// Bytes that the dictionary of so many nodes may take in memory.
    pub(super) fn dictionary_limit(&self, nodes: u64) -> u64 {
        let Self { settings, source, partitioner, .. } = self;
        let index = if source.drops_nodes() { 4 * nodes } else { 0 };
        let state = partitioner.state_bytes(nodes, &self.goal(settings.memory)).max(clean::state_bytes(nodes, source));
        (settings.memory / SHARE).min(settings.memory.saturating_sub(self.held(nodes) + index + state))
    }

    /// What is left of the memory beside what is held of every node, and `state`, which is held for some time.
    pub(super) fn budget(&self, scan: &Scan, state: u64) -> Result<Budget> {
        let n = scan.ids.len() as u64;
        let held = self.held(n) + scan.ids.index_bytes();
        // The dictionary is not in it: what does not fit of that is on disk.
        let needed = held + state;
        if needed > self.settings.memory {
            return Err(Error::Budget { nodes: n, needed, memory: self.settings.memory });
        }
        let rest = self.settings.memory.saturating_sub(held + scan.ids.dictionary_bytes());
        // What depends on this machine's threads must not decide what a partitioner does.
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
