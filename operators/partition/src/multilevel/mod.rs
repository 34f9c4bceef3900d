//! `multilevel`: the quality of METIS within a memory budget.
//!
//! ```text
//! the graph fits           resident.rs   METIS on it, or on its clusters (coarsen.rs); polish.rs on the graph
//! it does not fit          streamed.rs   gather.rs: clusters by stream → contract.rs: a graph of clusters by sorting
//!                                        → METIS on that graph → ../refine.rs: passes over the stream
//! ```
//!
//! [`Budget`] decides from `partition.memory` and the sizes of the dump, equally in all processes.

mod coarsen;
mod contract;
mod gather;
mod polish;
mod resident;
mod streamed;
#[cfg(test)]
mod tests;

use gnnflow_data::partitioner::Goal;
use gnnflow_data::{Assignment, GraphStream, Partitioner, Result};

use super::balance::Bounds;
use super::kway;

/// Multilevel partitioning within [`Goal::memory`]: the default method.
///
/// The graph is treated as undirected. The bounds of [`Goal::balance`] are METIS constraints, are restored by moves if
/// METIS misses one (as in [`Metis`](super::Metis)), and limit every move of the refinement.
///
/// **If the graph fits** (4 bytes for each of the `2 |E|` edge ends within a third of the memory), it is read once.
/// There are two starts:
///
/// - METIS on the graph, if METIS's estimate is at most half of the memory. Small graphs use up to four seeds, every
///   other one with recursive bisection for at most eight parts. Else METIS runs on clusters from label propagation, of
///   at most `n / max(1024, 16 p)` nodes, if their modularity is at least 0.05. Their heaviest edges are used, about
///   one per 64 entries of the graph. METIS must hold them in a sixth of the memory (DistDGL, section III-B).
/// - Ranges of descending degree. They are far better than METIS on graphs with hubs and without communities, such as
///   R-MAT graphs.
///
/// From every start nodes move to parts with more of their neighbors. On graphs of at most 2²⁵ entries they also move
/// if the cut or the replication falls and neither rises. The best result is returned.
///
/// **If it does not fit**, nodes are clustered by stream, with bounds on each cluster's volume and size (A. Hollocou et
/// al., A streaming algorithm for graph clustering, 2017). One pass of label propagation with one candidate per node
/// improves the clusters. The edges between clusters are counted by sorting, and METIS partitions the heaviest, as many
/// as it can hold in a quarter of the memory. The better of this start and the ranges of descending degree is refined
/// by at most eight passes over the stream.
#[derive(Clone, Copy, Debug, Default)]
pub struct Multilevel;

impl Partitioner for Multilevel {
    fn name(&self) -> &str {
        "multilevel"
    }

    fn state_bytes(&self, nodes: u64, _goal: &Goal) -> u64 {
        STATE_PER_NODE * nodes
    }

    fn memory_decides(&self) -> bool {
        true
    }

    fn assign(&self, graph: &dyn GraphStream, goal: &Goal) -> Result<Assignment> {
        let nodes = graph.num_nodes();
        if goal.parts <= 1 || nodes <= u64::from(goal.parts) {
            // One part, or at most one node per part.
            return Ok(Assignment::Stored(
                (0..nodes).map(|node| (node % u64::from(goal.parts.max(1))) as u16).collect(),
            ));
        }
        let bounds = Bounds::new(graph, goal)?;
        let budget = Budget::new(graph, goal, &bounds);
        let parts = match budget.resident {
            true => resident::assign(graph, goal, &bounds, &budget),
            false => streamed::assign(graph, goal, &bounds, &budget),
        };
        parts.map(Assignment::Stored)
    }
}

/// Bytes per node during stream clustering: degree, label, volume, size, candidate, votes.
const STATE_PER_NODE: u64 = 28;

/// Largest number of entries for which replication is refined. Each entry reads counters that do not fit in the cache.
const MAX_POLISHED_ENTRIES: u64 = 1 << 25;

/// Decisions and sizes that follow from a memory budget.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Budget {
    /// The entire graph is in memory.
    resident: bool,
    /// METIS runs on the graph itself.
    direct: bool,
    max_clusters: usize,
    max_edges: usize,
    max_cluster_nodes: u32,
    /// Bytes for counters per node and part.
    counters: u64,
    /// Bytes for sorting keys.
    sorting: u64,
}

/// Mean number of adjacency entries per cluster for METIS.
const ENTRIES_PER_CLUSTER: u64 = 16;

impl Budget {
    fn new(graph: &dyn GraphStream, goal: &Goal, bounds: &Bounds<'_>) -> Self {
        let (nodes, ends) = (graph.num_nodes(), 2 * graph.num_edges());
        let constraints = bounds.len() as u64;
        let resident = 4 * ends <= goal.memory / 3;
        let metis = if resident { goal.memory / 6 } else { goal.memory / 4 };
        let clusters = metis / kway::bytes(1, ENTRIES_PER_CLUSTER, constraints);
        Self {
            resident,
            // The graph itself takes a seventeenth of this; the rest is for arrays over nodes.
            direct: resident && kway::bytes(nodes, ends, constraints) <= goal.memory / 2,
            max_clusters: clusters.max(4 * u64::from(goal.parts)).min(nodes.max(1)) as usize,
            max_edges: (metis / 2 / kway::BYTES_PER_ENTRY).min(i32::MAX as u64 / 2).max(1) as usize,
            max_cluster_nodes: (nodes / 1024.max(16 * u64::from(goal.parts))).max(1) as u32,
            counters: goal.memory / 2,
            sorting: goal.memory / 4,
        }
    }
}

/// Returns ranges of nodes by descending degree, then index, with equal numbers of nodes.
fn by_degree(nodes: usize, parts: u32, degree: impl Fn(usize) -> u64) -> Vec<u16> {
    let mut order: Vec<u32> = (0..nodes as u32).collect();
    order.sort_by_cached_key(|&node| std::cmp::Reverse(degree(node as usize)));
    let mut assignment = vec![0; nodes];
    for (rank, node) in order.into_iter().enumerate() {
        assignment[node as usize] = (rank as u64 * u64::from(parts) / nodes as u64) as u16;
    }
    assignment
}
