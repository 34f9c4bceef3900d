//! Partition-parallel training with model averaging (SDT-GNN, section III-C).
//!
//! ```text
//! batch keys → sample_hop × layers → limit_in_flight → fetch_rows → step (compute thread)    for one partition after another
//! parameters and optimizer state × share of the training nodes → all_reduce                  after all partitions
//! ```
//!
//! Each partition trains without communication: a batch reads the in-edges of the partition's core nodes, and the features of its halo are stored
//! with the partition. A round trains every partition for `average_every` epochs from common parameters, then averages the results in
//! partition order. A worker trains its partitions one after another, so it needs one model. The result depends on the partitions, not on the
//! number of workers.
//!
//! Subgraph samplers use `batch keys → draw → induce` ([`Subgraphs`]) instead of hops, with the same view of a partition.

pub(crate) mod partition_view;

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use bytemuck::{Pod, Zeroable};
use gnnflow_dataflow::batch::mini_batch::BatchKey;
use gnnflow_dataflow::fetch::fetch_edge_rows::FetchEdgeRows;
use gnnflow_dataflow::fetch::fetch_rows::{FeatureView, FetchFrom, FetchRows};
use gnnflow_dataflow::fetch::read_ahead::ReadAhead;
use gnnflow_dataflow::flow::compute_thread::{ComputeThread, OnThread};
use gnnflow_dataflow::flow::permits::{LimitInFlight, Permits};
use gnnflow_dataflow::graph::placement::Placement;
use gnnflow_dataflow::sample::sample_batch::SampleBatch;
use gnnflow_dataflow::sample::sample_hop::Strategy;
use gnnflow_dataflow::sample::seeds::BatchSource;
use sha2::{Digest, Sha256};
use timely::container::CapacityContainerBuilder;
use timely::dataflow::InputHandle;
use timely::dataflow::operators::Input;
use timely::dataflow::operators::core::Inspect;
use timely::dataflow::operators::vec::Map;
use timely::worker::Worker;

use super::{BlocksHash, Engine, EpochSums, Round};
use crate::collectives::{Collectives, Driver, FirstError, Value};
use crate::compute::{ComputeState, StepReport, TrainedPartition};
use crate::config::Train;
use crate::context::WorkerContext;
use crate::engine::partition_local::partition_view::PartitionViews;
use crate::engine::sampling::operators::Operators;
use crate::engine::sampling::strategies::hops;
use crate::engine::sampling::subgraphs::Subgraphs;
use crate::error::Error;
use crate::runtime::stage::Stage;

/// The options of partition-local training.
pub(crate) struct LocalTraining {
    pub(crate) views: PartitionViews,
    pub(crate) batches: Arc<dyn BatchSource>,
    /// The sampling strategy of each hop, from the seeds on.
    pub(crate) strategies: Vec<Strategy>,
    /// The subgraph sampler, instead of hops.
    pub(crate) subgraphs: Option<Subgraphs>,
    pub(crate) operators: Operators,
    /// Whether the model reads degrees.
    pub(crate) degrees: bool,
    /// Maximum number of batches in flight.
    pub(crate) window: usize,
    pub(crate) train: Train,
}

/// The dataflow of one worker.
pub(crate) struct PartitionParallel {
    input: InputHandle<u64, CapacityContainerBuilder<Vec<BatchKey>>>,
    errors: FirstError,
    /// Reports of the current partition's batches, in order.
    done: Rc<RefCell<Vec<StepReport>>>,
    collectives: Collectives,
    /// Length of the averaged vectors.
    replica_len: usize,
    compute_thread: ComputeThread<ComputeState>,
    blocks: BlocksHash,
    placement: Placement,
    parts: Range<usize>,
    /// By partition, the number of training nodes.
    train_nodes: Vec<u64>,
    /// By partition, the number of steps of an epoch.
    steps: Vec<u64>,
    window: usize,
    /// Whether each batch has a time of its own, so that registered operators can be checked batch by batch.
    separate_times: bool,
    train: Train,
}

impl PartitionParallel {
    pub(crate) fn build(
        worker: &mut Worker,
        context: &WorkerContext,
        options: LocalTraining,
        compute_thread: &ComputeThread<ComputeState>,
    ) -> Self {
        let LocalTraining { views, batches, strategies, subgraphs, operators, degrees, window, train } = options;
        let steps = |train_nodes: &u64| match &subgraphs {
            Some(subgraphs) => subgraphs.steps(*train_nodes),
            None => train_nodes.div_ceil(train.batch as u64),
        };
        let steps = context.train_nodes.iter().map(steps).collect();
        let separate_times = !operators.is_empty();
        let (mut input, errors) = (InputHandle::new_with_builder(), FirstError::default());
        let done: Rc<RefCell<Vec<StepReport>>> = Rc::default();
        worker.dataflow::<u64, _, _>(|scope| {
            let hops = hops(context, &views.graph, &train, strategies);
            let keys = scope.input_from(&mut input);
            let stream = match &subgraphs {
                Some(subgraphs) => subgraphs.batches(keys, context),
                None => {
                    keys.map(move |key: BatchKey| batches.batch(key)).sample_batch(hops, Arc::clone(&context.sampling))
                }
            };
            // At least one batch is fetched while another is computed.
            let permits = Rc::new(Permits::new(window.max(2)));
            let (held, errors, done) = (Rc::clone(&permits), errors.clone(), Rc::clone(&done));
            let (features, schedule) = (views.features.clone(), train.lr_schedule.clone());
            let (epochs, first) = (train.epochs(), train.optimizer.lr());
            let rows: Rc<dyn Fn(u64) -> FeatureView> = Rc::new(move |_| features.clone());
            let batches = stream
                .read_ahead(Rc::clone(&rows))
                .limit_in_flight(permits)
                .fetch_edge_rows(context.fetch_edges(&views.graph, &context.meter))
                .fetch_rows(FetchFrom {
                    graph: Arc::clone(&views.graph),
                    rows,
                    degrees,
                    cache: None,
                    meter: Rc::clone(&context.meter),
                });
            operators
                .apply(batches, context, &views.graph, &errors)
                .on_thread("step", compute_thread.clone(), move |compute: &mut ComputeState, batch| {
                    let epoch = batch.key.epoch as usize;
                    compute.local_step(batch, schedule.at(epoch, epochs, first))
                })
                .flat_map(move |report| {
                    held.release();
                    errors.capture(report)
                })
                .inspect(move |report: &StepReport| done.borrow_mut().push(*report));
        });
        let replica_len = compute_thread.call(|compute| compute.replica_len());
        Self {
            input,
            errors,
            done,
            collectives: Collectives::new(context.placement, context.worker, Rc::clone(&context.meter)),
            replica_len,
            compute_thread: compute_thread.clone(),
            blocks: BlocksHash::default(),
            placement: context.placement,
            parts: context.placement.parts_of(context.worker),
            train_nodes: context.train_nodes.clone(),
            steps,
            window,
            separate_times,
            train,
        }
    }

    /// Returns the time that follows all batches of a round, at all workers.
    ///
    /// All batches of a round have one time, unless registered operators are checked. Workers may differ in the times of their
    /// batches, since nothing but the check waits for a frontier.
    fn round_end(&self, epochs: &Range<u32>) -> u64 {
        if !self.separate_times {
            return u64::from(epochs.end);
        }
        let batches = |worker| self.steps[self.placement.parts_of(worker)].iter().sum::<u64>();
        let most = (0..self.placement.workers()).map(batches).max().unwrap_or(0);
        self.input.time() + most * epochs.len() as u64 + 1
    }

    /// Trains partition `part` for `epochs`, and returns its parameters and the report of each epoch.
    fn train_partition(
        &mut self,
        driver: &mut Driver<'_>,
        part: usize,
        epochs: Range<u32>,
        round_end: u64,
    ) -> Result<(TrainedPartition, Vec<LocalEpoch>), Error> {
        self.compute_thread.call(ComputeState::begin_partition)?;
        let steps = self.steps[part] as u32;
        let mut sent = 0;
        driver.runtime.stage(Stage::Training { epoch: epochs.start as usize + 1 });
        let progress = driver.runtime.progress();
        let name = format!("epoch {}, partition {part}", epochs.start + 1);
        progress.brief_stage(&name, u64::from(steps) * epochs.len() as u64, "steps");
        for (epoch, step) in epochs.clone().flat_map(|epoch| (0..steps).map(move |step| (epoch, step))) {
            self.input.send(BatchKey { epoch, step, partition: part as u32 });
            if self.separate_times {
                self.input.advance_to(*self.input.time() + 1);
            }
            self.input.flush();
            sent += 1;
            while sent >= self.window + self.done.borrow().len() {
                driver.step(&self.errors)?;
            }
            progress.advance(1);
        }
        if self.separate_times && part + 1 == self.parts.end {
            self.input.advance_to(round_end);
            self.input.flush();
        }
        while self.done.borrow().len() < sent {
            driver.step(&self.errors)?;
        }
        progress.done();
        let reports = std::mem::take(&mut *self.done.borrow_mut());
        let batches = reports.chunks(steps.max(1) as usize).map(LocalEpoch::of);
        let batches = if steps == 0 { vec![LocalEpoch::default(); epochs.len()] } else { batches.collect() };
        let share = self.train_nodes[part] as f64 / self.train_nodes.iter().sum::<u64>() as f64;
        Ok((self.compute_thread.call(move |compute| compute.end_partition(share)), batches))
    }
}

/// The report of a partition's epoch.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
struct LocalEpoch {
    steps: u64,
    examples: u64,
    loss: f64,
    /// The hash of the digests of its batches, if these are computed.
    digest: [u8; 32],
}

impl Value for LocalEpoch {}

impl LocalEpoch {
    fn of(batches: &[StepReport]) -> Self {
        let mut hash = Sha256::new();
        batches.iter().filter_map(StepReport::digest).for_each(|digest| hash.update(digest));
        Self {
            steps: batches.len() as u64,
            examples: batches.iter().map(|batch| batch.examples).sum(),
            loss: batches.iter().map(|batch| batch.loss).sum(),
            digest: hash.finalize().into(),
        }
    }
}

impl Engine for PartitionParallel {
    /// Trains up to `average_every` epochs, and averages.
    fn train_round(&mut self, driver: &mut Driver<'_>, epoch: u32, _lr: &dyn Fn(u32) -> f64) -> Result<Round, Error> {
        let start = Instant::now();
        let every = self.train.average_every() as u32;
        let end = ((epoch / every + 1) * every).min(self.train.epochs() as u32);
        let round_end = self.round_end(&(epoch..end));
        let mut visited = Vec::with_capacity(self.parts.len());
        for part in self.parts.clone() {
            visited.push(self.train_partition(driver, part, epoch..end, round_end)?);
        }
        let first = self.parts.start;
        let (average, reports) = self.collectives.all_reduce_rows_with(driver, self.replica_len, |part| {
            let (TrainedPartition { flat, steps }, epochs) = &mut visited[part - first];
            let rows = (self.train_nodes[part] > 0).then(|| Arc::new(std::mem::take(flat)));
            (rows, (*steps, std::mem::take(epochs)))
        })?;
        self.input.advance_to(round_end);
        let steps = reports.iter().map(|&(steps, _)| steps).max().unwrap_or(0);
        self.compute_thread.call(move |compute| compute.set_average(average, steps))?;
        let seconds = start.elapsed().as_secs_f64() / f64::from(end - epoch);
        let epochs = (0..(end - epoch) as usize).map(|index| {
            let (mut sums, mut hash) = (EpochSums { seconds, ..EpochSums::default() }, Sha256::new());
            for part in reports.iter().map(|(_, epochs): &(u64, Vec<LocalEpoch>)| epochs[index]) {
                sums.steps = sums.steps.max(part.steps);
                sums.examples += part.examples;
                sums.loss += part.loss;
                hash.update(part.digest);
            }
            self.blocks.end_of_epoch(hash.finalize().into());
            sums
        });
        Ok(Round::Epochs(epochs.collect()))
    }

    fn blocks(&mut self) -> &mut BlocksHash {
        &mut self.blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collectives::Payload;

    #[test]
    fn epoch_report_survives_its_encoding() {
        let batch = |n: u8| StepReport { examples: 3, loss: f64::from(n) / 7.0, rounds: 0, pause: 0, digest: [n; 32] };
        let epoch = LocalEpoch::of(&[batch(1), batch(2)]);
        let (steps, read) = <(u64, Vec<LocalEpoch>)>::from_words(&(5u64, vec![epoch; 2]).to_words()).unwrap();
        assert_eq!((steps, read.len()), (5, 2));
        let read = read[1];
        assert_eq!((read.steps, read.examples, read.loss), (2, 6, 1.0 / 7.0 + 2.0 / 7.0));
        assert_eq!(read.digest, epoch.digest);
        assert_ne!(read.digest, LocalEpoch::of(&[batch(2), batch(1)]).digest);
    }
}
