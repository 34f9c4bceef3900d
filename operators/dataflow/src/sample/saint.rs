//! Draws the nodes of subgraphs as GraphSAINT does (Zeng, Zhou, Srivastava, Kannan, Prasanna: GraphSAINT. ICLR 2020, section 3.3).

use std::sync::Arc;

use gnnflow_data::rng::{Key, Purpose};

use crate::batch::mini_batch::{BatchKey, MiniBatch};
use crate::graph::local_graph::LocalGraph;

/// The distribution that a partition draws from. Draws are independent and with replacement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Saint {
    /// Nodes of the partition, in proportion to 1 + in-degree.
    Nodes,
    /// Edges into nodes of the partition. The probability of the edge from u to v is proportional to `1 / d(v) + 1 / d(u)`, where
    /// `d(v)` is the in-degree of v, and `d(u)` the number of edges from u into the partition. Both ends are drawn, even if
    /// another partition owns u.
    Edges,
    /// Nodes of the partition, uniformly: the roots of walks.
    Roots,
}

/// Draws nodes for the partitions that a worker hosts.
///
/// [`Saint::Edges`] takes 8 bytes for each source of a partition's edges.
///
/// ```
/// use std::sync::Arc;
/// use gnnflow_data::PartitionBook;
/// use gnnflow_dataflow::graph::local_graph::{LocalGraph, OwnedInEdges};
/// use gnnflow_dataflow::graph::placement::Placement;
/// use gnnflow_dataflow::batch::mini_batch::BatchKey;
/// use gnnflow_dataflow::sample::saint::{Saint, SaintBatches};
///
/// // Edges from 1 and 2 to 0.
/// let in_edges = OwnedInEdges { indptr: vec![0, 2, 2, 2], indices: vec![1, 2], ..OwnedInEdges::default() };
/// let book = PartitionBook::new(vec![0, 3]).unwrap();
/// let load = |_| Ok::<_, ()>(Arc::new(in_edges.clone()) as _);
/// let graph = Arc::new(LocalGraph::load(&book, Placement::new(1, 1), 0, false, load).unwrap());
/// let edges = SaintBatches::new(graph, Saint::Edges, 3, 1);
/// assert!(edges.draw(BatchKey::default()).chunks(2).all(|ends| ends[0] == 0 && ends[1] > 0));
/// ```
#[derive(Clone)]
pub struct SaintBatches {
    graph: Arc<LocalGraph>,
    saint: Saint,
    draws: usize,
    seed: u64,
    /// By partition, for [`Saint::Edges`].
    sources: Vec<Sources>,
}

/// The sources of one partition's edges.
#[derive(Clone, Debug, Default)]
struct Sources {
    /// The number of nodes of the partition that have in-edges.
    destinations: u64,
    /// Ascending.
    sources: Vec<u32>,
    /// The number of edges from each source.
    counts: Vec<u32>,
}

impl Sources {
    fn new(indptr: &[i64], indices: &[u32], nodes: u64) -> Self {
        let mut degrees = vec![0u32; usize::try_from(nodes).expect("nodes are numbered by 32 bits")];
        indices.iter().for_each(|&source| degrees[source as usize] += 1);
        let found = || (0..).zip(&degrees).filter(|&(_, &count)| count > 0);
        Self {
            destinations: indptr.windows(2).filter(|ends| ends[0] < ends[1]).count() as u64,
            sources: found().map(|(source, _)| source).collect(),
            counts: found().map(|(_, &count)| count).collect(),
        }
    }

    fn degree(&self, source: u32) -> u32 {
        self.counts[self.sources.binary_search(&source).expect("every source is listed")]
    }
}

impl SaintBatches {
    /// Creates a source of batches with `draws` draws each, under `seed`.
    pub fn new(graph: Arc<LocalGraph>, saint: Saint, draws: usize, seed: u64) -> Self {
        let mut sources = vec![Sources::default(); graph.placement().parts()];
        if saint == Saint::Edges {
            for part in graph.hosted() {
                let in_edges = graph.in_edges(part);
                sources[part] = Sources::new(in_edges.indptr(), in_edges.indices(), graph.num_nodes());
            }
        }
        Self { graph, saint, draws, seed, sources }
    }

    /// Returns the draws of a batch, in order, under
    /// `Key(seed, Sample).fold_str("saint").fold(partition).fold(epoch).fold(step)`: global ids with repeats. For an edge, the
    /// destination is followed by the source. Returns nothing if the partition has no node or no edge to draw.
    ///
    /// # Panics
    /// When this worker does not host the batch's partition.
    pub fn draw(&self, batch: BatchKey) -> Vec<u32> {
        let part = batch.partition as usize;
        let key = [batch.partition, batch.epoch, batch.step]
            .into_iter()
            .fold(Key::new(self.seed, Purpose::Sample).fold_str("saint"), |key, word| key.fold(u64::from(word)));
        let (first, in_edges) = (self.graph.range(part).start, self.graph.in_edges(part));
        let (indptr, indices) = (in_edges.indptr(), in_edges.indices());
        let nodes = indptr.len() as u64 - 1;
        let draws = 0..self.draws as u64;
        match self.saint {
            _ if nodes == 0 => Vec::new(),
            Saint::Roots => draws.map(|j| first + key.below(j, nodes) as u32).collect(),
            Saint::Nodes => {
                // Node i has 1 + in-degree consecutive numbers, which end before `end(i)`.
                let end = |i: usize| indptr[i + 1] as u64 + i as u64 + 1;
                let at = |x: u64| {
                    let (mut low, mut high) = (0, nodes as usize);
                    while low < high {
                        let middle = low.midpoint(high);
                        if end(middle) <= x { low = middle + 1 } else { high = middle }
                    }
                    low as u32
                };
                draws.map(|j| first + at(key.below(j, indices.len() as u64 + nodes))).collect()
            }
            Saint::Edges if indices.is_empty() => Vec::new(),
            Saint::Edges => {
                let sources = &self.sources[part];
                draws
                    .flat_map(|j| {
                        let (dst, edge) = draw_edge(indptr, indices, sources, key.fold(j));
                        [first + dst, indices[edge]]
                    })
                    .collect()
            }
        }
    }
}

/// Draws an edge in proportion to `1 / d(v) + 1 / d(u)`, without prefix sums. The distribution is a mixture. The first part,
/// whose weight is the number of destinations, is uniform over destinations, then over the edges of the destination. The second
/// one, whose weight is the number of sources, is uniform over sources, then over the edges of the source. Both parts use
/// rejection sampling.
fn draw_edge(indptr: &[i64], indices: &[u32], sources: &Sources, key: Key) -> (u32, usize) {
    let all = sources.destinations + sources.sources.len() as u64;
    let by_destination = key.below(0, all) < sources.destinations;
    for i in 0.. {
        let (one, other) = (2 * i + 1, 2 * i + 2);
        if by_destination {
            let dst = key.below(one, indptr.len() as u64 - 1) as usize;
            let row = indptr[dst] as usize..indptr[dst + 1] as usize;
            if !row.is_empty() {
                return (dst as u32, row.start + key.below(other, row.len() as u64) as usize);
            }
        } else {
            let edge = key.below(one, indices.len() as u64) as usize;
            if key.below(other, u64::from(sources.degree(indices[edge]))) == 0 {
                return (indptr.partition_point(|&start| start <= edge as i64) as u32 - 1, edge);
            }
        }
    }
    unreachable!("a partition with edges always accepts one in the end")
}

/// Returns a batch of the distinct nodes of `drawn`: first those in `train`, which is ascending, as seeds; then the others. Both
/// are in ascending order.
///
/// ```
/// use gnnflow_dataflow::batch::mini_batch::BatchKey;
/// use gnnflow_dataflow::sample::saint::subgraph;
///
/// let batch = subgraph(BatchKey::default(), vec![7, 3, 9, 3], &[1, 7, 8]);
/// assert_eq!((batch.nodes, batch.num_seeds), (vec![7, 3, 9], 1));
/// ```
pub fn subgraph(key: BatchKey, mut drawn: Vec<u32>, train: &[u32]) -> MiniBatch {
    drawn.sort_unstable();
    drawn.dedup();
    let (mut nodes, others): (Vec<u32>, Vec<u32>) =
        drawn.into_iter().partition(|node| train.binary_search(node).is_ok());
    let seeds = nodes.len();
    nodes.extend(others);
    let mut batch = MiniBatch::new(key, nodes);
    batch.num_seeds = seeds;
    batch
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::testing::{Adjacency, book, chi_square_limit, local, random_graph};

    /// How often `saint` draws each outcome of one draw for partition 1 of a small graph, against what it should.
    fn fits(graph: &Adjacency, saint: Saint, shares: &HashMap<Vec<u32>, f64>) {
        let graph = Arc::new(local(graph, &book(graph.len() as u32, 2), 1, 0, false));
        let width = if saint == Saint::Edges { 2 } else { 1 };
        let (draws, steps) = (50, 800);
        let source = SaintBatches::new(graph, saint, draws, 5);
        let mut counts: HashMap<Vec<u32>, f64> = HashMap::new();
        for step in 0..steps {
            let drawn = source.draw(BatchKey { epoch: 1, step, partition: 1 });
            assert_eq!(drawn, source.draw(BatchKey { epoch: 1, step, partition: 1 }));
            drawn.chunks(width).for_each(|one| *counts.entry(one.to_vec()).or_default() += 1.0);
        }
        let (all, sum) = (f64::from(steps) * draws as f64, shares.values().sum::<f64>());
        assert!(counts.keys().all(|one| shares.contains_key(one)), "{saint:?}");
        let cell = |(one, share): (&Vec<u32>, &f64)| {
            let expected = share / sum * all;
            (counts.get(one).unwrap_or(&0.0) - expected).powi(2) / expected
        };
        let chi: f64 = shares.iter().map(cell).sum();
        assert!(chi < chi_square_limit(shares.len() as f64 - 1.0), "{saint:?}: {chi}");
    }

    #[test]
    fn draws_are_distributed_as_documented() {
        // Nodes 10 to 19 are partition 1; its last node has in-edges from all nodes.
        let graph = random_graph(20, 4);
        let own = 10u32..20;
        fits(&graph, Saint::Roots, &own.clone().map(|v| (vec![v], 1.0)).collect());
        fits(&graph, Saint::Nodes, &own.clone().map(|v| (vec![v], 1.0 + graph[v as usize].len() as f64)).collect());
        let from = |u: u32| own.clone().flat_map(|v| &graph[v as usize]).filter(|&&source| source == u).count() as f64;
        let mut edges: HashMap<Vec<u32>, f64> = HashMap::new();
        for v in own.clone() {
            for &u in &graph[v as usize] {
                *edges.entry(vec![v, u]).or_default() += 1.0 / graph[v as usize].len() as f64 + 1.0 / from(u);
            }
        }
        fits(&graph, Saint::Edges, &edges);
    }

    #[test]
    fn partitions_without_nodes_or_edges_draw_nothing() {
        let graph: Adjacency = vec![vec![]; 9];
        let graph = Arc::new(local(&graph, &book(9, 4), 1, 0, false));
        for (saint, empty, bare) in [(Saint::Roots, 0, 7), (Saint::Nodes, 0, 7), (Saint::Edges, 0, 0)] {
            let source = SaintBatches::new(graph.clone(), saint, 7, 1);
            let drawn = |partition| source.draw(BatchKey { partition, ..BatchKey::default() }).len();
            assert_eq!((drawn(1), drawn(0)), (empty, bare), "{saint:?}");
        }
    }
}
