//! Assignment of clusters to parts by list scheduling in descending order, with a bound on nodes.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use gnnflow_data::partitioner::Goal;

use super::clusters::{Clusters, Node};

/// Bound on the nodes of a part: max(⌊β|V|/p⌋, ⌈|V|/p⌉).
pub(super) fn max_nodes(nodes: u64, goal: &Goal) -> u64 {
    let parts = u64::from(goal.parts);
    nodes.div_ceil(parts).max((goal.balance.nodes * nodes as f64 / parts as f64) as u64)
}

/// A priority queue of parts by load.
pub(super) struct PartQueue(BinaryHeap<Reverse<(u64, u32)>>);

impl PartQueue {
    pub(super) fn new(loads: impl IntoIterator<Item = u64>) -> Self {
        Self(loads.into_iter().zip(0..).map(Reverse).collect())
    }

    /// Returns `(load, part)` of the least loaded part, the lowest on a tie.
    fn peek(&self) -> (u64, u32) {
        self.0.peek().expect("at least one part").0
    }

    /// Adds `nodes` to the least loaded part and returns the part.
    pub(super) fn add_to_smallest(&mut self, nodes: u64) -> u32 {
        let mut first = self.0.peek_mut().expect("at least one part");
        first.0.0 += nodes;
        first.0.1
    }
}

/// Step 3 of SPRING, lines 27 to 30: the part of every node. No part has more than `max` nodes.
pub(super) fn schedule(clusters: &Clusters, nodes: Vec<Node>, parts: u32, max: u64) -> Vec<u16> {
    let mut order: Vec<u32> = (0..clusters.len() as u32).filter(|&cluster| clusters.root(cluster) == cluster).collect();
    order.sort_unstable_by_key(|&cluster| (Reverse(clusters.size[cluster as usize]), cluster));
    let mut parts = PartQueue::new((0..parts).map(|_| 0));
    let mut cluster_parts = ClusterParts { of: vec![ClusterParts::UNASSIGNED; clusters.len()], divided: Vec::new() };
    let mut pieces = InitialClusters { clusters, sorted: Vec::new() };
    for cluster in order {
        let size = u64::from(clusters.size[cluster as usize]);
        if parts.peek().0 + size <= max {
            cluster_parts.of[cluster as usize] = parts.add_to_smallest(size);
        } else {
            cluster_parts.place_pieces(pieces.of(cluster), &clusters.initial_size, &mut parts, max);
        }
    }
    // A merged cluster that was not divided is in the part of its root.
    for cluster in 0..clusters.len() as u32 {
        if cluster_parts.of[cluster as usize] == ClusterParts::UNASSIGNED {
            cluster_parts.of[cluster as usize] = cluster_parts.of[clusters.root(cluster) as usize];
        }
    }
    nodes.into_iter().map(|node| cluster_parts.next(clusters.of(node)) as u16).collect()
}

/// The part of every cluster.
struct ClusterParts {
    /// A part; `DIVIDED` plus a position in `divided`; or `UNASSIGNED`.
    of: Vec<u32>,
    /// Clusters in several parts: `(part, number of nodes)`, last first.
    divided: Vec<Vec<(u32, u64)>>,
}

impl ClusterParts {
    const DIVIDED: u32 = 1 << 31;
    const UNASSIGNED: u32 = u32::MAX;

    /// Assigns a cluster's pieces, largest first. Each round fills the least loaded part with all pieces that fit.
    fn place_pieces(&mut self, mut pieces: Vec<u32>, initial_size: &[u32], parts: &mut PartQueue, max: u64) {
        while !pieces.is_empty() {
            let before = pieces.len();
            let (mut load, _) = parts.peek();
            let mut filled = 0;
            let mut placed = Vec::new();
            pieces.retain(|&piece| {
                let size = u64::from(initial_size[piece as usize]);
                let fits = load + size <= max;
                if fits {
                    load += size;
                    filled += size;
                    placed.push(piece);
                }
                !fits
            });
            if pieces.len() < before {
                let part = parts.add_to_smallest(filled);
                placed.into_iter().for_each(|piece| self.of[piece as usize] = part);
            } else {
                self.divide(pieces.remove(0), initial_size, parts, max);
            }
        }
    }

    /// Divides the nodes of a cluster that fits in no part between several parts.
    fn divide(&mut self, piece: u32, initial_size: &[u32], parts: &mut PartQueue, max: u64) {
        let mut left = u64::from(initial_size[piece as usize]);
        let mut shares = Vec::new();
        while left > 0 {
            let share = left.min(max - parts.peek().0);
            shares.push((parts.add_to_smallest(share), share));
            left -= share;
        }
        shares.reverse();
        self.of[piece as usize] = Self::DIVIDED + self.divided.len() as u32;
        self.divided.push(shares);
    }

    /// Returns the part of the next node of a cluster.
    #[inline]
    fn next(&mut self, cluster: u32) -> u32 {
        let of = self.of[cluster as usize];
        if of < Self::DIVIDED {
            return of;
        }
        let shares = &mut self.divided[(of - Self::DIVIDED) as usize];
        let (part, left) = shares.last_mut().expect("the shares cover all nodes");
        let part = *part;
        *left -= 1;
        if *left == 0 {
            shares.pop();
        }
        part
    }
}

/// The initial clusters of each merged one, sorted on first use.
struct InitialClusters<'a> {
    clusters: &'a Clusters,
    /// `(root, cluster)`, by root and descending size.
    sorted: Vec<(u32, u32)>,
}

impl InitialClusters<'_> {
    fn of(&mut self, root: u32) -> Vec<u32> {
        let Self { clusters, sorted } = self;
        if sorted.is_empty() {
            sorted.extend((0..clusters.len() as u32).map(|cluster| (clusters.root(cluster), cluster)));
            sorted.sort_unstable_by_key(|&(root, cluster)| {
                (root, Reverse(clusters.initial_size[cluster as usize]), cluster)
            });
        }
        let start = sorted.partition_point(|&(other, _)| other < root);
        sorted[start..].iter().take_while(|&&(other, _)| other == root).map(|&(_, cluster)| cluster).collect()
    }
}
