//! A stream of nodes with their earlier neighbors, from a stream of edges in any order.
//!
//! Nodes are placed in ascending order, in batches. One pass over the edges gathers the neighbors of lower index for a
//! batch, as many as fit in half of [`Goal::limit`]. The number of passes is about 1 + 8 |E| / `limit`, and two if the
//! graph fits in it. The result does not depend on it. A batch of one node needs no list: its neighbors are
//! all placed and are counted directly.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use gnnflow_data::partitioner::Goal;
use gnnflow_data::{GraphStream, Result};

use super::loads::Loads;
use super::schedule::max_nodes;

/// Neighbors of a node by part.
pub(super) struct Neighbors {
    /// Number of neighbors in each part.
    count: Vec<u32>,
    /// Parts with neighbors.
    parts: Vec<u32>,
}

impl Neighbors {
    #[inline]
    fn add(&mut self, part: u16) {
        let count = &mut self.count[part as usize];
        if *count == 0 {
            self.parts.push(part.into());
        }
        *count += 1;
    }

    fn clear(&mut self) {
        self.parts.drain(..).for_each(|part| self.count[part as usize] = 0);
    }

    /// Visits `(part, count)` of the parts with neighbors in any order, and of the least loaded part, which may be
    /// visited twice.
    #[inline]
    pub(super) fn each(&self, sizes: &Loads, mut visit: impl FnMut(u32, u32)) {
        visit(sizes.least(), self.count[sizes.least() as usize]);
        self.parts.iter().for_each(|&part| visit(part, self.count[part as usize]));
    }
}

/// Smallest limit in bytes: one half for neighbors, one half for 14 bytes per node.
pub(super) fn needed_bytes(nodes: u64) -> u64 {
    2 * 14 * nodes
}

/// Places every node, in order of index, and returns the parts. `choose` receives the placed neighbors (once per edge)
/// and the sizes of the parts, and returns a part below its bound.
pub(super) fn place(
    graph: &dyn GraphStream,
    goal: &Goal,
    choose: impl Fn(&Neighbors, &Loads) -> u32,
) -> Result<Vec<u16>> {
    let nodes = graph.num_nodes() as usize;
    let earlier = count_earlier_neighbors(graph)?;
    let mut sizes = Loads::with_bound(goal.parts, max_nodes(nodes as u64, goal));
    let mut part: Vec<u16> = vec![0; nodes];
    let mut neighbors = Neighbors { count: vec![0; goal.parts as usize], parts: Vec::new() };
    let mut start = 0;
    while start < nodes {
        let batch = start..batch_end(&earlier, start, goal.limit / 8);
        start = batch.end;
        let mut place_node = |node: usize, neighbors: &mut Neighbors, part: &mut [u16]| {
            let choice = choose(neighbors, &sizes);
            sizes.add(choice);
            part[node] = choice as u16;
            neighbors.clear();
        };
        if batch.len() == 1 {
            count_neighbors_of(graph, batch.start as u32, earlier[batch.start], &part, &mut neighbors)?;
            place_node(batch.start, &mut neighbors, &mut part);
            continue;
        }
        let (ends, lists) = gather(graph, &earlier, batch.clone())?;
        let mut first = 0;
        for (node, end) in batch.zip(ends) {
            lists[first..end].iter().for_each(|&before| neighbors.add(part[before as usize]));
            first = end;
            place_node(node, &mut neighbors, &mut part);
        }
    }
    Ok(part)
}

/// Counts the neighbors of lower index of every node.
fn count_earlier_neighbors(graph: &dyn GraphStream) -> Result<Vec<u32>> {
    let cells: Vec<AtomicU32> = std::iter::repeat_with(AtomicU32::default).take(graph.num_nodes() as usize).collect();
    graph.accumulate("counting neighbors", &cells, &|edges| {
        for &(src, dst) in edges.iter().filter(|(src, dst)| src != dst) {
            cells[src.max(dst) as usize].fetch_add(1, Relaxed);
        }
    })?;
    Ok(cells.into_iter().map(AtomicU32::into_inner).collect())
}

/// Returns the end of the batch that begins at `start`. A batch has at most `max_neighbors` neighbors, or one node.
fn batch_end(earlier: &[u32], start: usize, max_neighbors: u64) -> usize {
    let mut sum = 0;
    let fits = |count: &&u32| {
        sum += u64::from(**count);
        sum <= max_neighbors
    };
    (start + earlier[start..].iter().take_while(fits).count()).max(start + 1)
}

/// Gathers the neighbors of lower index for a batch. Returns the end of each node's list, and the lists.
fn gather(graph: &dyn GraphStream, earlier: &[u32], batch: Range<usize>) -> Result<(Vec<usize>, Vec<u32>)> {
    let mut sum = 0;
    let mut next = Vec::with_capacity(batch.len());
    for &count in &earlier[batch.clone()] {
        next.push(sum);
        sum += count as usize;
    }
    let mut lists = vec![0; sum];
    if sum > 0 {
        graph.for_each_edges("gathering neighbors", &mut |edges| {
            for &(src, dst) in edges {
                let (before, node) = (src.min(dst), src.max(dst) as usize);
                if batch.contains(&node) && before as usize != node {
                    let next = &mut next[node - batch.start];
                    lists[*next] = before;
                    *next += 1;
                }
            }
            Ok(())
        })?;
    }
    Ok((next, lists))
}

/// Counts the neighbors of lower index of one node.
fn count_neighbors_of(
    graph: &dyn GraphStream,
    node: u32,
    earlier: u32,
    part: &[u16],
    neighbors: &mut Neighbors,
) -> Result<()> {
    if earlier == 0 {
        return Ok(());
    }
    graph.for_each_edges("counting neighbors of one node", &mut |edges| {
        for &(src, dst) in edges {
            if src.max(dst) == node && src != dst {
                neighbors.add(part[src.min(dst) as usize]);
            }
        }
        Ok(())
    })
}
