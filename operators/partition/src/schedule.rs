//! Assignment of clusters to parts by list scheduling in descending order, with a bound on nodes.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use gnnflow_data::partitioner::Goal;

use super::clusters::Clusters;
use super::spring::Node;

/// Bound on the nodes of a part: max(⌊β|V|/p⌋, ⌈|V|/p⌉).
pub(super) fn most_nodes(nodes: u64, goal: &Goal) -> u64 {
    let parts = u64::from(goal.parts);
    nodes.div_ceil(parts).max((goal.balance.nodes * nodes as f64 / parts as f64) as u64)
}

/// A priority queue of parts by load.
pub(super) struct Emptiest(BinaryHeap<Reverse<(u64, u32)>>);

impl Emptiest {
    pub(super) fn new(loads: impl IntoIterator<Item = u64>) -> Self {
        Self(loads.into_iter().zip(0..).map(Reverse).collect())
    }

    /// Returns `(load, part)` of the least loaded part, the lowest on a tie.
    fn peek(&self) -> (u64, u32) {
        self.0.peek().expect("there is a part").0
    }

    /// Adds `nodes` to the least loaded part and returns the part.
    pub(super) fn put(&mut self, nodes: u64) -> u32 {
        let mut first = self.0.peek_mut().expect("there is a part");
        first.0.0 += nodes;
        first.0.1
    }
}

/// Step 3 of SPRING, lines 27 to 30: the part of every node. No part has more than `most` nodes.
pub(super) fn schedule(clusters: &Clusters, nodes: Vec<Node>, parts: u32, most: u64) -> Vec<u16> {
    let mut order: Vec<u32> = (0..clusters.len() as u32).filter(|&cluster| clusters.root(cluster) == cluster).collect();
    order.sort_unstable_by_key(|&cluster| (Reverse(clusters.size[cluster as usize]), cluster));
    let mut parts = Emptiest::new((0..parts).map(|_| 0));
    let mut places = Places { of: vec![Places::OPEN; clusters.len()], torn: Vec::new() };
    let mut pieces = Pieces { clusters, sorted: Vec::new() };
    for cluster in order {
        let size = u64::from(clusters.size[cluster as usize]);
        if parts.peek().0 + size <= most {
            places.of[cluster as usize] = parts.put(size);
        } else {
            places.take_apart(pieces.of(cluster), &clusters.own, &mut parts, most);
        }
    }
    // A merged cluster that was not divided is in the part of its root.
    for cluster in 0..clusters.len() as u32 {
        if places.of[cluster as usize] == Places::OPEN {
            places.of[cluster as usize] = places.of[clusters.root(cluster) as usize];
        }
    }
    nodes.into_iter().map(|node| places.next(clusters.of(node)) as u16).collect()
}

/// The part of every cluster.
struct Places {
    /// A part; [`TORN`](Places::TORN) plus a position in `torn`; or [`OPEN`](Places::OPEN).
    of: Vec<u32>,
    /// Clusters in several parts: `(part, number of nodes)`, last first.
    torn: Vec<Vec<(u32, u64)>>,
}

impl Places {
    const TORN: u32 = 1 << 31;
    const OPEN: u32 = u32::MAX;

    /// Assigns a cluster's pieces, largest first. Each round fills the least loaded part with all pieces that fit.
    fn take_apart(&mut self, mut pieces: Vec<u32>, own: &[u32], parts: &mut Emptiest, most: u64) {
        while !pieces.is_empty() {
            let before = pieces.len();
            let (mut load, _) = parts.peek();
            let mut filled = 0;
            let mut here = Vec::new();
            pieces.retain(|&piece| {
                let size = u64::from(own[piece as usize]);
                let fits = load + size <= most;
                if fits {
                    load += size;
                    filled += size;
                    here.push(piece);
                }
                !fits
            });
            if pieces.len() < before {
                let part = parts.put(filled);
                here.into_iter().for_each(|piece| self.of[piece as usize] = part);
            } else {
                self.tear(pieces.remove(0), own, parts, most);
            }
        }
    }

    /// Divides the nodes of a cluster that fits in no part between several parts.
    fn tear(&mut self, piece: u32, own: &[u32], parts: &mut Emptiest, most: u64) {
        let mut left = u64::from(own[piece as usize]);
        let mut shares = Vec::new();
        while left > 0 {
            let share = left.min(most - parts.peek().0);
            shares.push((parts.put(share), share));
            left -= share;
        }
        shares.reverse();
        self.of[piece as usize] = Self::TORN + self.torn.len() as u32;
        self.torn.push(shares);
    }

    /// The part of the next node of a cluster.
    #[inline]
    fn next(&mut self, cluster: u32) -> u32 {
        let of = self.of[cluster as usize];
        if of < Self::TORN {
            return of;
        }
        let shares = &mut self.torn[(of - Self::TORN) as usize];
        let (part, left) = shares.last_mut().expect("as many places as nodes");
        let part = *part;
        *left -= 1;
        if *left == 0 {
            shares.pop();
        }
        part
    }
}

/// The initial clusters of each merged one, sorted on first use.
struct Pieces<'a> {
    clusters: &'a Clusters,
    /// `(root, cluster)`, by root and descending size.
    sorted: Vec<(u32, u32)>,
}

impl Pieces<'_> {
    fn of(&mut self, root: u32) -> Vec<u32> {
        let Self { clusters, sorted } = self;
        if sorted.is_empty() {
            sorted.extend((0..clusters.len() as u32).map(|cluster| (clusters.root(cluster), cluster)));
            sorted.sort_unstable_by_key(|&(root, cluster)| (root, Reverse(clusters.own[cluster as usize]), cluster));
        }
        let start = sorted.partition_point(|&(other, _)| other < root);
        sorted[start..].iter().take_while(|&&(other, _)| other == root).map(|&(_, cluster)| cluster).collect()
    }
}
