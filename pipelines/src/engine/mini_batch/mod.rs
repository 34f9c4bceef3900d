//! Synchronous mini-batch training (DistDGL, section III).
//!
//! ```text
//! seeds → sample_hop × layers → limit_in_flight → fetch_rows → gate → gradient (compute thread) → all_reduce → apply (compute thread) → probe
//!                                 ↑_________ left by _________|                                     |
//!                                                      ↑_______________ opened by apply ____________|
//! ```
//!
//! Where rows of nodes are learned, a second gate, before the rows are fetched, and their gradients' own way:
//!
//! ```text
//! … → gate → limit_in_flight → fetch_rows → gate → gradient → push_rows → move rows (compute thread) → on_frontier → probe
//!       ↑________________________________________________ opened by what has been moved everywhere ______|
//! ```
//!
//! A step reads rows that all steps before it have moved, at every worker; asynchronously, all but the last `staleness` ones, and
//! each batch's gradients are applied when they come. They are then applied by the worker's own thread, which also reads
//! rows for its batches and for others: no row is ever read while it is written.
//!
//! Batches that are subgraphs come from `draw_batches → induce` ([`Subgraphs`]) in place of seeds and hops.
//!
//! The probe bounds how many steps are under way: a step may be sampled and fetched while an earlier one is computed, and
//! `gate` lets it be computed only when the earlier one has been applied. Features are what is large: `limit_in_flight` lets only
//! `train.window` batches of a worker have them at once, however many partitions it hosts.

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

use super::{BlocksHash, Engine, EpochSums, Staleness};
use crate::collectives::{Driver, FirstError};
use crate::compute::{ComputeState, Gradients, StepReport};
use crate::config::Train;
use crate::context::WorkerContext;
use crate::embedding::NodeEmbeddings;
use crate::engine::sampling::operators::Operators;
use crate::engine::sampling::subgraphs::Subgraphs;
use crate::error::Error;

/// The training dataflow of one worker.
pub(crate) struct MiniBatchTraining {
    input: InputHandle<u64, CapacityContainerBuilder<Vec<u32>>>,
    probe: probe::Handle<u64>,
    gate: Rc<Gate>,
    pull: Option<Rc<Pull>>,
    errors: FirstError,
    sums: Rc<RefCell<(EpochSums, Sha256)>>,
    blocks: BlocksHash,
    compute_thread: ComputeThread<ComputeState>,
    parts: std::ops::Range<usize>,
    steps: u32,
    window: u32,
    cache: Option<Rc<RefCell<RowCache>>>,
}

/// How far learned rows may be read, and how stale they were.
struct Pull {
    gate: Rc<Gate>,
    /// Steps that may be missing.
    staleness: u32,
    /// All earlier times have been applied everywhere.
    applied: Cell<u64>,
    stale: Cell<Staleness>,
}

impl Pull {
    fn new(staleness: usize) -> Self {
        let (gate, applied, stale) = (Rc::default(), Cell::default(), Cell::default());
        Self { gate, staleness: staleness as u32, applied, stale }
    }

    /// All before `tick` has been applied everywhere.
    fn applied(&self, tick: u64) {
        if tick > self.applied.get() {
            self.applied.set(tick);
            self.gate.open(tick.saturating_add(u64::from(self.staleness)));
        }
    }

    /// The rows of a batch of `step` of `epoch` are asked for.
    fn asked(&self, epoch: u32, step: u32) {
        // Epochs end with everything applied.
        let applied = self.applied.get().max(time::at(epoch, 0));
        let (behind, stale) = (time::at(epoch, step).saturating_sub(applied), self.stale.get());
        let Staleness { most, sum, batches } = stale;
        self.stale.set(Staleness { most: most.max(behind), sum: sum + behind, batches: batches + 1 });
    }
}

/// How batches are made.
pub(crate) struct Batches {
    pub(crate) book: Arc<dyn BatchSource>,
    /// How each hop chooses, the seeds' own first.
    pub(crate) strategies: Vec<Strategy>,
    /// In place of hops: what batches are drawn from that are subgraphs.
    pub(crate) subgraphs: Option<Subgraphs>,
    pub(crate) operators: Operators,
    /// Whether the model asks for degrees.
    pub(crate) degrees: bool,
    /// Parameters of the model.
    pub(crate) params: usize,
    /// Steps under way at most.
    pub(crate) window: usize,
    /// Features of other workers' nodes.
    pub(crate) cache: Option<Rc<RefCell<RowCache>>>,
}

impl MiniBatchTraining {
    /// Builds the dataflow on `worker`.
    pub(crate) fn build(
        worker: &mut Worker,
        context: &WorkerContext,
        train: &Train,
        batches: Batches,
        compute_thread: &ComputeThread<ComputeState>,
    ) -> Self {
        let (mut input, probe) = (InputHandle::new_with_builder(), probe::Handle::new());
        let (gate, errors) = (Rc::new(Gate::default()), FirstError::default());
        let sums: Rc<RefCell<(EpochSums, Sha256)>> = Rc::default();
        let steps = batches.subgraphs.as_ref().map_or_else(|| context.steps(train.batch), Subgraphs::steps);
        let Batches { book, strategies, subgraphs, operators, degrees, params, window, cache } = batches;
        let pull = context.embeddings.as_ref().map(|rows| Rc::new(Pull::new(rows.config().staleness())));
        worker.dataflow::<u64, _, _>(|scope| {
            let hops = context.hops(&context.graph, train, strategies);
            let steps = scope.input_from(&mut input);
            let stream = match &subgraphs {
                Some(subgraphs) => subgraphs.batches(steps, context),
                None => steps.seeds(book).sample_batch(hops, Arc::clone(&context.sampling)),
            };
            let features = context.features.clone();
            let pulled = pull.clone();
            let kept = errors.clone();
            let applied = compute_thread.clone();
            let (opened, counted) = (Rc::clone(&gate), Rc::clone(&sums));
            // One batch is computed while the next is fetched, at least.
            let hosted = context.placement.parts_of(context.worker).len();
            let permits = Rc::new(Permits::new(train.fetched_batches(window, hosted)));
            let left = Rc::clone(&permits);
            let rows: Rc<dyn Fn(u64) -> FeatureView> = Rc::new(move |_| features.clone());
            let stream = stream.read_ahead(Rc::clone(&rows));
            let stream = match pulled {
                None => stream.limit_in_flight(permits),
                Some(pull) => {
                    let stream = stream.gate(Rc::clone(&pull.gate)).limit_in_flight(permits);
                    stream.inspect(move |batch| pull.asked(batch.key.epoch, batch.key.step))
                }
            };
            let batches =
                stream.fetch_edge_rows(context.fetch_edges(&context.graph, &context.meter)).fetch_rows(FetchFrom {
                    graph: Arc::clone(&context.graph),
                    rows,
                    degrees,
                    cache: cache.clone(),
                    meter: Rc::clone(&context.meter),
                });
            let gradients = operators
                .apply(batches, context, &context.graph, &errors)
                .gate(Rc::clone(&gate))
                .on_thread("gradient", compute_thread.clone(), ComputeState::batch)
                .flat_map(move |gradients| {
                    left.release();
                    kept.capture(gradients)
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
            dense
                .all_reduce(context.placement.parts(), params, Rc::clone(&context.meter))
                .inspect(move |reduced: &Reduced| {
                    count(&mut counted.borrow_mut(), reduced);
                    let reduced = reduced.clone();
                    let tick = reduced.time;
                    applied.post(move |trainer| trainer.apply(reduced));
                    opened.open(tick + 1);
                })
                .probe_with(&probe);
        });
        let parts = context.placement.parts_of(context.worker);
        let (blocks, compute_thread, window) = (BlocksHash::default(), compute_thread.clone(), window as u32);
        Self { input, probe, gate, pull, errors, sums, blocks, compute_thread, parts, steps, window, cache }
    }
}

impl Engine for MiniBatchTraining {
    /// Trains one epoch: it ends when its last step has been applied everywhere.
    fn train_round(
        &mut self,
        driver: &mut Driver<'_>,
        epoch: u32,
        lr: &dyn Fn(u32) -> f64,
    ) -> Result<Vec<EpochSums>, Error> {
        let start = Instant::now();
        let lr = lr(epoch);
        self.compute_thread.post(move |trainer| trainer.set_learning_rate(lr));
        self.input.advance_to(time::at(epoch, 0));
        self.gate.open(time::at(epoch, 0));
        if let Some(pull) = &self.pull {
            pull.applied(time::at(epoch, 0));
        }
        for step in 0..self.steps {
            for part in self.parts.clone() {
                self.input.send(part as u32);
            }
            self.input.advance_to(time::at(epoch, step + 1));
            self.input.flush();
            let oldest = time::at(epoch, (step + 1).saturating_sub(self.window));
            driver.run_until(&self.probe, oldest, &self.errors)?;
        }
        driver.run_until(&self.probe, time::at(epoch, self.steps), &self.errors)?;
        if let Some(cache) = &self.cache {
            cache.borrow_mut().end_of_epoch();
        }
        let (sums, hash) = std::mem::take(&mut *self.sums.borrow_mut());
        self.blocks.end_of_epoch(hash);
        Ok(vec![EpochSums { seconds: start.elapsed().as_secs_f64(), ..sums }])
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

/// Brings gradients to the rows' owners, who move the rows; and opens the gate for those who read them next.
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
    let moved = if asynchronous {
        // This thread also reads the rows, and replies hold copies, so the two never overlap.
        pushed.map(move |pushed| rows.apply(&pushed))
    } else {
        // A step's gradients are complete when every batch of the step has its rows, at every worker. Batches of the next step read
        // rows after the gradients have been applied everywhere.
        pushed.on_thread("move rows", compute_thread.clone(), move |trainer: &mut ComputeState, pushed: PushedRows| {
            trainer.update_rows(&rows, &pushed)
        })
    };
    moved.flat_map(move |moved| errors.capture(moved)).on_frontier(move |tick| pull.applied(tick))
}

fn count((sums, hash): &mut (EpochSums, Sha256), reduced: &Reduced) {
    sums.add(reduced).iter().filter_map(StepReport::digest).for_each(|digest| hash.update(digest));
}
