//! Training over the whole graph (Dorylus, sections 4 and 5).
//!
//! ```text
//! tokens → gate → limit_in_flight → stage (compute thread) → paced scatter (compute thread) ─┬→ probe
//!           ↑                  └→ all_reduce → apply (compute thread) ────────┤
//!           └──────────────────────── opened by what has passed ─────────┘
//! ```
//!
//! Where pairs of nodes are learned from, chunks of them go another way behind the gate ([`score_pairs`]).
//!
//! A token is an interval at a stage of an epoch ([`Program`](crate::engine::stages::Program)); its time is `(epoch, stage)`. What a
//! stage reads of other intervals has been scattered when the frontier has passed the stage before, everywhere: that is the gate
//! of `pipe` and `sync`. `async` opens it for all stages of an epoch at once, when the frontier has come to the epoch less the
//! staleness: an interval then goes on with what its neighbors last told (section 5.2). Nothing else differs; staleness is
//! bounded by the frontier, and by nothing beside it. Where rows are weighed by attention, ghosts stay the same for an epoch and are
//! mirrors of their owners' rows ([`mirrors`](crate::engine::stages)); but where no epoch may begin before another has ended, rows are stale
//! on the way to the loss only: the way back computes weights again at both ends of an edge, which must know the same rows.
//!
//! Where there are tensor workers, what a stage computes leaves the compute thread for a while ([`StageRunner`]); the token's time is not over
//! meanwhile, and nothing else knows of it.
//!
//! In `sync`, rows leave when all intervals of the stage are computed, everywhere; else each interval's at once, while the next
//! one is computed. Rows are copied into messages when a permit is free for them
//! ([`PacedScatter`](gnnflow_dataflow::ghost::paced_scatter)); where they cannot wait in a table, nothing new is begun until they have
//! left: what is sent is bounded, however slow its receiver.

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
use gnnflow_dataflow::storage::Table;
use gnnflow_dataflow::time;
use gnnflow_dataflow::wire::meter::Meter;
use timely::container::CapacityContainerBuilder;
use timely::dataflow::operators::core::{Inspect, OkErr};
use timely::dataflow::operators::vec::{Branch, Map};
use timely::dataflow::operators::{Concatenate, Input, Probe, probe};
use timely::dataflow::{InputHandle, StreamVec};
use timely::worker::Worker;

use super::finish::Finished;
use super::message::Outgoing;
use super::runner::StageRunner;
use super::score_pairs as pairs;
use super::score_pairs::{PairSource, score_pairs};
use super::state::ResultSink;
use super::synchrony::{BackwardRows, Synchrony};
use super::token::{Pass, Token};
use crate::collectives::{Driver, FirstError};
use crate::compute::ComputeState;
use crate::config::Train;
use crate::context::WorkerContext;
use crate::engine::inference::Inference;
use crate::engine::{BlocksHash, Engine, EpochSums, Staleness};
use crate::error::Error;
use crate::runtime::records::TensorUse;

/// Intervals of a worker that may be under way at once: one is computed while another's rows are sent; by columns, one chunk is added up
/// while another's sums are sent. With tensor workers, more.
pub(crate) fn permits(by_columns: bool) -> usize {
    if by_columns { 2 } else { 4 }
}

/// Epochs of a round at most, where nothing is due earlier.
const ROUND: u32 = 16;

/// A permit of an item in flight. Dropping it releases the permit.
struct Permit(Rc<Permits>);

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.release();
    }
}

/// A message, and the permit that it takes while it waits, where it is more than a note of rows in a table.
type Waiting = (Outgoing, Option<Rc<Permit>>);

/// The training dataflow of one worker.
pub(crate) struct StagedTraining {
    input: InputHandle<u64, CapacityContainerBuilder<Vec<Token>>>,
    probe: probe::Handle<u64>,
    errors: FirstError,
    shared: Rc<Shared>,
    /// How many items each stage has here, and how many stages an evaluation has.
    stages: Vec<u32>,
    evaluation: u32,
    state: Arc<StageRunner>,
    /// Rounds of messages of an epoch.
    rounds: u64,
    blocks: BlocksHash,
    train: Train,
    meter: Rc<Meter>,
    other_meter: Rc<Meter>,
}

/// What the driver and the operators of one worker know together.
struct Shared {
    gate: Rc<Gate>,
    synchrony: Synchrony,
    /// All before has been done everywhere.
    passed: Cell<u64>,
    /// The first epoch that this run computes: there is nothing stale to read in it.
    first: Cell<u32>,
    /// The stages that are chunks of pairs.
    pairs: Range<u32>,
    /// The stage that the way back begins with.
    backward: u32,
    /// Learning rates of the epochs under way.
    rates: RefCell<HashMap<u32, f64>>,
    sums: RefCell<HashMap<u32, EpochSums>>,
    stale: Cell<Staleness>,
}

impl Shared {
    /// All before `now` has been done everywhere.
    fn passed(&self, now: u64) {
        self.passed.set(now.max(self.passed.get()));
        self.open();
    }

    /// Lets tokens go on as far as they may.
    fn open(&self) {
        let now = self.passed.get();
        let epoch = time::epoch(now);
        let open = match self.synchrony {
            Synchrony::Stale { epochs, backward } if epoch > self.first.get() => match backward {
                BackwardRows::Fresh if time::step(now) >= self.backward => now,
                BackwardRows::Fresh => time::at(epoch, self.backward - 1),
                BackwardRows::Stale | BackwardRows::Mirrored => time::at(epoch.saturating_add(epochs), u32::MAX),
            },
            // All results are there: some chunks may be under way at once.
            _ if self.pairs.contains(&time::step(now)) => {
                time::at(epoch, (time::step(now) + pairs::WINDOW).min(self.pairs.end) - 1)
            }
            _ => now,
        };
        self.gate.open(open);
    }

    /// A token goes on: how far is what it reads behind?
    fn goes_on(&self, token: Token) {
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
    /// Builds the dataflow on `worker`; `source` is where pairs come from, where they are learned from.
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
        let (evaluation, synchrony, pairs, by_columns, window) = {
            let state = state.state();
            (state.evaluation_stages(), state.synchrony, state.pair_stages(), state.is_by_columns(), state.window())
        };
        let shared = Rc::new(Shared {
            gate: Rc::default(),
            synchrony,
            passed: Cell::default(),
            first: Cell::new(u32::MAX),
            pairs: pairs.clone(),
            backward: evaluation - 1,
            rates: RefCell::default(),
            sums: RefCell::default(),
            stale: Cell::default(),
        });
        worker.dataflow::<u64, _, _>(|scope| {
            let permits = Rc::new(Permits::new(state.permits(permits(by_columns))));
            let (taken, kept, seen, applied) =
                (Rc::clone(&permits), errors.clone(), Rc::clone(&shared), compute_thread.clone());
            let run = Arc::clone(&state);
            let told = Rc::clone(&shared);
            let tokens = scope.input_from(&mut input).gate(Rc::clone(&shared.gate));
            let (tokens, scored) = match &source {
                Some(source) => {
                    let first = pairs.start;
                    let (tokens, chunks) = tokens
                        .branch(move |&tick, token: &Token| !token.evaluates() && pairs.contains(&time::step(tick)));
                    (tokens, Some(score_pairs(chunks, context, source, first, &state, compute_thread, &errors)))
                }
                None => (tokens, None),
            };
            let done = tokens
                .limit_in_flight(permits)
                .inspect(move |&token: &Token| seen.goes_on(token))
                .map_async("stage", move |token, permit| run.take(token, permit))
                .flat_map(move |done| {
                    let permit = Rc::new(Permit(Rc::clone(&taken)));
                    kept.capture(done).map(|done: Finished| (done, permit))
                });
            let parts = done.flat_map(|(done, permit)| {
                let parcels = done.rows.into_iter().map(move |parcel| {
                    let permit = matches!(parcel, Outgoing::Block(_)).then(|| Rc::clone(&permit));
                    Ok((parcel, permit))
                });
                parcels.chain(done.gradient.into_iter().map(Err))
            });
            let (parcels, contributions): (StreamVec<'_, u64, Waiting>, StreamVec<'_, u64, Contribution>) =
                parts.ok_err(|part: Result<Waiting, Contribution>| part);
            let parcels = match synchrony {
                Synchrony::Barrier => parcels.barrier(),
                // A chunk's sums need not be at home before the next chunk is added up.
                _ => parcels.advance_times(|(parcel, _): &Waiting| parcel.time()),
            };
            let (tables, ghosts) = (Arc::clone(&state), Arc::clone(&state));
            let scattered = parcels.paced_scatter(
                window,
                compute_thread,
                Rc::clone(&context.meter),
                move |_: &mut ComputeState, parcel| tables.state().message(parcel),
                move |_: &mut ComputeState, block| ghosts.state().receive(block),
            );
            let reduced = contributions
                .all_reduce(context.placement.parts(), params, Rc::clone(&context.meter))
                .inspect(move |reduced: &Reduced| {
                    let epoch = time::epoch(reduced.time);
                    told.sums.borrow_mut().entry(epoch).or_default().add(reduced);
                    let (reduced, lr) = (reduced.clone(), told.rates.borrow_mut().remove(&epoch));
                    applied.post(move |trainer| {
                        lr.into_iter().for_each(|lr| trainer.set_learning_rate(lr));
                        trainer.apply(reduced);
                    });
                })
                .map(|_| ());
            let passed = Rc::clone(&shared);
            let all = [scattered, reduced].into_iter().chain(scored);
            scope.concatenate(all).on_frontier(move |now| passed.passed(now)).probe_with(&probe);
        });
        let alone = context.placement.workers() == 1;
        Self {
            input,
            probe,
            errors,
            shared,
            stages,
            evaluation,
            state,
            rounds: if alone { 0 } else { rounds },
            blocks: BlocksHash::default(),
            train: train.clone(),
            meter: Rc::clone(&context.meter),
            other_meter: Rc::clone(&context.other_meter),
        }
    }
}

impl Engine for StagedTraining {
    /// Trains one epoch, or where epochs may overlap as many as there are before anything else is due.
    fn train_round(
        &mut self,
        driver: &mut Driver<'_>,
        epoch: u32,
        lr: &dyn Fn(u32) -> f64,
    ) -> Result<Vec<EpochSums>, Error> {
        let mut start = Instant::now();
        let end = self.end_of_round(epoch);
        self.shared.first.set(self.shared.first.get().min(epoch));
        self.input.advance_to(time::at(epoch, 0));
        for epoch in epoch..end {
            self.shared.rates.borrow_mut().insert(epoch, lr(epoch));
            for (stage, &items) in (0..).zip(&self.stages) {
                let tick = time::at(epoch, stage);
                self.input.advance_to(tick);
                (0..items).for_each(|item| self.input.send(Token { time: tick, item, pass: Pass::Train }));
            }
        }
        let stages = self.stages.len() as u32;
        self.input.advance_to(time::at(end - 1, stages));
        self.input.flush();
        let mut done = Vec::with_capacity((end - epoch) as usize);
        for epoch in epoch..end {
            driver.run_until(&self.probe, time::at(epoch, stages), &self.errors)?;
            let sums = self.shared.sums.borrow_mut().remove(&epoch);
            let sums = sums.ok_or_else(|| Error::Bug("an epoch ended without a sum of gradients".into()))?;
            done.push(EpochSums { rounds: self.rounds, seconds: start.elapsed().as_secs_f64(), ..sums });
            start = Instant::now();
        }
        Ok(done)
    }

    fn compute_all(&mut self, driver: &mut Driver<'_>, inference: &Inference, embeddings: bool) -> Result<bool, Error> {
        {
            if embeddings && !self.state.state().has_embeddings() {
                return Ok(false);
            }
            let (results, read) = (Arc::clone(inference.results()), Arc::clone(inference.embeddings()));
            let embeddings = (embeddings && !Arc::ptr_eq(&results, &read)).then_some(read);
            self.state.set_sink(ResultSink { results, embeddings });
        }
        // Between two rounds a process sends nothing but what it does here.
        let before = self.meter.so_far();
        for (stage, &items) in (0..self.evaluation).zip(&self.stages) {
            // Times of their own, behind those of the last epoch. Nothing is stale: a stage is over before the next one begins.
            let tick = self.input.time() + 1;
            self.input.advance_to(tick);
            (0..items).for_each(|item| self.input.send(Token { time: tick, item, pass: Pass::Evaluate { stage } }));
            self.input.advance_to(tick + 1);
            self.input.flush();
            driver.run_until(&self.probe, tick + 1, &self.errors)?;
        }
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
    /// Epochs overlap until somebody wants to look at the parameters.
    fn end_of_round(&self, epoch: u32) -> u32 {
        if self.shared.synchrony.staleness() == 0 {
            return epoch + 1;
        }
        let due = |every: usize| match every as u32 {
            0 => u32::MAX,
            every => (epoch / every + 1) * every,
        };
        let due = due(self.train.evaluate_every).min(due(self.train.checkpoint_every));
        due.min(epoch + ROUND).min(self.train.epochs as u32)
    }
}
