//! Tasks: the loss of a batch, and metrics and predictions from the results of exact inference. One task per file.

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
use crate::context::seed_split::SeedSplit;
use crate::context::{EdgeFilter, FeatureStore};
use crate::error::Error;
use crate::runtime::job::Job;
use gnnflow_dataflow::storage::Rows;

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

/// The task of a run.
#[derive(Clone)]
pub(crate) enum Task {
    /// A task on nodes.
    Nodes(Arc<dyn NodeObjective>),
    /// A task on edges; and the rules of hidden edges, if edges are hidden.
    Edges(Arc<dyn Objective>, Option<TargetRules>),
}

impl Task {
    /// Returns the loss of the task.
    pub(crate) fn objective(&self) -> Arc<dyn Objective> {
        match self {
            Self::Nodes(task) => Arc::clone(task) as _,
            Self::Edges(task, _) => Arc::clone(task),
        }
    }

    /// Returns the rules of hidden edges, if edges are hidden.
    pub(crate) fn edge_filter(&self) -> Option<&dyn EdgeFilter> {
        match self {
            Self::Edges(_, Some(rules)) => Some(rules),
            Self::Edges(_, None) | Self::Nodes(_) => None,
        }
    }

    /// Returns the task on nodes.
    ///
    /// # Errors
    /// [`Error::Bug`] for a task on edges.
    pub(crate) fn nodes(&self) -> Result<&Arc<dyn NodeObjective>, Error> {
        match self {
            Self::Nodes(task) => Ok(task),
            Self::Edges(..) => Err(Error::Bug("a task on edges has no predictions of nodes".into())),
        }
    }
}

/// A task on nodes: a prediction for every node, and metrics of the nodes of each split.
pub(crate) trait NodeObjective: Objective {
    /// Tells whether a node has a label.
    fn is_labeled(&self, node: u32) -> bool;

    /// Returns the tally of the labeled nodes of a split, for a partition hosted here. `rows` are the model's results.
    fn count(&self, part: usize, split: u8, rows: &Rows<'_>) -> Tally;

    /// Returns the number of nodes and the metrics by name, from sums of tallies.
    fn finish(&self, words: &[u64], sums: &[f64]) -> (u64, BTreeMap<String, f64>);

    /// Returns the type of a prediction in `predictions.parquet`.
    fn prediction_type(&self) -> DataType;

    /// Returns the predictions and labels of nodes of one partition, given by local ids.
    fn predictions(&self, part: usize, nodes: Range<usize>, rows: &Rows<'_>) -> Result<[ArrayRef; 2], Error>;

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

/// The contribution of a partition to the metrics of a split.
pub(crate) struct Tally {
    /// Counts, summed in any order.
    pub(crate) words: Vec<u64>,
    /// The loss, summed in partition order.
    pub(crate) loss: f64,
    /// Other numbers, summed in partition order. Every partition has as many.
    pub(crate) sums: Vec<f64>,
}

/// The examples of a run.
pub(crate) enum Source {
    /// Training nodes.
    Nodes(SeedSplit),
    /// Edges of link prediction.
    Links(LinkEdges),
    /// Edges of edge classification and their classes.
    Edges(ClassedEdges, Arc<Classes>),
}

impl Source {
    /// Returns the number of examples of every partition.
    pub(crate) fn counts(&self) -> &[u64] {
        match self {
            Self::Nodes(split) => &split.counts,
            Self::Links(edges) => &edges.counts,
            Self::Edges(edges, _) => &edges.counts,
        }
    }
}

/// Opens the configured task and its examples. `parts` are the partitions `hosted` here.
///
/// # Errors
/// When the dataset has no labels, or labels of another kind than the task needs.
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
    let task: Arc<dyn NodeObjective> = match (regression, info.kind) {
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

/// Returns the columns of the model's result, for tasks on edges.
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
