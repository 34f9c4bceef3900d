//! Node classification: one class per node, or several labels.

use std::sync::Arc;

use arrow::array::{ArrayRef, UInt8Array, new_null_array};
use arrow::buffer::NullBuffer;
use arrow::datatypes::DataType;
use candle_core::Tensor;
use gnnflow_data::dataset::{LabelInfo, LabelKind};
use gnnflow_nn::metrics::Task;

use super::class_loss::ClassLoss;
use super::class_metrics::ClassMetrics;
use super::classes::{Classes, count_training, cross_entropy, largest, probabilities};
use super::labels::Labels;
use super::objective::{Examples, Loss, Metrics, NodeObjective, Objective, Tally};
use crate::config::{ClassOptions, Metric};
use crate::context::SPLITS;
use crate::error::Error;
use crate::outputs::columns::{list, list_of, nullable_list_of};
use gnnflow_dataflow::storage::Rows;
use gnnflow_nn::node_targets::NodeTargets;

/// Classification of nodes: softmax and cross-entropy over classes, or a sigmoid and binary cross-entropy per label.
pub(crate) struct NodeClassification {
    task: Task,
    classes: Arc<Classes>,
    labels: Labels,
    loss: ClassLoss,
    metrics: ClassMetrics,
}

impl NodeClassification {
    pub(crate) fn new(info: &LabelInfo, labels: Labels, loss: ClassLoss, options: &ClassOptions) -> Self {
        let task = if info.kind == LabelKind::Multi { Task::MultiLabel } else { Task::SingleLabel };
        let classes = Arc::new(Classes::new(info));
        let metrics = ClassMetrics::new(task, Arc::clone(&classes), options);
        Self { task, classes, labels, loss, metrics }
    }
}

impl Objective for NodeClassification {
    fn width(&self) -> usize {
        self.classes.count
    }

    fn metric(&self) -> Metric {
        match self.task {
            Task::SingleLabel => Metric::Accuracy,
            Task::MultiLabel => Metric::MicroF1,
        }
    }

    fn loss(&self, batch: &Examples<'_>, outputs: &Tensor) -> Result<Loss, Error> {
        Ok(Loss { sum: self.targets(batch.seeds)?.loss(outputs)?, examples: batch.seeds.len() as u64 })
    }

    fn targets(&self, nodes: &[u32]) -> Result<NodeTargets, Error> {
        Ok(match self.task {
            Task::SingleLabel => {
                let classes = nodes.iter().map(|&node| self.labels.class(node)).collect::<Option<Vec<_>>>();
                let classes = classes.ok_or_else(|| Error::Bug("a training node has no label".into()))?;
                self.loss.targets(classes, nodes)
            }
            Task::MultiLabel => self.loss.label_targets(|node| self.labels.flags(node), nodes),
        })
    }
}

impl NodeObjective for NodeClassification {
    fn is_labeled(&self, node: u32) -> bool {
        self.task == Task::MultiLabel || self.labels.class(node).is_some()
    }

    fn class_counts(&self, part: usize) -> Vec<u64> {
        if self.task == Task::MultiLabel {
            return Vec::new();
        }
        let mut counts = vec![0; self.classes.count];
        count_training(&self.labels.partition(part).nodes, &mut counts);
        counts
    }

    fn class_name(&self, class: usize) -> String {
        self.classes.name(class)
    }

    fn count(&self, part: usize, split: u8, rows: &Rows<'_>) -> Tally {
        debug_assert!((split as usize) < SPLITS.len());
        let (partition, mut counts, mut loss) = (self.labels.partition(part), self.metrics.counts(), 0.0);
        let labeled = if self.labels.has_any(part) { partition.nodes.in_split(split) } else { Vec::new() };
        for local in labeled {
            let node = partition.range.start as u32 + local;
            let row = rows.row(node);
            match self.task {
                Task::SingleLabel => {
                    if let Some(label) = self.labels.class(node) {
                        counts.update_classes(row, &[label]);
                        loss += cross_entropy(row, label as usize);
                    }
                }
                Task::MultiLabel => {
                    let targets: Vec<f32> = self.labels.flags(node).iter().map(|&flag| f32::from(flag)).collect();
                    counts.update_labels(row, &targets);
                    loss += row.iter().zip(&targets).map(|(&x, &y)| binary_cross_entropy(x, y)).sum::<f64>();
                }
            }
        }
        Tally { words: counts.words(), loss, sums: Vec::new() }
    }

    fn finish(&self, words: &[u64], _sums: &[f64]) -> Metrics {
        self.metrics.finish(words)
    }

    fn prediction_type(&self) -> DataType {
        match self.task {
            Task::SingleLabel => self.classes.data_type(),
            Task::MultiLabel => list(self.classes.count, DataType::UInt8),
        }
    }

    /// Classes are numbers, or names if the labels of the dump are strings. Several labels are a list of 0 and 1.
    fn predictions(&self, rows: &mut dyn Iterator<Item = Option<&[f32]>>) -> Result<ArrayRef, Error> {
        if self.task == Task::SingleLabel {
            return Ok(self.classes.column(rows.map(|row| row.map(largest))));
        }
        let (mut flags, mut valid) = (Vec::new(), Vec::new());
        for row in rows {
            valid.push(row.is_some());
            match row {
                Some(row) => flags.extend(row.iter().map(|&logit| u8::from(logit > 0.0))),
                None => flags.resize(flags.len() + self.classes.count, 0),
            }
        }
        let nulls = valid.contains(&false).then(|| NullBuffer::from(valid));
        nullable_list_of(self.classes.count, Arc::new(UInt8Array::from(flags)), nulls)
    }

    fn labels(&self, part: usize, nodes: &[usize]) -> Result<ArrayRef, Error> {
        let first = self.labels.partition(part).range.start as u32;
        let nodes = nodes.iter().map(|&local| first + local as u32);
        match self.task {
            Task::SingleLabel => {
                Ok(self.classes.column(nodes.map(|node| self.labels.class(node).map(|class| class as usize))))
            }
            Task::MultiLabel if self.labels.has_any(part) => {
                let flags = nodes.flat_map(|node| self.labels.flags(node)).copied();
                list_of(self.classes.count, Arc::new(UInt8Array::from_iter_values(flags)))
            }
            Task::MultiLabel => Ok(new_null_array(&self.prediction_type(), nodes.len())),
        }
    }

    fn score_width(&self) -> usize {
        self.classes.count
    }

    /// Returns probabilities: a softmax over classes, or a sigmoid per label.
    fn scores(&self, row: &[f32]) -> Vec<f32> {
        match self.task {
            Task::SingleLabel => probabilities(row),
            Task::MultiLabel => row.iter().map(|x| 1.0 / (1.0 + (-x).exp())).collect(),
        }
    }
}

fn binary_cross_entropy(x: f32, y: f32) -> f64 {
    let (x, y) = (f64::from(x), f64::from(y));
    x.max(0.0) - x * y + (-x.abs()).exp().ln_1p()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn binary_cross_entropy_equals_its_formula() {
        for (x, y) in [(0.3f32, 1.0f32), (-4.0, 0.0), (-500.0, 1.0)] {
            let p = 1.0 / (1.0 + (-f64::from(x)).exp());
            let naive = -(f64::from(y) * p.ln() + (1.0 - f64::from(y)) * (1.0 - p).ln());
            let ours = binary_cross_entropy(x, y);
            assert!(ours.is_finite() && (x < -100.0 || (ours - naive).abs() < 1e-9), "{x} {y}: {ours} {naive}");
        }
    }
}
