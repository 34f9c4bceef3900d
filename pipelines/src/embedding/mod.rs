//! Learnt rows of nodes in a run: the table, the rows of the best epoch, and how stale rows were when they were read.

mod shards;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use gnnflow_data::error::FEWER_THREADS;
use gnnflow_dataflow::embed::push_rows::PushedRows;
use gnnflow_dataflow::embed::table::EmbeddingTable;
use gnnflow_dataflow::fetch::fetch_rows::FeatureView;
use gnnflow_dataflow::graph::local_graph::LocalGraph;
use gnnflow_dataflow::storage::{Place, RowStore, Rows};
use gnnflow_kernels::matrix::Number;

use crate::config;
use crate::error::Error;

pub(crate) use shards::{Generation, forget};

/// The rows that a worker hosts, and what is known of them.
pub(crate) struct NodeEmbeddings {
    config: config::Embedding,
    table: Arc<EmbeddingTable>,
    /// Rows of the best epoch.
    best: RowStore,
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
        let no_room = || Error::io("reserve room for embeddings in", scratch);
        let place = Place::Folder(scratch.to_owned());
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
        let pool =
            pool.map_err(|error| Error::Machine(format!("cannot start {threads} threads: {error}; {FEWER_THREADS}")))?;
        let table = EmbeddingTable::create(&place, graph, worker, config.dim, config.optimizer.rule());
        let table = table.map_err(no_room())?;
        let table = pool.install(|| table.drawn(config.draw(), seed));
        let table = Arc::new(if config.is_async() { table.changing() } else { table });
        let best = RowStore::create(&place, graph, worker, config.dim).map_err(no_room())?;
        let rate = AtomicU64::new(config.optimizer.lr().to_bits());
        Ok(Self { config: config.clone(), table, best, rate, moved: AtomicU64::new(0) })
    }

    /// What the pipeline says of them.
    pub(crate) fn config(&self) -> &config::Embedding {
        &self.config
    }

    /// Numbers in a row.
    pub(crate) fn dim(&self) -> usize {
        self.table.width()
    }

    /// Opens the rows of the nodes that are hosted here.
    ///
    /// # Errors
    /// [`Error::Bug`] when they are being written.
    pub(crate) fn read(&self) -> Result<Rows<'_>, Error> {
        Ok(self.table.rows().read()?)
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

    /// Takes one optimizer step on the rows that `pushed` has gradients for.
    ///
    /// # Errors
    /// [`Error::Bug`] when the rows are being read or written.
    pub(crate) fn apply(&self, pushed: &PushedRows) -> Result<(), Error> {
        let rate = f64::from_bits(self.rate.load(Ordering::Relaxed));
        let moved = self.table.apply(pushed, rate)?;
        self.moved.fetch_add(moved as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Rows that were moved so far, each time counted.
    pub(crate) fn moved(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }

    /// Copies the rows, which become those of the best epoch.
    ///
    /// # Errors
    /// [`Error::Bug`] when the rows are being written: an epoch is under way.
    pub(crate) fn keep_best(&self) -> Result<(), Error> {
        self.best.write()?.copy_from(&self.table.rows().read()?);
        Ok(())
    }

    /// Restores the rows of the best epoch.
    ///
    /// # Errors
    /// [`Error::Bug`] when the rows are being read or written: an epoch or inference is under way.
    pub(crate) fn take_best(&self) -> Result<(), Error> {
        self.table.rows().write()?.copy_from(&self.best.read()?);
        Ok(())
    }
}
