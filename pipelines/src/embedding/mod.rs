//! Learnt rows of nodes in a run: the table, the rows of the best epoch, and how stale rows were when they were read.

mod shards;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use gnnflow_data::error::FEWER_THREADS;
use gnnflow_dataflow::embed::push_rows::PushedRows;
use gnnflow_dataflow::embed::table::Table;
use gnnflow_dataflow::fetch::fetch_rows::FeatureView;
use gnnflow_dataflow::graph::local_graph::LocalGraph;
use gnnflow_kernels::matrix::Number;
use gnnflow_kernels::sparse::SparseOptimizer;

use crate::config;
use crate::error::Error;

pub(crate) use shards::{Generation, forget};

/// The rows that a worker hosts, and what is known of them.
pub(crate) struct NodeEmbeddings {
    config: config::Embedding,
    table: Arc<Table>,
    /// Rows of the best epoch.
    best: Table,
    /// The learning rate, as bits.
    rate: AtomicU64,
    moved: AtomicU64,
}

impl NodeEmbeddings {
    /// Draws the rows of the nodes that `worker` hosts; they live in files without names in `scratch`.
    ///
    /// # Errors
    /// When there is no room for them.
    pub(crate) fn create(
        config: &config::Embedding,
        scratch: &Path,
        graph: &Arc<LocalGraph>,
        worker: usize,
        seed: u64,
        threads: usize,
    ) -> Result<Self, Error> {
        let reserve = |optimizer| {
            let table = Table::create(Some(scratch), graph, worker, config.dim, optimizer);
            table.map_err(Error::io("reserve room for embeddings in", scratch))
        };
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
        let pool =
            pool.map_err(|error| Error::Machine(format!("cannot start {threads} threads: {error}; {FEWER_THREADS}")))?;
        let table = reserve(config.optimizer.rule())?;
        let table = pool.install(|| table.drawn(config.draw(), seed));
        let table = Arc::new(if config.is_async() { table.changing() } else { table });
        let best = reserve(SparseOptimizer::Sgd)?;
        let rate = AtomicU64::new(config.optimizer.lr().to_bits());
        Ok(Self { config: config.clone(), table, best, rate, moved: AtomicU64::new(0) })
    }

    /// What the pipeline says of them.
    pub(crate) fn config(&self) -> &config::Embedding {
        &self.config
    }

    /// Numbers in a row.
    pub(crate) fn dim(&self) -> usize {
        self.table.dim()
    }

    /// The row of a node that is hosted here.
    pub(crate) fn row(&self, node: u32) -> &[f32] {
        self.table.row_f32(node)
    }

    /// The rows, to be fetched.
    pub(crate) fn rows(&self) -> FeatureView {
        let source = Arc::clone(&self.table) as _;
        FeatureView { source, number: Number::F32, dim: self.dim(), packed: None, halo: None }
    }

    /// Bytes of scratch files that the rows, their state and the rows of the best epoch have.
    pub(crate) fn reserved(&self) -> u64 {
        self.table.reserved() + self.best.reserved()
    }

    /// Changes the learning rate from the next push on.
    pub(crate) fn set_learning_rate(&self, rate: f64) {
        self.rate.store(rate.to_bits(), Ordering::Relaxed);
    }

    /// Moves the rows that `pushed` has gradients for.
    ///
    /// # Safety
    /// Nobody reads or writes rows meanwhile.
    pub(crate) unsafe fn apply(&self, pushed: &PushedRows) {
        let rate = f64::from_bits(self.rate.load(Ordering::Relaxed));
        // SAFETY: the caller's promise.
        let moved = unsafe { self.table.apply(pushed, rate) };
        self.moved.fetch_add(moved as u64, Ordering::Relaxed);
    }

    /// Rows that were moved so far, each time counted.
    pub(crate) fn moved(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }

    /// Keeps the rows as those of the best epoch.
    ///
    /// # Safety
    /// Nobody writes rows meanwhile: no epoch and no inference is under way.
    pub(crate) unsafe fn keep_best(&self) {
        // SAFETY: nobody but this function, `take_best` and `load` touch the best rows, and they are this thread's.
        unsafe { self.best.copy_rows(&self.table) };
    }

    /// Makes the rows those of the best epoch again.
    ///
    /// # Safety
    /// As [`NodeEmbeddings::keep_best`].
    pub(crate) unsafe fn take_best(&self) {
        // SAFETY: the caller's promise.
        unsafe { self.table.copy_rows(&self.best) };
    }
}
