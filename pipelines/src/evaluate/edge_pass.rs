//! What is made of edges when every node has its result.

use std::path::PathBuf;
use std::sync::Arc;

use gnnflow_dataflow::flow::compute_thread::ComputeThread;
use timely::worker::Worker;

use crate::collectives::{Collectives, Driver};
use crate::compute::ComputeState;
use crate::context::WorkerContext;
use crate::error::Error;
use crate::evaluate::Evaluation;
use crate::evaluate::classification::Classifying;
use crate::evaluate::ranking::Ranking;
use crate::evaluate::{class_predictions, link_predictions};
use crate::runtime::job::Job;
use crate::task::Source;
use gnnflow_dataflow::storage::RowStore;

/// Ranks or classes of edges, by the model's results of their ends.
pub(crate) enum EdgePass {
    Ranking(Ranking),
    Classifying(Classifying),
}

impl EdgePass {
    /// Builds its dataflow over the model's `results`; `None` where it is nodes that something is learned of.
    pub(crate) fn build(
        worker: &mut Worker,
        context: &WorkerContext,
        results: &Arc<RowStore>,
        source: Source,
        compute_thread: &ComputeThread<ComputeState>,
    ) -> Option<Self> {
        match source {
            Source::Nodes(_) => None,
            Source::Links(edges) => {
                Some(Self::Ranking(Ranking::build(worker, context, results, edges, compute_thread)))
            }
            Source::Edges(edges, classes) => {
                Some(Self::Classifying(Classifying::build(worker, context, results, (edges, classes), compute_thread)))
            }
        }
    }

    /// Ranks or classifies, and returns the metrics.
    ///
    /// # Errors
    /// What an operator, or the compute thread, fails with.
    pub(crate) fn evaluate(
        &mut self,
        driver: &mut Driver<'_>,
        context: &WorkerContext,
        collectives: &mut Collectives,
    ) -> Result<Evaluation, Error> {
        match self {
            Self::Ranking(ranking) => ranking.evaluate(driver, context, collectives),
            Self::Classifying(classifying) => classifying.evaluate(driver, context, collectives),
        }
    }

    /// Writes what the last pass found.
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
            Self::Ranking(ranking) => link_predictions::predictions(driver, job, context, ranking, path),
            Self::Classifying(classes) => class_predictions::predictions(driver, job, context, classes, path),
        }
    }
}
