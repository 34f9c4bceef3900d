//! What is learnt: how a batch's outputs become a loss, and the rows of exact inference metrics and answers. One task a file.

mod labels;
mod node_classification;

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::DataType;
use candle_core::Tensor;
use gnnflow_data::dataset::{LabelKind, Manifest};

use self::labels::Labels;
use self::node_classification::NodeClassification;
use crate::Error;
use crate::layer_store::LayerStore;
use crate::setup::LocalParts;
use crate::spec::Metric;

/// What is learnt from batches; the companion thread asks it for losses.
pub(crate) trait Objective: Send + Sync {
    /// Columns of the model's result.
    fn width(&self) -> usize;

    /// The validation metric that chooses the best epoch when the pipeline names none.
    fn metric(&self) -> Metric;

    /// The loss of a batch: `outputs`, `[seeds, width]`, are the model's results for its seeds.
    fn loss(&self, batch: &Examples<'_>, outputs: &Tensor) -> Result<Loss, Error>;
}

/// What is learnt of nodes: every node of exact inference has an answer, those of the splits are counted.
pub(crate) trait NodeTask: Objective {
    /// Whether a training node can be one: it has what it is to be compared with.
    fn is_labelled(&self, node: u32) -> bool;

    /// Counts the nodes of a split of one partition hosted here, those without label left out. `rows` are the model's results.
    fn count(&self, part: usize, split: u8, rows: &LayerStore) -> Tally;

    /// Sums of what [`NodeTask::count`] counts: the number of nodes, and metrics by name.
    fn finish(&self, words: &[u64]) -> (u64, BTreeMap<String, f64>);

    /// The type of an answer in `predictions.parquet`.
    fn answer(&self) -> DataType;

    /// Answers and labels of nodes of one partition, by local ids.
    fn answers(&self, part: usize, nodes: Range<usize>, rows: &LayerStore) -> Result<[ArrayRef; 2], Error>;

    /// Numbers beside an answer with `infer.scores`; 0 where there are none.
    fn score_width(&self) -> usize {
        0
    }

    /// Those numbers, from a row of the model's results.
    fn scores(&self, row: &[f32]) -> Vec<f32> {
        let _ = row;
        Vec::new()
    }
}

/// The examples of a batch.
pub(crate) struct Examples<'a> {
    /// Global ids of the seeds, in the order of the outputs' rows.
    pub(crate) seeds: &'a [u32],
}

/// A batch's loss.
pub(crate) struct Loss {
    /// Summed over the examples: a scalar.
    pub(crate) sum: Tensor,
    /// How many examples: what the step's gradient is divided by, summed over the step's batches.
    pub(crate) examples: u64,
}

/// What one partition adds to a split's metrics.
pub(crate) struct Tally {
    /// Counts, which add up in any order.
    pub(crate) words: Vec<u64>,
    /// The loss, to be added in partition order.
    pub(crate) loss: f64,
}

/// The task that the dataset's labels ask for; `parts` are those hosted here, `foreign` labels of nodes that are not.
///
/// # Errors
/// When the dataset has nothing to learn.
pub(crate) fn open(
    manifest: &Manifest,
    parts: &Arc<LocalParts>,
    foreign: HashMap<u32, Box<[u8]>>,
) -> Result<Arc<dyn NodeTask>, Error> {
    let labels = Labels::new(Arc::clone(parts), foreign);
    match manifest.labels.as_ref() {
        Some(info) if info.kind != LabelKind::Value => Ok(Arc::new(NodeClassification::new(info, labels))),
        Some(_) => {
            Err(Error::Input("labels are numbers, and this version learns classes; give integers or strings".into()))
        }
        None => Err(Error::Input("the graph has no labels to learn from; name them in graph.columns.label".into())),
    }
}
