//! What is made of edges when every node has its result.

use std::path::PathBuf;
use std::sync::Arc;

use gnnflow_dataflow::flow::compute_thread::Companion;
use timely::worker::Worker;

use crate::collectives::agreement::Agreement;
use crate::compute::Trainer;
use crate::context::Setup;
use crate::engine::inference::layer_store::LayerStore;
use crate::error::Error;
use crate::evaluate::Evaluation;
use crate::runtime::job::Job;
use crate::task::Source;
use crate::task::edge_classification;
use crate::task::edge_classification::Classifying;
use crate::task::link_prediction;
use crate::task::link_prediction::Ranking;

/// Ranks or classes of edges, by the model's results of their ends.
pub(crate) enum EdgePass {
    Ranking(Ranking),
    Classifying(Classifying),
}

impl EdgePass {
    /// Builds its dataflow over the model's `results`; `None` where it is nodes that something is learnt of.
    pub(crate) fn build(
        worker: &mut Worker,
        setup: &Setup,
        results: &Arc<LayerStore>,
        source: Source,
        companion: &Companion<Trainer>,
    ) -> Option<Self> {
        match source {
            Source::Nodes(_) => None,
            Source::Links(edges) => Some(Self::Ranking(Ranking::build(worker, setup, results, edges, companion))),
            Source::Edges(edges, classes) => {
                Some(Self::Classifying(Classifying::build(worker, setup, results, (edges, classes), companion)))
            }
        }
    }

    /// Ranks or classifies, and returns the metrics.
    ///
    /// # Errors
    /// What an operator, or the companion thread, fails with.
    pub(crate) fn evaluate(
        &mut self,
        worker: &mut Worker,
        job: &Job,
        setup: &Setup,
        agreement: &mut Agreement,
    ) -> Result<Evaluation, Error> {
        match self {
            Self::Ranking(ranking) => ranking.evaluate(worker, &*job.host, setup, agreement),
            Self::Classifying(classifying) => classifying.evaluate(worker, &*job.host, setup, agreement),
        }
    }

    /// Writes what the last pass found.
    ///
    /// # Errors
    /// When the table cannot be written.
    pub(crate) fn predictions(
        &self,
        worker: &mut Worker,
        job: &Job,
        setup: &Setup,
        path: PathBuf,
    ) -> Result<String, Error> {
        match self {
            Self::Ranking(ranking) => link_prediction::predictions(worker, job, setup, ranking, path),
            Self::Classifying(classes) => edge_classification::predictions(worker, job, setup, classes, path),
        }
    }
}
