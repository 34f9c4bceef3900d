//! Synchronous mini-batch training (DistDGL, section III).
//!
//! ```text
//! seeds → sample_hop × layers → limit_in_flight → fetch_rows → gate → gradient (compute thread) → all_reduce → apply (compute thread) → probe
//!                                 ↑________ released by ______|                                     |
//!                                                      ↑_______________ opened by apply ____________|
//! ```
//!
//! If the compute thread has the features of all nodes, on a GPU or in one array of this process, none are fetched. On a GPU, `copy to device` is
//! before the gate: another thread copies the edges of the next batch, and the rows that the GPU does not hold, while one is computed. With
//! `device_sampling`, there are no hops, and the GPU samples the batch there.
//!
//! With learned rows, there is a second gate before rows are fetched, and a second path for their gradients:
//!
//! ```text
//! … → gate → limit_in_flight → fetch_rows → gate → gradient → push_rows → update rows (compute thread) → on_frontier → probe
//!       ↑________________________________________________ opened by the frontier of all workers ___________|
//! ```
//!
//! A step reads rows with the updates of all earlier steps of all workers. In asynchronous mode, the updates of the last `staleness` steps may be
//! missing, and gradients are applied per batch on arrival. The worker thread, which also reads rows for replies, then applies them, so no row
//! is read while it is written.
//!
//! Subgraph samplers use `batch_keys → draw → induce` ([`Subgraphs`]) instead of seeds and hops.
//!
//! The probe bounds the number of steps in flight. A step may be sampled and fetched while an earlier one is computed; `gate` holds its
//! computation until the earlier one has been applied. Features take most memory: `limit_in_flight` limits a worker to `train.window` batches
//! with features, and one more than it computes at the same time, for any number of its partitions.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use gnnflow_dataflow::collective::all_reduce::{AllReduce, Contribution, Reduced};
use gnnflow_dataflow::embed::push_rows::{Arrival, PushRows, PushTo, PushedRows, RowGradients};
use gnnflow_dataflow::fetch::cache::{CacheCounts, RowCache};
use gnnflow_dataflow::fetch::fetch_edge_rows::FetchEdgeRows;
use gnnflow_dataflow::fetch::fetch_rows::{FeatureView, FetchFrom, FetchRows};
use gnnflow_dataflow::fetch::read_ahead::ReadAhead;
use gnnflow_dataflow::flow::compute_thread::{ComputeThread, OnThread};
use gnnflow_dataflow::flow::gate::{Gate, Gated};
use gnnflow_dataflow::flow::on_frontier::OnFrontier;
use gnnflow_dataflow::flow::permits::{LimitInFlight, Permits};
use gnnflow_dataflow::sample::batch_keys::BatchKeys;
use gnnflow_dataflow::sample::sample_batch::SampleBatch;
use gnnflow_dataflow::sample::sample_hop::Strategy;
use gnnflow_dataflow::sample::seeds::{BatchSource, Seeds};
use gnnflow_dataflow::time;
use sha2::{Digest, Sha256};
use timely::container::CapacityContainerBuilder;
use timely::dataflow::InputHandle;
use timely::dataflow::StreamVec;
use timely::dataflow::operators::core::{Inspect, OkErr};
use timely::dataflow::operators::vec::Map;
use timely::dataflow::operators::{Input, Probe, probe};
use timely::worker::Worker;

use super::pause::Pause;
use super::{APPLY, BlocksHash, Engine, EpochPart, Round, Staleness};
use crate::collectives::{Driver, FirstError};
use crate::compute::{ComputeState, Gradients, Passes, RunJobs, StepReport};
use crate::config::{CheckpointEvery, Train};
use crate::context::WorkerContext;
use crate::embedding::NodeEmbeddings;
use crate::engine::sampling::operators::Operators;
use crate::engine::sampling::strategies::hops;
use crate::engine::sampling::subgraphs::Subgraphs;
use crate::error::Error;
use crate::runtime::stage::Stage;

/// The name of the jobs that compute the gradients of batches.
pub(crate) const GRADIENT: &str = "gradient";

/// The name of the jobs that copy batches to a GPU.
pub(crate) const READY: &str = "copy to device";

/// The training dataflow of one worker.
pub(crate) struct MiniBatchTraining {
    input: InputHandle<u64, CapacityContainerBuilder<Vec<u32>>>,
    probe: probe::Handle<u64>,
    gate: Rc<Gate>,
    pull: Option<Rc<Pull>>,
    errors: FirstError,
    /// The epoch in training.
    epoch: Rc<RefCell<EpochSoFar>>,
    blocks: BlocksHash,
    compute_thread: ComputeThread<ComputeState>,
    parts: std::ops::Range<usize>,
    steps: u32,
    window: u32,
    pause: Rc<Pause>,
    /// Steps of an epoch between pauses.
    pause_every: Option<u32>,
    cache: Option<Rc<RefCell<RowCache>>>,
}

/// The steps of an epoch that have been trained.
#[derive(Default)]
struct EpochSoFar {
    part: EpochPart,
    /// The first step in whose report a worker wants a pause.
    wanted: Option<u32>,
}

impl EpochSoFar {
    fn add(&mut self, reduced: &Reduced) {
        let batches = self.part.sums.add(reduced);
        let mut digests = batches.iter().filter_map(StepReport::digest).peekable();
        if digests.peek().is_some() {
            let hash = Sha256::new_with_prefix(self.part.blocks);
            self.part.blocks = digests.fold(hash, |hash, digest| hash.chain_update(digest)).finalize().into();
        }
        if batches.iter().any(|batch| batch.pause > 0) {
            let step = time::step(reduced.time);
            self.wanted = Some(self.wanted.map_or(step, |wanted| wanted.min(step)));
        }
    }
}

/// The gate before reads of learned rows, and their staleness so far.
struct Pull {
    gate: Rc<Gate>,
    /// Number of steps whose updates may be missing.
    staleness: u32,
    /// All workers have applied all earlier times.
    applied: Cell<u64>,
    stale: Cell<Staleness>,
}

impl Pull {
    fn new(staleness: usize) -> Self {
        let (gate, applied, stale) = (Rc::default(), Cell::default(), Cell::default());
        Self { gate, staleness: staleness as u32, applied, stale }
    }

    /// Opens the gate: all workers have applied all times before `time`.
    fn advance(&self, time: u64) {
        if time > self.applied.get() {
            self.applied.set(time);
            self.gate.open(time.saturating_add(u64::from(self.staleness)));
        }
    }

    /// Records the staleness of the rows that a batch requests.
    fn record_staleness(&self, epoch: u32, step: u32) {
        // All updates of an epoch are applied at its end.
        let applied = self.applied.get().max(time::at(epoch, 0));
        let (behind, stale) = (time::at(epoch, step).saturating_sub(applied), self.stale.get());
        let Staleness { most, sum, batches } = stale;
        self.stale.set(Staleness { most: most.max(behind), sum: sum + behind, batches: batches + 1 });
    }
}

/// How batches get the features of this process's nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Features {
    /// `fetch_rows` copies them into the batch.
    Fetched,
    /// The compute thread, or the thread that copies batches to a GPU, reads them where they lie: on the GPU, or in one array.
    Read,
    /// As [`Features::Read`], but some may be in files, which are read ahead.
    ReadAhead,
}

/// The options of batches.
pub(crate) struct Batches {
    pub(crate) source: Arc<dyn BatchSource>,
    /// The sampling strategy of each hop, from the seeds on.
    pub(crate) strategies: Vec<Strategy>,
    /// The subgraph sampler, instead of hops.
    pub(crate) subgraphs: Option<Subgraphs>,
    pub(crate) operators: Operators,
    /// Whether the model reads degrees.
    pub(crate) degrees: bool,
    /// Number of parameters of the model.
    pub(crate) params: usize,
    /// Maximum number of steps in flight.
    pub(crate) window: usize,
    /// Maximum number of batches in computation.
    pub(crate) jobs: usize,
    /// When this worker wants a pause.
    pub(crate) pause: Rc<Pause>,
    /// The cache of features of other workers' nodes.
    pub(crate) cache: Option<Rc<RefCell<RowCache>>>,
    /// How batches get the features of this process's nodes.
    pub(crate) features: Features,
    /// On a GPU: the thread that copies batches to it.
    pub(crate) ready_thread: Option<ComputeThread<Arc<Passes>>>,
}

impl MiniBatchTraining {
    pub(crate) fn build(
        worker: &mut Worker,
        context: &WorkerContext,
        train: &Train,
        batches: Batches,
        compute_thread: &ComputeThread<ComputeState>,
    ) -> Self {
        let (mut input, probe) = (InputHandle::new_with_builder(), probe::Handle::new());
        let (gate, errors) = (Rc::new(Gate::default()), FirstError::default());
        let epoch: Rc<RefCell<EpochSoFar>> = Rc::default();
        let steps = match &batches.subgraphs {
            Some(subgraphs) => subgraphs.steps(context.train_nodes.iter().copied().max().unwrap_or(0)) as u32,
            None => context.steps(train.batch),
        };
        let Batches {
            source,
            strategies,
            subgraphs,
            operators,
            degrees,
            params,
            window,
            jobs,
            pause,
            cache,
            features: place,
            ready_thread,
        } = batches;
        let pull = context.embeddings.as_ref().map(|rows| Rc::new(Pull::new(rows.config().staleness())));
        worker.dataflow::<u64, _, _>(|scope| {
            let hops = hops(context, &context.graph, train, strategies);
            let steps = scope.input_from(&mut input);
            let stream = match &subgraphs {
                Some(subgraphs) => subgraphs.batches(steps.batch_keys(), context),
                None => steps.seeds(source).sample_batch(hops, Arc::clone(&context.sampling)),
            };
            let features = context.features.clone();
            // At least one batch is fetched while another is computed.
            let hosted = context.placement.parts_of(context.worker).len();
            let permits = Rc::new(Permits::new(train.fetched_batches(window, hosted, jobs)));
            let held = Rc::clone(&permits);
            let rows: Rc<dyn Fn(u64) -> FeatureView> = Rc::new(move |_| features.clone());
            let stream = if place == Features::Read { stream } else { stream.read_ahead(Rc::clone(&rows)) };
            let stream = match pull.clone() {
                None => stream.limit_in_flight(permits),
                Some(pull) => {
                    let stream = stream.gate(Rc::clone(&pull.gate)).limit_in_flight(permits);
                    stream.inspect(move |batch| pull.record_staleness(batch.key.epoch, batch.key.step))
                }
            };
            let first_error = errors.clone();
            let from = FetchFrom {
                graph: Arc::clone(&context.graph),
                rows,
                degrees,
                cache: cache.clone(),
                meter: Rc::clone(&context.meter),
            };
            let stream = stream.fetch_edge_rows(context.fetch_edges(&context.graph, &context.meter));
            let batches = match place {
                Features::Fetched => stream.fetch_rows(from),
                Features::Read | Features::ReadAhead => stream.fetch_remote_rows(from),
            };
            let batches = operators.apply(batches, context, &context.graph, &errors);
            let gradients = match ready_thread {
                None => batches.gate(Rc::clone(&gate)).run_jobs(GRADIENT, compute_thread, Passes::batch_gradients),
                Some(thread) => batches
                    .on_thread(READY, thread, |passes: &mut Arc<Passes>, batch| passes.ready(batch))
                    .gate(Rc::clone(&gate))
                    .run_jobs(GRADIENT, compute_thread, Passes::ready_gradients),
            };
            let gradients = gradients.flat_map(move |gradients| {
                held.release();
                first_error.capture(gradients)
            });
            let dense = match (&context.embeddings, &pull) {
                (Some(rows), Some(pull)) => {
                    let split = gradients.flat_map(|Gradients { dense, rows }| {
                        let rows = rows.into_iter().map(Err);
                        std::iter::once(Ok(dense)).chain(rows)
                    });
                    let (dense, pushes): (StreamVec<'_, u64, Contribution>, StreamVec<'_, u64, RowGradients>) =
                        split.ok_err(|part: Result<Contribution, RowGradients>| part);
                    push(pushes, context, rows, pull, compute_thread, &errors).probe_with(&probe);
                    dense
                }
                _ => gradients.map(|gradients| gradients.dense),
            };
            let (gate, epoch, pause) = (Rc::clone(&gate), Rc::clone(&epoch), Rc::clone(&pause));
            let compute_thread = compute_thread.with_name(APPLY);
            dense
                .map(move |mut dense| {
                    if pause.is_wanted() {
                        StepReport::want_pause(&mut dense.words);
                    }
                    dense
                })
                .all_reduce(context.placement.parts(), params, Rc::clone(&context.meter))
                .inspect(move |reduced: &Reduced| {
                    epoch.borrow_mut().add(reduced);
                    let reduced = reduced.clone();
                    let time = reduced.time;
                    compute_thread.at(time).post(move |compute| compute.apply(reduced));
                    gate.open(time + 1);
                })
                .probe_with(&probe);
        });
        let parts = context.placement.parts_of(context.worker);
        let (blocks, compute_thread, window) = (BlocksHash::default(), compute_thread.clone(), window as u32);
        let pause_every = match train.checkpoint_every {
            CheckpointEvery::Steps(steps) => Some(steps),
            CheckpointEvery::Epochs(_) | CheckpointEvery::Time(_) => None,
        };
        Self {
            input,
            probe,
            gate,
            pull,
            errors,
            epoch,
            blocks,
            compute_thread,
            parts,
            steps,
            window,
            pause,
            pause_every,
            cache,
        }
    }
}

impl MiniBatchTraining {
    /// Returns the step before which the round from step `first` pauses, as far as this worker knows: all workers know it in time.
    ///
    /// A worker sends step `s` when all workers have applied the steps before `s - window`. So before all workers have the report of step
    /// `t`, none of them sends a step after `t + window`, with the largest window of all. If a worker wants a pause in that report, all
    /// complete the steps up to there.
    fn end_of_round(&self, first: u32) -> u32 {
        let planned = self.pause_every.map_or(self.steps, |every| (first / every + 1).saturating_mul(every));
        let wanted = self.epoch.borrow().wanted.map_or(self.steps, |step| step.saturating_add(self.pause.window() + 1));
        self.steps.min(planned).min(wanted)
    }
}

impl Engine for MiniBatchTraining {
    /// Trains one epoch, or the rest of it, until all workers have applied its last step; or until a pause.
    fn train_round(&mut self, driver: &mut Driver<'_>, epoch: u32, lr: &dyn Fn(u32) -> f64) -> Result<Round, Error> {
        let (start, lr) = (Instant::now(), lr(epoch));
        let first = self.epoch.borrow().part.steps;
        self.compute_thread.post(move |compute| compute.set_learning_rate(lr));
        self.input.advance_to(time::at(epoch, first));
        self.gate.open(time::at(epoch, first));
        if let Some(pull) = &self.pull {
            pull.advance(time::at(epoch, first));
        }
        driver.runtime.stage(Stage::Training { epoch: epoch as usize + 1 });
        let progress = driver.runtime.progress();
        progress.brief_stage(&format!("epoch {}", epoch + 1), u64::from(self.steps - first), "steps");
        let mut step = first;
        while step < self.end_of_round(first) {
            for part in self.parts.clone() {
                self.input.send(part as u32);
            }
            step += 1;
            self.input.advance_to(time::at(epoch, step));
            self.input.flush();
            driver.run_until(&self.probe, time::at(epoch, step.saturating_sub(self.window)), &self.errors)?;
            progress.advance(1);
            if let Some(CacheCounts { hits, misses }) = self.cached() {
                driver.runtime.cached(hits, misses);
            }
        }
        driver.run_until(&self.probe, time::at(epoch, step), &self.errors)?;
        progress.done();
        let mut so_far = self.epoch.borrow_mut();
        so_far.wanted = None;
        so_far.part.steps = step;
        so_far.part.sums.seconds += start.elapsed().as_secs_f64();
        if step < self.steps {
            return Ok(Round::Part(so_far.part.clone()));
        }
        let EpochPart { sums, blocks, .. } = std::mem::take(&mut so_far.part);
        if let Some(cache) = &self.cache {
            cache.borrow_mut().end_of_epoch();
        }
        self.blocks.end_of_epoch(blocks);
        Ok(Round::Epochs(vec![sums]))
    }

    fn continue_epoch(&mut self, part: &EpochPart) -> Result<(), Error> {
        self.epoch.borrow_mut().part = part.clone();
        Ok(())
    }

    fn cached(&self) -> Option<CacheCounts> {
        self.cache.as_ref().map(|cache| cache.borrow().counts())
    }

    fn staleness(&self) -> Option<Staleness> {
        self.pull.as_ref().map(|pull| pull.stale.get())
    }

    fn blocks(&mut self) -> &mut BlocksHash {
        &mut self.blocks
    }
}

/// Sends gradients to the rows' owners, which update the rows, and opens the gate for later reads.
fn push<'scope>(
    pushes: StreamVec<'scope, u64, RowGradients>,
    context: &WorkerContext,
    rows: &Arc<NodeEmbeddings>,
    pull: &Rc<Pull>,
    compute_thread: &ComputeThread<ComputeState>,
    errors: &FirstError,
) -> StreamVec<'scope, u64, ()> {
    let asynchronous = rows.config().is_async();
    let pushed = pushes.push_rows(PushTo {
        graph: Arc::clone(&context.graph),
        dim: rows.dim(),
        arrival: if asynchronous { Arrival::EachBatch } else { Arrival::Together },
        meter: Rc::clone(&context.meter),
    });
    let (rows, pull, errors) = (Arc::clone(rows), Rc::clone(pull), errors.clone());
    let updated = if asynchronous {
        // This thread also reads the rows, and replies hold copies, so the two never overlap.
        pushed.map(move |pushed| rows.apply(&pushed))
    } else {
        // The gradients of a step are complete when every batch of all workers has fetched its rows. Batches of the next step read rows
        // after all workers have applied these gradients.
        pushed.on_thread(
            "update rows",
            compute_thread.clone(),
            move |compute: &mut ComputeState, pushed: PushedRows| compute.update_rows(&rows, &pushed),
        )
    };
    updated.flat_map(move |done| errors.capture(done)).on_frontier(move |time| pull.advance(time))
}
