//! `multilevel`: the quality of METIS within planned memory.
//!
//! ```text
//! the graph fits           resident.rs   METIS on it, or on its clusters (coarsen.rs); polish.rs on the graph
//! it does not fit          streamed.rs   gather.rs: clusters by stream → contract.rs: a graph of clusters by sorting
//!                                        → METIS on that graph → ../refine.rs: passes over the stream
//! ```
//!
//! [`Budget`] decides from [`Goal::memory`] and the size of the graph, equally in all processes, and says how much memory
//! that takes.

mod budget;
mod coarsen;
mod contract;
mod gather;
mod polish;
mod resident;
mod streamed;
#[cfg(test)]
mod tests;

use gnnflow_data::partitioner::Goal;
use gnnflow_data::{Assignment, GraphSize, GraphStream, Partitioner, Result};

use super::balance::Bounds;
use budget::Budget;

/// Multilevel partitioning within [`Goal::memory`]: the default method.
///
/// The graph is treated as undirected. The bounds of [`Goal::balance`] are METIS constraints, are restored by moves if
/// METIS misses one (as in [`Metis`](super::Metis)), and limit every move of the refinement.
///
/// **If the graph fits** (4 bytes for each of the `2 |E|` edge ends within a third of the memory), it is read once.
/// There are two starts:
///
/// - METIS on the graph, if METIS's estimate is at most half of the memory. Small graphs use up to six seeds: every third
///   one with the bound on nodes only, and two of three with recursive bisection for at most eight parts. Else METIS
///   runs on clusters from label propagation, of at most `n / max(1024, 16 p)` nodes, if their modularity is at least
///   0.05. Their heaviest edges are used, about one per 64 entries of the graph. METIS must hold them in a sixth of the
///   memory (DistDGL, section III-B).
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

    fn needed_bytes(&self, size: GraphSize, goal: &Goal) -> u64 {
        budget::needed_bytes(size, goal)
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
        let budget = Budget::of(graph, goal, &bounds);
        let parts = match budget.resident {
            true => resident::assign(graph, goal, &bounds, &budget),
            false => streamed::assign(graph, goal, &bounds, &budget),
        };
        parts.map(Assignment::Stored)
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
