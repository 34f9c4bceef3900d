//! Vertex cuts: methods that give every edge a part, completed to a part for every node.
//!
//! For training, a part needs all neighbors of its core nodes, so that edges lie with their ends (SDT-GNN, Section III-B). What a
//! method's edges decide is where: **a node's core is in the part that has most of its edges**, of several in the lowest. Where
//! counts are sketched, it is the best part that the sketch knows. Nodes without edges fill up the emptiest parts.
//!
//! Such methods balance edges, not nodes: at most ⌊1.05 |E|/p⌋ edges in a part (or what `balance.edges` says; ⌈|E|/p⌉ at least). The number of
//! core nodes in a part follows from the graph, unless [held](VertexCut::hold_balance): then nodes choose in the order of their largest
//! number of edges in one part (of several the lowest index first), and take of the parts that have room the one with most of their
//! edges.

use std::cmp::Reverse;

use gnnflow_data::partitioner::Goal;
use gnnflow_data::{GraphStream, Result};

use super::counters::Counters;
use super::schedule::{Emptiest, most_nodes};

/// Settings that all vertex cuts have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VertexCut {
    /// Exact degrees or online ones.
    pub degrees: super::Degrees,
    /// Hold the core nodes to the goal's node balance.
    pub hold_balance: bool,
}

impl VertexCut {
    /// The settings as text.
    pub(super) fn settings(self) -> String {
        format!("degrees = {}, hold_balance = {}", self.degrees.word(), self.hold_balance)
    }

    /// Bytes of a method that holds `used` bytes beside its counters, when those are sketched as coarsely as they may.
    pub(super) fn state_bytes(self, nodes: u64, used: u64) -> u64 {
        // Two bytes for the part, and eight to sort nodes by.
        used + nodes * (Counters::MIN_BYTES + 2 + if self.hold_balance { 8 } else { 0 })
    }

    /// Counters in the memory that is left beside `used` bytes.
    pub(super) fn counters(self, graph: &dyn GraphStream, goal: &Goal, used: u64) -> Counters {
        let nodes = graph.num_nodes();
        let used = self.state_bytes(nodes, used) - nodes * Counters::MIN_BYTES;
        Counters::new(nodes, goal.parts, goal.memory.saturating_sub(used))
    }

    /// Reads the edges in dump order, and counts the part that `choose` gives to each.
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

    /// The part of every node.
    pub(super) fn cores(self, counters: &Counters, nodes: u64, goal: &Goal) -> Vec<u16> {
        let mut part = vec![0; nodes as usize];
        let mut sizes = vec![0; goal.parts as usize];
        let mut alone = Vec::new();
        if self.hold_balance {
            self.hold(counters, most_nodes(nodes, goal), &mut part, &mut sizes, &mut alone);
        } else {
            for node in 0..nodes as u32 {
                match counters.best(node) {
                    Some((best, _)) => {
                        part[node as usize] = best as u16;
                        sizes[best as usize] += 1;
                    }
                    None => alone.push(node),
                }
            }
        }
        let mut emptiest = Emptiest::new(sizes);
        alone.into_iter().for_each(|node| part[node as usize] = emptiest.put(1) as u16);
        part
    }

    /// The same for nodes with edges, none of the parts with more than `most`; others are left in `alone`.
    fn hold(self, counters: &Counters, most: u64, part: &mut [u16], sizes: &mut [u64], alone: &mut Vec<u32>) {
        let mut order: Vec<(Reverse<u32>, u32)> = Vec::with_capacity(part.len());
        for node in 0..part.len() as u32 {
            order.push((Reverse(counters.best(node).map_or(0, |(_, edges)| edges)), node));
        }
        order.sort_unstable();
        for (_, node) in order {
            let mut choice = None;
            counters.each(node, |part, edges| {
                if sizes[part as usize] < most {
                    choice = choice.max(Some((edges, Reverse(part))));
                }
            });
            match choice {
                Some((_, Reverse(best))) => {
                    part[node as usize] = best as u16;
                    sizes[best as usize] += 1;
                }
                None => alone.push(node),
            }
        }
    }
}
