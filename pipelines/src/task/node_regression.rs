//! Node regression: one number per node.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, Float32Array};
use arrow::datatypes::DataType;
use candle_core::Tensor;

use super::labels::Labels;
use super::objective::{Examples, Loss, Metrics, NodeObjective, Objective, Tally};
use crate::config::Metric;
use crate::error::Error;
use gnnflow_dataflow::storage::Rows;
use gnnflow_nn::node_targets::NodeTargets;

/// Regression of nodes with squared errors.
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

impl NodeObjective for NodeRegression {
    fn is_labeled(&self, node: u32) -> bool {
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
        Tally {
            words: vec![nodes],
            loss: sums.squares,
            sums: vec![sums.squares, sums.errors, sums.labels, sums.label_squares],
        }
    }

    fn finish(&self, words: &[u64], sums: &[f64]) -> Metrics {
        let nodes = words.first().copied().unwrap_or(0);
        let &[squares, errors, labels, label_squares] = sums else { return Metrics::plain(nodes, BTreeMap::new()) };
        Metrics::plain(nodes, Sums { squares, errors, labels, label_squares }.metrics(nodes))
    }

    fn prediction_type(&self) -> DataType {
        DataType::Float32
    }

    fn predictions(&self, rows: &mut dyn Iterator<Item = Option<&[f32]>>) -> Result<ArrayRef, Error> {
        Ok(Arc::new(Float32Array::from_iter(rows.map(|row| row.map(|row| row[0])))))
    }

    fn labels(&self, part: usize, nodes: &[usize]) -> Result<ArrayRef, Error> {
        let first = self.labels.partition(part).range.start as u32;
        Ok(Arc::new(Float32Array::from_iter(nodes.iter().map(|&local| self.labels.value(first + local as u32)))))
    }
}

/// Sums over nodes, in their order.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Sums {
    /// Squared errors.
    squares: f64,
    /// Absolute errors.
    errors: f64,
    labels: f64,
    /// Squared labels.
    label_squares: f64,
}

impl Sums {
    fn add(&mut self, predicted: f64, label: f64) {
        let error = predicted - label;
        self.squares += error * error;
        self.errors += error.abs();
        self.labels += label;
        self.label_squares += label * label;
    }

    /// Returns the metrics; without `r2` if all labels are equal.
    fn metrics(&self, nodes: u64) -> BTreeMap<String, f64> {
        let n = nodes.max(1) as f64;
        let mut metrics = BTreeMap::from([
            (Metric::Rmse.key().to_owned(), (self.squares / n).sqrt()),
            (Metric::Mae.key().to_owned(), self.errors / n),
        ]);
        let spread = self.label_squares - self.labels * self.labels / n;
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
    fn metrics_equal_those_of_sklearn() {
        // sklearn: mean_squared_error(…) ** 0.5, mean_absolute_error, r2_score of ([3, -0.5, 2, 7], [2.5, 0, 2, 8]).
        let mut sums = Sums::default();
        for (predicted, label) in [(2.5, 3.0), (0.0, -0.5), (2.0, 2.0), (8.0, 7.0)] {
            sums.add(predicted, label);
        }
        let metrics = sums.metrics(4);
        assert!((metrics["rmse"] - 0.375f64.sqrt()).abs() < 1e-12 && (metrics["mae"] - 0.5).abs() < 1e-12);
        assert!((metrics["r2"] - 0.948_608_137_044_967_9).abs() < 1e-12, "{metrics:?}");
        let mut same = Sums::default();
        (0..3).for_each(|_| same.add(1.0, 2.0));
        assert!(!same.metrics(3).contains_key("r2"));
    }
}
