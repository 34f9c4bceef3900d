//! `multilevel`: METIS's quality in a stated amount of memory.
//!
//! ```text
//! the graph fits           resident.rs   read it once; METIS on it, or on clusters of it (coarsen.rs); polish.rs on the graph
//! it does not              streamed.rs   gather.rs: clusters by stream → contract.rs: a graph of clusters by sorting
//!                                        → METIS on that → ../refine.rs: passes over the stream
//! ```
//!
//! What fits is decided by [`Budget`] from `partition.memory` and the sizes that the dump's footers tell, so that every process
//! decides alike and nothing is read to decide.

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
/// The graph is taken as an undirected one. All of [`Goal::balance`] is kept as [`Metis`](super::Metis) keeps it: as constraints of
/// METIS, by moving the nodes that lose least where METIS missed a bound, and in every move of the refinement.
///
/// **When the graph fits** (4 bytes for each of the `2 |E|` ends of the dump's edges within a third of the memory), it is read
/// into memory once. If METIS's own estimate is within a third too, METIS runs on the graph itself, under up to four seeds for
/// small graphs, every other by recursive bisection if there are at most eight parts. Else nodes are clustered by label propagation (every cluster at most `n / max(1024, 16 p)` nodes), and
/// METIS runs on the clusters (if their modularity is at least 0.05), joined by the heaviest of their edges, one for 64 of the graph's
/// entries if METIS can hold so many in a sixth of the memory (DistDGL, section III-B). A second start cuts the nodes into ranges of descending degree: where there are no communities but hubs, as in
/// R-MAT graphs, it beats METIS by far. From every start nodes move on the whole graph to where more of their neighbors are, then
/// (on graphs of at most 2²⁵ entries) where cut or replication falls and neither rises; the best end is taken.
///
/// **When it does not**, nodes are clustered while the edges stream by, under a bound on each cluster's volume and size (A. Hollocou
/// and others: A streaming algorithm for graph clustering. 2017), and improved by a pass of label propagation that remembers one
/// candidate a node. The edges between clusters are counted by sorting, and the heaviest are kept, as many as METIS can hold in
/// a quarter of the memory; METIS cuts that graph. The better of this and the ranges of descending degree is refined by passes over the
/// stream until the gain fades, at most eight.
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
            // One part, or a node a part at most.
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

/// Bytes for every node while clusters are gathered: degree, label, volume, size, candidate, votes.
const STATE_PER_NODE: u64 = 28;

/// Entries above which replication is not refined in memory: each costs a look into counters that no cache holds.
const MOST_POLISHED: u64 = 1 << 25;

/// What a memory budget allows.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Budget {
    /// Whether the whole graph is held.
    resident: bool,
    /// Whether METIS can take it as it is.
    direct: bool,
    /// Most clusters.
    clusters: usize,
    /// Most edges between clusters.
    edges: usize,
    /// Most nodes of a cluster.
    cluster_nodes: u32,
    /// For counters per node and part.
    counters: u64,
    /// For sorting keys.
    sorting: u64,
}

/// Adjacency entries that METIS gets for each cluster, on average.
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
            // The graph itself takes a seventeenth of that; the rest is for arrays over nodes.
            direct: resident && kway::bytes(nodes, ends, constraints) <= goal.memory / 2,
            clusters: clusters.max(4 * u64::from(goal.parts)).min(nodes.max(1)) as usize,
            edges: (metis / 2 / kway::BYTES_PER_ENTRY).min(i32::MAX as u64 / 2).max(1) as usize,
            cluster_nodes: (nodes / 1024.max(16 * u64::from(goal.parts))).max(1) as u32,
            counters: goal.memory / 2,
            sorting: goal.memory / 4,
        }
    }
}

/// Ranges of nodes by descending degree, of equal numbers of nodes; among equals by index.
fn by_degree(nodes: usize, parts: u32, degree: impl Fn(usize) -> u64) -> Vec<u16> {
    let mut order: Vec<u32> = (0..nodes as u32).collect();
    order.sort_by_cached_key(|&node| std::cmp::Reverse(degree(node as usize)));
    let mut assignment = vec![0; nodes];
    for (rank, node) in order.into_iter().enumerate() {
        assignment[node as usize] = (rank as u64 * u64::from(parts) / nodes as u64) as u16;
    }
    assignment
}
