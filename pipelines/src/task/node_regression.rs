//! Numbers of nodes.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{ArrayRef, Float32Array};
use arrow::datatypes::DataType;
use candle_core::Tensor;

use super::{Examples, Labels, Loss, NodeTask, Objective, Tally};
use crate::config::Metric;
use crate::error::Error;
use gnnflow_dataflow::storage::Rows;
use gnnflow_nn::node_targets::NodeTargets;

/// Regression: a number for each node, by the square of what it is off.
pub(crate) struct NodeRegression {
    labels: Labels,
}

impl NodeRegression {
    pub(crate) fn new(labels: Labels) -> Self {
        Self { labels }
    }
}

impl Objective for NodeRegression {
    fn width(&self) -> usize {
        1
    }

    fn metric(&self) -> Metric {
        Metric::Rmse
    }

    fn loss(&self, batch: &Examples<'_>, outputs: &Tensor) -> Result<Loss, Error> {
        Ok(Loss { sum: self.targets(batch.seeds)?.loss(outputs)?, examples: batch.seeds.len() as u64 })
    }

    fn targets(&self, nodes: &[u32]) -> Result<NodeTargets, Error> {
        let values = nodes.iter().map(|&node| self.labels.value(node)).collect::<Option<Vec<_>>>();
        values.map(NodeTargets::Numbers).ok_or_else(|| Error::Bug("a training node has no number".into()))
    }
}

impl NodeTask for NodeRegression {
    fn is_labelled(&self, node: u32) -> bool {
        self.labels.value(node).is_some()
    }

    fn count(&self, part: usize, split: u8, rows: &Rows<'_>) -> Tally {
        let partition = self.labels.partition(part);
        let (mut nodes, mut sums) = (0, Sums::default());
        for local in partition.nodes.in_split(split) {
            let node = partition.range.start as u32 + local;
            if let Some(value) = self.labels.value(node) {
                nodes += 1;
                sums.add(f64::from(rows.row(node)[0]), f64::from(value));
            }
        }
        Tally { words: vec![nodes], loss: sums.squares, sums: vec![sums.squares, sums.off, sums.values, sums.spread] }
    }

    fn finish(&self, words: &[u64], sums: &[f64]) -> (u64, BTreeMap<String, f64>) {
        let nodes = words.first().copied().unwrap_or(0);
        let &[squares, off, values, spread] = sums else { return (nodes, BTreeMap::new()) };
        (nodes, Sums { squares, off, values, spread }.metrics(nodes))
    }

    fn answer(&self) -> DataType {
        DataType::Float32
    }

    fn answers(&self, part: usize, nodes: Range<usize>, rows: &Rows<'_>) -> Result<[ArrayRef; 2], Error> {
        let first = self.labels.partition(part).range.start as u32;
        let nodes = nodes.map(|local| first + local as u32);
        let predicted = Float32Array::from_iter_values(nodes.clone().map(|node| rows.row(node)[0]));
        let truth = Float32Array::from_iter(nodes.map(|node| self.labels.value(node)));
        Ok([Arc::new(predicted), Arc::new(truth)])
    }
}

/// Sums over nodes, in their order.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Sums {
    /// Squares of what answers are off.
    squares: f64,
    /// What they are off.
    off: f64,
    /// The labels.
    values: f64,
    /// Their squares.
    spread: f64,
}

impl Sums {
    fn add(&mut self, answer: f64, value: f64) {
        let off = answer - value;
        self.squares += off * off;
        self.off += off.abs();
        self.values += value;
        self.spread += value * value;
    }

    /// `r2` is left out where all labels are equal: there is nothing to explain.
    fn metrics(&self, nodes: u64) -> BTreeMap<String, f64> {
        let n = nodes.max(1) as f64;
        let mut metrics = BTreeMap::from([
            (Metric::Rmse.key().to_owned(), (self.squares / n).sqrt()),
            (Metric::Mae.key().to_owned(), self.off / n),
        ]);
        let spread = self.spread - self.values * self.values / n;
        if spread > 0.0 {
            metrics.insert(Metric::R2.key().to_owned(), 1.0 - self.squares / spread);
        }
        metrics
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_those_of_their_formulas() {
        // sklearn: mean_squared_error(…) ** 0.5, mean_absolute_error, r2_score of ([3, -0.5, 2, 7], [2.5, 0, 2, 8]).
        let mut sums = Sums::default();
        for (answer, value) in [(2.5, 3.0), (0.0, -0.5), (2.0, 2.0), (8.0, 7.0)] {
            sums.add(answer, value);
        }
        let metrics = sums.metrics(4);
        assert!((metrics["rmse"] - 0.375f64.sqrt()).abs() < 1e-12 && (metrics["mae"] - 0.5).abs() < 1e-12);
        assert!((metrics["r2"] - 0.948_608_137_044_967_9).abs() < 1e-12, "{metrics:?}");
        let mut same = Sums::default();
        (0..3).for_each(|_| same.add(1.0, 2.0));
        assert!(!same.metrics(3).contains_key("r2"));
    }
}
