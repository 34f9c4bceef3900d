//! `largest_component`: finds the weakly connected components with a concurrent union-find forest.
//!
//! The root of a tree is its smallest node, because a root is only ever linked to a smaller node (as in Jayanti and Tarjan, "A randomized
//! concurrent algorithm for disjoint set union", 2016, with node indexes as the random order). So the result does not depend on the order
//! of edges or on threads. Each process reads its own edges. Then all processes exchange the root of every node, four bytes per node, and
//! unite them.

use std::sync::atomic::{AtomicU32, Ordering};

use super::node_set::NodeSet;
use crate::error::{Error, Result};
use crate::group::{Destination, ProcessGroup, collect};
use crate::partitioner::GraphStream;
use crate::prepare::stream::DumpStream;

/// Number of nodes per message.
const PIECE: usize = 32 << 10;

/// Counts of components.
pub(super) struct Components {
    pub(super) count: u64,
    /// Number of nodes of the largest.
    pub(super) largest: u64,
    /// Number of components with one node.
    pub(super) single: u64,
}

/// Removes all nodes from `remaining` except the largest component of their subgraph.
pub(super) fn keep_largest<C: ProcessGroup>(stream: &DumpStream<'_, C>, remaining: &mut NodeSet) -> Result<Components> {
    let forest = Forest::new(stream.num_nodes() as usize);
    let all = &*remaining;
    stream.for_each_own("joining components", &|some| {
        for &(src, dst) in some {
            if all.contains(src) && all.contains(dst) {
                forest.unite(src, dst);
            }
        }
    })?;
    forest.unite_all_processes(stream.processes)?;
    let mut sizes = vec![0u32; forest.0.len()];
    remaining.iter().for_each(|node| sizes[forest.root(node) as usize] += 1);
    let mut found = Components { count: 0, largest: 0, single: 0 };
    let mut largest = 0;
    for (root, &size) in sizes.iter().enumerate().filter(|(_, size)| **size > 0) {
        found.count += 1;
        found.single += u64::from(size == 1);
        // Of several largest components, the one with the smallest node remains.
        if u64::from(size) > found.largest {
            (largest, found.largest) = (root as u32, u64::from(size));
        }
    }
    remaining.retain(|node| forest.root(node) == largest);
    Ok(found)
}

/// The parent of every node: a smaller node or, for a root, the node itself.
struct Forest(Vec<AtomicU32>);

impl Forest {
    fn new(nodes: usize) -> Self {
        Self((0..nodes as u32).map(AtomicU32::new).collect())
    }

    fn parent(&self, node: u32) -> u32 {
        self.0[node as usize].load(Ordering::Relaxed)
    }

    /// Returns the root of a node. Halves the path to it.
    fn root(&self, mut node: u32) -> u32 {
        loop {
            let parent = self.parent(node);
            let above = self.parent(parent);
            if parent == above {
                return parent;
            }
            // If the exchange fails, another thread has shortened the path.
            let _ = self.0[node as usize].compare_exchange(parent, above, Ordering::Relaxed, Ordering::Relaxed);
            node = above;
        }
    }

    fn unite(&self, a: u32, b: u32) {
        let (mut a, mut b) = (a, b);
        loop {
            (a, b) = (self.root(a), self.root(b));
            if a == b {
                return;
            }
            let (low, high) = (a.min(b), a.max(b));
            // Fails if another thread has linked `high` concurrently.
            if self.0[high as usize].compare_exchange(high, low, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                return;
            }
        }
    }

    /// Unites the forests of all processes.
    fn unite_all_processes<C: ProcessGroup>(&self, processes: &C) -> Result<()> {
        if processes.size() == 1 {
            return Ok(());
        }
        // A snapshot: sent values must not depend on roots received from other processes.
        let own: Vec<u32> = (0..self.0.len() as u32).map(|node| self.root(node)).collect();
        let (mut at, mut last) = (0u32, 0);
        let produce = |_: usize, send: &mut dyn FnMut(Destination, Vec<u8>) -> bool| {
            own.chunks(PIECE).all(|piece| send(Destination::All, bytemuck::cast_slice(piece).to_vec()));
            Ok(())
        };
        processes.exchange(processes.size(), &produce, &mut |rank, piece: Vec<u8>| {
            if rank != last {
                (at, last) = (0, rank);
            }
            for root in collect::<u32>(&piece) {
                if at as usize >= self.0.len() || root > at {
                    return Err(Error::Bug("a forest has another number of nodes".into()));
                }
                self.unite(at, root);
                at += 1;
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use rayon::prelude::*;

    use super::*;
    use crate::testing::graphs;

    #[test]
    fn roots_are_the_smallest_nodes_of_their_components() {
        for graph in graphs() {
            let mut label: Vec<u32> = (0..graph.nodes).collect();
            // Plain label propagation, until nothing changes.
            while graph.edges.iter().any(|&(a, b)| label[a as usize] != label[b as usize]) {
                for &(a, b) in &graph.edges {
                    let least = label[a as usize].min(label[b as usize]);
                    (label[a as usize], label[b as usize]) = (least, least);
                }
            }
            let forest = Forest::new(graph.nodes as usize);
            graph.edges.par_iter().rev().for_each(|&(a, b)| forest.unite(a, b));
            let roots: Vec<u32> = (0..graph.nodes).map(|node| forest.root(node)).collect();
            assert_eq!(roots, label, "{}", graph.name);
        }
    }
}
