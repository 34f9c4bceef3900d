//! A table of learned rows, sharded as features are: the rows of a partition's nodes are at the worker that hosts it.
//!
//! Initial rows depend on the seed and the global id of the node, so they are the same on any number of workers.
//!
//! `fetch_rows` reads rows from an [`EmbeddingTable`], which is a [`RowSource`]. [`EmbeddingTable::apply`] takes one optimizer
//! step on the rows that a push has gradients for. The table checks that the two do not overlap; see
//! [`storage::row_store`](crate::storage::row_store).

use std::io;
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};

use gnnflow_data::rng::{Key, Purpose};
use gnnflow_kernels::sparse::{self, SparseOptimizer, Touched, step};

use super::push_rows::PushedRows;
use crate::graph::local_graph::LocalGraph;
use crate::storage::row_store::{try_read, try_write};
use crate::storage::{Array, Busy, Place, RowReader, RowSource, RowStore, Rows, RowsMut};

/// The distribution of initial rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Draw {
    /// All zeros.
    Zeros,
    /// Uniform in [−bound, bound).
    Uniform(f64),
    /// Normal with mean 0 and this standard deviation.
    Normal(f64),
}

impl Draw {
    /// Draws the row of global id `node`.
    ///
    /// ```
    /// use gnnflow_dataflow::embed::table::Draw;
    ///
    /// let mut rows = [[0.0; 4]; 2];
    /// rows.iter_mut().for_each(|row| Draw::Uniform(0.5).fill(7, 1234, row));
    /// assert_eq!(rows[0], rows[1]);
    /// assert!(rows[0].iter().all(|x| x.abs() <= 0.5));
    /// ```
    pub fn fill(self, seed: u64, node: u32, row: &mut [f32]) {
        let key = Key::new(seed, Purpose::Init).fold_str("node_embeddings").fold(u64::from(node));
        let places = row.iter_mut().zip(0u64..);
        match self {
            Self::Zeros => row.fill(0.0),
            Self::Uniform(bound) => places.for_each(|(x, i)| *x = ((2.0 * key.unit(i) - 1.0) * bound) as f32),
            Self::Normal(deviation) => places.for_each(|(x, i)| *x = (key.normal(i) * deviation) as f32),
        }
    }
}

/// The learned rows of a worker's partitions, and the optimizer's state.
///
/// Reads and writes must not overlap, which the dataflow ensures: in synchronous training, the gradients of a step are complete
/// only after all rows of the step have been read everywhere. Overlapping calls return [`Busy`] and never wait.
pub struct EmbeddingTable {
    rows: RowStore,
    /// [`SparseOptimizer::state_per_number`] numbers for each number of a row.
    state: RowStore,
    /// Steps taken by each row, by partition. Empty where another worker hosts it, or the optimizer does not count.
    steps: RwLock<Vec<Array<u32>>>,
    graph: Arc<LocalGraph>,
    optimizer: SparseOptimizer,
    changes: bool,
}

/// The rows and state of one partition.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Shard<'a> {
    /// The rows, `[nodes, width]`.
    pub values: &'a [f32],
    /// The optimizer's numbers.
    pub state: &'a [f32],
    /// The number of steps that each row has taken, where the optimizer counts them.
    pub steps: &'a [u32],
}

/// An [`EmbeddingTable`], open for reading.
pub struct Reading<'a> {
    rows: Rows<'a>,
    state: Rows<'a>,
    steps: RwLockReadGuard<'a, Vec<Array<u32>>>,
}

/// An [`EmbeddingTable`], open for writing.
pub struct Writing<'a> {
    graph: &'a LocalGraph,
    width: usize,
    rows: RowsMut<'a>,
    state: RowsMut<'a>,
    steps: RwLockWriteGuard<'a, Vec<Array<u32>>>,
}

impl EmbeddingTable {
    /// Reserves space at `place` for rows of `width` numbers, all 0, for the nodes that `worker` hosts.
    ///
    /// # Errors
    /// When memory or disk is full, or the folder is not writable.
    pub fn create(
        place: &Place,
        graph: &Arc<LocalGraph>,
        worker: usize,
        width: usize,
        optimizer: SparseOptimizer,
    ) -> io::Result<Self> {
        let placement = graph.placement();
        let counts = |part: usize| optimizer.counts_steps() && width > 0 && placement.worker_of(part) == worker;
        let steps = |part: usize| Array::zeros(if counts(part) { graph.range(part).len() } else { 0 }, place);
        Ok(Self {
            rows: RowStore::create(place, graph, worker, width)?,
            state: RowStore::create(place, graph, worker, width * optimizer.state_per_number())?,
            steps: RwLock::new((0..placement.parts()).map(steps).collect::<io::Result<_>>()?),
            graph: Arc::clone(graph),
            optimizer,
            changes: false,
        })
    }

    /// Returns the number of bytes that a table of `rows` rows takes, including state and step counts.
    pub const fn bytes(rows: u64, width: usize, optimizer: SparseOptimizer) -> u64 {
        let counts = if optimizer.counts_steps() { 4 } else { 0 };
        rows * (4 * width as u64 * (1 + optimizer.state_per_number() as u64) + counts)
    }

    /// Returns the number of bytes that this table has reserved, including state and step counts.
    pub fn reserved(&self) -> u64 {
        let counts = if self.optimizer.counts_steps() { self.rows.reserved() / self.width().max(1) as u64 } else { 0 };
        self.rows.reserved() + self.state.reserved() + counts
    }

    /// Draws all rows anew, on the threads of the current rayon pool.
    #[must_use]
    pub fn drawn(self, draw: Draw, seed: u64) -> Self {
        Self { rows: self.rows.filled(|node, row| draw.fill(seed, node, row)), ..self }
    }

    /// Declares that rows may change between a request and its reply: replies then hold copies.
    #[must_use]
    pub fn changing(mut self) -> Self {
        self.changes = true;
        self
    }

    /// Returns the number of columns.
    #[inline]
    pub fn width(&self) -> usize {
        self.rows.width()
    }

    /// Returns the optimizer of the rows.
    pub fn optimizer(&self) -> SparseOptimizer {
        self.optimizer
    }

    /// Returns the rows without their state.
    pub fn rows(&self) -> &RowStore {
        &self.rows
    }

    /// Opens rows and state for reading.
    ///
    /// # Errors
    /// [`Busy`] when they are being written.
    pub fn read(&self) -> Result<Reading<'_>, Busy> {
        Ok(Reading { rows: self.rows.read()?, state: self.state.read()?, steps: try_read(&self.steps)? })
    }

    /// Opens rows and state for writing.
    ///
    /// # Errors
    /// [`Busy`] when they are being read or written.
    pub fn write(&self) -> Result<Writing<'_>, Busy> {
        Ok(Writing {
            graph: &self.graph,
            width: self.width(),
            rows: self.rows.write()?,
            state: self.state.write()?,
            steps: try_write(&self.steps)?,
        })
    }

    /// Takes one optimizer step on the rows that `pushed` has gradients for. A row's gradient is the sum of its gradients in the
    /// order of the push, divided by the number of examples. Returns the number of updated rows. Runs in parallel on the
    /// threads of a rayon pool, elsewhere on the caller's thread, with the same bits.
    ///
    /// # Errors
    /// [`Busy`] when the rows are being read or written.
    ///
    /// # Panics
    /// When another worker hosts a row.
    pub fn apply(&self, pushed: &PushedRows, learning_rate: f64) -> Result<usize, Busy> {
        if pushed.examples == 0 {
            return Ok(0);
        }
        let lists: Vec<&[u32]> = pushed.pieces().map(|(nodes, _)| nodes).collect();
        let gradients: Vec<&[f32]> = pushed.pieces().flat_map(|(_, rows)| rows.chunks_exact(self.width())).collect();
        let touched = Touched::group(&lists);
        let (scale, mut updated) = (1.0 / pushed.examples as f32, 0);
        let mut table = self.write()?;
        for part in 0..self.graph.placement().parts() {
            let Some(rows) = table.shard_mut(part) else { continue };
            let which = touched.within(self.graph.range(part));
            updated += which.len();
            step(self.optimizer, learning_rate, scale, rows, &touched, which, &gradients);
        }
        assert_eq!(updated, touched.rows().len(), "gradients are pushed to the worker that hosts the rows");
        Ok(updated)
    }
}

impl Reading<'_> {
    /// Returns the row of global node id `node`.
    ///
    /// # Panics
    /// When another worker hosts it.
    pub fn row(&self, node: u32) -> &[f32] {
        self.rows.row(node)
    }

    /// Returns the rows and state of partition `part`. Empty where another worker hosts it.
    pub fn shard(&self, part: usize) -> Shard<'_> {
        Shard { values: self.rows.shard(part), state: self.state.shard(part), steps: &self.steps[part] }
    }
}

impl Writing<'_> {
    /// Returns the rows and state of partition `part`; `None` where it has no nodes, or another worker hosts it.
    pub fn shard_mut(&mut self, part: usize) -> Option<sparse::RowsMut<'_>> {
        let (first, dim) = (self.graph.range(part).start, self.width);
        let values = self.rows.shard_mut(part);
        if values.is_empty() {
            return None;
        }
        Some(sparse::RowsMut { first, dim, values, state: self.state.shard_mut(part), steps: &mut self.steps[part] })
    }
}

impl RowSource for EmbeddingTable {
    fn row_bytes(&self) -> usize {
        self.rows.row_bytes()
    }

    fn open(&self) -> Result<Box<dyn RowReader + '_>, Busy> {
        self.rows.open()
    }

    fn changes(&self) -> bool {
        self.changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{book, local, random_graph};

    #[test]
    fn initial_rows_do_not_depend_on_the_number_of_workers() {
        let (graph, book, folder) = (random_graph(101, 3), book(101, 4), tempfile::tempdir().unwrap());
        for draw in [Draw::Uniform(0.3), Draw::Normal(2.0), Draw::Zeros] {
            for workers in [1, 2, 4] {
                let mut seen = 0;
                for worker in 0..workers {
                    let graph = Arc::new(local(&graph, &book, workers, worker, false));
                    let place = if worker % 2 == 0 { Place::Folder(folder.path().to_owned()) } else { Place::Memory };
                    let table = EmbeddingTable::create(&place, &graph, worker, 5, SparseOptimizer::Sgd).unwrap();
                    let table = table.drawn(draw, 9);
                    let rows = table.read().unwrap();
                    for node in (0..101).filter(|&node| graph.hosts(node)) {
                        let mut wanted = [7.0; 5];
                        draw.fill(9, node, &mut wanted);
                        assert_eq!(rows.row(node), wanted);
                        seen += 1;
                    }
                }
                assert_eq!(seen, 101);
            }
        }
    }

    #[test]
    fn draws_have_the_requested_mean_and_variance() {
        let rows = |draw: Draw| -> Vec<f64> {
            let row = |node| {
                let mut row = [0.0; 50];
                draw.fill(3, node, &mut row);
                row
            };
            (0..2000).flat_map(row).map(f64::from).collect()
        };
        for (draw, variance) in [(Draw::Uniform(0.5), 0.25 / 3.0), (Draw::Normal(0.5), 0.25)] {
            let xs = rows(draw);
            let mean = xs.iter().sum::<f64>() / xs.len() as f64;
            let found = xs.iter().map(|x| x * x).sum::<f64>() / xs.len() as f64;
            assert!(mean.abs() < 0.01 && (found / variance - 1.0).abs() < 0.02, "{draw:?}: {mean}, {found}");
        }
    }

    #[test]
    fn rows_are_copied_without_their_state() {
        let graph = Arc::new(local(&random_graph(40, 3), &book(40, 3), 1, 0, false));
        let adam = SparseOptimizer::Adam { beta1: 0.9, beta2: 0.99, epsilon: 1e-8 };
        let table = EmbeddingTable::create(&Place::Memory, &graph, 0, 3, adam).unwrap().drawn(Draw::Normal(1.0), 1);
        let copy = RowStore::create(&Place::Memory, &graph, 0, 3).unwrap();
        copy.write().unwrap().copy_from(&table.rows().read().unwrap());
        let (copy, open) = (copy.read().unwrap(), table.read().unwrap());
        assert_eq!(copy.shard(0), open.shard(0).values);
        assert_eq!(open.shard(0).state.len(), 2 * open.shard(0).values.len());
        assert_eq!((copy.shard(1), open.shard(1)), (&[][..], Shard::default()), "a partition without nodes");
        let bytes: usize = (0..3).map(|p| 4 * open.shard(p).values.len() * 3 + 4 * open.shard(p).steps.len()).sum();
        assert_eq!([EmbeddingTable::bytes(40, 3, adam), table.reserved()], [bytes as u64; 2]);
    }

    #[test]
    fn steps_and_reads_that_overlap_are_refused() {
        let graph = Arc::new(local(&random_graph(40, 3), &book(40, 3), 1, 0, false));
        let table = EmbeddingTable::create(&Place::Memory, &graph, 0, 3, SparseOptimizer::Sgd).unwrap();
        let pushed = PushedRows::at_home(0, 1, vec![7], Arc::new(vec![1.0; 3]));
        for reader in [table.open().unwrap(), Box::new(table.rows().read().unwrap())] {
            assert_eq!(reader.row(7), [0; 12]);
            assert_eq!(table.apply(&pushed, 0.5), Err(Busy::InUse));
        }
        let reading = table.read().unwrap();
        assert_eq!(table.apply(&pushed, 0.5), Err(Busy::InUse));
        drop(reading);
        let writing = table.write().unwrap();
        assert_eq!((table.open().err(), table.apply(&pushed, 0.5)), (Some(Busy::Written), Err(Busy::InUse)));
        drop(writing);
        assert_eq!(table.apply(&pushed, 0.5), Ok(1));
        assert_eq!(table.read().unwrap().row(7), [-0.5; 3]);
    }
}
