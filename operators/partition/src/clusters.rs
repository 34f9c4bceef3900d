//! Clusters of nodes and their merging in SDT-GNN.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use bytemuck::{Pod, Zeroable};

/// Clustering state of a node. A cache line holds four.
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Node {
    pub(super) degree: u32,
    /// Name of the cluster.
    pub(super) cluster: u32,
    /// The richest neighbor, or the node itself if it has none.
    pub(super) richest: u32,
    /// The degree of `richest`; used with exact degrees only.
    pub(super) richest_degree: u32,
}

/// Clusters, numbered in the order of their first nodes.
#[derive(Debug)]
pub(super) struct Clusters {
    /// The number of the cluster named by a node; [`NONE`](Clusters::NONE) if it is empty.
    number: Vec<u32>,
    /// Number of nodes of every cluster before merging.
    pub(super) initial_size: Vec<u32>,
    /// Number of nodes of every cluster; for a merged one, its number before the merge.
    pub(super) size: Vec<u32>,
    /// The cluster that a cluster was merged into, or itself.
    parent: Vec<u32>,
}

impl Clusters {
    const NONE: u32 = u32::MAX;

    /// Numbers the clusters of `nodes`.
    pub(super) fn new(nodes: &[Node]) -> Self {
        let mut number = vec![0; nodes.len()];
        nodes.iter().for_each(|node| number[node.cluster as usize] += 1);
        let mut initial_size = Vec::new();
        for entry in &mut number {
            let size = std::mem::replace(entry, if *entry == 0 { Self::NONE } else { initial_size.len() as u32 });
            if size > 0 {
                initial_size.push(size);
            }
        }
        Self { number, size: initial_size.clone(), parent: (0..initial_size.len() as u32).collect(), initial_size }
    }

    pub(super) fn len(&self) -> usize {
        self.initial_size.len()
    }

    /// The cluster of a node before merging.
    #[inline]
    pub(super) fn of(&self, node: Node) -> u32 {
        self.number[node.cluster as usize]
    }

    /// The cluster that contains a cluster after all merges so far.
    #[inline]
    pub(super) fn root(&self, mut cluster: u32) -> u32 {
        while self.parent[cluster as usize] != cluster {
            cluster = self.parent[cluster as usize];
        }
        cluster
    }

    /// As [`root`](Self::root), with path compression.
    #[inline]
    fn find(&mut self, mut cluster: u32) -> u32 {
        while self.parent[cluster as usize] != cluster {
            let above = self.parent[self.parent[cluster as usize] as usize];
            self.parent[cluster as usize] = above;
            cluster = above;
        }
        cluster
    }
}

/// Step 2 of SPRING, lines 18 to 26: merges clusters that have at most `max_nodes` nodes together.
pub(super) fn merge(clusters: &mut Clusters, nodes: &[Node], max_nodes: u64) {
    // The richest neighbor of every cluster's representative.
    let richer = |one: u32, other: u32| {
        let key = |node: u32| (nodes[node as usize].degree, Reverse(node));
        if key(one) >= key(other) { one } else { other }
    };
    let mut richest = vec![Clusters::NONE; clusters.len()];
    for (index, node) in (0..).zip(nodes) {
        if node.richest != index {
            let best = &mut richest[clusters.of(*node) as usize];
            *best = if *best == Clusters::NONE { node.richest } else { richer(*best, node.richest) };
        }
    }
    // Every cluster is queued at most once. Sizes only grow, so an entry with an old size is queued again.
    let key = |size: u32, cluster: u32| Reverse(u64::from(size) << 32 | u64::from(cluster));
    let with_neighbors = (0..clusters.len() as u32).filter(|&cluster| richest[cluster as usize] != Clusters::NONE);
    let mut queue: BinaryHeap<_> =
        with_neighbors.map(|cluster| key(clusters.size[cluster as usize], cluster)).collect();
    let mut queued = vec![true; clusters.len()];
    while let Some(Reverse(first)) = queue.pop() {
        let (size, cluster) = ((first >> 32) as u32, first as u32);
        let now = clusters.size[cluster as usize];
        if clusters.parent[cluster as usize] != cluster {
            continue;
        }
        if now != size {
            queue.push(key(now, cluster));
            continue;
        }
        queued[cluster as usize] = false;
        let target = clusters.of(nodes[richest[cluster as usize] as usize]);
        let target = clusters.find(target);
        let both = now + clusters.size[target as usize];
        if target == cluster || u64::from(both) > max_nodes {
            continue;
        }
        clusters.parent[cluster as usize] = target;
        clusters.size[target as usize] = both;
        richest[target as usize] = richer(richest[target as usize], richest[cluster as usize]);
        if !std::mem::replace(&mut queued[target as usize], true) {
            queue.push(key(both, target));
        }
    }
}
