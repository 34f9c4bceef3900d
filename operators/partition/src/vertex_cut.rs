//! Vertex cuts: methods that assign edges to parts. The part of every node is derived from its edges.
//!
//! Training needs all in-edges of a core node in its part (SDT-GNN, Section III-B). So **a node is a core node of the
//! part with most of its edges**, the lowest on a tie. With sketched counts it is the best part in the sketch. Nodes
//! without edges are added to the smallest parts.
//!
//! These methods balance edges, not nodes. A part has at most ⌊1.05 |E|/p⌋ edges (or `balance.edges`; at least
//! ⌈|E|/p⌉). The number of core nodes of a part is bounded only with [`hold_balance`](VertexCut::hold_balance). Then
//! nodes are assigned in descending order of their largest number of edges in one part, then index. Each is assigned to
//! the part with most of its edges among parts below the bound.

use std::cmp::Reverse;

use gnnflow_data::partitioner::Goal;
use gnnflow_data::{GraphSize, GraphStream, Result};

use super::counters::Counters;
use super::schedule::{PartQueue, max_nodes};

/// Settings common to all vertex cuts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VertexCut {
    /// Exact or online degrees.
    pub degrees: super::degrees::Degrees,
    /// Bound the core nodes of a part by the goal's node balance.
    pub hold_balance: bool,
}

impl VertexCut {
    pub(super) fn settings(self) -> String {
        format!("degrees = {}, hold_balance = {}", self.degrees.word(), self.hold_balance)
    }

    /// The part of [`Goal::memory`] that remains for counters after `used` bytes.
    fn for_counters(self, nodes: u64, goal: &Goal, used: u64) -> u64 {
        // Two bytes for the part, and eight to sort nodes.
        goal.memory.saturating_sub(used + nodes * (2 + if self.hold_balance { 8 } else { 0 }))
    }

    /// Bytes of a method that uses `used` bytes without its counters.
    pub(super) fn needed_bytes(self, size: GraphSize, goal: &Goal, used: u64) -> u64 {
        let counters = Counters::needed_bytes(size, goal.parts, self.for_counters(size.nodes, goal, used));
        // The part, the nodes without edges, and eight bytes to sort nodes.
        let sorted = if self.hold_balance { 8 } else { 0 };
        let degrees = size.cell_bytes(size.nodes) - 4 * size.nodes;
        used + degrees + counters + (6 + sorted) * size.nodes
    }

    /// Creates counters in the memory that remains after `used` bytes.
    pub(super) fn counters(self, graph: &dyn GraphStream, goal: &Goal, used: u64) -> Counters {
        let nodes = graph.num_nodes();
        Counters::new(nodes, goal.parts, self.for_counters(nodes, goal, used))
    }

    /// Reads the edges in dump order, and counts the part that `choose` returns for each. `None` skips the edge.
    pub(super) fn stream(
        self,
        graph: &dyn GraphStream,
        pass: &str,
        counters: &mut Counters,
        mut choose: impl FnMut(u32, u32) -> Option<u32>,
    ) -> Result<()> {
        graph.for_each_edges(pass, &mut |edges| {
            for &(src, dst) in edges {
                if let Some(part) = choose(src, dst) {
                    counters.add(src, part);
                    counters.add(dst, part);
                }
            }
            Ok(())
        })
    }

    pub(super) fn core_parts(self, counters: &Counters, nodes: u64, goal: &Goal) -> Vec<u16> {
        let mut part = vec![0; nodes as usize];
        let mut sizes = vec![0; goal.parts as usize];
        let mut unplaced = Vec::new();
        if self.hold_balance {
            self.assign_bounded(counters, max_nodes(nodes, goal), &mut part, &mut sizes, &mut unplaced);
        } else {
            for node in 0..nodes as u32 {
                match counters.best(node) {
                    Some((best, _)) => {
                        part[node as usize] = best as u16;
                        sizes[best as usize] += 1;
                    }
                    None => unplaced.push(node),
                }
            }
        }
        let mut queue = PartQueue::new(sizes);
        unplaced.into_iter().for_each(|node| part[node as usize] = queue.add_to_smallest(1) as u16);
        part
    }

    /// Assigns nodes with edges, at most `max` per part. Appends all other nodes to `unplaced`.
    fn assign_bounded(
        self,
        counters: &Counters,
        max: u64,
        part: &mut [u16],
        sizes: &mut [u64],
        unplaced: &mut Vec<u32>,
    ) {
        let mut order: Vec<(Reverse<u32>, u32)> = Vec::with_capacity(part.len());
        for node in 0..part.len() as u32 {
            order.push((Reverse(counters.best(node).map_or(0, |(_, edges)| edges)), node));
        }
        order.sort_unstable();
        for (_, node) in order {
            let mut choice = None;
            counters.each(node, |part, edges| {
                if sizes[part as usize] < max {
                    choice = choice.max(Some((edges, Reverse(part))));
                }
            });
            match choice {
                Some((_, Reverse(best))) => {
                    part[node as usize] = best as u16;
                    sizes[best as usize] += 1;
                }
                None => unplaced.push(node),
            }
        }
    }
}
