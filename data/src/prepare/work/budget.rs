//! The division of `partition.memory`, and its refusal if it is too small.
//!
//! First come the program, the reading threads and the arrays over all nodes, then the partitioner or a filter, then buckets and buffers.
//! The dictionary of ids is in memory if it takes at most a quarter of the budget and leaves enough for the others. Otherwise it is on disk
//! (see [`crate::ids`]), and each loaded group of it may take that quarter.

use super::Preparation;
use crate::error::{Error, Result};
use crate::group::ProcessGroup;
use crate::partitioner::Goal;
use crate::prepare::scan::Scan;

/// Minimum size of a bucket with its own file.
const SMALLEST_BUCKET: u64 = 4 << 10;

/// The memory budget of a preparation with a known number of nodes, in bytes.
pub(super) struct Budget {
    /// For the partitioner or a filter.
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

impl<C: ProcessGroup> Preparation<'_, C> {
    /// Returns the maximum bytes of memory of the dictionary of `nodes` nodes.
    pub(super) fn dictionary_limit(&self, nodes: u64) -> u64 {
        let index = if self.source.drops_nodes() { 4 * nodes } else { 0 };
        self.needs.dictionary_limit(nodes, self.edges.rows(), index)
    }

    /// Refuses a budget that is too small for the dump, as far as its footers tell. Filters may make the graph smaller.
    pub(super) fn check_dump(&self) -> Result<()> {
        let (nodes, edges) = (self.nodes.rows(), self.edges.rows());
        let passes = if self.source.drops_nodes() { 0 } else { self.needs.least(nodes, edges, 0) };
        self.enough(nodes, edges, 0, passes.max(self.needs.cleaning(nodes)))
    }

    /// Refuses a budget that is too small for the filters of `nodes` nodes.
    pub(super) fn check_cleaning(&self, nodes: u64) -> Result<()> {
        self.enough(nodes, self.edges.rows(), 0, self.needs.cleaning(nodes))
    }

    /// Refuses a budget that is too small for a graph of `nodes` nodes, `edges` edges and `index` bytes of rows' indexes.
    pub(super) fn check(&self, nodes: u64, edges: u64, index: u64) -> Result<()> {
        self.enough(nodes, edges, index, self.needs.least(nodes, edges, index))
    }

    /// Refuses a budget below `needed`, in the first process. The others wait, so that its error is the first.
    fn enough(&self, nodes: u64, edges: u64, index: u64, needed: u64) -> Result<()> {
        let memory = self.settings.memory;
        if needed <= memory || self.processes.rank() > 0 {
            return self.processes.barrier();
        }
        let planned = self.needs.method_decides(nodes, edges, index);
        let method = self.partitioner.name().to_owned();
        Err(Error::Budget { nodes, edges, method, needed, memory, planned })
    }

    /// Divides the memory that remains beside the arrays over all nodes.
    pub(super) fn budget(&self, scan: &Scan) -> Budget {
        let (nodes, index, dictionary) = (scan.ids.len() as u64, scan.ids.index_bytes(), scan.ids.dictionary_bytes());
        Budget {
            partitioner: self.needs.partitioner_limit(nodes, index, dictionary),
            buffers: self.needs.buffers(nodes, index, dictionary),
        }
    }

    /// Returns the goal of the partitioner.
    pub(super) fn goal(&self, scan: &Scan, budget: &Budget) -> Goal {
        self.needs.goal(scan.ids.len() as u64, scan.ids.index_bytes(), budget.partitioner)
    }
}
