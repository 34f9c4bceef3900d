//! A stream of nodes, each with its neighbors among the nodes before, out of a stream of edges in any order.
//!
//! Methods that place a node at a time want its neighbors together, which the edges of a dump are not. So nodes are taken in batches,
//! by ascending index: one pass over the edges gathers, for the nodes of a batch, the neighbors of lower index, as many as fit in half the
//! budget. The result does not depend on the budget, the number of passes does: 1 + 8 |E| / `memory`, about; a graph within the
//! budget takes two. The node that alone is a batch needs no list: all before it are placed, and counted at once.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use gnnflow_data::partitioner::Goal;
use gnnflow_data::{GraphStream, Result};

use super::loads::Loads;
use super::schedule::most_nodes;

/// Neighbors of a node by the parts that they are in.
pub(super) struct Neighbors {
    /// Number of neighbors in every part.
    count: Vec<u32>,
    /// Parts that have any.
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

    /// Visits the parts that have neighbors, with their number, in no particular order; and the part with fewest nodes, the lowest of
    /// several, perhaps a second time.
    #[inline]
    pub(super) fn each(&self, sizes: &Loads, mut visit: impl FnMut(u32, u32)) {
        visit(sizes.least(), self.count[sizes.least() as usize]);
        self.parts.iter().for_each(|&part| visit(part, self.count[part as usize]));
    }
}

/// Bytes that a budget has to hold: half of it goes to neighbors, the other half to 14 bytes a node.
pub(super) fn state_bytes(nodes: u64) -> u64 {
    2 * 14 * nodes
}

/// Places every node, in order of index. `choose` gets the neighbors that are placed already (as often as there are edges) and the
/// sizes of the parts, and gives a part with room.
pub(super) fn place(
    graph: &dyn GraphStream,
    goal: &Goal,
    choose: impl Fn(&Neighbors, &Loads) -> u32,
) -> Result<Vec<u16>> {
    let nodes = graph.num_nodes() as usize;
    let earlier = count_earlier(graph)?;
    let mut sizes = Loads::with_room(goal.parts, most_nodes(nodes as u64, goal));
    let mut part: Vec<u16> = vec![0; nodes];
    let mut neighbors = Neighbors { count: vec![0; goal.parts as usize], parts: Vec::new() };
    let mut start = 0;
    while start < nodes {
        let batch = start..batch_end(&earlier, start, goal.memory / 8);
        start = batch.end;
        let mut put = |node: usize, neighbors: &mut Neighbors, part: &mut [u16]| {
            let choice = choose(neighbors, &sizes);
            sizes.add(choice);
            part[node] = choice as u16;
            neighbors.clear();
        };
        if batch.len() == 1 {
            count_one(graph, batch.start as u32, earlier[batch.start], &part, &mut neighbors)?;
            put(batch.start, &mut neighbors, &mut part);
            continue;
        }
        let (ends, lists) = gather(graph, &earlier, batch.clone())?;
        let mut first = 0;
        for (node, end) in batch.zip(ends) {
            lists[first..end].iter().for_each(|&before| neighbors.add(part[before as usize]));
            first = end;
            put(node, &mut neighbors, &mut part);
        }
    }
    Ok(part)
}

/// The neighbors before every node: their number.
fn count_earlier(graph: &dyn GraphStream) -> Result<Vec<u32>> {
    let cells: Vec<AtomicU32> = std::iter::repeat_with(AtomicU32::default).take(graph.num_nodes() as usize).collect();
    graph.accumulate("counting neighbours", &cells, &|edges| {
        for &(src, dst) in edges.iter().filter(|(src, dst)| src != dst) {
            cells[src.max(dst) as usize].fetch_add(1, Relaxed);
        }
    })?;
    Ok(cells.into_iter().map(AtomicU32::into_inner).collect())
}

/// Where the batch that begins at `start` ends: with at most `room` neighbors, or one node.
fn batch_end(earlier: &[u32], start: usize, room: u64) -> usize {
    let mut sum = 0;
    let fits = |count: &&u32| {
        sum += u64::from(**count);
        sum <= room
    };
    (start + earlier[start..].iter().take_while(fits).count()).max(start + 1)
}

/// The neighbors before each node of a batch: where each list ends, and the lists.
fn gather(graph: &dyn GraphStream, earlier: &[u32], batch: Range<usize>) -> Result<(Vec<usize>, Vec<u32>)> {
    let mut sum = 0;
    let mut next = Vec::with_capacity(batch.len());
    for &count in &earlier[batch.clone()] {
        next.push(sum);
        sum += count as usize;
    }
    let mut lists = vec![0; sum];
    if sum > 0 {
        graph.for_each_edges("gathering neighbours", &mut |edges| {
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

/// Counts the neighbors before one node.
fn count_one(graph: &dyn GraphStream, node: u32, earlier: u32, part: &[u16], neighbors: &mut Neighbors) -> Result<()> {
    if earlier == 0 {
        return Ok(());
    }
    graph.for_each_edges("counting neighbours of one node", &mut |edges| {
        for &(src, dst) in edges {
            if src.max(dst) == node && src != dst {
                neighbors.add(part[src.min(dst) as usize]);
            }
        }
        Ok(())
    })
}
