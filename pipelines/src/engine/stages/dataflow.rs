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
//! Where there are tensor workers, what a stage computes leaves the compute thread for a while ([`Stages`]); the token's time is not over
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

use super::score_pairs as pairs;
use super::score_pairs::{PairSource, score_pairs};
use crate::collectives::driver::{FirstError, run_until};
use crate::compute::ComputeState;
use crate::config::{Mode, Train};
use crate::context::WorkerContext;
use crate::engine::inference::Inference;
use crate::engine::stages::{Done, Parcel, Results, Stages, Token};
use crate::engine::{BlocksHash, Engine, EpochSums, Staleness};
use crate::error::Error;
use crate::runtime::job::Runtime;
use crate::runtime::records::TensorUse;

/// Intervals of a worker that may be under way at once: one is computed while another's rows are sent; by columns, one chunk is added up
/// while another's sums are sent. With tensor workers, more.
pub(crate) fn permits(by_columns: bool) -> usize {
    if by_columns { 2 } else { 4 }
}

/// Epochs of a round at most, where nothing is due earlier.
const ROUND: u32 = 16;

/// A permit of an item in flight. Dropping it releases the permit.
struct Taken(Rc<Permits>);

impl Drop for Taken {
    fn drop(&mut self) {
        self.0.release();
    }
}

/// A message, and the place that it takes while it waits, where it is more than a note of rows in a table.
type Waiting = (Parcel, Option<Rc<Taken>>);

/// The training dataflow of one worker.
pub(crate) struct WholeGraphTraining {
    input: InputHandle<u64, CapacityContainerBuilder<Vec<Token>>>,
    probe: probe::Handle<u64>,
    errors: FirstError,
    shared: Rc<Shared>,
    /// How many items each stage has here, and how many stages an evaluation has.
    stages: Vec<u32>,
    evaluation: u32,
    state: Arc<Stages>,
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
    mode: Mode,
    staleness: u32,
    /// All before has been done everywhere.
    passed: Cell<u64>,
    /// The first epoch that this run computes: there is nothing stale to read in it.
    first: Cell<u32>,
    /// The stages that are chunks of pairs.
    pairs: Range<u32>,
    /// Where the way back has no stale rows, the stage that it begins with.
    fresh_from: Option<u32>,
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
        let open = match self.mode {
            Mode::Async if epoch > self.first.get() => match self.fresh_from {
                Some(stage) if time::step(now) >= stage => now,
                Some(stage) => time::at(epoch, stage - 1),
                None => time::at(epoch.saturating_add(self.staleness), u32::MAX),
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
        if token.evaluates.is_some() {
            return;
        }
        let behind = time::epoch(token.tick).saturating_sub(time::epoch(self.passed.get()));
        let Staleness { most, sum, batches } = self.stale.get();
        let behind = u64::from(behind);
        self.stale.set(Staleness { most: most.max(behind), sum: sum + behind, batches: batches + 1 });
    }
}

impl WholeGraphTraining {
    /// Builds the dataflow on `worker`; `source` is where pairs come from, where they are learned from.
    pub(crate) fn build(
        worker: &mut Worker,
        context: &WorkerContext,
        train: &Train,
        params: usize,
        (state, source): (Arc<Stages>, Option<PairSource>),
        compute_thread: &ComputeThread<ComputeState>,
    ) -> Self {
        let (mut input, probe, errors) = (InputHandle::new_with_builder(), probe::Handle::new(), FirstError::default());
        let (stages, rounds) = state.graph().work();
        let (evaluation, attends, pairs, by_columns, window) = {
            let graph = state.graph();
            let stages = graph.stages_of_evaluation();
            (stages, graph.attends_at_both_ends(), graph.chunks_of_pairs(), graph.is_by_columns(), graph.window())
        };
        let shared = Rc::new(Shared {
            gate: Rc::default(),
            mode: train.mode(),
            staleness: train.staleness() as u32,
            passed: Cell::default(),
            first: Cell::new(u32::MAX),
            pairs: pairs.clone(),
            fresh_from: attends.then(|| evaluation - 1),
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
                    let (tokens, chunks) = tokens.branch(move |&tick, token: &Token| {
                        token.evaluates.is_none() && pairs.contains(&time::step(tick))
                    });
                    (tokens, Some(score_pairs(chunks, context, source, first, &state, compute_thread, &errors)))
                }
                None => (tokens, None),
            };
            let done = tokens
                .limit_in_flight(permits)
                .inspect(move |&token: &Token| seen.goes_on(token))
                .map_async("stage", move |token, place| run.take(token, place))
                .flat_map(move |done| {
                    let place = Rc::new(Taken(Rc::clone(&taken)));
                    kept.capture(done).map(|done: Done| (done, place))
                });
            let parts = done.flat_map(|(done, place)| {
                let parcels = done.parcels.into_iter().map(move |parcel| {
                    let place = matches!(parcel, Parcel::Made(_)).then(|| Rc::clone(&place));
                    Ok((parcel, place))
                });
                parcels.chain(done.contribution.into_iter().map(Err))
            });
            let (parcels, contributions): (StreamVec<'_, u64, Waiting>, StreamVec<'_, u64, Contribution>) =
                parts.ok_err(|part: Result<Waiting, Contribution>| part);
            let parcels = match train.mode() {
                Mode::Sync => parcels.barrier(),
                // A chunk's sums need not be at home before the next chunk is added up.
                _ => parcels.advance_times(|(parcel, _): &Waiting| parcel.time()),
            };
            let (tables, ghosts) = (Arc::clone(&state), Arc::clone(&state));
            let scattered = parcels.paced_scatter(
                window,
                compute_thread,
                Rc::clone(&context.meter),
                move |_: &mut ComputeState, parcel| tables.graph().message(parcel),
                move |_: &mut ComputeState, block| ghosts.graph().arrived(block),
            );
            let reduced = contributions
                .all_reduce(context.placement.parts(), params, Rc::clone(&context.meter))
                .inspect(move |reduced: &Reduced| {
                    let epoch = time::epoch(reduced.tick);
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

impl Engine for WholeGraphTraining {
    /// Trains one epoch, or where epochs may overlap as many as there are before anything else is due.
    fn train_round(
        &mut self,
        worker: &mut Worker,
        runtime: &dyn Runtime,
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
                (0..items).for_each(|item| self.input.send(Token { tick, item, evaluates: None }));
            }
        }
        let stages = self.stages.len() as u32;
        self.input.advance_to(time::at(end - 1, stages));
        self.input.flush();
        let mut done = Vec::with_capacity((end - epoch) as usize);
        for epoch in epoch..end {
            run_until(worker, runtime, &self.errors, &self.probe, time::at(epoch, stages))?;
            let sums = self.shared.sums.borrow_mut().remove(&epoch);
            let sums = sums.ok_or_else(|| Error::Bug("an epoch ended without a sum of gradients".into()))?;
            done.push(EpochSums { rounds: self.rounds, seconds: start.elapsed().as_secs_f64(), ..sums });
            start = Instant::now();
        }
        Ok(done)
    }

    fn compute_all(
        &mut self,
        worker: &mut Worker,
        runtime: &dyn Runtime,
        inference: &Inference,
        embeddings: bool,
    ) -> Result<bool, Error> {
        {
            if embeddings && !self.state.graph().has_embeddings() {
                return Ok(false);
            }
            let (results, read) = (Arc::clone(inference.results()), Arc::clone(inference.embeddings()));
            let embeddings = (embeddings && !Arc::ptr_eq(&results, &read)).then_some(read);
            self.state.set_results(Results { results, embeddings });
        }
        // Between two rounds a process sends nothing but what it does here.
        let before = self.meter.so_far();
        for (stage, &items) in (0..self.evaluation).zip(&self.stages) {
            // Times of their own, behind those of the last epoch. Nothing is stale: a stage is over before the next one begins.
            let tick = self.input.time() + 1;
            self.input.advance_to(tick);
            (0..items).for_each(|item| self.input.send(Token { tick, item, evaluates: Some(stage) }));
            self.input.advance_to(tick + 1);
            self.input.flush();
            run_until(worker, runtime, &self.errors, &self.probe, tick + 1)?;
        }
        self.meter.hand_over(before, &self.other_meter);
        Ok(true)
    }

    fn rows(&self) -> Option<[u64; 2]> {
        Some([Table::allocated(), self.state.graph().edge_numbers()])
    }

    fn staleness(&self) -> Option<Staleness> {
        (self.shared.mode == Mode::Async).then(|| self.shared.stale.get())
    }

    fn tensor(&self) -> Option<TensorUse> {
        self.state.executor_stats()
    }

    fn blocks(&mut self) -> &mut BlocksHash {
        &mut self.blocks
    }
}

impl WholeGraphTraining {
    /// Epochs overlap until somebody wants to look at the parameters.
    fn end_of_round(&self, epoch: u32) -> u32 {
        if self.shared.mode != Mode::Async || self.shared.staleness == 0 {
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
