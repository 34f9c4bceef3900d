//! What is learned: how a batch's outputs become a loss, and the rows of exact inference metrics and answers. One task a file.

pub(crate) mod classes;
pub(crate) mod edge_classification;
mod labels;
pub(crate) mod link_prediction;
mod node_classification;
mod node_regression;
mod target_edges;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::DataType;
use candle_core::Tensor;
use gnnflow_data::dataset::LabelKind;
use gnnflow_kernels::pairs::Pairs;
use gnnflow_nn::node_targets::NodeTargets;
use gnnflow_nn::pair_head::PairHead;

use self::classes::Classes;
use self::edge_classification::{ClassedEdges, EdgeClassification};
use self::labels::Labels;
use self::link_prediction::{LinkEdges, LinkPrediction};
use self::node_classification::NodeClassification;
use self::node_regression::NodeRegression;
use self::target_edges::{TargetRules, Targets};
use crate::config;
use crate::config::{Metric, Train};
use crate::context::FeatureStore;
use crate::context::seed_split::SeedSplit;
use crate::error::Error;
use crate::runtime::job::Job;
use gnnflow_dataflow::storage::Rows;

/// What is learned from batches; the compute thread asks it for losses.
pub(crate) trait Objective: Send + Sync {
    /// Columns of the model's result.
    fn width(&self) -> usize;

    /// The validation metric that chooses the best epoch when the pipeline names none.
    fn metric(&self) -> Metric;

    /// The loss of a batch: `outputs`, `[seeds, width]`, are the model's results for its seeds.
    fn loss(&self, batch: &Examples<'_>, outputs: &Tensor) -> Result<Loss, Error>;

    /// What the results for these nodes are compared with, where each is compared with something of its own.
    fn targets(&self, nodes: &[u32]) -> Result<NodeTargets, Error> {
        let _ = nodes;
        Err(Error::Bug("a task on edges has no targets of nodes".into()))
    }
}

/// What a run learns.
#[derive(Clone)]
pub(crate) enum Task {
    /// Something of nodes.
    Nodes(Arc<dyn NodeTask>),
    /// Something of edges; and which edges nobody may look at, where there are such.
    Edges(Arc<dyn Objective>, Option<TargetRules>),
}

impl Task {
    /// What batches learn from.
    pub(crate) fn objective(&self) -> Arc<dyn Objective> {
        match self {
            Self::Nodes(task) => Arc::clone(task) as _,
            Self::Edges(task, _) => Arc::clone(task),
        }
    }

    /// The task, where it is one of nodes.
    ///
    /// # Errors
    /// Our bug, when it is none.
    pub(crate) fn nodes(&self) -> Result<&Arc<dyn NodeTask>, Error> {
        match self {
            Self::Nodes(task) => Ok(task),
            Self::Edges(..) => Err(Error::Bug("a task on edges has no predictions of nodes".into())),
        }
    }
}

/// What is learned of nodes: every node of exact inference has an answer, those of the splits are counted.
pub(crate) trait NodeTask: Objective {
    /// Whether a training node can be one: it has what it is to be compared with.
    fn is_labelled(&self, node: u32) -> bool;

    /// Counts the nodes of a split of one partition hosted here, those without label left out. `rows` are the model's results.
    fn count(&self, part: usize, split: u8, rows: &Rows<'_>) -> Tally;

    /// From sums of what [`NodeTask::count`] counts: the number of nodes, and metrics by name.
    fn finish(&self, words: &[u64], sums: &[f64]) -> (u64, BTreeMap<String, f64>);

    /// The type of an answer in `predictions.parquet`.
    fn answer(&self) -> DataType;

    /// Answers and labels of nodes of one partition, by local ids.
    fn answers(&self, part: usize, nodes: Range<usize>, rows: &Rows<'_>) -> Result<[ArrayRef; 2], Error>;

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
    /// What says something of pairs, where that is to be learned.
    pub(crate) head: Option<&'a PairHead>,
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
    /// Training edges, against pairs that are none.
    Links(LinkEdges),
    /// Training edges, and their classes.
    Edges(ClassedEdges, Arc<Classes>),
}

impl Source {
    /// Examples of every partition.
    pub(crate) fn counts(&self) -> &[u64] {
        match self {
            Self::Nodes(split) => &split.counts,
            Self::Links(edges) => &edges.counts,
            Self::Edges(edges, _) => &edges.counts,
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
    parts: &Arc<FeatureStore>,
    hosted: Range<usize>,
) -> Result<(Task, Source), Error> {
    match train.task {
        config::Task::LinkPrediction => return links(job, train, &hosted),
        config::Task::EdgeClassification => return edges(job, train, &hosted),
        config::Task::NodeClassification | config::Task::NodeRegression => {}
    }
    let mut split = SeedSplit::open(job, train, parts, hosted)?;
    let labels = Labels::new(Arc::clone(parts), std::mem::take(&mut split.foreign));
    let Some(info) = job.dataset.manifest().labels.as_ref() else {
        return Err(Error::Input(
            "the graph has no labels to learn from; name their column in graph.columns.label".into(),
        ));
    };
    let wrong = |message: &str| Err(job.config.problem("train.task", message));
    let regression = train.task == config::Task::NodeRegression;
    let task: Arc<dyn NodeTask> = match (regression, info.kind) {
        (false, LabelKind::Value) => {
            return wrong(
                "the labels are numbers with fractions, and \"node-classification\" needs classes; use \"node-regression\", \
                 or integers or strings as labels",
            );
        }
        (false, _) => Arc::new(NodeClassification::new(info, labels)),
        (true, LabelKind::Value) => Arc::new(NodeRegression::new(labels)),
        (true, _) => {
            return wrong(
                "the labels are classes, and \"node-regression\" needs numbers; use \"node-classification\", or a column of \
                 floats",
            );
        }
    };
    Ok((Task::Nodes(task), Source::Nodes(split)))
}

/// Columns of the model's result, where something reads it.
fn width(job: &Job) -> usize {
    job.config.model.as_ref().map_or(0, |model| model.hidden)
}

fn links(job: &Job, train: &Train, hosted: &Range<usize>) -> Result<(Task, Source), Error> {
    let link = train.link();
    if link.decoder == config::Decoder::Distmult && job.dataset.manifest().edge_columns.edge_type.is_none() {
        let message = "\"distmult\" learns a vector per edge type, and edges have no types; name their column in \
                       graph.columns.edge_type, or use \"dot\"";
        return Err(job.config.problem("train.link.decoder", message));
    }
    let targets = Targets {
        section: "train.link",
        target_etype: link.target_etype.as_deref(),
        split_fractions: link.split_fractions.as_deref(),
    };
    let rules = TargetRules::new(job, &targets, train.seed)?;
    let edges = LinkEdges::read(job, &rules, hosted, train)?;
    let task = LinkPrediction { width: width(job), loss: link.loss };
    Ok((Task::Edges(Arc::new(task), Some(rules)), Source::Links(edges)))
}

fn edges(job: &Job, train: &Train, hosted: &Range<usize>) -> Result<(Task, Source), Error> {
    let Some(labels) = &job.dataset.manifest().edge_columns.label else {
        let message = "edges have no labels to learn from; name their column in graph.columns.edge_label";
        return Err(Error::Input(message.into()));
    };
    let edge = train.edge();
    let targets = Targets {
        section: "train.edge",
        target_etype: edge.target_etype.as_deref(),
        split_fractions: edge.split_fractions.as_deref(),
    };
    let rules = TargetRules::new(job, &targets, train.seed)?;
    let edges = ClassedEdges::read(job, &rules, hosted, train)?;
    let classes = Arc::new(Classes::new(labels));
    let task = EdgeClassification { width: width(job) };
    let hidden = train.excludes_targets().then_some(rules);
    Ok((Task::Edges(Arc::new(task), hidden), Source::Edges(edges, classes)))
}
