//! A graph in memory, for methods with enough budget.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use gnnflow_data::{GraphSize, GraphStream, Result};

/// A symmetric graph without self loops or duplicate edges, in CSR form.
///
/// 4 bytes for each of its `2 |E|` entries, 8 if edges have weights, and 8 per node.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Graph {
    starts: Vec<u64>,
    neighbors: Vec<u32>,
    /// The weight of every entry of `neighbors`; empty if all are 1.
    weights: Vec<u32>,
}

impl Graph {
    /// Reads a stream as an undirected graph in two passes: count, then fill. Until duplicates are removed, it holds
    /// one entry per edge end of the dump.
    pub(super) fn read(graph: &dyn GraphStream) -> Result<Self> {
        let nodes = graph.num_nodes() as usize;
        let ends: Vec<AtomicU32> = std::iter::repeat_with(AtomicU32::default).take(nodes).collect();
        graph.accumulate("counting neighbors", &ends, &|edges| {
            for &(src, dst) in edges.iter().filter(|(src, dst)| src != dst) {
                ends[src as usize].fetch_add(1, Relaxed);
                ends[dst as usize].fetch_add(1, Relaxed);
            }
        })?;
        // `next[v]` is the position of the next neighbor of v; after filling, the end of its list.
        let mut total = 0;
        let next = ends.into_iter().map(|count| {
            let start = total;
            total += u64::from(count.into_inner());
            start
        });
        let mut next: Vec<u64> = next.collect();
        let mut neighbors = vec![0; total as usize];
        graph.for_each_edges("reading the graph", &mut |edges| {
            for &(src, dst) in edges.iter().filter(|(src, dst)| src != dst) {
                for (one, other) in [(src, dst), (dst, src)] {
                    let at = &mut next[one as usize];
                    neighbors[*at as usize] = other;
                    *at += 1;
                }
            }
            Ok(())
        })?;
        sort_lists(&mut neighbors, &next, 0);
        // Compacts the lists in place, without duplicates.
        let (mut begin, mut len) = (0, 0);
        let mut starts = next;
        for start in &mut starts {
            let end = *start as usize;
            *start = len as u64;
            let first = len;
            for at in begin..end {
                let other = neighbors[at];
                if len == first || neighbors[len - 1] != other {
                    neighbors[len] = other;
                    len += 1;
                }
            }
            begin = end;
        }
        starts.push(len as u64);
        neighbors.truncate(len);
        neighbors.shrink_to_fit();
        Ok(Self { starts, neighbors, weights: Vec::new() })
    }

    /// Builds a graph of `nodes` nodes from distinct edges `(smaller end << 32 | larger end, weight)`.
    pub(super) fn of_weighted_edges(nodes: usize, edges: &[(u64, u32)]) -> Self {
        let ends = |key: u64| [(key >> 32) as usize, key as u32 as usize];
        let mut starts = vec![0; nodes + 1];
        for &(key, _) in edges {
            ends(key).into_iter().for_each(|end| starts[end + 1] += 1);
        }
        for node in 0..nodes {
            starts[node + 1] += starts[node];
        }
        let mut next = starts.clone();
        let mut neighbors = vec![0; 2 * edges.len()];
        let mut weights = vec![0; 2 * edges.len()];
        for &(key, weight) in edges {
            let [a, b] = ends(key);
            for (one, other) in [(a, b), (b, a)] {
                neighbors[next[one] as usize] = other as u32;
                weights[next[one] as usize] = weight;
                next[one] += 1;
            }
        }
        Self { starts, neighbors, weights }
    }

    /// Bytes of [`Graph::read`]: the lists with duplicates, and twice their starts; or the counters.
    pub(super) fn reading_bytes(size: GraphSize) -> u64 {
        let counting = size.cell_bytes(size.nodes) + 8 * size.nodes;
        counting.max(8 * size.edges + 16 * size.nodes)
    }

    /// Bytes of a graph that was read.
    pub(super) const fn bytes(size: GraphSize) -> u64 {
        8 * size.edges + 8 * size.nodes
    }

    /// Bytes of [`Graph::of_weighted_edges`], without its argument.
    pub(super) const fn weighted_bytes(nodes: u64, edges: u64) -> u64 {
        16 * nodes + 16 * edges
    }

    pub(super) fn nodes(&self) -> usize {
        self.starts.len().saturating_sub(1)
    }

    /// Number of entries in all lists: twice the edges.
    pub(super) fn entries(&self) -> u64 {
        self.neighbors.len() as u64
    }

    /// The first entry of each node's list, and the end of the last list.
    pub(super) fn starts(&self) -> &[u64] {
        &self.starts
    }

    /// All lists, concatenated.
    pub(super) fn all_neighbors(&self) -> &[u32] {
        &self.neighbors
    }

    /// The weights of all entries; empty if all are 1.
    pub(super) fn all_weights(&self) -> &[u32] {
        &self.weights
    }

    /// The neighbors of a node, in ascending order if the graph was read from a stream.
    #[inline]
    pub(super) fn neighbors(&self, node: usize) -> &[u32] {
        &self.neighbors[self.starts[node] as usize..self.starts[node + 1] as usize]
    }

    #[inline]
    pub(super) fn degree(&self, node: usize) -> u64 {
        self.starts[node + 1] - self.starts[node]
    }

    /// Number of neighbors of `node` in `part`.
    pub(super) fn neighbors_in(&self, assignment: &[u16], node: usize, part: usize) -> u32 {
        self.neighbors(node).iter().filter(|&&other| usize::from(assignment[other as usize]) == part).count() as u32
    }
}

/// Number of lists that one thread sorts.
const LISTS: usize = 4096;

/// Sorts every list, on all threads. `ends` are the ends of the lists, and `before` is the position of `lists`, both in
/// the whole array.
fn sort_lists(lists: &mut [u32], ends: &[u64], before: u64) {
    if ends.len() <= LISTS {
        let mut begin = 0;
        for &end in ends {
            let end = (end - before) as usize;
            lists[begin..end].sort_unstable();
            begin = end;
        }
        return;
    }
    let (first, second) = ends.split_at(ends.len() / 2);
    let middle = first.last().copied().unwrap_or(before);
    let (left, right) = lists.split_at_mut((middle - before) as usize);
    rayon::join(|| sort_lists(left, first, before), || sort_lists(right, second, middle));
}

#[cfg(test)]
mod tests {
    use super::*;
    use gnnflow_data::testing::graphs;
    use std::collections::BTreeSet;

    #[test]
    fn parallel_sort_of_lists_equals_sequential_sort() {
        let mut lists: Vec<u32> = (0..40_000).map(|i| i * 7919 % 10_007).collect();
        let ends: Vec<u64> = (1..=20_000).map(|node| node * 2 - node % 3).chain([40_000]).collect();
        let mut expected = lists.clone();
        let mut begin = 0;
        for &end in &ends {
            expected[begin..end as usize].sort_unstable();
            begin = end as usize;
        }
        sort_lists(&mut lists, &ends, 0);
        assert!(lists == expected);
    }

    #[test]
    fn graph_equals_the_set_of_its_edges_in_both_directions() {
        for graph in graphs() {
            let both = graph.edges.iter().flat_map(|&(u, v)| [(u, v), (v, u)]).filter(|(u, v)| u != v);
            let expected: BTreeSet<(u32, u32)> = both.collect();
            let read = Graph::read(&graph.stream()).unwrap();
            assert_eq!((read.nodes(), read.entries()), (graph.nodes as usize, expected.len() as u64));
            let all = (0..graph.nodes).flat_map(|v| read.neighbors(v as usize).iter().map(move |&u| (v, u)));
            assert!(all.eq(expected.iter().copied()), "{}", graph.name);
            assert!((0..read.nodes()).all(|v| read.degree(v) == read.neighbors(v).len() as u64));

            let edges: Vec<(u64, u32)> = expected
                .iter()
                .filter(|(u, v)| u < v)
                .map(|&(u, v)| (u64::from(u) << 32 | u64::from(v), u + v))
                .collect();
            let weighted = Graph::of_weighted_edges(graph.nodes as usize, &edges);
            for node in 0..graph.nodes as usize {
                let mut list = weighted.neighbors(node).to_vec();
                list.sort_unstable();
                assert_eq!(list, read.neighbors(node), "{} {node}", graph.name);
                let from = weighted.starts()[node] as usize;
                for (at, &other) in weighted.neighbors(node).iter().enumerate() {
                    assert_eq!(weighted.all_weights()[from + at], node as u32 + other);
                }
            }
        }
    }
}
