//! Rows of `f32` numbers for the nodes of a worker's partitions.
//!
//! Exact inference keeps the output of whole layers in row stores, and learned rows of nodes lie in one. Rows may be larger than
//! memory: with [`Place::Folder`] they lie in mapped files without names, and the system keeps in memory the parts in use.
//!
//! Rows are read by some operators and written by others, often on different threads. Frontiers and gates of the dataflow
//! separate these uses in time. A lock checks this at run time: neither [`RowStore::read`] nor [`RowStore::write`] ever waits,
//! and both return [`Busy`] when the uses overlap. In a correct dataflow the lock is never contended. It costs one atomic
//! operation for each gather and each write.

use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};

use rayon::prelude::*;

use super::array::{Array, Place};
use super::row_checks::{RowChecks, sums_file};
use super::row_source::{Busy, RowReader, RowSource};
use crate::graph::local_graph::LocalGraph;

/// `f32` rows of one width, one for each node that a worker hosts. All zeros at first.
///
/// ```
/// # use std::sync::Arc;
/// # use gnnflow_data::PartitionBook;
/// # use gnnflow_dataflow::graph::local_graph::{InEdges, LocalGraph, OwnedInEdges};
/// # use gnnflow_dataflow::graph::placement::Placement;
/// use gnnflow_dataflow::storage::{Busy, Place, RowStore};
/// # let book = PartitionBook::new(vec![0, 4]).unwrap();
/// # let edges = || OwnedInEdges { indptr: vec![0; 5], ..OwnedInEdges::default() };
/// # let load = |_| Ok::<_, ()>(Arc::new(edges()) as Arc<dyn InEdges>);
/// # let graph = Arc::new(LocalGraph::load(&book, Placement::new(1, 1), 0, false, load).unwrap());
/// let store = RowStore::create(&Place::Memory, &graph, 0, 2)?;
/// store.write()?.set(&[3, 1], &[1.0, 2.0, 3.0, 4.0]);
/// let rows = store.read()?;
/// assert_eq!((rows.row(1), rows.row(2)), (&[3.0, 4.0][..], &[0.0, 0.0][..]));
/// assert_eq!(store.write().err(), Some(Busy::InUse));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct RowStore {
    graph: Arc<LocalGraph>,
    width: usize,
    reserved: u64,
    values: RwLock<Values>,
}

/// The numbers of all rows.
enum Values {
    /// In one array. A worker's partitions follow one another.
    One {
        /// Global id of the first node.
        first: u32,
        rows: Array<f32>,
    },
    /// In a file for each partition; empty where another worker hosts it.
    InFiles(Vec<FileRows>),
}

/// The rows of one partition in a file.
struct FileRows {
    rows: Array<f32>,
    checks: RowChecks,
}

impl RowStore {
    /// Reserves space at `place` for rows of `width` numbers, all 0, for the nodes that `worker` hosts.
    ///
    /// # Errors
    /// When memory or disk is full, or the folder is not writable.
    pub fn create(place: &Place, graph: &Arc<LocalGraph>, worker: usize, width: usize) -> io::Result<Self> {
        let parts = graph.placement().parts_of(worker);
        let nodes = graph.range(parts.start).start..graph.range(parts.end - 1).end;
        let len = nodes.len().checked_mul(width).ok_or(io::ErrorKind::OutOfMemory)?;
        let values = RwLock::new(Values::One { first: nodes.start, rows: Array::zeros(len, place)? });
        Ok(Self { graph: Arc::clone(graph), width, reserved: 4 * len as u64, values })
    }

    /// Maps rows of `width` numbers in files that remain, one file for each partition that `worker` hosts, and all 0 in new files. Checksums of rows are
    /// in files beside them ([`sums_file`]); a row must be written before it is read from a new file. See [`RowStore::damaged`].
    ///
    /// # Errors
    /// When the disk is full, or a file is not writable.
    pub fn in_files(
        file: impl Fn(usize) -> PathBuf,
        graph: &Arc<LocalGraph>,
        worker: usize,
        width: usize,
    ) -> io::Result<Self> {
        Self::by_part(graph, worker, width, |part, rows, len| {
            let sums = Array::in_file(rows, &sums_file(&file(part)))?;
            Ok(FileRows { rows: Array::in_file(len, &file(part))?, checks: RowChecks::new(sums) })
        })
    }

    /// Maps copies of rows of `width` numbers in files that remain as they are: changed rows stay in memory.
    ///
    /// # Errors
    /// When a file is missing or cannot be extended.
    pub fn copies_of_files(
        file: impl Fn(usize) -> PathBuf,
        graph: &Arc<LocalGraph>,
        worker: usize,
        width: usize,
    ) -> io::Result<Self> {
        Self::by_part(graph, worker, width, |part, rows, len| {
            let sums = Array::copy_of_file(rows, &sums_file(&file(part)))?;
            Ok(FileRows { rows: Array::copy_of_file(len, &file(part))?, checks: RowChecks::new(sums) })
        })
    }

    /// Reserves the rows of each partition by `open`, which gets the partition and the numbers of its rows and of their values.
    fn by_part(
        graph: &Arc<LocalGraph>,
        worker: usize,
        width: usize,
        open: impl Fn(usize, usize, usize) -> io::Result<FileRows>,
    ) -> io::Result<Self> {
        let placement = graph.placement();
        let none = || FileRows { rows: Array::default(), checks: RowChecks::new(Array::default()) };
        let mut parts: Vec<FileRows> = (0..placement.parts()).map(|_| none()).collect();
        for part in placement.parts_of(worker) {
            let rows = graph.range(part).len();
            let len = rows.checked_mul(width).ok_or(io::ErrorKind::OutOfMemory)?;
            if len > 0 {
                parts[part] = open(part, rows, len)?;
            }
        }
        let reserved = parts.iter().map(|part| 4 * part.rows.len() as u64 + part.checks.reserved()).sum();
        Ok(Self { graph: Arc::clone(graph), width, reserved, values: RwLock::new(Values::InFiles(parts)) })
    }

    /// Fills every row. `fill` gets the global id of a node and its row. Runs on the threads of the current rayon pool.
    #[must_use]
    pub fn filled(mut self, fill: impl Fn(u32, &mut [f32]) + Sync) -> Self {
        let (graph, width) = (&self.graph, self.width);
        let values = self.values.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner());
        for part in 0..graph.placement().parts() {
            let (first, rows) = (graph.range(part).start, values.of_part_mut(graph, width, part));
            let rows = rows.par_chunks_exact_mut(width.max(1)).enumerate();
            rows.for_each(|(i, row)| fill(first + i as u32, row));
        }
        self
    }

    /// Returns the number of columns.
    #[inline]
    pub fn width(&self) -> usize {
        self.width
    }

    /// Returns the number of bytes reserved for rows and their checksums.
    pub fn reserved(&self) -> u64 {
        self.reserved
    }

    /// Waits until rows in files are on disk.
    ///
    /// # Errors
    /// When they cannot be written, or are being written by another thread.
    pub fn sync(&self) -> io::Result<()> {
        match &*try_read(&self.values).map_err(io::Error::other)? {
            Values::One { rows, .. } => rows.sync(),
            Values::InFiles(parts) => {
                parts.iter().try_for_each(|part| part.rows.sync().and_then(|()| part.checks.sync()))
            }
        }
    }

    /// Whether a row in a file differs from its checksum, of those that have been read. Such a row was changed on disk, by a fault or by another program.
    ///
    /// # Errors
    /// [`Busy`] when rows are being written.
    pub fn damaged(&self) -> Result<bool, Busy> {
        Ok(match &*try_read(&self.values)? {
            Values::One { .. } => false,
            Values::InFiles(parts) => parts.iter().any(|part| part.checks.damaged()),
        })
    }

    /// As [`RowStore::damaged`], of all rows. All must have been written.
    ///
    /// # Errors
    /// [`Busy`] when rows are being written.
    pub fn any_damaged(&self) -> Result<bool, Busy> {
        if let Values::InFiles(parts) = &*try_read(&self.values)? {
            for FileRows { rows, checks } in parts {
                let rows = rows.par_chunks_exact(self.width.max(1)).enumerate();
                rows.for_each(|(index, row)| checks.check(index, row));
            }
        }
        self.damaged()
    }

    /// Opens the rows for reading. Several readers may be open at a time.
    ///
    /// # Errors
    /// [`Busy`] when they are being written.
    pub fn read(&self) -> Result<Rows<'_>, Busy> {
        Ok(Rows { graph: &self.graph, width: self.width, values: try_read(&self.values)? })
    }

    /// Opens the rows for writing.
    ///
    /// # Errors
    /// [`Busy`] when they are being read or written.
    pub fn write(&self) -> Result<RowsMut<'_>, Busy> {
        Ok(RowsMut { graph: &self.graph, width: self.width, values: try_write(&self.values)? })
    }
}

impl RowSource for RowStore {
    fn row_bytes(&self) -> usize {
        4 * self.width
    }

    fn open(&self) -> Result<Box<dyn RowReader + '_>, Busy> {
        Ok(Box::new(self.read()?))
    }
}

/// The rows of a [`RowStore`], open for reading.
pub struct Rows<'a> {
    graph: &'a LocalGraph,
    width: usize,
    values: RwLockReadGuard<'a, Values>,
}

impl Rows<'_> {
    /// Returns the row of global node id `node`.
    ///
    /// # Panics
    /// When another worker hosts it.
    #[inline]
    pub fn row(&self, node: u32) -> &[f32] {
        match &*self.values {
            Values::One { first, rows } => {
                let start = node.checked_sub(*first).expect(NOT_HOSTED) as usize * self.width;
                rows.get(start..start + self.width).expect(NOT_HOSTED)
            }
            Values::InFiles(parts) => {
                let part = self.graph.partition_of(node);
                let (FileRows { rows, checks }, row) = (&parts[part], (node - self.graph.range(part).start) as usize);
                let numbers = rows.get(row * self.width..(row + 1) * self.width).expect(NOT_HOSTED);
                if self.width > 0 {
                    checks.check(row, numbers);
                }
                numbers
            }
        }
    }

    /// Returns all rows of partition `part`, `[nodes, width]`. Empty where another worker hosts it. Rows in files are not compared with checksums.
    pub fn shard(&self, part: usize) -> &[f32] {
        match &*self.values {
            Values::One { first, rows } => {
                of_part(self.graph, self.width, part, *first).and_then(|range| rows.get(range)).unwrap_or_default()
            }
            Values::InFiles(parts) => &parts[part].rows,
        }
    }
}

impl RowReader for Rows<'_> {
    #[inline]
    fn row(&self, node: u32) -> &[u8] {
        bytemuck::cast_slice(Rows::row(self, node))
    }

    fn all(&self) -> Option<&[u8]> {
        let Values::One { rows, .. } = &*self.values else { return None };
        (rows.len() == self.graph.num_nodes() as usize * self.width).then(|| bytemuck::cast_slice(rows))
    }
}

impl Values {
    /// Returns all rows of partition `part`. Empty where another worker hosts it.
    ///
    /// # Panics
    /// For rows in files, whose checksums must change with them.
    fn of_part_mut(&mut self, graph: &LocalGraph, width: usize, part: usize) -> &mut [f32] {
        match self {
            Self::One { first, rows } => {
                of_part(graph, width, part, *first).and_then(|range| rows.get_mut(range)).unwrap_or_default()
            }
            Self::InFiles(_) => panic!("rows in files are written one by one"),
        }
    }
}

/// Returns where the numbers of partition `part` are in an array that begins with the row of node `first`; `None` before it.
fn of_part(graph: &LocalGraph, width: usize, part: usize, first: u32) -> Option<Range<usize>> {
    let nodes = graph.range(part);
    Some(nodes.start.checked_sub(first)? as usize * width..(nodes.end - first) as usize * width)
}

/// The rows of a [`RowStore`], open for writing.
pub struct RowsMut<'a> {
    graph: &'a LocalGraph,
    width: usize,
    values: RwLockWriteGuard<'a, Values>,
}

impl RowsMut<'_> {
    /// Writes the rows of global node ids `nodes`. `rows` is `[nodes, width]`.
    ///
    /// # Panics
    /// When another worker hosts one of the nodes, or `rows` has another length.
    pub fn set(&mut self, nodes: &[u32], rows: &[f32]) {
        assert_eq!(rows.len(), nodes.len() * self.width, "one row per node");
        let (graph, width) = (self.graph, self.width);
        for (&node, row) in nodes.iter().zip(rows.chunks_exact(width.max(1))) {
            let (rows, at, checks) = match &mut *self.values {
                Values::One { first, rows } => (rows, node.checked_sub(*first), None),
                Values::InFiles(parts) => {
                    let part = graph.partition_of(node);
                    let FileRows { rows, checks } = &mut parts[part];
                    (rows, node.checked_sub(graph.range(part).start), Some(checks))
                }
            };
            let at = at.expect(NOT_HOSTED) as usize;
            rows.get_mut(at * width..(at + 1) * width).expect(NOT_HOSTED).copy_from_slice(row);
            if let Some(checks) = checks.filter(|_| width > 0) {
                checks.set(at, row);
            }
        }
    }

    /// Returns all rows of partition `part`, `[nodes, width]`. Empty where another worker hosts it.
    ///
    /// # Panics
    /// For rows in files that remain.
    pub fn shard_mut(&mut self, part: usize) -> &mut [f32] {
        self.values.of_part_mut(self.graph, self.width, part)
    }

    /// Copies all rows of `other`, a store of the same graph, worker and width.
    ///
    /// # Panics
    /// When it has other rows, and for rows in files that remain.
    pub fn copy_from(&mut self, other: &Rows<'_>) {
        let parts = self.graph.placement().parts();
        assert_eq!(parts, other.graph.placement().parts(), "two stores of the same partitions");
        for part in 0..parts {
            self.shard_mut(part).copy_from_slice(other.shard(part));
        }
    }
}

/// Rows are requested from the worker that hosts them.
const NOT_HOSTED: &str = "the row of a node that another worker hosts";

/// Locks for reading, without waiting.
pub(crate) fn try_read<T>(lock: &RwLock<T>) -> Result<RwLockReadGuard<'_, T>, Busy> {
    lock.try_read().map_err(|error| busy(&error, Busy::Written))
}

/// Locks for writing, without waiting.
pub(crate) fn try_write<T>(lock: &RwLock<T>) -> Result<RwLockWriteGuard<'_, T>, Busy> {
    lock.try_write().map_err(|error| busy(&error, Busy::InUse))
}

fn busy<G>(error: &TryLockError<G>, would_block: Busy) -> Busy {
    match error {
        TryLockError::WouldBlock => would_block,
        TryLockError::Poisoned(_) => Busy::Incomplete,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{book, local, random_graph};

    const NODES: u32 = 101;
    const PARTS: usize = 4;

    fn stores(workers: usize, width: usize, folder: &std::path::Path) -> Vec<RowStore> {
        let graph = random_graph(NODES, 3);
        let store = |worker: usize| {
            let graph = Arc::new(local(&graph, &book(NODES, PARTS), workers, worker, false));
            let place = if worker.is_multiple_of(2) { Place::Folder(folder.to_owned()) } else { Place::Memory };
            RowStore::create(&place, &graph, worker, width).unwrap()
        };
        (0..workers).map(store).collect()
    }

    #[test]
    fn rows_equal_a_plain_list_at_1_2_and_4_workers() {
        let folder = tempfile::tempdir().unwrap();
        for workers in [1, 2, 4] {
            for width in [0, 1, 5] {
                let stores = stores(workers, width, folder.path());
                let mut plain = vec![vec![0.0f32; width]; NODES as usize];
                let key = gnnflow_data::rng::Key::new(3, gnnflow_data::rng::Purpose::Shuffle);
                for round in 0..20u64 {
                    for store in &stores {
                        let hosted: Vec<u32> = (0..NODES).filter(|&node| store.graph.hosts(node)).collect();
                        // Some nodes twice, in any order: the last row of a node counts.
                        let draws = if hosted.is_empty() { 0 } else { 30 };
                        let draw = |i| hosted[key.fold(round).below(i, hosted.len() as u64) as usize];
                        let nodes: Vec<u32> = (0..draws).map(draw).collect();
                        let values: Vec<f32> =
                            (0..nodes.len() * width).map(|i| (round * 1000) as f32 + i as f32).collect();
                        store.write().unwrap().set(&nodes, &values);
                        for (i, &node) in nodes.iter().enumerate() {
                            plain[node as usize].copy_from_slice(&values[i * width..(i + 1) * width]);
                        }
                    }
                    let mut seen = 0;
                    for store in &stores {
                        let rows = store.read().unwrap();
                        let bytes = store.open().unwrap();
                        for node in (0..NODES).filter(|&node| store.graph.hosts(node)) {
                            assert_eq!(rows.row(node), plain[node as usize]);
                            assert_eq!(bytes.row(node), bytemuck::cast_slice::<f32, u8>(&plain[node as usize]));
                            seen += 1;
                        }
                        for part in 0..PARTS {
                            let range = store.graph.range(part);
                            let hosted = !range.is_empty() && store.graph.hosts(range.start);
                            let wanted = plain[range.start as usize..range.end as usize].concat();
                            assert_eq!(rows.shard(part), if hosted { wanted } else { vec![] });
                        }
                    }
                    assert_eq!(seen, NODES);
                }
                let reserved: u64 = stores.iter().map(|store| store.reserved()).sum();
                assert_eq!(reserved, 4 * u64::from(NODES) * width as u64);
            }
        }
    }

    #[test]
    fn rows_that_have_changed_on_disk_are_found_when_they_are_read() {
        const WIDTH: usize = 3;
        let folder = tempfile::tempdir().unwrap();
        let graph = Arc::new(local(&random_graph(NODES, 3), &book(NODES, PARTS), 1, 0, false));
        let file = |part: usize| folder.path().join(format!("{part}.f32"));
        let open = || RowStore::in_files(file, &graph, 0, WIDTH).unwrap();
        let all: Vec<u32> = (0..NODES).collect();
        let numbers: Vec<f32> = (0..NODES as usize * WIDTH).map(|i| i as f32).collect();
        open().write().unwrap().set(&all, &numbers);
        let copy = RowStore::copies_of_files(file, &graph, 0, WIDTH).unwrap();
        copy.write().unwrap().set(&[7], &[0.5; WIDTH]);
        assert_eq!(copy.read().unwrap().row(7), [0.5; WIDTH]);
        assert!(!copy.any_damaged().unwrap(), "a copy has checksums of its own");
        assert!(!open().any_damaged().unwrap());

        let (part, first) = (graph.partition_of(60), graph.range(graph.partition_of(60)).start);
        let mut bytes = std::fs::read(file(part)).unwrap();
        bytes[(60 - first) as usize * WIDTH * 4 + 5] ^= 1;
        std::fs::write(file(part), bytes).unwrap();
        let store = open();
        for node in all.iter().filter(|&&node| node != 60) {
            assert_eq!(store.read().unwrap().row(*node)[0], (*node as usize * WIDTH) as f32);
        }
        assert!(!store.damaged().unwrap(), "the row has not been read");
        store.read().unwrap().row(60);
        assert!(store.damaged().unwrap() && open().any_damaged().unwrap());
        open().write().unwrap().set(&[60], &[1.0; WIDTH]);
        assert!(!open().any_damaged().unwrap(), "it has been written again");
    }

    #[test]
    fn overlapping_reads_and_writes_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let store = &stores(1, 2, folder.path())[0];
        let readers = (store.read().unwrap(), store.open().unwrap());
        assert_eq!(store.write().err(), Some(Busy::InUse));
        // From another thread too, and without waiting.
        std::thread::scope(|scope| {
            assert_eq!(scope.spawn(|| store.write().err()).join().unwrap(), Some(Busy::InUse));
            assert!(scope.spawn(|| store.read().is_ok()).join().unwrap());
        });
        assert_eq!(readers.0.row(1), [0.0; 2]);
        drop(readers);
        let writer = store.write().unwrap();
        assert_eq!(store.read().err(), Some(Busy::Written));
        assert_eq!(store.open().err(), Some(Busy::Written));
        assert_eq!(store.write().err(), Some(Busy::InUse));
        drop(writer);
        store.write().unwrap().set(&[1], &[1.0, 2.0]);
        assert_eq!(store.read().unwrap().row(1), [1.0, 2.0]);
    }

    #[test]
    fn rows_are_refused_after_a_panic_of_their_writer() {
        let folder = tempfile::tempdir().unwrap();
        let store = &stores(1, 2, folder.path())[0];
        let writer = || {
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                store.write().unwrap().set(&[NODES + 1], &[0.0; 2])
            }))
        };
        assert!(writer().is_err(), "there is no such node");
        assert_eq!((store.read().err(), store.write().err()), (Some(Busy::Incomplete), Some(Busy::Incomplete)));
    }

    #[test]
    fn rows_are_filled_and_copied() {
        let folder = tempfile::tempdir().unwrap();
        let (to, from) = (stores(2, 3, folder.path()), stores(2, 3, folder.path()));
        for (to, from) in to.into_iter().zip(from) {
            let from = from.filled(|node, row| row.fill(node as f32 + 0.5));
            to.write().unwrap().copy_from(&from.read().unwrap());
            let rows = to.read().unwrap();
            for node in (0..NODES).filter(|&node| to.graph.hosts(node)) {
                assert_eq!(rows.row(node), [node as f32 + 0.5; 3]);
            }
        }
    }
}
