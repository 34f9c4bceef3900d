//! The dataflow of full-graph and tensor-parallel training (Dorylus, sections 4 and 5).
//!
//! ```text
//! tokens → gate → limit_in_flight → stage (compute thread) → paced scatter (compute thread) ─┬→ probe
//!           ↑                  └→ all_reduce → apply (compute thread) ────────┤
//!           └────────────── opened by the frontier of all workers ───────┘
//! ```
//!
//! Chunks of pairs take another path after the gate ([`score_pairs`]).
//!
//! A token is an interval at a stage of an epoch ([`Program`](crate::engine::stages::program::Program)); its time is `(epoch, stage)`. In `pipe`
//! and `sync`, the gate opens a stage when the frontier of all workers has passed the stage before: all rows that it reads have arrived. In
//! `async`, the gate opens all stages of an epoch when the frontier has reached the epoch minus the staleness. An interval then continues with
//! the latest rows received (section 5.2); the frontier alone bounds the staleness. With attention, ghosts stay constant for an epoch and are
//! mirrors of their owners' rows ([`mirrors`](crate::engine::full_graph::mirrors)). With attention and staleness 0, rows are stale in the
//! forward pass only, because both ends of an edge recompute its weight from the same rows.
//!
//! With several compute threads, or with tensor workers, the node task of a stage leaves the compute thread ([`StageRunner`]). The token keeps its time meanwhile.
//!
//! In `sync`, rows are sent when all workers have computed all intervals of the stage. Else the rows of an interval are sent while the next one
//! is computed. Rows are copied into messages when a permit is free ([`PacedScatter`](gnnflow_dataflow::ghost::paced_scatter)). Copied rows
//! hold their interval's permit until they are sent, so a slow receiver bounds the memory of messages.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use gnnflow_dataflow::collective::all_reduce::{AllReduce, Contribution, Reduced};
use gnnflow_dataflow::flow::advance_times::AdvanceTimes;
use gnnflow_dataflow::flow::barrier::Barrier;
use gnnflow_dataflow::flow::compute_thread::ComputeThread;
use gnnflow_dataflow::flow::gate::{Gate, Gated};
use gnnflow_dataflow::flow::map_async::MapAsync;
use gnnflow_dataflow::flow::on_frontier::OnFrontier;
use gnnflow_dataflow::flow::permits::{LimitInFlight, Permits};
use gnnflow_dataflow::ghost::paced_scatter::PacedScatter;
use gnnflow_dataflow::storage::{RowStore, Table};
use gnnflow_dataflow::time;
use gnnflow_dataflow::wire::meter::Meter;
use timely::container::CapacityContainerBuilder;
use timely::dataflow::operators::core::{Inspect, OkErr};
use timely::dataflow::operators::vec::Map;
use timely::dataflow::operators::{Concatenate, Input, Probe, probe};
use timely::dataflow::{InputHandle, StreamVec};
use timely::worker::Worker;

use super::message::Outgoing;
use super::runner::StageRunner;
use super::score_pairs as pairs;
use super::score_pairs::{PairSource, score_pairs};
use super::synchrony::{BackwardRows, Synchrony};
use super::token::{Finished, Pass, Token};
use crate::collectives::{Driver, FirstError};
use crate::compute::ComputeState;
use crate::config::Train;
use crate::context::WorkerContext;
use crate::engine::{APPLY, BlocksHash, Engine, EpochSums, Round, Staleness};
use crate::error::Error;
use crate::runtime::records::TensorUse;
use crate::runtime::stage::Stage;

/// Returns the maximum number of intervals or chunks of a worker in flight whose tasks are not computed beside the compute thread: some are computed while the rows of others
/// are sent.
pub(crate) fn permits(column_parallel: bool) -> usize {
    if column_parallel { 2 } else { 4 }
}

/// Maximum number of epochs per round.
const ROUND: u32 = 16;

/// The permit of an item in flight. Dropping it releases the permit.
struct Permit(Rc<Permits>);

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.release();
    }
}

/// A message, and the permit of its token if it holds copied rows.
type Waiting = (Outgoing, Option<Rc<Permit>>);

/// The training dataflow of one worker.
pub(crate) struct StagedTraining {
    input: InputHandle<u64, CapacityContainerBuilder<Vec<Token>>>,
    probe: probe::Handle<u64>,
    errors: FirstError,
    shared: Rc<Shared>,
    /// By stage, the number of items of this worker.
    stages: Vec<u32>,
    /// Number of stages of an evaluation.
    evaluation: u32,
    state: Arc<StageRunner>,
    /// Rounds of messages of an epoch.
    rounds: u64,
    blocks: BlocksHash,
    train: Train,
    meter: Rc<Meter>,
    other_meter: Rc<Meter>,
}

/// State that the driver and the operators of a worker share.
struct Shared {
    gate: Rc<Gate>,
    synchrony: Synchrony,
    /// The frontier: all workers have completed all earlier times.
    passed: Cell<u64>,
    /// The first epoch of this run, which has no earlier rows to read.
    first: Cell<u32>,
    /// The stages of chunks of pairs.
    pairs: Range<u32>,
    /// The first stage with a backward pass.
    backward: u32,
    /// Learning rates of the epochs in flight.
    rates: RefCell<HashMap<u32, f64>>,
    sums: RefCell<HashMap<u32, EpochSums>>,
    stale: Cell<Staleness>,
}

impl Shared {
    fn new(synchrony: Synchrony, pairs: Range<u32>, backward: u32) -> Self {
        Self {
            gate: Rc::default(),
            synchrony,
            passed: Cell::default(),
            first: Cell::new(u32::MAX),
            pairs,
            backward,
            rates: RefCell::default(),
            sums: RefCell::default(),
            stale: Cell::default(),
        }
    }

    /// Sets the frontier to `now`.
    fn advance(&self, now: u64) {
        self.passed.set(now.max(self.passed.get()));
        self.open();
    }

    /// Opens the gate as far as the synchrony allows.
    fn open(&self) {
        let now = self.passed.get();
        let epoch = time::epoch(now);
        let open = match self.synchrony {
            Synchrony::Stale { epochs, backward } if epoch > self.first.get() => match backward {
                BackwardRows::Fresh if time::step(now) >= self.backward => now,
                BackwardRows::Fresh => time::at(epoch, self.backward - 1),
                BackwardRows::Stale | BackwardRows::Mirrored => time::at(epoch.saturating_add(epochs), u32::MAX),
            },
            // All results are complete, so several chunks may be in flight.
            _ if self.pairs.contains(&time::step(now)) => {
                time::at(epoch, (time::step(now) + pairs::WINDOW).min(self.pairs.end) - 1)
            }
            _ => now,
        };
        self.gate.open(open);
    }

    /// Records the staleness of the rows that a token reads.
    fn record_staleness(&self, token: Token) {
        if token.evaluates() {
            return;
        }
        let behind = token.epoch().saturating_sub(time::epoch(self.passed.get()));
        let Staleness { most, sum, batches } = self.stale.get();
        let behind = u64::from(behind);
        self.stale.set(Staleness { most: most.max(behind), sum: sum + behind, batches: batches + 1 });
    }
}

impl StagedTraining {
    /// Builds the dataflow on `worker`. `source` provides the pairs of nodes, if the run trains on pairs.
    pub(crate) fn build(
        worker: &mut Worker,
        context: &WorkerContext,
        train: &Train,
        params: usize,
        (state, source): (Arc<StageRunner>, Option<PairSource>),
        compute_thread: &ComputeThread<ComputeState>,
    ) -> Self {
        let (mut input, probe, errors) = (InputHandle::new_with_builder(), probe::Handle::new(), FirstError::default());
        let (stages, rounds) = state.state().work();
        let (evaluation, synchrony, pairs, column_parallel, window) = {
            let state = state.state();
            let column_parallel = state.is_column_parallel();
            (state.evaluation_stages(), state.synchrony, state.pair_stages(), column_parallel, state.window())
        };
        let shared = Rc::new(Shared::new(synchrony, pairs.clone(), evaluation - 1));
        worker.dataflow::<u64, _, _>(|scope| {
            let permits = Rc::new(Permits::new(state.permits(permits(column_parallel))));
            let tokens = scope.input_from(&mut input).gate(Rc::clone(&shared.gate));
            let (tokens, scored) = match &source {
                Some(source) => {
                    let first = pairs.start;
                    let (tokens, chunks) = tokens.ok_err(move |token: Token| {
                        if !token.evaluates() && pairs.contains(&token.stage()) { Err(token) } else { Ok(token) }
                    });
                    (tokens, Some(score_pairs(chunks, context, source, first, &state, compute_thread, &errors)))
                }
                None => (tokens, None),
            };
            let done = run_stages(tokens, permits, &shared, &state, &errors);
            let outputs = done.flat_map(|(done, permit)| {
                let messages = done.rows.into_iter().map(move |outgoing| {
                    let permit = matches!(outgoing, Outgoing::Block(_)).then(|| Rc::clone(&permit));
                    Ok((outgoing, permit))
                });
                messages.chain(done.gradient.into_iter().map(Err))
            });
            let (messages, contributions): (StreamVec<'_, u64, Waiting>, StreamVec<'_, u64, Contribution>) =
                outputs.ok_err(|output: Result<Waiting, Contribution>| output);
            let messages = match synchrony {
                Synchrony::Barrier => messages.barrier(),
                // The next chunk is aggregated before the sums of this one have been gathered.
                _ => messages.advance_times(|(outgoing, _): &Waiting| outgoing.time()),
            };
            let (sender, receiver) = (Arc::clone(&state), Arc::clone(&state));
            let scattered = messages.paced_scatter(
                window,
                compute_thread,
                Rc::clone(&context.meter),
                move |_: &mut ComputeState, outgoing| sender.state().message(outgoing),
                move |_: &mut ComputeState, block| receiver.state().receive(block),
            );
            let reduced = apply_gradients(contributions, context, params, &shared, compute_thread);
            let shared = Rc::clone(&shared);
            let all = [scattered, reduced].into_iter().chain(scored);
            scope.concatenate(all).on_frontier(move |now| shared.advance(now)).probe_with(&probe);
        });
        let single = context.placement.workers() == 1;
        Self {
            input,
            probe,
            errors,
            shared,
            stages,
            evaluation,
            state,
            rounds: if single { 0 } else { rounds },
            blocks: BlocksHash::default(),
            train: train.clone(),
            meter: Rc::clone(&context.meter),
            other_meter: Rc::clone(&context.other_meter),
        }
    }
}

/// Runs the stages of `tokens`. Each result carries the permit of its token.
fn run_stages<'scope>(
    tokens: StreamVec<'scope, u64, Token>,
    permits: Rc<Permits>,
    shared: &Rc<Shared>,
    runner: &Arc<StageRunner>,
    errors: &FirstError,
) -> StreamVec<'scope, u64, (Finished, Rc<Permit>)> {
    let (shared, runner) = (Rc::clone(shared), Arc::clone(runner));
    let (held, errors) = (Rc::clone(&permits), errors.clone());
    tokens
        .limit_in_flight(permits)
        .inspect(move |&token: &Token| shared.record_staleness(token))
        .map_async("stage", move |token, completer| runner.run(token, completer))
        .flat_map(move |done| {
            let permit = Rc::new(Permit(Rc::clone(&held)));
            errors.capture(done).map(|done: Finished| (done, permit))
        })
}

/// Sums the gradients of all partitions and applies the sum at the compute thread.
fn apply_gradients<'scope>(
    contributions: StreamVec<'scope, u64, Contribution>,
    context: &WorkerContext,
    params: usize,
    shared: &Rc<Shared>,
    compute_thread: &ComputeThread<ComputeState>,
) -> StreamVec<'scope, u64, ()> {
    let (shared, compute_thread) = (Rc::clone(shared), compute_thread.with_name(APPLY));
    contributions
        .all_reduce(context.placement.parts(), params, Rc::clone(&context.meter))
        .inspect(move |reduced: &Reduced| {
            let epoch = time::epoch(reduced.time);
            shared.sums.borrow_mut().entry(epoch).or_default().add(reduced);
            let (reduced, lr) = (reduced.clone(), shared.rates.borrow_mut().remove(&epoch));
            compute_thread.at(reduced.time).post(move |compute| {
                lr.into_iter().for_each(|lr| compute.set_learning_rate(lr));
                compute.apply(reduced);
            });
        })
        .map(|_| ())
}

impl Engine for StagedTraining {
    /// Trains one epoch. Where epochs may overlap, it trains all epochs up to the next evaluation or checkpoint.
    fn train_round(&mut self, driver: &mut Driver<'_>, epoch: u32, lr: &dyn Fn(u32) -> f64) -> Result<Round, Error> {
        let mut start = Instant::now();
        let end = self.end_of_round(epoch);
        self.shared.first.set(self.shared.first.get().min(epoch));
        self.input.advance_to(time::at(epoch, 0));
        for epoch in epoch..end {
            self.shared.rates.borrow_mut().insert(epoch, lr(epoch));
            for (stage, &items) in (0..).zip(&self.stages) {
                let time = time::at(epoch, stage);
                self.input.advance_to(time);
                (0..items).for_each(|item| self.input.send(Token { time, item, pass: Pass::Train }));
            }
        }
        let stages = self.stages.len() as u32;
        self.input.advance_to(time::at(end - 1, stages));
        self.input.flush();
        let mut done = Vec::with_capacity((end - epoch) as usize);
        let progress = driver.runtime.progress();
        for epoch in epoch..end {
            driver.runtime.stage(Stage::Training { epoch: epoch as usize + 1 });
            progress.brief_stage(&format!("epoch {}", epoch + 1), stages.into(), "stages");
            for stage in 1..=stages {
                driver.run_until(&self.probe, time::at(epoch, stage), &self.errors)?;
                progress.advance(1);
            }
            progress.done();
            let sums = self.shared.sums.borrow_mut().remove(&epoch);
            let sums = sums.ok_or_else(|| Error::Bug("an epoch ended without a sum of gradients".into()))?;
            let seconds = start.elapsed().as_secs_f64();
            self.state.epoch_ended(seconds);
            done.push(EpochSums { rounds: self.rounds, seconds, ..sums });
            start = Instant::now();
        }
        Ok(Round::Epochs(done))
    }

    fn evaluate_into(&mut self, driver: &mut Driver<'_>, results: &Arc<RowStore>) -> Result<bool, Error> {
        self.state.set_results(Arc::clone(results));
        // Between two rounds, a process sends only the messages of this evaluation.
        let before = self.meter.by_destination();
        let progress = driver.runtime.progress();
        progress.brief_stage("evaluate", self.evaluation.into(), "stages");
        for (stage, &items) in (0..self.evaluation).zip(&self.stages) {
            // Times after those of the last epoch. No row is stale: a stage ends before the next one begins.
            let time = self.input.time() + 1;
            self.input.advance_to(time);
            (0..items).for_each(|item| self.input.send(Token { time, item, pass: Pass::Evaluate { stage } }));
            self.input.advance_to(time + 1);
            self.input.flush();
            driver.run_until(&self.probe, time + 1, &self.errors)?;
            progress.advance(1);
        }
        progress.done();
        self.meter.hand_over(before, &self.other_meter);
        Ok(true)
    }

    fn rows(&self) -> Option<[u64; 2]> {
        Some([Table::allocated(), self.state.state().edge_columns()])
    }

    fn staleness(&self) -> Option<Staleness> {
        self.shared.synchrony.is_stale().then(|| self.shared.stale.get())
    }

    fn tensor(&self) -> Option<TensorUse> {
        self.state.executor_stats()
    }

    fn blocks(&mut self) -> &mut BlocksHash {
        &mut self.blocks
    }
}

impl StagedTraining {
    /// Returns the end of a round from `epoch`: the next evaluation or checkpoint where epochs may overlap, else the next epoch.
    fn end_of_round(&self, epoch: u32) -> u32 {
        if self.shared.synchrony.staleness() == 0 {
            return epoch + 1;
        }
        let due = |every: usize| match every as u32 {
            0 => u32::MAX,
            every => (epoch / every + 1) * every,
        };
        let due = due(self.train.evaluate_every).min(due(self.train.checkpoint_every.epochs()));
        due.min(epoch + ROUND).min(self.train.epochs() as u32)
    }
}
