//! What is learnt: how a batch's outputs become a loss, and the rows of exact inference metrics and answers. One task a file.

mod labels;
pub(crate) mod link_prediction;
mod node_classification;
mod node_regression;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::DataType;
use candle_core::Tensor;
use gnnflow_data::dataset::LabelKind;
use gnnflow_operators::sample::pairs::Pairs;

use self::labels::Labels;
use self::link_prediction::{LinkEdges, LinkPrediction, LinkRules};
use self::node_classification::NodeClassification;
use self::node_regression::NodeRegression;
use crate::Error;
use crate::job::Job;
use crate::layer_store::LayerStore;
use crate::seed_split::SeedSplit;
use crate::setup::LocalParts;
use crate::spec::{self, Metric, Train};

/// What is learnt from batches; the companion thread asks it for losses.
pub(crate) trait Objective: Send + Sync {
    /// Columns of the model's result.
    fn width(&self) -> usize;

    /// The validation metric that chooses the best epoch when the pipeline names none.
    fn metric(&self) -> Metric;

    /// The loss of a batch: `outputs`, `[seeds, width]`, are the model's results for its seeds.
    fn loss(&self, batch: &Examples<'_>, outputs: &Tensor) -> Result<Loss, Error>;
}

/// What a run learns.
#[derive(Clone)]
pub(crate) enum Task {
    /// Something of nodes.
    Nodes(Arc<dyn NodeTask>),
    /// Which edges there are.
    Links(Arc<LinkPrediction>, LinkRules),
}

impl Task {
    /// What batches learn from.
    pub(crate) fn objective(&self) -> Arc<dyn Objective> {
        match self {
            Self::Nodes(task) => Arc::clone(task) as _,
            Self::Links(task, _) => Arc::clone(task) as _,
        }
    }

    /// The task, where it is one of nodes.
    ///
    /// # Errors
    /// Our bug, when it is none.
    pub(crate) fn nodes(&self) -> Result<&Arc<dyn NodeTask>, Error> {
        match self {
            Self::Nodes(task) => Ok(task),
            Self::Links(..) => Err(Error::Bug("a task of edges was asked for nodes' answers".into())),
        }
    }
}

/// What is learnt of nodes: every node of exact inference has an answer, those of the splits are counted.
pub(crate) trait NodeTask: Objective {
    /// Whether a training node can be one: it has what it is to be compared with.
    fn is_labelled(&self, node: u32) -> bool;

    /// Counts the nodes of a split of one partition hosted here, those without label left out. `rows` are the model's results.
    fn count(&self, part: usize, split: u8, rows: &LayerStore) -> Tally;

    /// From sums of what [`NodeTask::count`] counts: the number of nodes, and metrics by name.
    fn finish(&self, words: &[u64], sums: &[f64]) -> (u64, BTreeMap<String, f64>);

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
    /// What is scored, where that is pairs of seeds.
    pub(crate) pairs: Option<&'a Arc<Pairs>>,
    /// The decoder's vectors of relations, where it has any.
    pub(crate) relations: Option<&'a Tensor>,
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
    /// Other numbers to be added in partition order: as many of every partition.
    pub(crate) sums: Vec<f64>,
}

/// What batches are made of.
pub(crate) enum Source {
    /// Training nodes.
    Nodes(SeedSplit),
    /// Training edges.
    Edges(LinkEdges),
}

impl Source {
    /// Examples of every partition.
    pub(crate) fn counts(&self) -> &[u64] {
        match self {
            Self::Nodes(split) => &split.counts,
            Self::Edges(edges) => &edges.counts,
        }
    }
}

/// The task that the pipeline and the dataset's labels ask for, and its examples; `parts` are those `hosted` here.
///
/// # Errors
/// When the dataset has nothing to learn, or something else.
pub(crate) fn open(
    job: &Job,
    train: &Train,
    parts: &Arc<LocalParts>,
    hosted: Range<usize>,
) -> Result<(Task, Source), Error> {
    if train.predicts_links() {
        let (link, width) = (train.link(), job.spec.model.as_ref().map_or(0, |model| model.hidden));
        let rules = LinkRules::new(job, &link, train)?;
        let edges = LinkEdges::read(job, &rules, &hosted, &link)?;
        return Ok((Task::Links(Arc::new(LinkPrediction { width, loss: link.loss }), rules), Source::Edges(edges)));
    }
    let mut split = SeedSplit::open(job, train, parts, hosted)?;
    let labels = Labels::new(Arc::clone(parts), std::mem::take(&mut split.foreign));
    let Some(info) = job.dataset.manifest().labels.as_ref() else {
        return Err(Error::Input("the graph has no labels to learn from; name them in graph.columns.label".into()));
    };
    let wrong = |message: &str| Err(job.spec.problem("train.task", message));
    let regression = train.task == spec::Task::NodeRegression;
    let task: Arc<dyn NodeTask> = match (regression, info.kind) {
        (false, LabelKind::Value) => {
            return wrong(
                "the labels are numbers with fractions, and \"node-classification\" learns classes: use \"node-regression\", \
                 or give integers or strings",
            );
        }
        (false, _) => Arc::new(NodeClassification::new(info, labels)),
        (true, LabelKind::Value) => Arc::new(NodeRegression::new(labels)),
        (true, _) => {
            return wrong(
                "the labels are classes, and \"node-regression\" learns numbers: use \"node-classification\", or give a \
                 column of floats",
            );
        }
    };
    Ok((Task::Nodes(task), Source::Nodes(split)))
}
