//! `greedy`: PowerGraph's greedy vertex cut, with one view of all placements ("coordinated").
//!
//! J. E. Gonzalez et al., PowerGraph: Distributed Graph-Parallel Computation on Natural Graphs, OSDI 2012, Section
//! 5.2.1. A(u) is the set of parts that have an edge of u. The part of edge (u, v) is taken from the first set that
//! applies:
//!
//! 1. A(u) ∩ A(v), if not empty;
//! 2. if neither A(u) nor A(v) is empty, that of the end with more remaining edges (the source on a tie);
//! 3. if one of them is not empty, that one;
//! 4. all parts.
//!
//! Within a set, the part with the fewest edges is used, then the lowest. The paper's heuristic does not bound the
//! edges of a part: it would place a dump sorted by node in one part. So full parts are skipped, and a set of full
//! parts does not apply.
//!
//! With [`Degrees::Online`] remaining edges are unknown. The number of edges so far takes their place.
//!
//! Two passes. Memory: one bit per node and part, 4 bytes per node, and the counters of [`VertexCut`].

use gnnflow_data::partitioner::Goal;
use gnnflow_data::{Assignment, GraphSize, GraphStream, Partitioner, Result};

use super::degrees::Degrees;
use super::loads::Loads;
use super::replicas::{Replicas, parts_in};
use super::vertex_cut::VertexCut;

/// The method's settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Greedy(pub VertexCut);

impl Partitioner for Greedy {
    fn name(&self) -> &str {
        "greedy"
    }

    fn settings(&self) -> String {
        self.0.settings()
    }

    fn needed_bytes(&self, size: GraphSize, goal: &Goal) -> u64 {
        // Edges are read in order, so processes do not exchange counters.
        self.0.needed_bytes(GraphSize { processes: 1, ..size }, goal, own_bytes(size.nodes, goal))
    }

    fn memory_decides(&self) -> bool {
        true
    }

    fn assign(&self, graph: &dyn GraphStream, goal: &Goal) -> Result<Assignment> {
        let mut replicas = Replicas::new(graph.num_nodes(), goal.parts);
        let mut counters = self.0.counters(graph, goal, own_bytes(graph.num_nodes(), goal));
        let mut loads = Loads::new(graph.num_edges(), goal);
        // Remaining edges (exact), or edges so far (online).
        let mut rank = self.0.degrees.begin(graph)?;
        self.0.stream(graph, "placing edges", &mut counters, |src, dst| {
            let more = if rank[src as usize] >= rank[dst as usize] { [src, dst] } else { [dst, src] };
            let part = choose(&replicas, &loads, more);
            for end in [src, dst] {
                let rank = &mut rank[end as usize];
                *rank = if self.0.degrees == Degrees::Exact { *rank - 1 } else { *rank + 1 };
                replicas.set(end, part);
            }
            loads.add(part);
            Some(part)
        })?;
        Ok(Assignment::Stored(self.0.core_parts(&counters, graph.num_nodes(), goal)))
    }
}

/// Bytes without the counters.
fn own_bytes(nodes: u64, goal: &Goal) -> u64 {
    Replicas::bytes(nodes, goal.parts) + 4 * nodes
}

/// Returns the part of an edge by the four cases. `u` is the end that case 2 prefers.
#[inline]
fn choose(replicas: &Replicas, loads: &Loads, [u, v]: [u32; 2]) -> u32 {
    let least = |set: &dyn Fn(usize) -> u64| {
        let mut best: Option<(u64, u32)> = None;
        for word in 0..replicas.width() {
            parts_in(word, set(word), |part| {
                if loads.has_capacity(part) && best.is_none_or(|best| loads.of(part) < best.0) {
                    best = Some((loads.of(part), part));
                }
            });
        }
        best.map(|(_, part)| part)
    };
    least(&|word| replicas.word(u, word) & replicas.word(v, word))
        .or_else(|| least(&|word| replicas.word(u, word)))
        .or_else(|| least(&|word| replicas.word(v, word)))
        .unwrap_or_else(|| loads.least())
}
