//! The loss of pairs of nodes from the results that the full-graph forward pass has computed.
//!
//! ```text
//! chunks → batches of own partitions → fetch_rows → barrier → score (compute thread) → push_rows → barrier → add (compute thread)
//! ```
//!
//! A chunk is one stage: one batch of pairs of every partition, as in mini-batch training. The rows of its nodes are fetched from their owners,
//! each once, and the gradients of rows are sent back. Memory holds the rows of a few chunks only, never a row per edge. Some chunks are
//! fetched while another is scored. The barriers keep their order, so losses and gradients are added by chunk, then by partition, for any
//! number of workers.

use std::rc::Rc;
use std::sync::Arc;

use gnnflow_dataflow::batch::mini_batch::{BatchKey, MiniBatch};
use gnnflow_dataflow::embed::push_rows::{Arrival, PushRows, PushTo, PushedRows, RowGradients};
use gnnflow_dataflow::fetch::fetch_rows::{FeatureView, FetchFrom, FetchRows};
use gnnflow_dataflow::flow::barrier::Barrier;
use gnnflow_dataflow::flow::compute_thread::{ComputeThread, OnThread};
use gnnflow_dataflow::sample::seeds::BatchSource;
use gnnflow_dataflow::time;
use gnnflow_kernels::matrix::Number;
use timely::dataflow::StreamVec;
use timely::dataflow::operators::vec::Map;

use super::gradient_sums::StageGradient;
use super::pair_results::{PairTargets, no_pairs};
use super::runner::StageRunner;
use super::state::EpochState;
use super::token::Token;
use crate::collectives::FirstError;
use crate::compute::{ComputeState, PairGradients};
use crate::context::WorkerContext;
use crate::error::Error;

/// Maximum number of chunks in flight at every worker.
pub(crate) const WINDOW: u32 = 3;

/// The batches of pairs and the rows of their nodes.
pub(crate) struct PairSource {
    pub(crate) batches: Arc<dyn BatchSource>,
    pub(crate) targets: PairTargets,
}

/// Computes the loss and the gradients of the chunks of `tokens`. The first chunk of an epoch is at stage `first`.
pub(crate) fn score_pairs<'scope>(
    tokens: StreamVec<'scope, u64, Token>,
    context: &WorkerContext,
    source: &PairSource,
    first: u32,
    state: &Arc<StageRunner>,
    compute_thread: &ComputeThread<ComputeState>,
    errors: &FirstError,
) -> StreamVec<'scope, u64, ()> {
    let (batches, hosted) = (Arc::clone(&source.batches), context.graph.hosted());
    let rows = Arc::clone(&source.targets.rows);
    let dim = rows.width();
    let rows = FeatureView { source: rows as _, number: Number::F32, dim, packed: None, halo: None };
    let (score_state, add_state) = (Arc::clone(state), Arc::clone(state));
    let (score_errors, add_errors) = (errors.clone(), errors.clone());
    tokens
        .flat_map(move |Token { time, .. }| {
            let (batches, epoch, step) = (Arc::clone(&batches), time::epoch(time), time::step(time) - first);
            hosted.clone().map(move |part| batches.batch(BatchKey { epoch, step, partition: part as u32 }))
        })
        .fetch_rows(FetchFrom {
            graph: Arc::clone(&context.graph),
            rows: Rc::new(move |_| rows.clone()),
            degrees: false,
            cache: None,
            meter: Rc::clone(&context.meter),
        })
        .barrier()
        .on_thread("score", compute_thread.clone(), move |compute: &mut ComputeState, batch: MiniBatch| {
            let epoch = batch.key.epoch;
            let gradients = compute.pair_gradients(batch)?;
            Ok(score_state.state().add_pair_gradients(epoch, gradients))
        })
        .flat_map(move |rows| score_errors.capture(rows))
        .push_rows(PushTo {
            graph: Arc::clone(&context.graph),
            dim,
            arrival: Arrival::Together,
            meter: Rc::clone(&context.meter),
        })
        .barrier()
        .on_thread("add", compute_thread.clone(), move |_: &mut ComputeState, pushed: PushedRows| {
            add_state.state().add_row_gradients(&pushed)
        })
        .flat_map(move |done| add_errors.capture(done))
}

impl EpochState {
    /// Adds the parameter gradient of a chunk of a partition's pairs, and returns the gradients of rows.
    fn add_pair_gradients(&mut self, epoch: u32, gradients: PairGradients) -> RowGradients {
        let PairGradients { rows, flat, loss } = gradients;
        let gradient = StageGradient { flat, loss, examples: rows.examples };
        self.gradients.add_first(epoch, rows.partition, gradient);
        rows
    }

    /// Adds gradients of own nodes' results, in the order of `pushed`.
    ///
    /// # Errors
    /// [`Error::Bug`] when the run has no pairs.
    fn add_row_gradients(&mut self, pushed: &PushedRows) -> Result<(), Error> {
        self.pairs.as_mut().ok_or_else(no_pairs)?.add(&self.nodes, pushed);
        Ok(())
    }
}
