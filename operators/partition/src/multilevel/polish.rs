//! Refinement of an assignment on a graph in memory, by moves of single nodes that never increase the cost.

use rayon::prelude::*;

use crate::balance::{Bounds, Loads};
use crate::graph::Graph;

/// Number of nodes that choose in parallel by the same assignment. The result depends on it.
const BATCH: usize = 4096;

/// The cost of an assignment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Cost {
    /// Copies of nodes in other parts: `n` times the replication factor, less `n`.
    pub(super) copies: u64,
    /// Edges whose ends are in different parts.
    pub(super) cut: u64,
}

pub(super) fn cost(graph: &Graph, assignment: &[u16], parts: usize) -> Cost {
    let node_cost = |last_node: &mut Vec<u32>, node: usize| {
        // `last_node[part]` is 1 + the last node with a neighbor in the part.
        let (own, mut copies, mut cut) = (assignment[node], 0, 0);
        for &other in graph.neighbors(node) {
            let part = assignment[other as usize];
            if part != own {
                cut += 1;
                if std::mem::replace(&mut last_node[part as usize], node as u32 + 1) != node as u32 + 1 {
                    copies += 1;
                }
            }
        }
        (copies, cut)
    };
    let nodes = (0..graph.nodes()).into_par_iter().with_min_len(BATCH);
    let add = |a: (u64, u64), b: (u64, u64)| (a.0 + b.0, a.1 + b.1);
    let (copies, twice) = nodes.map_init(|| vec![0; parts], node_cost).reduce(|| (0, 0), add);
    Cost { copies, cut: twice / 2 }
}

/// One pass over all nodes. A node moves to the part within its bounds with the most neighbors, if it has more there
/// than in its own. The cut never rises. Returns the number of moves, equal for any number of threads.
pub(super) fn reduce_cut(
    graph: &Graph,
    bounds: &Bounds<'_>,
    parts: usize,
    assignment: &mut [u16],
    loads: &mut Loads,
) -> usize {
    let nodes = graph.nodes();
    let mut moved = 0;
    for first in (0..nodes).step_by(BATCH) {
        let batch = first..nodes.min(first + BATCH);
        let current: &[u16] = assignment;
        let choice = |counts: &mut Vec<u32>, node: usize| {
            let (own, neighbors) = (current[node], graph.neighbors(node));
            neighbors.iter().for_each(|&other| counts[current[other as usize] as usize] += 1);
            let mut best = (counts[own as usize], own);
            if (best.0 as usize) < neighbors.len() {
                let mut consider = |part: u16, count: u32| {
                    let better = count > best.0 || count == best.0 && best.1 != own && part < best.1;
                    if better && part != own && bounds.fits(loads, node, part as usize) {
                        best = (count, part);
                    }
                };
                if parts <= neighbors.len() {
                    (0..).zip(counts.iter()).for_each(|(part, &count)| consider(part, count));
                } else {
                    for &other in neighbors {
                        consider(current[other as usize], counts[current[other as usize] as usize]);
                    }
                }
            }
            if parts <= neighbors.len() {
                counts.fill(0);
            } else {
                neighbors.iter().for_each(|&other| counts[current[other as usize] as usize] = 0);
            }
            best.1
        };
        let choices: Vec<u16> =
            batch.clone().into_par_iter().with_min_len(256).map_init(|| vec![0; parts], choice).collect();
        for (node, choice) in batch.zip(choices) {
            let own = assignment[node];
            // Other nodes of the batch may have moved, so the move is checked against the current assignment.
            if choice != own
                && bounds.fits(loads, node, choice as usize)
                && graph.neighbors_in(assignment, node, choice as usize)
                    > graph.neighbors_in(assignment, node, own as usize)
            {
                bounds.shift(loads, node, own as usize, choice as usize);
                assignment[node] = choice;
                moved += 1;
            }
        }
    }
    moved
}

/// Refines replication and cut together.
pub(super) struct CutAndCopies<'a> {
    graph: &'a Graph,
    bounds: &'a Bounds<'a>,
    parts: usize,
    /// Number of neighbors of each node in each part.
    counts: Vec<u32>,
}

impl<'a> CutAndCopies<'a> {
    pub(super) fn bytes(nodes: u64, parts: u64) -> u64 {
        nodes * parts * 4
    }

    pub(super) fn new(graph: &'a Graph, bounds: &'a Bounds<'a>, parts: usize, assignment: &[u16]) -> Self {
        let mut counts = vec![0; graph.nodes() * parts];
        counts.par_chunks_exact_mut(parts).enumerate().for_each(|(node, counts)| {
            graph.neighbors(node).iter().for_each(|&other| counts[assignment[other as usize] as usize] += 1);
        });
        Self { graph, bounds, parts, counts }
    }

    #[inline]
    fn count(&self, node: usize, part: usize) -> u32 {
        self.counts[node * self.parts + part]
    }

    /// One pass over all nodes in order. A node moves to one of the two other parts with most of its neighbors, if
    /// copies or cut fall and neither rises. Returns the number of moves.
    pub(super) fn pass(&mut self, assignment: &mut [u16], loads: &mut Loads) -> usize {
        let mut moved = 0;
        for node in 0..self.graph.nodes() {
            let own = assignment[node] as usize;
            if u64::from(self.count(node, own)) == self.graph.degree(node) {
                continue;
            }
            let mut candidates: [(u32, usize); 2] = [(0, usize::MAX); 2];
            for part in (0..self.parts).filter(|&part| part != own) {
                let count = self.count(node, part);
                if count > candidates[1].0 && self.bounds.fits(loads, node, part) {
                    candidates[1] = (count, part);
                    if count > candidates[0].0 {
                        candidates.swap(0, 1);
                    }
                }
            }
            let mut best = ((0, 0), usize::MAX);
            for (count, to) in candidates.into_iter().filter(|candidate| candidate.0 > 0) {
                let cut_decrease = i64::from(count) - i64::from(self.count(node, own));
                if cut_decrease < 0 {
                    continue;
                }
                let gain = (self.copies_decrease(assignment, node, own, to), cut_decrease);
                if gain.0 >= 0 && gain > best.0 {
                    best = (gain, to);
                }
            }
            let to = best.1;
            if to != usize::MAX {
                self.bounds.shift(loads, node, own, to);
                assignment[node] = to as u16;
                for &other in self.graph.neighbors(node) {
                    self.counts[other as usize * self.parts + own] -= 1;
                    self.counts[other as usize * self.parts + to] += 1;
                }
                moved += 1;
            }
        }
        moved
    }

    /// The decrease of the number of copies when `node` moves from `own` to `to`.
    fn copies_decrease(&self, assignment: &[u16], node: usize, own: usize, to: usize) -> i64 {
        // The node itself has no copy in `to` afterwards, and one in `own` if neighbors remain there.
        let mut decrease = i64::from(self.count(node, to) > 0) - i64::from(self.count(node, own) > 0);
        for &other in self.graph.neighbors(node) {
            let (other, of_other) = (other as usize, assignment[other as usize] as usize);
            decrease += i64::from(of_other != own && self.count(other, own) == 1);
            decrease -= i64::from(of_other != to && self.count(other, to) == 0);
        }
        decrease
    }
}
