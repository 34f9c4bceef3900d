//! Metrics of the whole graph, from the rows that exact inference left.

use std::sync::Arc;

use gnnflow_operators::compute::metrics::{Counts, Task};
use gnnflow_operators::sync::background::Companion;
use timely::worker::Worker;

use crate::Error;
use crate::agree::Agreement;
use crate::job::Host;
use crate::layer_store::LayerStore;
use crate::setup::{LocalParts, SPLITS, Setup};
use crate::spec::{Metric, Train};
use crate::summary::Scores;
use crate::trainer::Trainer;

/// Metrics of the train, validation and test nodes; `None` for a split without nodes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Evaluation {
    pub(crate) train: Option<Scores>,
    pub(crate) val: Option<Scores>,
    pub(crate) test: Option<Scores>,
}

impl Evaluation {
    /// What the validation nodes say of a model, the higher the better: the metric, then less loss.
    pub(crate) fn worth(&self, metric: Metric) -> Option<(f64, f64)> {
        let val = self.val.as_ref()?;
        let name = match metric {
            Metric::Loss => return Some((-val.loss, 0.0)),
            Metric::Accuracy => "accuracy",
            Metric::MicroF1 => "micro_f1",
            Metric::MacroF1 => "macro_f1",
            Metric::RocAuc => "roc_auc",
        };
        Some((val.metrics.get(name).copied()?, -val.loss))
    }
}

/// The metric that chooses the best epoch.
pub(crate) fn metric(train: &Train, task: Task) -> Metric {
    train.metric.unwrap_or(match task {
        Task::SingleLabel => Metric::Accuracy,
        Task::MultiLabel => Metric::MicroF1,
    })
}

/// One partition's part of a split's metrics.
struct Part {
    counts: Counts,
    loss: f64,
}

/// Counts every worker's nodes, and adds up what all workers counted.
pub(crate) fn evaluate(
    worker: &mut Worker,
    host: &dyn Host,
    setup: &Setup,
    agreement: &mut Agreement,
    companion: &Companion<Trainer>,
    logits: &Arc<LayerStore>,
) -> Result<Evaluation, Error> {
    let hosted = setup.placement.parts_of(setup.worker);
    let (logits, parts, task, classes) = (Arc::clone(logits), Arc::clone(&setup.parts), setup.task, setup.classes);
    let (first, range) = (hosted.start, hosted.clone());
    // By partition hosted here, then by split.
    let counted: Vec<Vec<Part>> = companion.call(move |trainer| {
        trainer.on_threads(|| {
            range.map(|part| (1..4).map(|split| count(&parts, part, split, task, classes, &logits)).collect()).collect()
        })
    });
    let mut scores = [None, None, None];
    for (split, score) in scores.iter_mut().enumerate() {
        let mut own = Counts::new(task, classes);
        counted.iter().for_each(|splits| own.merge_words(&splits[split].counts.words()));
        let mut all = Counts::new(task, classes);
        all.merge_words(&agreement.sums(worker, host, &own.words())?);
        let losses = agreement.by_partition(worker, host, |part| vec![counted[part - first][split].loss.to_bits()])?;
        let nodes = all.rows();
        if nodes > 0 {
            // In partition order, so that the bits do not depend on the number of workers.
            let loss: f64 = losses.iter().flatten().map(|&bits| f64::from_bits(bits)).sum();
            *score = Some(Scores { nodes, loss: loss / nodes as f64, metrics: all.finish() });
        }
    }
    let [train, val, test] = scores;
    Ok(Evaluation { train, val, test })
}

/// Metrics of one split of one partition; nodes without label are left out.
fn count(parts: &LocalParts, part: usize, split: u8, task: Task, classes: usize, logits: &LayerStore) -> Part {
    debug_assert!((split as usize) < SPLITS.len());
    let (partition, mut counts, mut loss) = (parts.get(part), Counts::new(task, classes), 0.0);
    for local in partition.nodes.in_split(split) {
        let row = logits.row_f32(partition.range.start as u32 + local);
        let local = local as usize;
        match task {
            Task::SingleLabel => {
                let label = partition.nodes.class_labels().map_or(-1, |labels| labels[local]);
                if let Ok(label) = u32::try_from(label) {
                    counts.update_classes(row, &[label]);
                    loss += cross_entropy(row, label as usize);
                }
            }
            Task::MultiLabel => {
                if let Some((flags, width)) = partition.nodes.multi_labels() {
                    let flags = &flags[local * width..(local + 1) * width];
                    let targets: Vec<f32> = flags.iter().map(|&flag| f32::from(flag)).collect();
                    counts.update_labels(row, &targets);
                    loss += row.iter().zip(&targets).map(|(&x, &y)| binary_cross_entropy(x, y)).sum::<f64>();
                }
            }
        }
    }
    Part { counts, loss }
}

fn cross_entropy(row: &[f32], label: usize) -> f64 {
    let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = row.iter().map(|&x| f64::from(x - max).exp()).sum();
    sum.ln() - f64::from(row[label] - max)
}

fn binary_cross_entropy(x: f32, y: f32) -> f64 {
    let (x, y) = (f64::from(x), f64::from(y));
    x.max(0.0) - x * y + (-x.abs()).exp().ln_1p()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_those_of_the_formulas() {
        let row = [1.0f32, 2.0, -1.0];
        let total: f64 = row.iter().map(|&x| f64::from(x).exp()).sum();
        assert!((cross_entropy(&row, 1) + (f64::from(row[1]).exp() / total).ln()).abs() < 1e-12);
        assert!(cross_entropy(&[1000.0, 0.0], 1).is_finite());
        for (x, y) in [(0.3f32, 1.0f32), (-4.0, 0.0), (-500.0, 1.0)] {
            let p = 1.0 / (1.0 + (-f64::from(x)).exp());
            let naive = -(f64::from(y) * p.ln() + (1.0 - f64::from(y)) * (1.0 - p).ln());
            let ours = binary_cross_entropy(x, y);
            assert!(ours.is_finite() && (x < -100.0 || (ours - naive).abs() < 1e-9), "{x} {y}: {ours} {naive}");
        }
    }
}
