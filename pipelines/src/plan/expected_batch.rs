//! The expected size of a sampled batch. [`super::batch`] has bounds; this is for estimates of time.
//!
//! Nodes are in three classes by in-degree. A node of degree d in a list has min(k, d) sampled edges with fanout k. Their sources are drawn in
//! proportion to the degree, so that a node of degree d is among the sources of m edges with the probability 1 − exp(−m d / E).

use gnnflow_data::prepare::InDegrees;

use super::Sizes;
use super::batch::Batch;

/// Nodes with about equal in-degrees.
#[derive(Clone, Copy, Debug, PartialEq)]
struct DegreeClass {
    nodes: f64,
    degree: f64,
}

/// The in-degrees of a graph, for estimates.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Degrees {
    classes: Vec<DegreeClass>,
}

impl Degrees {
    /// Half of the nodes have a degree between the minimum and the median, 49 of 100 one between the median and the 99th percentile (nearer
    /// to the median, as in a power law), and one has the remaining edges. Without a `distribution`, all nodes have the mean degree.
    pub(super) fn new(graph: &Sizes, distribution: Option<&InDegrees>) -> Self {
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
        Self { classes }
    }

    /// Returns the expected nodes of the list before the first and after each hop, and the expected edges of each hop. A batch that is a
    /// subgraph has the sizes of its bound.
    pub(super) fn batch(&self, bound: &Batch, fanouts: &[i64]) -> ExpectedBatch {
        if bound.subgraph || fanouts.is_empty() {
            let numbers = |bounds: &[u64]| bounds.iter().map(|&bound| bound as f64).collect();
            return ExpectedBatch { nodes: numbers(&bound.nodes), edges: numbers(&bound.edges) };
        }
        let seeds = bound.nodes.first().copied().unwrap_or(0) as f64;
        let (all, edges): (f64, f64) =
            self.classes.iter().fold((0.0, 0.0), |(n, m), class| (n + class.nodes, m + class.nodes * class.degree));
        // By class, the probability that a node is in the list.
        let mut listed = vec![(seeds / all.max(1.0)).min(1.0); self.classes.len()];
        let mut expected = ExpectedBatch { nodes: vec![seeds], edges: Vec::new() };
        for &fanout in fanouts {
            let most = if fanout < 0 { f64::INFINITY } else { fanout as f64 };
            let classes = || self.classes.iter().zip(&listed);
            let drawn: f64 = classes().map(|(class, p)| class.nodes * p * class.degree.min(most)).sum();
            for (class, p) in self.classes.iter().zip(&mut listed) {
                *p = 1.0 - (1.0 - *p) * (-drawn * class.degree / edges.max(1.0)).exp();
            }
            expected.edges.push(drawn);
            expected.nodes.push(self.classes.iter().zip(&listed).map(|(class, p)| class.nodes * p).sum());
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
            let degrees = Degrees::new(&graph(60_000, edges), known);
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
        assert!((small.nodes[1] - 60.0).abs() < 0.1 && (small.nodes[2] - 360.0).abs() < 0.3, "{small:?}");
        assert!((small.edges[0] - 50.0).abs() < 0.1 && (small.edges[1] - 300.0).abs() < 0.3, "{small:?}");
        let large = degrees.batch(&seeds(500_000), &[-1, -1]);
        assert!(large.nodes[2] <= 1_000_000.0 && large.nodes[2] > 999_999.0, "{large:?}");
        assert_eq!(degrees.batch(&seeds(7), &[]).nodes, [7.0]);
    }
}
