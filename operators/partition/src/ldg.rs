//! `ldg`: linear deterministic greedy. A node goes where most of its neighbors are, the less the fuller that part is.
//!
//! I. Stanton, G. Kliot, Streaming Graph Partitioning for Large Distributed Graphs, KDD 2012. Nodes come in the order of the dump. Node v goes
//! to the part P of highest |N(v) ∩ P| (1 − |P|/C), of several to the one with fewest nodes, the lowest of these. C is the bound on nodes,
//! ⌊β|V|/p⌋ or ⌈|V|/p⌉ if that is more, and never exceeded. Neighbors count as often as there are edges, in either direction.
//!
//! The edges are brought in the nodes' order by batches, see [`Fennel`](super::Fennel). Two passes or more; 14 bytes a node.

use std::cmp::Reverse;

use gnnflow_data::partitioner::Goal;
use gnnflow_data::{Assignment, GraphStream, Partitioner, Result};

use super::node_stream;
use super::schedule::most_nodes;

/// The method.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ldg;

impl Partitioner for Ldg {
    fn name(&self) -> &str {
        "ldg"
    }

    fn state_bytes(&self, nodes: u64, _: &Goal) -> u64 {
        node_stream::state_bytes(nodes)
    }

    fn assign(&self, graph: &dyn GraphStream, goal: &Goal) -> Result<Assignment> {
        let most = most_nodes(graph.num_nodes(), goal);
        let parts = node_stream::place(graph, goal, |neighbors, sizes| {
            let mut best = None;
            neighbors.each(sizes, |part, count| {
                // C times the score: whole numbers.
                let score = u64::from(count) * (most - sizes.of(part));
                if sizes.has_room(part) {
                    best = best.max(Some((score, Reverse(sizes.of(part)), Reverse(part))));
                }
            });
            best.map_or(sizes.least(), |(_, _, Reverse(part))| part)
        });
        parts.map(Assignment::Stored)
    }
}
