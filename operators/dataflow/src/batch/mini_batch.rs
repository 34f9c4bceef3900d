//! A mini-batch. Operators add blocks, then features to its seeds.

use std::sync::Arc;

use gnnflow_data::rng::{Key, Purpose};
use gnnflow_kernels::pairs::Pairs;

use crate::batch::edge_rows::{Distinct, EdgeRows};
use crate::batch::gather_buffer::GatherBuffer;
use gnnflow_kernels::block::Block;
use gnnflow_kernels::compact::{Compactor, TreeCompactor};
use gnnflow_kernels::matrix::Matrix;
use gnnflow_kernels::sample::{Excluded, Samples};

/// Identifies a batch. All random draws for the batch depend on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BatchKey {
    /// The epoch, from 0.
    pub epoch: u32,
    /// The step within the epoch, from 0.
    pub step: u32,
    /// The partition that owns the seeds.
    pub partition: u32,
}

impl BatchKey {
    /// Returns the random key of a hop of this batch, from 0 for the hop of the seeds, in a run with this seed.
    ///
    /// ```
    /// use gnnflow_dataflow::batch::mini_batch::BatchKey;
    ///
    /// let batch = BatchKey { epoch: 0, step: 3, partition: 1 };
    /// assert_eq!(batch.of_hop(7, 0), batch.of_hop(7, 0));
    /// assert_ne!(batch.of_hop(7, 0), batch.of_hop(7, 1));
    /// ```
    pub fn of_hop(self, seed: u64, hop: u32) -> Key {
        [self.partition, self.epoch, self.step, hop]
            .into_iter()
            .fold(Key::new(seed, Purpose::Sample), |key, word| key.fold(u64::from(word)))
    }
}

/// A mini-batch.
///
/// `nodes` starts with the seeds. Every hop appends the nodes that no earlier hop has found. The sources of every block are a
/// prefix of `nodes`, so one feature matrix serves all blocks.
#[derive(Default)]
pub struct MiniBatch {
    /// Epoch, step and partition.
    pub key: BatchKey,
    /// Global ids: seeds first, then by hop and first appearance.
    pub nodes: Vec<u32>,
    /// The number of seeds, with which `nodes` starts.
    pub num_seeds: usize,
    /// For temporal hops: a time for each seed. The tree of the seed holds only edges before it.
    pub seed_times: Vec<i64>,
    /// For temporal hops: for each of `nodes`, the position of the seed whose tree it belongs to.
    pub trees: Vec<u32>,
    /// The pairs of seeds to score, for tasks on edges.
    pub pairs: Option<Arc<Pairs>>,
    /// Edges that no hop may take.
    pub excluded: Excluded,
    /// One block per hop so far, that of the seeds first; or one block for all layers, whose destinations are all of `nodes`.
    pub blocks: Vec<Block>,
    /// The weight of each seed's loss; empty if all weights are 1.
    pub seed_weights: Vec<f32>,
    /// The number of examples that the sum of losses represents, if that is not the number of seeds.
    pub represented_examples: Option<u64>,
    /// One feature row per node, once fetched.
    pub features: Matrix,
    /// In-degree without self loops of each node, once fetched, if the model needs it.
    pub degrees: Vec<u32>,
    /// Feature rows of the blocks' edges, once fetched, if the model needs them.
    pub edges: EdgeRows,
    /// The number of message latencies so far: a request and its reply count two.
    pub rounds: u32,
    /// `features` while rows are arriving.
    pub(crate) buffer: Option<GatherBuffer>,
    /// Positions in `nodes` by the worker that owns them, while rows are fetched.
    pub(crate) positions: Vec<Vec<u32>>,
    /// The edges whose rows are fetched.
    pub(crate) distinct_edges: Distinct,
    /// Samples of the current hop, by the worker that draws them.
    pub(crate) samples: Vec<Drawing>,
    /// The state of compaction between hops.
    pub(crate) compactor: Option<Compactor>,
    /// The same for seeds with trees.
    pub(crate) tree_compactor: Option<TreeCompactor>,
}

/// The samples that one worker draws for a batch.
#[derive(Clone, Default)]
pub(crate) struct Drawing {
    /// Positions in `nodes` of those to sample.
    pub(crate) positions: Vec<u32>,
    /// Words of a reply whose last message has not arrived.
    pub(crate) incoming: Vec<u32>,
    /// The samples.
    pub(crate) samples: Samples,
}

impl MiniBatch {
    /// Creates a batch of `seeds`, which are distinct global ids.
    pub fn new(key: BatchKey, seeds: Vec<u32>) -> Self {
        Self { key, num_seeds: seeds.len(), nodes: seeds, ..Self::default() }
    }

    /// Returns the number of edges of all blocks.
    pub fn num_edges(&self) -> u64 {
        self.blocks.iter().map(|block| block.num_edges() as u64).sum()
    }

    /// Sets the times of the seeds.
    ///
    /// # Panics
    /// Unless there is one time per seed.
    #[must_use]
    pub(crate) fn with_seed_times(mut self, times: Vec<i64>) -> Self {
        assert_eq!(times.len(), self.num_seeds, "one time per seed");
        self.seed_times = times;
        self
    }

    /// Sets the pairs of seeds to score.
    #[must_use]
    pub(crate) fn with_pairs(self, pairs: Pairs) -> Self {
        Self { pairs: Some(Arc::new(pairs)), ..self }
    }

    /// Sets the edges that no hop may take.
    #[must_use]
    pub fn without(self, excluded: Excluded) -> Self {
        Self { excluded, ..self }
    }
}
