//! `ldg`: linear deterministic greedy. Each node is placed in the part with most of its neighbors, weighted by the
//! part's free share.
//!
//! I. Stanton, G. Kliot, Streaming Graph Partitioning for Large Distributed Graphs, KDD 2012. Nodes are placed in dump
//! order. Node v is placed in the part P with the highest |N(v) ∩ P| (1 − |P|/C). On a tie the part with the fewest
//! nodes is used, then the lowest. C = max(⌊β|V|/p⌋, ⌈|V|/p⌉) is never exceeded. Neighbors count once per edge, in
//! either direction.
//!
//! Edges are gathered by node in batches ([`node_stream`]), in two passes or more. Memory: 14 bytes per node.

use std::cmp::Reverse;

use gnnflow_data::partitioner::Goal;
use gnnflow_data::{Assignment, GraphSize, GraphStream, Partitioner, Result};

use super::node_stream;
use super::schedule::max_nodes;

/// The `ldg` method.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ldg;

impl Partitioner for Ldg {
    fn name(&self) -> &str {
        "ldg"
    }

    fn needed_bytes(&self, size: GraphSize, _: &Goal) -> u64 {
        node_stream::needed_bytes(size.nodes)
    }

    fn assign(&self, graph: &dyn GraphStream, goal: &Goal) -> Result<Assignment> {
        let max = max_nodes(graph.num_nodes(), goal);
        let parts = node_stream::place(graph, goal, |neighbors, sizes| {
            let mut best = None;
            neighbors.each(sizes, |part, count| {
                // C times the score, so that it is an integer.
                let score = u64::from(count) * (max - sizes.of(part));
                if sizes.has_capacity(part) {
                    best = best.max(Some((score, Reverse(sizes.of(part)), Reverse(part))));
                }
            });
            best.map_or(sizes.least(), |(_, _, Reverse(part))| part)
        });
        parts.map(Assignment::Stored)
    }
}
