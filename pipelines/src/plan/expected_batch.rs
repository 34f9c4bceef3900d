//! The expected size of a sampled batch. [`super::batch`] has bounds; this is for estimates of time.
//!
//! Nodes are in three classes by in-degree. A node of degree d in a list has min(k, d) sampled edges with fanout k. A share of them, the edge cut,
//! comes from other partitions. Sources are drawn in proportion to the degree, so that a node of degree d is among the sources of m edges from
//! partitions with E edges with the probability 1 − exp(−m d / E). After the first hop, a share [`REPEATED`] of the edges leads to nodes of the list.

use gnnflow_data::prepare::{InDegrees, Quality};

use super::Sizes;
use super::batch::Batch;

/// Share of the edges of later hops whose source is in the list, beyond chance: nodes of the list are sampled again, and neighbors of a node are
/// often neighbors of each other. With it, expected lists have 0.9 to 1.3 times the nodes of sampled ones on five graphs (fanouts 15 and 10).
const REPEATED: f64 = 0.3;

/// Nodes with about equal in-degrees.
#[derive(Clone, Copy, Debug, PartialEq)]
struct DegreeClass {
    nodes: f64,
    degree: f64,
}

/// The in-degrees of a graph and its cut, for estimates.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Degrees {
    classes: Vec<DegreeClass>,
    parts: f64,
    /// Share of the edges that come from another partition.
    cut: f64,
}

/// What is expected of the own partition of a batch, and of all others.
#[derive(Clone, Copy, Debug, Default)]
struct Places {
    own: f64,
    others: f64,
}

impl Degrees {
    /// Half of the nodes have a degree between the minimum and the median, 49 of 100 one between the median and the 99th percentile (nearer
    /// to the median, as in a power law), and one has the remaining edges. Without the `quality` of partitions, all nodes have the mean degree, and
    /// partitions are random.
    pub(super) fn new(graph: &Sizes, quality: Option<&Quality>) -> Self {
        let parts = graph.parts.len().max(1) as f64;
        let cut = quality.map_or(1.0 - 1.0 / parts, |quality| quality.edge_cut);
        Self::with_cut(graph, quality.map(|quality| &quality.in_degrees), cut)
    }

    fn with_cut(graph: &Sizes, distribution: Option<&InDegrees>, cut: f64) -> Self {
        let parts = graph.parts.len().max(1) as f64;
        let (nodes, edges) = (graph.nodes.max(1) as f64, graph.edges as f64);
        let class = |share: f64, degree: f64| DegreeClass { nodes: share * nodes, degree };
        let classes = match distribution {
            None => vec![class(1.0, edges / nodes)],
            Some(known) => {
                let low = class(0.5, (known.min + known.median) as f64 / 2.0);
                let left = (edges - low.nodes * low.degree).max(0.0);
                let typical = (known.median as f64).powf(2.0 / 3.0) * (known.p99 as f64).cbrt();
                let between = class(0.49, typical.min(left / (0.49 * nodes)));
                let high = class(0.01, (left - between.nodes * between.degree).max(0.0) / (0.01 * nodes));
                vec![low, between, high]
            }
        };
        Self { classes, parts, cut: if parts > 1.0 { cut } else { 0.0 } }
    }

    /// Returns the expected nodes of the list before the first and after each hop, and the expected edges of each hop. A batch that is a
    /// subgraph has the sizes of its bound. In partition-parallel training, nodes of other partitions have no sampled edges. This is not counted as
    /// an advantage, because such batches also learn from fewer neighbors.
    pub(super) fn batch(&self, bound: &Batch, fanouts: &[i64]) -> ExpectedBatch {
        if bound.subgraph || fanouts.is_empty() {
            let numbers = |bounds: &[u64]| bounds.iter().map(|&bound| bound as f64).collect();
            return ExpectedBatch { nodes: numbers(&bound.nodes), edges: numbers(&bound.edges) };
        }
        let seeds = bound.nodes.first().copied().unwrap_or(0) as f64;
        let (all, edges): (f64, f64) =
            self.classes.iter().fold((0.0, 0.0), |(n, m), class| (n + class.nodes, m + class.nodes * class.degree));
        let share = Places { own: 1.0 / self.parts, others: 1.0 - 1.0 / self.parts };
        let first = Places { own: (seeds / (all * share.own).max(1.0)).min(1.0), others: 0.0 };
        // By class, the probability that a node is in the list.
        let mut listed = vec![first; self.classes.len()];
        let mut expected = ExpectedBatch { nodes: vec![seeds], edges: Vec::new() };
        for (hop, &fanout) in fanouts.iter().enumerate() {
            let most = if fanout < 0 { f64::INFINITY } else { fanout as f64 };
            let mut drawn = Places::default();
            for (class, p) in self.classes.iter().zip(&listed) {
                let each = class.nodes * class.degree.min(most);
                drawn.own += each * share.own * p.own;
                drawn.others += each * share.others * p.others;
            }
            let back = drawn.others * self.cut / (self.parts - 1.0).max(1.0);
            let to =
                Places { own: drawn.own * (1.0 - self.cut) + back, others: drawn.own * self.cut + drawn.others - back };
            let fresh = if hop == 0 { 1.0 } else { 1.0 - REPEATED };
            let added = |p: f64, to: f64, degree: f64, share: f64| {
                1.0 - (1.0 - p) * (-fresh * to * degree / (edges * share).max(1.0)).exp()
            };
            let mut nodes = 0.0;
            for (class, p) in self.classes.iter().zip(&mut listed) {
                p.own = added(p.own, to.own, class.degree, share.own);
                p.others = added(p.others, to.others, class.degree, share.others);
                nodes += class.nodes * (share.own * p.own + share.others * p.others);
            }
            expected.edges.push(drawn.own + drawn.others);
            expected.nodes.push(nodes);
        }
        expected
    }
}

/// The expected size of the largest batch of a partition.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ExpectedBatch {
    /// The list before the first and after each hop; of a subgraph, its seeds and all nodes.
    pub(super) nodes: Vec<f64>,
    /// By hop.
    pub(super) edges: Vec<f64>,
}

#[cfg(test)]
mod tests {
    use super::super::PartSize;
    use super::*;

    fn graph(nodes: u64, edges: u64) -> Sizes {
        Sizes::of_parts(vec![PartSize { nodes, edges, train: nodes, ..PartSize::default() }])
    }

    fn seeds(number: u64) -> Batch {
        Batch { nodes: vec![number], ..Batch::default() }
    }

    #[test]
    fn classes_have_all_nodes_and_edges() {
        let known = InDegrees { min: 1, median: 4, p99: 60, max: 20_000, none: 0 };
        for (edges, known) in [(600_000, Some(&known)), (600_000, None), (100, Some(&known))] {
            let degrees = Degrees::with_cut(&graph(60_000, edges), known, 0.0);
            let sum = |of: fn(&DegreeClass) -> f64| degrees.classes.iter().map(of).sum::<f64>();
            assert!((sum(|class| class.nodes) - 60_000.0).abs() < 1.0);
            let all = sum(|class| class.nodes * class.degree);
            assert!(all >= 0.999 * edges as f64, "{all} {edges}");
        }
    }

    #[test]
    fn lists_never_exceed_the_graph_and_small_batches_reach_their_bounds() {
        let degrees = Degrees::new(&graph(1_000_000, 100_000_000), None);
        // 10 seeds of 100 neighbors each: hardly a node occurs twice.
        let small = degrees.batch(&seeds(10), &[5, 5]);
        assert!(
            (small.nodes[1] - 60.0).abs() < 0.1 && (small.nodes[2] - (60.0 + 300.0 * (1.0 - REPEATED))).abs() < 0.3,
            "{small:?}"
        );
        assert!((small.edges[0] - 50.0).abs() < 0.1 && (small.edges[1] - 300.0).abs() < 0.3, "{small:?}");
        let large = degrees.batch(&seeds(500_000), &[-1, -1]);
        assert!(large.nodes[2] <= 1_000_000.0 && large.nodes[2] > 999_999.0, "{large:?}");
        assert_eq!(degrees.batch(&seeds(7), &[]).nodes, [7.0]);
    }

    #[test]
    fn few_edges_between_partitions_keep_batches_in_their_own() {
        let part = PartSize { nodes: 250_000, edges: 25_000_000, train: 250_000, ..PartSize::default() };
        let graph = Sizes::of_parts(vec![part; 4]);
        let batch = |cut: f64| Degrees::with_cut(&graph, None, cut).batch(&seeds(100_000), &[-1, -1]);
        let (random, cut) = (batch(0.75), batch(0.01));
        assert!(random.nodes[2] > 999_000.0, "{random:?}");
        // All nodes of the partition in the first hop, and those that 1 % of its edges lead to.
        assert!((249_000.0..420_000.0).contains(&cut.nodes[1]), "{cut:?}");
        let none = batch(0.0);
        assert!((249_000.0..250_001.0).contains(&none.nodes[2]), "{none:?}");
    }
}
