//! The strategy for a graph, the sizes that follow from the planned memory, and the bytes that they take.
//!
//! Only [`Goal::memory`] and the size of the graph decide. [`Goal::limit`] only bounds the buffers of a sort.

use gnnflow_data::partitioner::Goal;
use gnnflow_data::{GraphSize, GraphStream};

use super::coarsen;
use super::contract::Heaviest;
use super::polish::CutAndCopies;
use crate::balance::Bounds;
use crate::graph::Graph;
use crate::kway::{self, MOST_TYPES};
use crate::refine::Refinement;

/// Mean number of adjacency entries per cluster for METIS.
const ENTRIES_PER_CLUSTER: u64 = 16;
/// Entries of a graph in memory per edge between clusters.
const ENTRIES_PER_EDGE: u64 = 64;
/// Smallest limit of these edges, if memory allows.
const MIN_EDGES: u64 = 1 << 20;
/// Bytes per node while clusters are computed from the stream: degree, label, volume, size, candidate, votes.
const CLUSTERING: u64 = 28;
/// Bytes per node of [`by_degree`](super::by_degree), and of two assignments beside it.
const BY_DEGREE: u64 = 28;
/// Smallest memory for sorting keys.
const LEAST_SORTING: u64 = 4 << 20;

/// Decisions and sizes that follow from the planned memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Budget {
    /// The entire graph is in memory.
    pub(super) resident: bool,
    /// METIS runs on the graph itself.
    pub(super) direct: bool,
    pub(super) max_clusters: usize,
    pub(super) max_edges: usize,
    pub(super) max_cluster_nodes: u32,
    /// Bytes for counters per node and part.
    pub(super) counters: u64,
    /// Whether replication is refined, too.
    pub(super) copies: bool,
    /// Bytes for sorting keys. They never change the result.
    pub(super) sorting: u64,
}

impl Budget {
    /// The budget for the graph of a stream.
    pub(super) fn of(graph: &dyn GraphStream, goal: &Goal, bounds: &Bounds<'_>) -> Self {
        let size = GraphSize { nodes: graph.num_nodes(), edges: graph.num_edges(), processes: 1 };
        Self::new(size, goal, bounds.len() as u64)
    }

    fn new(size: GraphSize, goal: &Goal, constraints: u64) -> Self {
        let (nodes, ends) = (size.nodes, 2 * size.edges);
        let resident = 4 * ends <= goal.memory / 3;
        let metis = if resident { goal.memory / 6 } else { goal.memory / 4 };
        let clusters = metis / kway::bytes(1, ENTRIES_PER_CLUSTER, constraints);
        let mut this = Self {
            resident,
            // The graph itself takes a seventeenth of this; the rest is for arrays over nodes.
            direct: resident && kway::bytes(nodes, ends, constraints) <= goal.memory / 2,
            max_clusters: clusters.max(4 * u64::from(goal.parts)).min(nodes.max(1)) as usize,
            max_edges: (metis / 2 / kway::BYTES_PER_ENTRY).min(i32::MAX as u64 / 2).max(1) as usize,
            max_cluster_nodes: (nodes / 1024.max(16 * u64::from(goal.parts))).max(1) as u32,
            counters: goal.memory / 2,
            copies: CutAndCopies::bytes(nodes, goal.parts.into()) <= goal.memory / 4,
            sorting: goal.memory / 4,
        };
        let spare = goal.limit.saturating_sub(this.contracting(size)).max(LEAST_SORTING);
        this.sorting = this.sorting.min(spare);
        this
    }

    /// The limit of the edges between clusters of a graph in memory with `entries` entries. A share of the edges is enough for a
    /// start, and limits the time of METIS.
    pub(super) fn resident_edges(&self, entries: u64) -> u64 {
        (self.max_edges as u64).min((entries / ENTRIES_PER_EDGE).max(MIN_EDGES))
    }

    /// Bytes beside the sort while the stream is contracted: degrees and labels, and the heaviest edges.
    fn contracting(&self, size: GraphSize) -> u64 {
        let edges = (self.max_edges as u64).min(size.edges);
        8 * size.nodes + Heaviest::bytes(edges) + Graph::weighted_bytes(self.max_clusters as u64, edges)
    }
}

/// Returns the bytes that the method needs for a graph.
pub(super) fn needed_bytes(size: GraphSize, goal: &Goal) -> u64 {
    // The number of bounds is known after reading. One bound decides for METIS on the graph, and many take more memory.
    let (budget, rules) = (Budget::new(size, goal, 1), Bounds::most_rules(goal, MOST_TYPES));
    let strategy = match budget.resident {
        true => resident_bytes(size, goal, &budget, rules),
        false => streamed_bytes(size, goal, &budget, rules),
    };
    Bounds::needed_bytes(size, goal) + strategy
}

fn resident_bytes(size: GraphSize, goal: &Goal, budget: &Budget, rules: u64) -> u64 {
    let (nodes, whole) = (size.nodes, Graph::bytes(size));
    let start = match budget.direct {
        // METIS's bytes include the lists; starts of lists in 8 bytes, and the parts, do not count there.
        true => kway::bytes(nodes, 2 * size.edges, rules) + 14 * nodes,
        false => {
            let edges = budget.resident_edges(2 * size.edges).min(size.edges);
            let contracting = coarsen::contracting_bytes(nodes, edges);
            whole + 4 * nodes + contracting.max(kway::bytes(nodes, 2 * edges, rules))
        }
    };
    let copies = if budget.copies { CutAndCopies::bytes(nodes, goal.parts.into()) } else { 0 };
    let refining = whole + 10 * nodes + copies;
    Graph::reading_bytes(size).max(start).max(whole + BY_DEGREE * nodes).max(refining)
}

fn streamed_bytes(size: GraphSize, goal: &Goal, budget: &Budget, rules: u64) -> u64 {
    let nodes = size.nodes;
    let (clusters, edges) = (budget.max_clusters as u64, (budget.max_edges as u64).min(size.edges));
    let counting = size.cell_bytes(nodes);
    let contracting = budget.contracting(size) + LEAST_SORTING;
    let metis = 8 * nodes + kway::bytes(clusters, 2 * edges, rules);
    let refining = Refinement::needed_bytes(size, goal, budget.counters);
    let clustering = CLUSTERING * nodes;
    counting.max(clustering).max(contracting).max(metis).max((8 + BY_DEGREE) * nodes).max(refining)
}
