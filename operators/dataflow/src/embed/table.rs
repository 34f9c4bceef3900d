//! A table of learned rows, sharded as features are: the rows of a partition's nodes are at the worker that hosts it.
//!
//! Rows and the optimizer's state lie in mapped memory: unlinked files of a folder, so that they may be larger than memory (the
//! system keeps there what is used), or anonymous maps. Initial rows are drawn under the node's global id: the same on any
//! number of workers.
//!
//! A [`Table`] is a [`RowSource`]: `fetch_rows` pulls from it. [`Table::apply`] is the other half: one step of the optimizer on the
//! rows that a push brought gradients for.

use std::io;
use std::path::Path;
use std::sync::Arc;

use gnnflow_data::rng::{Key, Purpose};
use memmap2::{MmapMut, MmapOptions, MmapRaw};
use rayon::prelude::*;

use super::push_rows::PushedRows;
use crate::graph::local_graph::LocalGraph;
use crate::wire::RowSource;
use gnnflow_kernels::sparse::{RowsMut, SparseOptimizer, Touched, step};

/// How rows begin.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Draw {
    /// 0.
    Zeros,
    /// Uniform in ± this.
    Uniform(f64),
    /// Normal with mean 0 and this standard deviation.
    Normal(f64),
}

impl Draw {
    /// Fills `row`, that of global id `node`.
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

/// The rows of a worker's partitions, and their state.
///
/// Reading and writing are apart in time, which is the caller's to see to: the methods that write through a shared table are
/// `unsafe`. In synchronous training a step's rows are all read before its gradients can be whole anywhere.
pub struct Table {
    graph: Arc<LocalGraph>,
    dim: usize,
    optimizer: SparseOptimizer,
    changes: bool,
    /// By partition; `None` where another worker hosts it, or it has no nodes.
    shards: Vec<Option<Maps>>,
}

/// One partition's memory.
struct Maps {
    first: u32,
    values: MmapRaw,
    state: Option<MmapRaw>,
    steps: Option<MmapRaw>,
}

/// One partition's rows and state, to be read.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Shard<'a> {
    /// The rows, one after another.
    pub values: &'a [f32],
    /// The optimizer's numbers.
    pub state: &'a [f32],
    /// The steps that each row has taken, where the optimizer counts them.
    pub steps: &'a [u32],
}

impl Table {
    /// Reserves room for rows of `dim` numbers, all 0, for the nodes that `worker` hosts: in `folder`, or in memory alone.
    ///
    /// # Errors
    /// When there is no room, or the folder cannot be written.
    pub fn create(
        folder: Option<&Path>,
        graph: &Arc<LocalGraph>,
        worker: usize,
        dim: usize,
        optimizer: SparseOptimizer,
    ) -> io::Result<Self> {
        let placement = graph.placement();
        let mut shards: Vec<Option<Maps>> = (0..placement.parts()).map(|_| None).collect();
        for part in placement.parts_of(worker) {
            let range = graph.range(part);
            let rows = range.len();
            if rows == 0 || dim == 0 {
                continue;
            }
            let per_number = optimizer.state_per_number();
            shards[part] = Some(Maps {
                first: range.start,
                values: reserve(folder, 4 * rows * dim)?,
                state: (per_number > 0).then(|| reserve(folder, 4 * rows * dim * per_number)).transpose()?,
                steps: optimizer.counts_steps().then(|| reserve(folder, 4 * rows)).transpose()?,
            });
        }
        Ok(Self { graph: Arc::clone(graph), dim, optimizer, changes: false, shards })
    }

    /// Bytes that a table takes for `rows` nodes, state and counts included.
    pub const fn bytes(rows: u64, dim: usize, optimizer: SparseOptimizer) -> u64 {
        let counts = if optimizer.counts_steps() { 4 } else { 0 };
        rows * (4 * dim as u64 * (1 + optimizer.state_per_number() as u64) + counts)
    }

    /// Bytes that this table has reserved, state and counts included.
    pub fn reserved(&self) -> u64 {
        let of = |maps: &Maps| {
            let all = [Some(&maps.values), maps.state.as_ref(), maps.steps.as_ref()];
            all.into_iter().flatten().map(|map| map.len() as u64).sum::<u64>()
        };
        self.shards.iter().flatten().map(of).sum()
    }

    /// Draws all rows anew, on the threads of the current pool.
    #[must_use]
    pub fn drawn(mut self, draw: Draw, seed: u64) -> Self {
        let dim = self.dim;
        for maps in self.shards.iter_mut().flatten() {
            let first = maps.first;
            // SAFETY: the table is not shared yet.
            let rows = unsafe { maps.rows_mut(dim) };
            let rows = rows.values.par_chunks_exact_mut(dim).enumerate();
            rows.for_each(|(i, row)| draw.fill(seed, first + i as u32, row));
        }
        self
    }

    /// Says that rows may change between being asked for and leaving: answers then take copies.
    #[must_use]
    pub fn changing(mut self) -> Self {
        self.changes = true;
        self
    }

    /// Numbers in a row.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// How rows move.
    pub fn optimizer(&self) -> SparseOptimizer {
        self.optimizer
    }

    /// The row of `node` as numbers.
    ///
    /// # Panics
    /// When another worker hosts it.
    pub fn row_f32(&self, node: u32) -> &[f32] {
        bytemuck::cast_slice(self.row(node))
    }

    /// Partition `part`'s rows and state; nothing where it has no nodes, or another worker hosts it.
    pub fn shard(&self, part: usize) -> Shard<'_> {
        self.shards[part].as_ref().map_or(Shard::default(), |maps| Shard {
            values: numbers(Some(&maps.values)),
            state: numbers(maps.state.as_ref()),
            steps: numbers(maps.steps.as_ref()),
        })
    }

    /// The same, to be written over; `None` where there is nothing.
    ///
    /// # Safety
    /// Nobody reads or writes the partition's rows meanwhile: no batch is being fetched, none of its gradients applied.
    pub unsafe fn shard_mut(&self, part: usize) -> Option<RowsMut<'_>> {
        // SAFETY: the caller's promise.
        self.shards[part].as_ref().map(|maps| unsafe { maps.rows_mut(self.dim) })
    }

    /// Copies the rows, not the state, of `other`, which has the same shape.
    ///
    /// # Safety
    /// As [`Table::shard_mut`], for all partitions.
    ///
    /// # Panics
    /// When the shapes differ.
    pub unsafe fn copy_rows(&self, other: &Self) {
        for part in 0..self.shards.len() {
            // SAFETY: the caller's promise.
            if let Some(rows) = unsafe { self.shard_mut(part) } {
                rows.values.copy_from_slice(other.shard(part).values);
            }
        }
    }

    /// One step of the optimizer on the rows that `pushed` has gradients for: their sums in the order in which they were pushed,
    /// divided by the examples. Returns how many rows moved. Parallel on a pool's thread, alone elsewhere; the bits are the same.
    ///
    /// # Safety
    /// As [`Table::shard_mut`], for all partitions.
    ///
    /// # Panics
    /// When a row is not here.
    pub unsafe fn apply(&self, pushed: &PushedRows, learning_rate: f64) -> usize {
        if pushed.examples == 0 {
            return 0;
        }
        let lists: Vec<&[u32]> = pushed.pieces().map(|(nodes, _)| nodes).collect();
        let gradients: Vec<&[f32]> = pushed.pieces().flat_map(|(_, rows)| rows.chunks_exact(self.dim)).collect();
        let touched = Touched::group(&lists);
        let (scale, mut moved) = (1.0 / pushed.examples as f32, 0);
        for part in 0..self.shards.len() {
            // SAFETY: the caller's promise.
            let Some(rows) = (unsafe { self.shard_mut(part) }) else { continue };
            let which = touched.within(self.graph.range(part));
            moved += which.len();
            step(self.optimizer, learning_rate, scale, rows, &touched, which, &gradients);
        }
        assert_eq!(moved, touched.rows().len(), "gradients come to the worker that has the rows");
        moved
    }
}

impl RowSource for Table {
    fn row_bytes(&self) -> usize {
        4 * self.dim
    }

    fn row(&self, node: u32) -> &[u8] {
        let part = self.graph.partition_of(node);
        let maps = self.shards[part].as_ref().expect("rows are asked of the worker that hosts them");
        let (at, bytes) = ((node - maps.first) as usize * 4 * self.dim, 4 * self.dim);
        assert!(at + bytes <= maps.values.len(), "node {node} is of this partition");
        // SAFETY: the range is inside the map (asserted), which lives as long as `self`; who writes has promised that nobody
        // reads.
        unsafe { std::slice::from_raw_parts(maps.values.as_ptr().add(at), bytes) }
    }

    fn changes(&self) -> bool {
        self.changes
    }
}

impl Maps {
    /// # Safety
    /// As [`Table::shard_mut`].
    unsafe fn rows_mut(&self, dim: usize) -> RowsMut<'_> {
        // SAFETY: the maps were made for so many numbers, begin on a page, and the caller is alone with them.
        unsafe {
            RowsMut {
                first: self.first,
                dim,
                values: numbers_mut(Some(&self.values)),
                state: numbers_mut(self.state.as_ref()),
                steps: numbers_mut(self.steps.as_ref()),
            }
        }
    }
}

/// A map as numbers of four bytes.
fn numbers<T: bytemuck::AnyBitPattern>(map: Option<&MmapRaw>) -> &[T] {
    // SAFETY: the map is as long as it says, and lives as long as the reference; see `Table` for who may write.
    map.map_or(&[], |map| bytemuck::cast_slice(unsafe { std::slice::from_raw_parts(map.as_ptr(), map.len()) }))
}

/// # Safety
/// Nobody else reads or writes the map meanwhile.
#[expect(clippy::mut_from_ref, reason = "the memory is a map's, and the caller promises to be alone with it")]
unsafe fn numbers_mut<T: bytemuck::Pod>(map: Option<&MmapRaw>) -> &mut [T] {
    match map {
        None => &mut [],
        // SAFETY: the map is as long as it says and lives as long as the reference; the caller is alone with it.
        Some(map) => bytemuck::cast_slice_mut(unsafe { std::slice::from_raw_parts_mut(map.as_mut_ptr(), map.len()) }),
    }
}

/// Zeros, in a file without name or in memory.
fn reserve(folder: Option<&Path>, bytes: usize) -> io::Result<MmapRaw> {
    let Some(folder) = folder else { return Ok(MmapMut::map_anon(bytes)?.into()) };
    let file = tempfile::tempfile_in(folder)?;
    // Room is taken now: a mapped write to a full disk would be a signal, not an error.
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes as u64)?;
    MmapOptions::new().len(bytes).map_raw(&file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{book, local, random_graph};

    #[test]
    fn rows_are_drawn_for_nodes_not_for_workers() {
        let (graph, book, folder) = (random_graph(101, 3), book(101, 4), tempfile::tempdir().unwrap());
        for draw in [Draw::Uniform(0.3), Draw::Normal(2.0), Draw::Zeros] {
            for workers in [1, 2, 4] {
                let mut seen = 0;
                for worker in 0..workers {
                    let graph = Arc::new(local(&graph, &book, workers, worker, false));
                    let folder = (worker % 2 == 0).then_some(folder.path());
                    let table = Table::create(folder, &graph, worker, 5, SparseOptimizer::Sgd).unwrap().drawn(draw, 9);
                    for node in (0..101).filter(|&node| graph.hosts(node)) {
                        let mut wanted = [7.0; 5];
                        draw.fill(9, node, &mut wanted);
                        assert_eq!(table.row_f32(node), wanted);
                        seen += 1;
                    }
                }
                assert_eq!(seen, 101);
            }
        }
    }

    #[test]
    fn draws_have_the_moments_that_were_asked_for() {
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
        let table = Table::create(None, &graph, 0, 3, adam).unwrap().drawn(Draw::Normal(1.0), 1);
        let copy = Table::create(None, &graph, 0, 3, SparseOptimizer::Sgd).unwrap();
        // SAFETY: this test has no other thread.
        unsafe { copy.copy_rows(&table) };
        assert_eq!(copy.shard(0).values, table.shard(0).values);
        assert_eq!((copy.shard(0).state, table.shard(0).state.len()), (&[][..], 2 * table.shard(0).values.len()));
        assert_eq!(copy.shard(1), Shard::default(), "a partition without nodes");
        let bytes: usize = (0..3).map(|p| 4 * table.shard(p).values.len() * 3 + 4 * table.shard(p).steps.len()).sum();
        assert_eq!([Table::bytes(40, 3, adam), table.reserved()], [bytes as u64; 2]);
    }
}
