//! Walks of a batch, and the parameters and random keys of their steps.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use gnnflow_data::rng::{Key, Purpose};

use crate::batch::mini_batch::BatchKey;
use crate::graph::local_graph::LocalGraph;
use crate::wire::meter::Meter;
use gnnflow_kernels::sample::Walk;

/// Walks of one batch.
///
/// ```
/// use gnnflow_dataflow::batch::mini_batch::BatchKey;
/// use gnnflow_dataflow::sample::random_walk::Walks;
///
/// let walks = Walks::new(BatchKey::default(), vec![7, 3]);
/// assert_eq!((walks.len(), walks.path(1).collect::<Vec<_>>()), (2, vec![3]));
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Walks {
    /// The batch of the walks.
    pub key: BatchKey,
    /// The node of each walk after each step: all roots, then all nodes after the first step, and so on.
    pub visited: Vec<u32>,
    /// The number of message latencies so far: a request and its reply count two.
    pub rounds: u32,
    pub(super) walks: usize,
    /// Walks by the worker that draws their next node.
    pub(super) by_worker: Vec<Vec<u32>>,
    /// The next node of each walk.
    pub(super) next: Vec<u32>,
    /// Rows that biased walks have received.
    pub(super) looked: RemoteRows,
}

impl Walks {
    /// Creates walks that start at `roots`: global ids, perhaps with repeats.
    pub fn new(key: BatchKey, roots: Vec<u32>) -> Self {
        Self { key, walks: roots.len(), visited: roots, ..Self::default() }
    }

    /// Returns the number of walks.
    pub fn len(&self) -> usize {
        self.walks
    }

    /// Returns whether there are no walks.
    pub fn is_empty(&self) -> bool {
        self.walks == 0
    }

    /// Returns the nodes of walk `walk`, from its root on.
    ///
    /// # Panics
    /// When there is no such walk.
    pub fn path(&self, walk: usize) -> impl Iterator<Item = u32> {
        assert!(walk < self.walks, "walk {walk} of {}", self.walks);
        self.visited[walk..].iter().step_by(self.walks).copied()
    }

    /// Returns the current node of each walk.
    pub(super) fn current(&self) -> &[u32] {
        &self.visited[self.visited.len() - self.walks..]
    }
}

/// The in-neighbors of another worker's node, and the weights of their edges for weighted walks.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Row {
    pub(super) sources: Vec<u32>,
    pub(super) weights: Vec<f32>,
}

/// Rows of other workers' nodes: of the walks' current nodes, and of their previous ones.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct RemoteRows {
    pub(super) current: HashMap<u32, Row>,
    pub(super) previous: HashMap<u32, Row>,
}

/// The parameters of random walks.
#[derive(Clone)]
pub struct WalkBy {
    /// This worker's part of the graph.
    pub graph: Arc<LocalGraph>,
    /// The run's seed.
    pub seed: u64,
    /// The number of steps.
    pub length: u32,
    /// The distribution of a step.
    pub walk: Walk,
    /// Counts messages and time.
    pub meter: Rc<Meter>,
}

/// Returns the random key of step `step` for each walk of `batch`.
pub(super) fn step_key(seed: u64, batch: BatchKey, step: u32) -> impl Fn(u32) -> Key {
    let key = [batch.partition, batch.epoch, batch.step]
        .into_iter()
        .fold(Key::new(seed, Purpose::Sample).fold_str("walk"), |key, word| key.fold(u64::from(word)));
    move |walk| key.fold(u64::from(walk)).fold(u64::from(step))
}
