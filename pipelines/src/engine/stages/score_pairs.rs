//! Scoring of pairs by rows that a pass over the whole graph has made.
//!
//! ```text
//! chunks → batches of own partitions → fetch_rows → barrier → score (compute thread) → push_rows → barrier → add (compute thread)
//! ```
//!
//! A chunk is a stage of its own: a batch of every partition's pairs, as those of mini-batch training are. Rows of a batch's nodes
//! come from their owners, each once, and the gradients of rows go back to them. Only what a few chunks read is held, never
//! anything as long as all edges and as wide as a row. Chunks are fetched while others are scored; the barriers keep their
//! order, so that losses and gradients are added by chunk, then by partition, whoever has which.

use std::rc::Rc;
use std::sync::Arc;

use gnnflow_dataflow::batch::mini_batch::{BatchKey, MiniBatch};
use gnnflow_dataflow::embed::push_rows::{Arrival, PushRows, PushTo, PushedRows};
use gnnflow_dataflow::fetch::fetch_rows::{FeatureView, FetchFrom, FetchRows};
use gnnflow_dataflow::flow::barrier::Barrier;
use gnnflow_dataflow::flow::compute_thread::{ComputeThread, OnThread};
use gnnflow_dataflow::sample::seeds::BatchSource;
use gnnflow_dataflow::time;
use gnnflow_kernels::matrix::Number;
use timely::dataflow::StreamVec;
use timely::dataflow::operators::vec::Map;

use super::pair_results::Scored;
use super::runner::StageRunner;
use super::token::Token;
use crate::collectives::FirstError;
use crate::compute::ComputeState;
use crate::context::WorkerContext;

/// Chunks that may be under way at once, at every worker.
pub(crate) const WINDOW: u32 = 3;

/// Where pairs come from, and the rows of their nodes.
pub(crate) struct PairSource {
    pub(crate) book: Arc<dyn BatchSource>,
    pub(crate) scored: Scored,
}

/// Scores the chunks that `tokens` stand for, of which an epoch's first is at stage `first`.
pub(crate) fn score_pairs<'scope>(
    tokens: StreamVec<'scope, u64, Token>,
    context: &WorkerContext,
    source: &PairSource,
    first: u32,
    state: &Arc<StageRunner>,
    compute_thread: &ComputeThread<ComputeState>,
    errors: &FirstError,
) -> StreamVec<'scope, u64, ()> {
    let (book, hosted) = (Arc::clone(&source.book), context.graph.hosted());
    let rows = Arc::clone(&source.scored.rows);
    let dim = rows.width();
    let rows = FeatureView { source: rows as _, number: Number::F32, dim, packed: None, halo: None };
    let (scored, added) = (Arc::clone(state), Arc::clone(state));
    let (kept, spoilt) = (errors.clone(), errors.clone());
    tokens
        .flat_map(move |Token { time: tick, .. }| {
            let (book, epoch, step) = (Arc::clone(&book), time::epoch(tick), time::step(tick) - first);
            hosted.clone().map(move |part| book.batch(BatchKey { epoch, step, partition: part as u32 }))
        })
        .fetch_rows(FetchFrom {
            graph: Arc::clone(&context.graph),
            rows: Rc::new(move |_| rows.clone()),
            degrees: false,
            cache: None,
            meter: Rc::clone(&context.meter),
        })
        .barrier()
        .on_thread("score", compute_thread.clone(), move |trainer: &mut ComputeState, batch: MiniBatch| {
            let epoch = batch.key.epoch;
            let gradients = trainer.pairs(batch)?;
            Ok(scored.state().scored(epoch, gradients))
        })
        .flat_map(move |rows| kept.capture(rows))
        .push_rows(PushTo {
            graph: Arc::clone(&context.graph),
            dim,
            arrival: Arrival::Together,
            meter: Rc::clone(&context.meter),
        })
        .barrier()
        .on_thread("add", compute_thread.clone(), move |_: &mut ComputeState, pushed: PushedRows| {
            added.state().add_row_gradients(&pushed)
        })
        .flat_map(move |done| spoilt.capture(done))
}
