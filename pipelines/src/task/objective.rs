//! The interface of tasks: the loss of a batch and, for tasks on nodes, metrics and predictions.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::DataType;
use candle_core::Tensor;
use gnnflow_dataflow::storage::Rows;
use gnnflow_kernels::pairs::Pairs;
use gnnflow_nn::node_targets::NodeTargets;
use gnnflow_nn::pair_head::PairHead;

use crate::config::Metric;
use crate::error::Error;
use crate::runtime::records::ByClass;

/// The loss of a task, for the compute thread.
pub(crate) trait Objective: Send + Sync {
    /// Returns the columns of the model's result.
    fn width(&self) -> usize;

    /// Returns the default validation metric, which selects the best epoch.
    fn metric(&self) -> Metric;

    /// Returns the loss of a batch. `outputs`, `[seeds, width]`, are the model's results for its seeds.
    fn loss(&self, batch: &Examples<'_>, outputs: &Tensor) -> Result<Loss, Error>;

    /// Returns the targets of nodes, for tasks on nodes.
    fn targets(&self, nodes: &[u32]) -> Result<NodeTargets, Error> {
        let _ = nodes;
        Err(Error::Bug("a task on edges has no targets of nodes".into()))
    }
}

/// A task on nodes: a prediction for every node, and metrics of the nodes of each split.
pub(crate) trait NodeObjective: Objective {
    /// Tells whether a node has a label.
    fn is_labeled(&self, node: u32) -> bool;

    /// Returns the number of training nodes of each class, for a partition hosted here; empty if nodes have no single class.
    fn class_counts(&self, part: usize) -> Vec<u64> {
        let _ = part;
        Vec::new()
    }

    /// Returns the name of a class, as in the predictions.
    fn class_name(&self, class: usize) -> String {
        class.to_string()
    }

    /// Returns the tally of the labeled nodes of a split, for a partition hosted here. `rows` are the model's results.
    fn count(&self, part: usize, split: u8, rows: &Rows<'_>) -> Tally;

    /// Returns the metrics, from sums of tallies.
    fn finish(&self, words: &[u64], sums: &[f64]) -> Metrics;

    /// Returns the type of a prediction in `predictions.parquet`.
    fn prediction_type(&self) -> DataType;

    /// Returns the predictions of rows of the model's results; null for a missing row.
    fn predictions(&self, rows: &mut dyn Iterator<Item = Option<&[f32]>>) -> Result<ArrayRef, Error>;

    /// Returns the labels of nodes of one partition, given by local ids.
    fn labels(&self, part: usize, nodes: &[usize]) -> Result<ArrayRef, Error>;

    /// Returns the number of scores per node with `infer.scores`; 0 if the task has no scores.
    fn score_width(&self) -> usize {
        0
    }

    /// Returns the scores of a row of the model's results.
    fn scores(&self, row: &[f32]) -> Vec<f32> {
        let _ = row;
        Vec::new()
    }
}

/// The examples of a batch.
pub(crate) struct Examples<'a> {
    /// Global ids of the seeds, in the order of the outputs' rows.
    pub(crate) seeds: &'a [u32],
    /// Pairs of seeds, for tasks on edges.
    pub(crate) pairs: Option<&'a Arc<Pairs>>,
    /// The decoder's vectors of relations, if it has any.
    pub(crate) relations: Option<&'a Tensor>,
    /// The classifier of pairs, for edge classification.
    pub(crate) head: Option<&'a PairHead>,
}

/// A batch's loss.
pub(crate) struct Loss {
    /// The sum over the examples, a scalar.
    pub(crate) sum: Tensor,
    /// Number of examples. The step's gradient is divided by the sum over its batches.
    pub(crate) examples: u64,
}

/// The metrics of a split.
pub(crate) struct Metrics {
    /// Number of labeled nodes or edges.
    pub(crate) examples: u64,
    /// By name.
    pub(crate) values: BTreeMap<String, f64>,
    /// By class, for tasks with classes.
    pub(crate) by_class: Option<ByClass>,
}

/// The contribution of a partition to the metrics of a split.
pub(crate) struct Tally {
    /// Counts, summed in any order.
    pub(crate) words: Vec<u64>,
    /// The loss, summed in partition order.
    pub(crate) loss: f64,
    /// Other numbers, summed in partition order. Every partition has as many.
    pub(crate) sums: Vec<f64>,
}
