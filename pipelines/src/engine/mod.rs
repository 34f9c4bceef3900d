//! Dataflows, one a file; and what all ways of training have in common.

pub(crate) mod aggregation;
pub(crate) mod full_graph;
pub(crate) mod inference;
pub(crate) mod mini_batch;
pub(crate) mod partition_local;
pub(crate) mod sampling;
pub(crate) mod stages;
pub(crate) mod tensor_parallel;

use bytemuck::{Pod, Zeroable};
use gnnflow_dataflow::collective::all_reduce::Reduced;
use gnnflow_dataflow::fetch::cache::CacheCounts;
use sha2::{Digest, Sha256};

use self::inference::Inference;
use crate::collectives::{Driver, Payload};
use crate::compute::StepReport;
use crate::error::Error;
use crate::runtime::records::TensorUse;

/// A way to train.
pub(crate) trait Engine {
    /// Trains some epochs from `epoch` (from 0) on, until all workers have the same parameters again, and returns what each of
    /// them came to. `lr` is the learning rate of an epoch.
    ///
    /// # Errors
    /// What an operator, or the compute thread, fails with.
    fn train_round(
        &mut self,
        driver: &mut Driver<'_>,
        epoch: u32,
        lr: &dyn Fn(u32) -> f64,
    ) -> Result<Vec<EpochSums>, Error>;

    /// Computes every node by the parameters as they are, into `inference`'s results and what the last layer reads, and says so; or
    /// nothing, and that.
    ///
    /// # Errors
    /// As [`Engine::train_round`].
    fn compute_all(&mut self, driver: &mut Driver<'_>, inference: &Inference, embeddings: bool) -> Result<bool, Error> {
        let _ = (driver, inference, embeddings);
        Ok(false)
    }

    /// What the cache of other workers' features did so far, if there is one.
    fn cached(&self) -> Option<CacheCounts> {
        None
    }

    /// Bytes of this worker's rows of the whole graph, and what it adds up of them in an epoch, edges times columns; where every
    /// step is over the whole graph.
    fn rows(&self) -> Option<[u64; 2]> {
        None
    }

    /// How stale learned rows were so far, if there are any.
    fn staleness(&self) -> Option<Staleness> {
        None
    }

    /// What tensor workers did so far, if there are any.
    fn tensor(&self) -> Option<TensorUse> {
        None
    }

    /// The running hash over the digests of all blocks so far.
    fn blocks(&mut self) -> &mut BlocksHash;
}

/// How many steps had not been applied everywhere when the rows of a batch were asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Staleness {
    /// The most of any batch.
    pub(crate) most: u64,
    /// Of all batches together.
    pub(crate) sum: u64,
    /// Batches.
    pub(crate) batches: u64,
}

/// What an epoch's steps came to.
#[derive(Clone, Debug, Default)]
pub(crate) struct EpochSums {
    /// Examples of all partitions.
    pub(crate) examples: u64,
    /// Sum of the losses of all examples; in partition order within a step.
    pub(crate) loss: f64,
    /// Rounds of messages: the most of any batch of each step, summed over steps.
    pub(crate) rounds: u64,
    /// Steps: the most of any partition.
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

/// The running hash over the digests of all blocks: epochs in order, and in each the batches in an order of the schedule.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BlocksHash(pub(crate) [u8; 32]);

impl BlocksHash {
    /// Goes on with the digests of an epoch, which `hash` has seen.
    fn end_of_epoch(&mut self, hash: Sha256) {
        self.0 = Sha256::new().chain_update(self.0).chain_update(hash.finalize()).finalize().into();
    }
}
