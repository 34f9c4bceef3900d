//! Tasks: the loss of a batch, and metrics and predictions from the results of exact inference. One task per file.

mod class_loss;
pub(crate) mod class_metrics;
pub(crate) mod classes;
pub(crate) mod edge_classification;
mod labels;
pub(crate) mod link_prediction;
mod node_classification;
mod node_regression;
pub(crate) mod objective;
pub(crate) mod target_counts;
mod target_edges;

use std::ops::Range;
use std::sync::Arc;

use gnnflow_data::dataset::LabelKind;

use self::class_loss::{ClassCounts, ClassLoss};
use self::class_metrics::ClassMetrics;
use self::classes::Classes;
use self::edge_classification::{ClassedEdges, EdgeClassification};
use self::labels::Labels;
use self::link_prediction::{LinkEdges, LinkPrediction};
use self::node_classification::NodeClassification;
use self::node_regression::NodeRegression;
use self::objective::{NodeObjective, Objective};
use self::target_counts::TargetCounts;
use self::target_edges::TargetRules;
use crate::config;
use crate::config::Train;
use crate::context::EdgeFilter;
use crate::context::feature_store::FeatureStore;
use crate::context::seed_split::SeedSplit;
use crate::error::Error;
use crate::runtime::job::Job;

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

/// The examples of a run.
pub(crate) enum Source {
    /// Training nodes.
    Nodes(SeedSplit),
    /// Edges of link prediction.
    Links(LinkEdges),
    /// Edges of edge classification, and the metrics of their classes.
    Edges(ClassedEdges, ClassMetrics),
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

    /// Returns the examples if they are edges.
    pub(crate) fn of_edges(self) -> Option<Self> {
        match self {
            Self::Nodes(_) => None,
            Self::Links(_) | Self::Edges(..) => Some(self),
        }
    }

    /// Returns the numbers of target edges of every partition, for tasks on edges.
    pub(crate) fn targets(&self) -> Option<TargetCounts> {
        let held_out = match self {
            Self::Nodes(_) => return None,
            Self::Links(edges) => edges.held_out_counts.iter().sum(),
            Self::Edges(edges, _) => edges.held_out,
        };
        Some(TargetCounts { train: self.counts().to_vec(), held_out })
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
    let mut split = SeedSplit::open(job, train, parts, hosted.clone())?;
    let foreign = std::mem::take(&mut split.foreign);
    let Some(info) = job.labels() else {
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
        (false, kind) => {
            let (options, classes) = (train.classes(), Classes::new(info));
            if kind == LabelKind::Class {
                refuse_ranked_metrics(job, train, &classes)?;
            }
            let range = |part: usize| job.dataset.book().range(part);
            let is_here = |node: u32| hosted.clone().any(|part| range(part).contains(&u64::from(node)));
            let keep = |node: u32| foreign.contains_key(&node) || is_here(node);
            let loss = ClassLoss::open(job, &options, &classes, || ClassCounts::of_nodes(job, info), keep)?;
            Arc::new(NodeClassification::new(info, Labels::new(Arc::clone(parts), foreign), loss, &options))
        }
        (true, LabelKind::Value) => Arc::new(NodeRegression::new(Labels::new(Arc::clone(parts), foreign))),
        (true, _) => {
            return wrong(
                "the labels are classes (integers, strings or lists), and \"node-regression\" needs floats; use \
                 \"node-classification\", or store the labels as floats",
            );
        }
    };
    Ok((Task::Nodes(task), Source::Nodes(split)))
}

/// Refuses metrics of ranked scores, and their bounds, unless there are two classes.
fn refuse_ranked_metrics(job: &Job, train: &Train, classes: &Classes) -> Result<(), Error> {
    if classes.count == 2 {
        return Ok(());
    }
    let (count, options) = (classes.count, train.classes());
    let needs = "needs two classes or several labels per node";
    if let Some(metric) = train.metric.filter(|metric| metric.is_of_labels()) {
        let message = format!("`{metric}` {needs}, and there are {count} classes; use `macro-f1`");
        return Err(job.config.problem("train.metric", &message));
    }
    let bounds = [("min_precision", options.min_precision.is_some()), ("top_k", options.top_k.is_some())];
    match bounds.into_iter().find(|(_, given)| *given) {
        Some((key, _)) => {
            let message = format!("{needs}, and there are {count} classes; remove this key");
            Err(job.config.problem(&format!("train.classes.{key}"), &message))
        }
        None => Ok(()),
    }
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
    let rules = TargetRules::of_job(job, train)?;
    let edges = LinkEdges::read(job, &rules, hosted, train)?;
    let task = LinkPrediction { width: width(job), loss: link.loss };
    Ok((Task::Edges(Arc::new(task), Some(rules)), Source::Links(edges)))
}

fn edges(job: &Job, train: &Train, hosted: &Range<usize>) -> Result<(Task, Source), Error> {
    let Some(labels) = job.labels() else {
        let message = "edges have no labels to learn from; name their column in graph.columns.edge_label";
        return Err(Error::Input(message.into()));
    };
    let rules = TargetRules::of_job(job, train)?;
    let edges = ClassedEdges::read(job, &rules, hosted, train)?;
    let (classes, options) = (Arc::new(Classes::new(labels)), train.classes());
    refuse_ranked_metrics(job, train, &classes)?;
    let counts = || Ok(ClassCounts::Classes(edges.training_classes.clone()));
    let loss = ClassLoss::open(job, &options, &classes, counts, |_| false)?;
    let metrics = ClassMetrics::new(gnnflow_nn::metrics::Task::SingleLabel, classes, &options);
    let task = EdgeClassification { width: width(job), loss };
    let hidden = train.excludes_targets().then_some(rules);
    Ok((Task::Edges(Arc::new(task), hidden), Source::Edges(edges, metrics)))
}
