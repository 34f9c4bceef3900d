//! Synchronous mini-batch training (DistDGL, section III).
//!
//! ```text
//! seeds → sample_hop × layers → admit → fetch_rows → hold → gradient (companion) → all_reduce → apply (companion) → probe
//!                                 ↑_________ left by _________|                                     |
//!                                                      ↑_______________ opened by apply ____________|
//! ```
//!
//! The probe bounds how many steps are under way: a step may be sampled and fetched while an earlier one is computed, and
//! `hold` lets it be computed only when the earlier one has been applied. Features are what is large: `admit` lets only
//! `train.window` batches of a worker have them at once, however many partitions it hosts.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use gnnflow_operators::fetch::cache::{CacheCounts, RowCache};
use gnnflow_operators::fetch::fetch_edge_rows::FetchEdgeRows;
use gnnflow_operators::fetch::fetch_rows::{FetchFrom, FetchRows};
use gnnflow_operators::sample::sample_batch::SampleBatch;
use gnnflow_operators::sample::sample_hop::Choice;
use gnnflow_operators::sample::seeds::{SeedBook, Seeds};
use gnnflow_operators::sync::admit::{Admit, Room};
use gnnflow_operators::sync::all_reduce::{AllReduce, Reduced};
use gnnflow_operators::sync::background::{Background, Companion};
use gnnflow_operators::sync::hold::{Gate, Hold};
use gnnflow_operators::tick;
use sha2::{Digest, Sha256};
use timely::container::CapacityContainerBuilder;
use timely::dataflow::InputHandle;
use timely::dataflow::operators::core::Inspect;
use timely::dataflow::operators::vec::Map;
use timely::dataflow::operators::{Input, Probe, probe};
use timely::worker::Worker;

use super::{BlocksHash, EpochSums, Schedule};
use crate::Error;
use crate::drive::{Fault, until};
use crate::job::Host;
use crate::setup::Setup;
use crate::spec::Train;
use crate::trainer::{BatchWords, Trainer};

/// The training dataflow of one worker.
pub(crate) struct MiniBatchTraining {
    input: InputHandle<u64, CapacityContainerBuilder<Vec<u32>>>,
    probe: probe::Handle<u64>,
    gate: Rc<Gate>,
    fault: Fault,
    sums: Rc<RefCell<(EpochSums, Sha256)>>,
    blocks: BlocksHash,
    companion: Companion<Trainer>,
    parts: std::ops::Range<usize>,
    steps: u32,
    window: u32,
    cache: Option<Rc<RefCell<RowCache>>>,
}

/// How batches are made.
pub(crate) struct Batches {
    pub(crate) seeds: SeedBook,
    /// How each hop chooses, the seeds' own first.
    pub(crate) choices: Vec<Choice>,
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
        setup: &Setup,
        train: &Train,
        batches: Batches,
        companion: &Companion<Trainer>,
    ) -> Self {
        let (mut input, probe) = (InputHandle::new_with_builder(), probe::Handle::new());
        let (gate, fault) = (Rc::new(Gate::default()), Fault::default());
        let sums: Rc<RefCell<(EpochSums, Sha256)>> = Rc::default();
        let steps = setup.steps(batches.seeds.batch);
        let Batches { seeds, choices, degrees, params, window, cache } = batches;
        worker.dataflow::<u64, _, _>(|scope| {
            let hops = setup.hops(&setup.graph, train, choices);
            let stream = scope.input_from(&mut input).seeds(Arc::new(seeds));
            let features = setup.features.clone();
            let kept = fault.clone();
            let applied = companion.clone();
            let (opened, counted) = (Rc::clone(&gate), Rc::clone(&sums));
            // One batch is computed while the next is fetched, at least.
            let room = Rc::new(Room::new(window.max(2)));
            let left = Rc::clone(&room);
            stream
                .sample_batch(hops, Arc::clone(&setup.sampling))
                .admit(room)
                .fetch_edge_rows(setup.fetch_edges(&setup.graph))
                .fetch_rows(FetchFrom {
                    graph: Arc::clone(&setup.graph),
                    rows: Rc::new(move |_| features.clone()),
                    degrees,
                    cache: cache.clone(),
                    meter: Rc::clone(&setup.meter),
                })
                .hold(Rc::clone(&gate))
                .background("gradient", companion.clone(), Trainer::batch)
                .flat_map(move |contribution| {
                    left.leave();
                    kept.keep(contribution)
                })
                .all_reduce(setup.placement.parts(), params, Rc::clone(&setup.meter))
                .inspect(move |reduced: &Reduced| {
                    count(&mut counted.borrow_mut(), reduced);
                    let reduced = reduced.clone();
                    let tick = reduced.tick;
                    applied.run(move |trainer| trainer.apply(reduced));
                    opened.open(tick + 1);
                })
                .probe_with(&probe);
        });
        let parts = setup.placement.parts_of(setup.worker);
        let (blocks, companion, window) = (BlocksHash::default(), companion.clone(), window as u32);
        Self { input, probe, gate, fault, sums, blocks, companion, parts, steps, window, cache }
    }
}

impl Schedule for MiniBatchTraining {
    /// Trains one epoch: it ends when its last step has been applied everywhere.
    fn round(
        &mut self,
        worker: &mut Worker,
        host: &dyn Host,
        epoch: u32,
        lr: &dyn Fn(u32) -> f64,
    ) -> Result<Vec<EpochSums>, Error> {
        let start = Instant::now();
        let lr = lr(epoch);
        self.companion.run(move |trainer| trainer.set_learning_rate(lr));
        self.input.advance_to(tick::at(epoch, 0));
        self.gate.open(tick::at(epoch, 0));
        for step in 0..self.steps {
            for part in self.parts.clone() {
                self.input.send(part as u32);
            }
            self.input.advance_to(tick::at(epoch, step + 1));
            self.input.flush();
            let oldest = tick::at(epoch, (step + 1).saturating_sub(self.window));
            until(worker, host, &self.fault, &self.probe, oldest)?;
        }
        until(worker, host, &self.fault, &self.probe, tick::at(epoch, self.steps))?;
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

    fn blocks(&mut self) -> &mut BlocksHash {
        &mut self.blocks
    }
}

fn count((sums, hash): &mut (EpochSums, Sha256), reduced: &Reduced) {
    let batches: Vec<BatchWords> = reduced.words.iter().filter_map(|words| BatchWords::decode(words)).collect();
    sums.steps += 1;
    sums.rounds += batches.iter().map(|batch| batch.rounds).max().unwrap_or(0);
    for batch in batches {
        sums.examples += batch.examples;
        sums.loss += batch.loss;
        if let Some(digest) = batch.digest {
            hash.update(digest);
        }
    }
}

/// Bytes in hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
