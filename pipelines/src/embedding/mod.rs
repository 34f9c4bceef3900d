//! Learned rows of nodes in a run: the table, and the rows of the best epoch.

pub(crate) mod from_run;
mod shards;
mod unseen;

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

pub(crate) use shards::{Generation, remove_later_shards, remove_shards};

/// The learned rows that a worker hosts.
pub(crate) struct NodeEmbeddings {
    config: config::Embedding,
    table: Arc<EmbeddingTable>,
    /// Rows of the best epoch.
    best: RowStore,
    /// The bits of the learning rate.
    rate: AtomicU64,
    /// Updates of rows so far.
    updated: AtomicU64,
}

impl NodeEmbeddings {
    /// Draws the initial rows of the nodes that `worker` hosts. They are stored in unnamed files in `scratch`.
    ///
    /// # Errors
    /// If `scratch` has not enough space.
    pub(crate) fn create(
        config: &config::Embedding,
        scratch: &Path,
        graph: &Arc<LocalGraph>,
        worker: usize,
        seed: u64,
        threads: usize,
    ) -> Result<Self, Error> {
        let no_space = || Error::io("reserve space for embeddings in", scratch);
        let place = Place::Folder(scratch.to_owned());
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
        let pool =
            pool.map_err(|error| Error::Machine(format!("cannot start {threads} threads: {error}; {FEWER_THREADS}")))?;
        let table = EmbeddingTable::create(&place, graph, worker, config.dim, config.optimizer.rule());
        let table = table.map_err(no_space())?;
        let table = pool.install(|| table.drawn(config.draw(), seed));
        let table = Arc::new(if config.is_async() { table.changing() } else { table });
        let best = RowStore::create(&place, graph, worker, config.dim).map_err(no_space())?;
        let rate = AtomicU64::new(config.optimizer.lr().to_bits());
        Ok(Self { config: config.clone(), table, best, rate, updated: AtomicU64::new(0) })
    }

    pub(crate) fn config(&self) -> &config::Embedding {
        &self.config
    }

    pub(crate) fn dim(&self) -> usize {
        self.table.width()
    }

    /// Opens the rows for reading.
    ///
    /// # Errors
    /// [`Error::Bug`] if they are open for writing.
    pub(crate) fn read(&self) -> Result<Rows<'_>, Error> {
        Ok(self.table.rows().read()?)
    }

    /// Returns a view for fetching the rows.
    pub(crate) fn rows(&self) -> FeatureView {
        let source = Arc::clone(&self.table) as _;
        FeatureView { source, number: Number::F32, dim: self.dim(), packed: None, halo: None }
    }

    /// Returns the bytes of scratch files for the rows, the optimizer's state and the rows of the best epoch.
    pub(crate) fn reserved(&self) -> u64 {
        self.table.reserved() + self.best.reserved()
    }

    pub(crate) fn set_learning_rate(&self, rate: f64) {
        self.rate.store(rate.to_bits(), Ordering::Relaxed);
    }

    /// Updates the rows with gradients in `pushed` by one optimizer step.
    ///
    /// # Errors
    /// [`Error::Bug`] if the rows are open.
    pub(crate) fn apply(&self, pushed: &PushedRows) -> Result<(), Error> {
        let rate = f64::from_bits(self.rate.load(Ordering::Relaxed));
        let updated = self.table.apply(pushed, rate)?;
        self.updated.fetch_add(updated as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Returns the number of updates of rows so far.
    pub(crate) fn updated(&self) -> u64 {
        self.updated.load(Ordering::Relaxed)
    }

    /// Copies the rows to those of the best epoch.
    ///
    /// # Errors
    /// [`Error::Bug`] if the rows are open for writing, as within an epoch.
    pub(crate) fn save_best(&self) -> Result<(), Error> {
        self.best.write()?.copy_from(&self.table.rows().read()?);
        Ok(())
    }

    /// Restores the rows of the best epoch.
    ///
    /// # Errors
    /// [`Error::Bug`] if the rows are open, as within an epoch or inference.
    pub(crate) fn restore_best(&self) -> Result<(), Error> {
        self.table.rows().write()?.copy_from(&self.best.read()?);
        Ok(())
    }
}
