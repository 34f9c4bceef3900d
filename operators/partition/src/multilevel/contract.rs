//! The graph of clusters, built from the stream by sorting.

use std::cmp::Reverse;

use gnnflow_data::rng::{Key, Purpose};
use gnnflow_data::{GraphStream, Result};

use crate::graph::Graph;

/// Builds the graph of `count` clusters, weighted by the number of edges of the stream. Only the `max_edges` heaviest
/// edges are kept; a hash breaks ties. Uses 32 bytes for each of `max_edges` edges, and sorts in `memory` bytes.
pub(super) fn contract(
    graph: &dyn GraphStream,
    clusters: &[u32],
    count: usize,
    max_edges: usize,
    memory: u64,
) -> Result<Graph> {
    let key = |src: u32, dst: u32| {
        let (one, other) = (clusters[src as usize], clusters[dst as usize]);
        (one != other).then(|| u64::from(one.min(other)) << 32 | u64::from(one.max(other)))
    };
    let mut heaviest = Heaviest { max_edges: max_edges.max(1), edges: Vec::new() };
    graph.count_keys("contracting", memory, &key, &mut |counts| {
        counts.iter().for_each(|&(key, count)| heaviest.add(key, count));
        Ok(())
    })?;
    Ok(Graph::of_weighted_edges(count, &heaviest.finish()))
}

/// Collects the `max_edges` heaviest edges, with space for at most twice as many.
pub(super) struct Heaviest {
    max_edges: usize,
    edges: Vec<(u64, u32)>,
}

impl Heaviest {
    /// Largest bytes for `max_edges` edges.
    pub(super) const fn bytes(max_edges: u64) -> u64 {
        32 * max_edges
    }

    fn add(&mut self, key: u64, count: u64) {
        if self.edges.len() == 2 * self.max_edges {
            self.drop_lightest();
        }
        self.edges.push((key, count.min(u64::from(MAX_WEIGHT)) as u32));
    }

    fn drop_lightest(&mut self) {
        if self.edges.len() > self.max_edges {
            let tie_break = Key::new(0, Purpose::Partition).fold_str("contract");
            self.edges
                .select_nth_unstable_by_key(self.max_edges - 1, |&(key, count)| (Reverse(count), tie_break.draw(key)));
            self.edges.truncate(self.max_edges);
        }
    }

    /// Returns the edges in ascending order of keys, with weights scaled to METIS's 32-bit sums.
    fn finish(mut self) -> Vec<(u64, u32)> {
        self.drop_lightest();
        self.edges.sort_unstable();
        let total: u64 = self.edges.iter().map(|edge| u64::from(edge.1)).sum();
        // METIS counts every edge from both ends.
        let shift = (u64::BITS - (2 * total / u64::from(MAX_WEIGHT)).leading_zeros()).min(31);
        self.edges.iter_mut().for_each(|edge| edge.1 = (edge.1 >> shift).max(1));
        self.edges
    }
}

/// Upper limit of a weight, and of their sum after scaling.
const MAX_WEIGHT: u32 = 1 << 30;

#[cfg(test)]
mod tests {
    use super::*;
    use gnnflow_data::testing::graphs;
    use std::collections::HashMap;

    #[test]
    fn weights_equal_a_hash_map_and_the_heaviest_edges_are_kept() {
        for graph in graphs() {
            let clusters: Vec<u32> = (0..graph.nodes).map(|node| node * 7 % 5).collect();
            let mut naive: HashMap<u64, u32> = HashMap::new();
            for &(u, v) in &graph.edges {
                let (a, b) = (clusters[u as usize], clusters[v as usize]);
                if a != b {
                    *naive.entry(u64::from(a.min(b)) << 32 | u64::from(a.max(b))).or_default() += 1;
                }
            }
            let mut edges: Vec<(u64, u32)> = naive.into_iter().collect();
            edges.sort_unstable();
            let whole = contract(&graph.stream(), &clusters, 5, 100, 1 << 20).unwrap();
            assert_eq!(whole, Graph::of_weighted_edges(5, &edges), "{}", graph.name);
            for max_edges in 1..edges.len() {
                let kept = contract(&graph.stream(), &clusters, 5, max_edges, 1 << 20).unwrap();
                assert_eq!(kept.entries(), 2 * max_edges as u64);
                let mut weights: Vec<u32> = edges.iter().map(|edge| edge.1).collect();
                weights.sort_unstable_by_key(|&weight| Reverse(weight));
                let heaviest: u64 = weights[..max_edges].iter().map(|&weight| u64::from(weight)).sum();
                assert_eq!(kept.all_weights().iter().map(|&weight| u64::from(weight)).sum::<u64>(), 2 * heaviest);
            }
        }
    }

    #[test]
    fn weights_above_the_metis_limit_are_scaled() {
        let mut heaviest = Heaviest { max_edges: 10, edges: Vec::new() };
        for key in 0..10 {
            heaviest.add(key, if key == 9 { 1 } else { u64::MAX });
        }
        let edges = heaviest.finish();
        assert!(2 * edges.iter().map(|edge| u64::from(edge.1)).sum::<u64>() < 1 << 31, "{edges:?}");
        assert_eq!((edges[9].1, edges[0].1 > 1 << 20), (1, true));
    }
}
