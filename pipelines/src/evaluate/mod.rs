//! Metrics over all nodes or edges, from the results of exact inference.

pub(crate) mod changed_predictions;
pub(crate) mod class_predictions;
pub(crate) mod classification;
pub(crate) mod edge_evaluation;
pub(crate) mod fetch_results;
pub(crate) mod link_predictions;
pub(crate) mod node_blocks;
pub(crate) mod node_predictions;
pub(crate) mod ranking;
pub(crate) mod recommend;
pub(crate) mod recommendations;

use std::collections::BTreeMap;
use std::sync::Arc;

use gnnflow_dataflow::flow::compute_thread::ComputeThread;

use crate::collectives::{Collectives, Driver, List};
use crate::compute::ComputeState;
use crate::config::Metric;
use crate::context::{SPLITS, WorkerContext};
use crate::error::Error;
use crate::runtime::job::NodeSplit;
use crate::runtime::records::{ByClass, Scores};
use crate::task::objective::{Metrics, NodeObjective, Tally};
use gnnflow_dataflow::storage::RowStore;

/// Metrics of the train, validation and test nodes; `None` for a split without nodes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Evaluation {
    pub(crate) train: Option<Scores>,
    pub(crate) val: Option<Scores>,
    pub(crate) test: Option<Scores>,
    /// The metrics of each class by split, for tasks with classes.
    pub(crate) by_class: BTreeMap<String, ByClass>,
}

impl Evaluation {
    /// Returns the order of models by validation, the higher the better: by the metric, then by the loss.
    pub(crate) fn worth(&self, metric: Metric) -> Option<(f64, f64)> {
        let val = self.val.as_ref()?;
        if metric == Metric::Loss {
            return Some((-val.loss, 0.0));
        }
        let value = val.value(self.name_of(metric)?)?;
        let sign = if metric.is_better(0.0, 1.0) { -1.0 } else { 1.0 };
        Some((sign * value, -val.loss))
    }

    /// Keeps the metrics of one split.
    pub(crate) fn of_split(self, split: NodeSplit) -> Self {
        let Self { train, val, test, mut by_class } = self;
        by_class.retain(|name, _| *name == SPLITS[split as usize]);
        match split {
            NodeSplit::Train => Self { train, by_class, ..Self::default() },
            NodeSplit::Val => Self { val, by_class, ..Self::default() },
            NodeSplit::Test => Self { test, by_class, ..Self::default() },
        }
    }

    /// Returns the name of `metric` in the validation metrics.
    pub(crate) fn name_of(&self, metric: Metric) -> Option<&str> {
        let (val, key) = (self.val.as_ref()?, metric.key());
        if metric.has_bound() {
            return val.metrics.keys().find(|name| name.starts_with(key)).map(String::as_str);
        }
        val.value(key).map(|_| key)
    }
}

/// Returns the metrics of the nodes of all workers.
pub(crate) fn evaluate(
    driver: &mut Driver<'_>,
    context: &WorkerContext,
    collectives: &mut Collectives,
    compute_thread: &ComputeThread<ComputeState>,
    task: &Arc<dyn NodeObjective>,
    rows: &Arc<RowStore>,
) -> Result<Evaluation, Error> {
    let hosted = context.placement.parts_of(context.worker);
    let (rows, node_task) = (Arc::clone(rows), Arc::clone(task));
    // By partition hosted here, then by split.
    let tallies = compute_thread.call(move |compute| -> Result<Vec<Vec<Tally>>, Error> {
        let rows = rows.read()?;
        Ok(compute.on_threads(|| {
            hosted
                .map(|part| (1..SPLITS.len()).map(|split| node_task.count(part, split as u8, &rows)).collect())
                .collect()
        }))
    });
    reduce_metrics(driver, context, collectives, &tallies?, &|words, sums| task.finish(words, sums))
}

/// Returns the metrics, from sums of tallies.
type Finish<'a> = &'a dyn Fn(&[u64], &[f64]) -> Metrics;

/// Sums the tallies of all workers, by partition hosted there and then by split, and returns the metrics of each split.
pub(crate) fn reduce_metrics(
    driver: &mut Driver<'_>,
    context: &WorkerContext,
    collectives: &mut Collectives,
    tallies: &[Vec<Tally>],
    finish: Finish<'_>,
) -> Result<Evaluation, Error> {
    let first = context.placement.parts_of(context.worker).start;
    // Counts are sums of the worker, sent by its first partition. Other numbers are those of each partition, so that they are added in
    // partition order and the bits do not depend on the number of workers.
    let own = |part: usize| {
        let splits = tallies[part - first].iter().enumerate().map(|(split, Tally { loss, sums, .. })| {
            let of_worker = if part == first { tallies } else { &[] };
            let counts = of_worker.iter().map(|splits| splits[split].words.clone()).reduce(added);
            (counts.unwrap_or_default(), [&[*loss], &sums[..]].concat())
        });
        List(splits.collect())
    };
    let parts: Vec<List<(Vec<u64>, Vec<f64>)>> = collectives.all_gather_parts(driver, own)?;
    let (mut scores, mut by_class) = ([None, None, None], BTreeMap::new());
    for (split, score) in scores.iter_mut().enumerate() {
        let of_split = || parts.iter().map(|splits| &splits.0[split]);
        let counts = of_split().filter(|(counts, _)| !counts.is_empty()).map(|(counts, _)| counts.clone());
        let counts = counts.reduce(added).unwrap_or_default();
        let sum = |place: usize| of_split().map(|(_, floats)| floats[place]).sum::<f64>();
        let sums: Vec<f64> = (1..of_split().next().map_or(1, |(_, floats)| floats.len())).map(sum).collect();
        let Metrics { examples, values, by_class: classes } = finish(&counts, &sums);
        if examples > 0 {
            *score = Some(Scores { nodes: examples, loss: sum(0) / examples as f64, metrics: values });
            by_class.extend(classes.map(|classes| (SPLITS[split + 1].to_owned(), classes)));
        }
    }
    let [train, val, test] = scores;
    Ok(Evaluation { train, val, test, by_class })
}

/// Returns the element-wise sum.
fn added(mut sum: Vec<u64>, words: Vec<u64>) -> Vec<u64> {
    sum.iter_mut().zip(words).for_each(|(sum, word)| *sum += word);
    sum
}
