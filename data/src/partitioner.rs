//! Partition methods: a method reads a stream of edges and assigns a part to every node.

use std::fmt;
use std::sync::atomic::AtomicU32;

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::ids::NodeIds;
use crate::partition_book::PartitionBook;

/// The largest number of partitions of a dataset.
pub const MAX_PARTS: u32 = 1 << 16;

/// Requirements for a partitioner.
#[derive(Clone, Debug, PartialEq)]
pub struct Goal {
    /// Number of parts; at least 1.
    pub parts: u32,
    /// Seed of all random choices.
    pub seed: u64,
    /// Memory that the method plans with, in bytes. A method may choose the size of a coarse graph or of a sketch by it, so
    /// it may change the result. Equal values give equal results.
    pub memory: u64,
    /// Memory that the method may use, in bytes: at least [`Partitioner::needed_bytes`]. It may change the running time, but
    /// never the result.
    pub limit: u64,
    /// Balance constraints.
    pub balance: Targets,
}

impl Goal {
    /// A goal with `parts` parts and all other settings at their defaults.
    pub fn new(parts: u32) -> Self {
        Self { parts, seed: 1, memory: 2 << 30, limit: 2 << 30, balance: Targets::default() }
    }
}

/// The numbers that decide how much memory a method needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GraphSize {
    /// Number of nodes.
    pub nodes: u64,
    /// Number of edge rows, as in [`GraphStream::num_edges`].
    pub edges: u64,
    /// Number of processes that prepare the dataset together.
    pub processes: u64,
}

impl GraphSize {
    /// Bytes that [`GraphStream::accumulate`] takes for `cells` cells. With several processes, it copies them twice.
    pub const fn cell_bytes(self, cells: u64) -> u64 {
        4 * cells * if self.processes > 1 { 3 } else { 1 }
    }
}

/// Upper bounds on the ratio of the largest part to the mean part, one for each quantity that can be balanced.
///
/// The documentation of each method names the bounds that it enforces. The report shows the ratios of all quantities.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Targets {
    /// Nodes (β in SDT-GNN).
    pub nodes: f64,
    /// In-edges of the nodes.
    pub edges: Option<f64>,
    /// Nodes of the train split.
    pub train: Option<f64>,
    /// Nodes of the validation split.
    pub val: Option<f64>,
    /// Nodes of the test split.
    pub test: Option<f64>,
    /// Nodes of every type; the bound holds for each type separately.
    pub types: Option<f64>,
}

impl Default for Targets {
    /// Bounds nodes to 5 % above the mean, as SDT-GNN does. All other quantities are unbounded.
    fn default() -> Self {
        Self { nodes: 1.05, edges: None, train: None, val: None, test: None, types: None }
    }
}

/// A method that cuts a graph into parts.
///
/// ```
/// use gnnflow_data::partitioner::{Assignment, Goal, GraphStream, Partitioner};
///
/// /// Even indexes to part 0, odd ones to part 1, and so on.
/// struct Modulo;
///
/// impl Partitioner for Modulo {
///     fn name(&self) -> &str {
///         "modulo"
///     }
///     fn assign(&self, _: &dyn GraphStream, goal: &Goal) -> gnnflow_data::Result<Assignment> {
///         let parts = u64::from(goal.parts);
///         Ok(Assignment::computed(move |node| (node % parts) as u32))
///     }
/// }
/// ```
pub trait Partitioner: Send + Sync {
    /// The name, as in `partition.method`.
    fn name(&self) -> &str;

    /// Returns all other settings that affect the result (thresholds, a file's digest, …) as text. It is part of the
    /// dataset's fingerprint.
    fn settings(&self) -> String {
        String::new()
    }

    /// Returns the bytes that [`assign`](Partitioner::assign) needs at most for a graph of this size, with the smallest
    /// buffers. A smaller [`Goal::limit`] is refused before the method starts.
    fn needed_bytes(&self, _size: GraphSize, _goal: &Goal) -> u64 {
        0
    }

    /// Returns whether `goal.memory` affects the result.
    fn memory_decides(&self) -> bool {
        false
    }

    /// Assigns one of `goal.parts` parts to every node. Equal graphs and goals give equal assignments for any number of
    /// threads and processes.
    ///
    /// When several processes prepare one dataset, every process runs this method on the same stream and computes the
    /// same result. Therefore the number of calls of stream methods may depend only on the stream and the goal.
    ///
    /// # Errors
    /// Errors of the stream, or [`Error::Partitioner`](crate::Error::Partitioner).
    fn assign(&self, graph: &dyn GraphStream, goal: &Goal) -> Result<Assignment>;
}

/// A graph that can be read several times but is never held in memory as a whole. Nodes are numbered by their rows in
/// the dump.
///
/// Every method that reads edges takes the name of the pass. Users see it while the pass runs and in `partition.json`.
pub trait GraphStream {
    /// Number of nodes.
    fn num_nodes(&self) -> u64;

    /// Number of edge rows in the dump, before mirroring and before duplicates are dropped. Edges of nodes that a
    /// filter has dropped do not count.
    fn num_edges(&self) -> u64;

    /// Whether each row is both directions of an edge.
    fn undirected(&self) -> bool;

    /// Split of each node: 0 none, 1 train, 2 validation, 3 test.
    fn splits(&self) -> &[u8];

    /// Type of each node; empty when nodes have no types.
    fn node_types(&self) -> &[u16];

    /// The user's ids of the nodes, for methods that read more data about them.
    fn node_ids(&self) -> &NodeIds;

    /// Visits all edges `(source, destination)` in dump order, in sequential calls with some thousands of edges each.
    ///
    /// # Errors
    /// An error in the dump, or an error of `visit`.
    fn for_each_edges(&self, pass: &str, visit: &mut VisitEdges<'_>) -> Result<()>;

    /// Visits all edges in any order, concurrently from several threads, to compute sums.
    ///
    /// `visit` may only add to `cells` (with [`Relaxed`](std::sync::atomic::Ordering::Relaxed) `fetch_add`) and read
    /// data that does not change meanwhile. On return, `cells` includes the contributions of all edges, also of those
    /// that other processes visited.
    ///
    /// # Errors
    /// An error in the dump.
    fn accumulate(&self, pass: &str, cells: &[AtomicU32], visit: &AddEdges<'_>) -> Result<()>;

    /// Counts keys. `key` returns at most one key for each edge. `consume` gets every key with its count, in ascending
    /// order, several thousand at a time. Keys that do not fit in `memory` bytes are sorted on disk.
    ///
    /// # Errors
    /// An error in the dump, a full disk, or an error of `consume`.
    fn count_keys(&self, pass: &str, memory: u64, key: &EdgeKey<'_>, consume: &mut ConsumeKeys<'_>) -> Result<()>;

    /// Runs work that does not use the stream and is too expensive to repeat in every process. One process runs it; all
    /// get the result.
    ///
    /// # Errors
    /// An error of `work`.
    fn once(&self, pass: &str, work: &mut dyn FnMut() -> Result<Vec<u8>>) -> Result<Vec<u8>>;

    /// Returns the bytes that [`save`](GraphStream::save) last stored under `name`, also in an earlier preparation that
    /// was killed. A partitioner with several passes can resume from them.
    ///
    /// # Errors
    /// When the bytes cannot be read.
    fn load(&self, name: &str) -> Result<Option<Vec<u8>>>;

    /// Stores `bytes` under `name`, so that a later preparation can resume if this one is killed.
    ///
    /// # Errors
    /// When the bytes cannot be written.
    fn save(&self, name: &str, bytes: &[u8]) -> Result<()>;
}

/// A function that reads some thousands of edges `(source, destination)` at a time.
pub type VisitEdges<'a> = dyn FnMut(&[(u32, u32)]) -> Result<()> + 'a;

/// A function that adds up sums over some thousands of edges `(source, destination)` at a time.
pub type AddEdges<'a> = dyn Fn(&[(u32, u32)]) + Sync + 'a;

/// A function that returns the key of an edge `(source, destination)`.
pub type EdgeKey<'a> = dyn Fn(u32, u32) -> Option<u64> + Sync + 'a;

/// A function that takes keys and their counts.
pub type ConsumeKeys<'a> = dyn FnMut(&[(u64, u64)]) -> Result<()> + 'a;

/// A part for every node, by node index.
pub enum Assignment {
    /// Part `p` is range `p` of the book.
    Ranges(PartitionBook),
    /// Computed on demand.
    Computed(Box<dyn Fn(u64) -> u32 + Send + Sync>),
    /// Stored in a table.
    Stored(Vec<u16>),
}

impl Assignment {
    /// Creates an assignment that is computed on demand.
    pub fn computed(part: impl Fn(u64) -> u32 + Send + Sync + 'static) -> Self {
        Self::Computed(Box::new(part))
    }

    /// Returns the part of node index `node`.
    ///
    /// # Panics
    /// When there is no such node.
    #[inline]
    pub fn part(&self, node: u64) -> u32 {
        match self {
            Self::Ranges(book) => book.owner(node).expect("node index is below the number of nodes") as u32,
            Self::Computed(part) => part(node),
            Self::Stored(parts) => u32::from(parts[node as usize]),
        }
    }
}

impl fmt::Debug for Assignment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ranges(book) => f.debug_tuple("Ranges").field(book).finish(),
            Self::Computed(_) => f.write_str("Computed(..)"),
            Self::Stored(parts) => write!(f, "Stored({} nodes)", parts.len()),
        }
    }
}
