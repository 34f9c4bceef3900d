//! The dataflows of training and inference, and the trait that all schedules implement.

pub(crate) mod aggregation;
pub(crate) mod device_graph;
pub(crate) mod full_graph;
pub(crate) mod inference;
pub(crate) mod mini_batch;
pub(crate) mod no_training;
pub(crate) mod partition_local;
pub(crate) mod pause;
pub(crate) mod sampling;
pub(crate) mod stages;
pub(crate) mod tensor_parallel;

use std::sync::Arc;

use bytemuck::{Pod, Zeroable};
use gnnflow_dataflow::collective::all_reduce::Reduced;
use gnnflow_dataflow::fetch::cache::CacheCounts;
use gnnflow_dataflow::storage::RowStore;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::collectives::{Driver, Payload};
use crate::compute::StepReport;
use crate::error::Error;
use crate::runtime::records::TensorUse;

/// The name of the jobs that apply summed gradients.
pub(crate) const APPLY: &str = "apply";

/// The training engine of one schedule.
pub(crate) trait Engine {
    /// Trains one or more epochs from `epoch` (from 0), or the next steps of one, until all workers have equal parameters again. `lr` returns the
    /// learning rate of an epoch.
    ///
    /// # Errors
    /// The first error of an operator or of the compute thread.
    fn train_round(&mut self, driver: &mut Driver<'_>, epoch: u32, lr: &dyn Fn(u32) -> f64) -> Result<Round, Error>;

    /// Continues an epoch after its first steps, which an earlier process has trained.
    ///
    /// # Errors
    /// If the schedule trains whole epochs only.
    fn continue_epoch(&mut self, part: &EpochPart) -> Result<(), Error> {
        Err(Error::Bug(format!("a checkpoint within an epoch, after step {}, of a schedule that has none", part.steps)))
    }

    /// Computes every node with the current parameters and writes the results to `results`, for an evaluation in training. Returns false, without
    /// computing anything, if the schedule cannot do so.
    ///
    /// # Errors
    /// See [`Engine::train_round`].
    fn evaluate_into(&mut self, driver: &mut Driver<'_>, results: &Arc<RowStore>) -> Result<bool, Error> {
        let _ = (driver, results);
        Ok(false)
    }

    /// Returns the counters of the cache of other workers' features, if there is one.
    fn cached(&self) -> Option<CacheCounts> {
        None
    }

    /// Returns the bytes of this worker's tables of rows, and the edges times columns that it aggregates per epoch; `None` for schedules with batches.
    fn rows(&self) -> Option<[u64; 2]> {
        None
    }

    /// Returns how stale the rows were that have been read so far, if stale rows are allowed.
    fn staleness(&self) -> Option<Staleness> {
        None
    }

    /// Returns the counters of tensor workers, if there are any.
    fn tensor(&self) -> Option<TensorUse> {
        None
    }

    /// Returns the running hash over the digests of all blocks so far.
    fn blocks(&mut self) -> &mut BlocksHash;
}

/// By how many steps (or epochs, in full-graph training) rows were older than in synchronous training when they were read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Staleness {
    /// The maximum over all batches.
    pub(crate) most: u64,
    /// The sum over all batches.
    pub(crate) sum: u64,
    /// Number of batches.
    pub(crate) batches: u64,
}

/// The epochs, or the part of one, that a call of [`Engine::train_round`] has trained.
pub(crate) enum Round {
    /// Whole epochs, the last part of the first one included.
    Epochs(Vec<EpochSums>),
    /// The first steps of an epoch.
    Part(EpochPart),
}

/// The state of an epoch after its first steps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct EpochPart {
    /// Steps trained.
    pub(crate) steps: u32,
    /// Sums over these steps.
    pub(crate) sums: EpochSums,
    /// The hash over the digests of their blocks.
    pub(crate) blocks: [u8; 32],
}

/// Sums over the steps of an epoch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct EpochSums {
    /// Examples of all partitions.
    pub(crate) examples: u64,
    /// Sum of the losses of all examples, added in partition order within a step.
    pub(crate) loss: f64,
    /// Rounds of messages: the maximum over the batches of each step, summed over steps.
    pub(crate) rounds: u64,
    /// Steps: the maximum over partitions.
    pub(crate) steps: u64,
    /// Wall-clock seconds.
    pub(crate) seconds: f64,
}

impl EpochSums {
    /// Adds the reports of a step's batches, in partition order, and returns them.
    fn add(&mut self, reduced: &Reduced) -> Vec<StepReport> {
        let batches = reduced.words.iter().filter_map(|words| StepReport::from_words(words).ok());
        let batches: Vec<StepReport> = batches.collect();
        self.steps += 1;
        self.rounds += batches.iter().map(|batch| batch.rounds).max().unwrap_or(0);
        for batch in &batches {
            self.examples += batch.examples;
            self.loss += batch.loss;
        }
        batches
    }
}

/// The running hash over the digests of all blocks: by epoch, then by batch in an order that the schedule defines.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BlocksHash(pub(crate) [u8; 32]);

impl BlocksHash {
    /// Adds the hash over the digests of an epoch.
    fn end_of_epoch(&mut self, hash: [u8; 32]) {
        self.0 = Sha256::new().chain_update(self.0).chain_update(hash).finalize().into();
    }
}
