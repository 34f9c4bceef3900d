//! A mini-batch on its way: seeds, then blocks, then features.

use gnnflow_kernels::pairs::Pairs;
use std::sync::Arc;

use crate::batch::edge_rows::{Distinct, EdgeRows};
use crate::batch::gather_buffer::GatherBuffer;
use gnnflow_kernels::block::Block;
use gnnflow_kernels::compact::{Compactor, TreeCompactor};
use gnnflow_kernels::matrix::Matrix;
use gnnflow_kernels::sample::{Excluded, Samples};

/// Names a batch, and with it everything that is drawn for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BatchKey {
    /// The epoch, from 0.
    pub epoch: u32,
    /// The step within the epoch, from 0.
    pub step: u32,
    /// The partition whose seeds these are.
    pub partition: u32,
}

/// What a batch has gathered so far.
///
/// `nodes` starts with the seeds; every hop appends the nodes that it found first. The sources of every block are a
/// prefix of `nodes`, so that one feature matrix serves all blocks.
#[derive(Default)]
pub struct MiniBatch {
    /// Its name.
    pub key: BatchKey,
    /// Global ids: seeds first, then by hop and first appearance.
    pub nodes: Vec<u32>,
    /// How many of `nodes` are seeds.
    pub num_seeds: usize,
    /// A time for each seed, where hops are temporal: its tree holds only edges before it.
    pub seed_times: Vec<i64>,
    /// Where hops are temporal: the position among the seeds of the one in whose tree each of `nodes` stands.
    pub trees: Vec<u32>,
    /// What is scored, where that is pairs of seeds.
    pub pairs: Option<Arc<Pairs>>,
    /// Edges that no hop may take.
    pub excluded: Excluded,
    /// One block per hop so far, the seeds' own first; or one for all layers, whose destinations are all of `nodes`.
    pub blocks: Vec<Block>,
    /// What the loss of each seed counts, where not all count the same.
    pub seed_weights: Vec<f32>,
    /// How many seeds the sum over the batch's stands for, where that is not their number.
    pub represented_examples: Option<u64>,
    /// One feature row per node, once fetched.
    pub features: Matrix,
    /// In-degree without self loops per node, once fetched, where the model asks for it.
    pub degrees: Vec<u32>,
    /// A row for each edge of the blocks, once fetched, where the model asks for them.
    pub edges: EdgeRows,
    /// Messages' round trips so far, each way counted.
    pub rounds: u32,
    /// `features` while they come in.
    pub(crate) buffer: Option<GatherBuffer>,
    /// Places in `nodes` by the worker that owns them, while rows are fetched.
    pub(crate) places: Vec<Vec<u32>>,
    /// The edges whose rows are fetched.
    pub(crate) distinct_edges: Distinct,
    /// Samples of the hop under way, by the worker that drew them.
    pub(crate) samples: Vec<Drawing>,
    /// Where compaction remembers nodes between hops.
    pub(crate) compactor: Option<Compactor>,
    /// The same where seeds have trees.
    pub(crate) tree_compactor: Option<TreeCompactor>,
}

/// What one worker draws for a batch.
#[derive(Clone, Default)]
pub(crate) struct Drawing {
    /// Positions in the list of the nodes asked for, while they are still to be sampled here.
    pub(crate) asked: Vec<u32>,
    /// Words of an answer whose last message is still missing.
    pub(crate) incoming: Vec<u32>,
    /// What is here.
    pub(crate) samples: Samples,
}

impl MiniBatch {
    /// A batch that has only its seeds: distinct global ids.
    pub fn new(key: BatchKey, seeds: Vec<u32>) -> Self {
        Self { key, num_seeds: seeds.len(), nodes: seeds, ..Self::default() }
    }

    /// The batch whose seeds have these times.
    ///
    /// # Panics
    /// Unless there is one time a seed.
    #[must_use]
    pub fn with_seed_times(mut self, times: Vec<i64>) -> Self {
        assert_eq!(times.len(), self.num_seeds, "one time a seed");
        self.seed_times = times;
        self
    }

    /// The batch that scores these pairs of its seeds.
    #[must_use]
    pub fn with_pairs(self, pairs: Pairs) -> Self {
        Self { pairs: Some(Arc::new(pairs)), ..self }
    }

    /// The batch that does not see these edges.
    #[must_use]
    pub fn without(self, excluded: Excluded) -> Self {
        Self { excluded, ..self }
    }
}
