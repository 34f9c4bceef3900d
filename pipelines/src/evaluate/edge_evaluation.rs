//! Evaluation of tasks on edges, after the results of all nodes are computed.

use std::path::PathBuf;
use std::sync::Arc;

use gnnflow_dataflow::flow::compute_thread::ComputeThread;
use timely::worker::Worker;

use crate::collectives::{Collectives, Driver};
use crate::compute::ComputeState;
use crate::context::WorkerContext;
use crate::error::Error;
use crate::evaluate::Evaluation;
use crate::evaluate::classification::EdgeClassifier;
use crate::evaluate::ranking::Ranking;
use crate::evaluate::recommendations::Recommender;
use crate::evaluate::{class_predictions, link_predictions};
use crate::runtime::job::Job;
use crate::task::Source;
use gnnflow_dataflow::storage::RowStore;

/// Ranks or classifies edges by the model's results of their ends.
pub(crate) enum EdgeEvaluation {
    Links(Ranking, Option<Box<Recommender>>),
    Classification(EdgeClassifier),
}

impl EdgeEvaluation {
    /// Builds the dataflow over the model's `results`; `None` for tasks on nodes. With `writes_scores`, the probabilities of classes are
    /// written.
    ///
    /// # Errors
    /// When the disk has no space for the probabilities.
    pub(crate) fn build(
        worker: &mut Worker,
        context: &WorkerContext,
        results: &Arc<RowStore>,
        source: Source,
        compute_thread: &ComputeThread<ComputeState>,
        writes_scores: bool,
    ) -> Result<Option<Self>, Error> {
        Ok(match source {
            Source::Nodes(_) => None,
            Source::Links(mut edges) => {
                let sources = edges.sources.take();
                let ranking = Ranking::build(worker, context, results, edges, compute_thread);
                let recommender =
                    sources.map(|sources| Recommender::build(worker, context, results, *sources, compute_thread));
                Some(Self::Links(ranking, recommender.map(Box::new)))
            }
            Source::Edges(edges, metrics) => {
                let edges = (edges, metrics);
                let classifier = EdgeClassifier::build(worker, context, results, edges, compute_thread, writes_scores)?;
                Some(Self::Classification(classifier))
            }
        })
    }

    /// Ranks or classifies edges and returns the metrics.
    ///
    /// # Errors
    /// The first error of an operator or of the compute thread.
    pub(crate) fn evaluate(
        &mut self,
        driver: &mut Driver<'_>,
        context: &WorkerContext,
        collectives: &mut Collectives,
    ) -> Result<Evaluation, Error> {
        match self {
            Self::Links(ranking, _) => ranking.evaluate(driver, context, collectives),
            Self::Classification(classifier) => classifier.evaluate(driver, context, collectives),
        }
    }

    /// Returns the dataflow of recommendations, if these are wanted.
    pub(crate) fn recommender(&mut self) -> Option<&mut Recommender> {
        match self {
            Self::Links(_, recommender) => recommender.as_deref_mut(),
            Self::Classification(_) => None,
        }
    }

    /// Writes the predictions of the last evaluation.
    ///
    /// # Errors
    /// When the table cannot be written.
    pub(crate) fn predictions(
        &self,
        driver: &mut Driver<'_>,
        job: &Job,
        context: &WorkerContext,
        path: PathBuf,
    ) -> Result<String, Error> {
        match self {
            Self::Links(ranking, _) => link_predictions::predictions(driver, job, context, ranking, path),
            Self::Classification(classifier) => class_predictions::predictions(driver, job, context, classifier, path),
        }
    }
}
