//! `hdrf`: high-degree replicated first.
//!
//! F. Petroni et al., HDRF: Stream-Based Partitioning for Power-Law Graphs, CIKM 2015. An edge (u, v) is placed in the
//! part P with the highest
//!
//! ```text
//! score = g(u) + g(v) + λ (largest − |P|) / (1 + largest − least)
//! g(u)  = 1 + (1 − θ(u)) if P has an edge of u, else 0;    θ(u) = d(u) / (d(u) + d(v))
//! ```
//!
//! On a tie the lowest part is used; λ is 1.1. Parts that have reached 1.05 |E|/p edges (or `balance.edges`) are
//! skipped. The paper uses degrees so far, including this edge ([`Degrees::Online`]); the default here is exact
//! degrees, as for every method.
//!
//! Two passes. Memory: one bit per node and part, 4 bytes per node, and the counters of [`VertexCut`].

use gnnflow_data::partitioner::Goal;
use gnnflow_data::{Assignment, GraphSize, GraphStream, Partitioner, Result};

use super::degrees::Degrees;
use super::loads::Loads;
use super::replicas::{Replicas, parts_in};
use super::vertex_cut::VertexCut;

/// Weight of the balance term. Above 1, so that it can outweigh one end.
const LAMBDA: f64 = 1.1;

/// The method's settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hdrf(pub VertexCut);

impl Partitioner for Hdrf {
    fn name(&self) -> &str {
        "hdrf"
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
        let mut degrees = self.0.degrees.begin(graph)?;
        self.0.stream(graph, "placing edges", &mut counters, |src, dst| {
            if self.0.degrees == Degrees::Online {
                degrees[src as usize] += 1;
                degrees[dst as usize] += 1;
            }
            let (of_u, of_v) = (f64::from(degrees[src as usize]), f64::from(degrees[dst as usize]));
            let part = choose(&replicas, &loads, [src, dst], of_u / (of_u + of_v));
            replicas.set(src, part);
            replicas.set(dst, part);
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

/// Returns the part with the highest score. Of the parts with neither end, only the least loaded one needs a score.
#[inline]
fn choose(replicas: &Replicas, loads: &Loads, [u, v]: [u32; 2], theta: f64) -> u32 {
    let (gain_u, gain_v) = (1.0 + (1.0 - theta), 1.0 + theta);
    let largest = loads.largest() as f64;
    let scale = LAMBDA / (1.0 + largest - loads.of(loads.least()) as f64);
    let mut best = (f64::MIN, u32::MAX);
    let mut score_part = |part: u32, gain: f64| {
        let score = gain + scale * (largest - loads.of(part) as f64);
        if loads.has_capacity(part) && (score > best.0 || score == best.0 && part < best.1) {
            best = (score, part);
        }
    };
    score_part(loads.least(), 0.0);
    for word in 0..replicas.width() {
        let (of_u, of_v) = (replicas.word(u, word), replicas.word(v, word));
        parts_in(word, of_u | of_v, |part| {
            let has = |set: u64| (set >> (part % 64) & 1) as f64;
            score_part(part, gain_u * has(of_u) + gain_v * has(of_v));
        });
    }
    best.1
}
