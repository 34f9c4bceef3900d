//! What a partition method is: a function from a stream of edges to a part for every node.

use std::fmt;
use std::sync::atomic::AtomicU32;

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::ids::NodeIds;
use crate::partition_book::PartitionBook;

/// Most partitions that a dataset can have.
pub const MAX_PARTS: u32 = 1 << 16;

/// What is wanted of a partitioner.
#[derive(Clone, Debug, PartialEq)]
pub struct Goal {
    /// Number of parts, at least one.
    pub parts: u32,
    /// Decides every random choice.
    pub seed: u64,
    /// Bytes that may be held at a time, beside a few dozen for every node. What needs more goes to disk, is sketched, or is
    /// refused with the number of bytes that it takes. It may change how long things take, and the result; not whether one
    /// memory budget gives one result.
    pub memory: u64,
    /// How even the parts have to be.
    pub balance: Targets,
}

impl Goal {
    /// So many parts, with everything else at its default.
    pub fn new(parts: u32) -> Self {
        Self { parts, seed: 1, memory: 2 << 30, balance: Targets::default() }
    }
}

/// Bounds on the largest part over the mean part, for everything that can be balanced. Methods keep those that they can, and
/// say in their documentation which those are; the report shows all of them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Targets {
    /// Nodes. SDT-GNN's β.
    pub nodes: f64,
    /// In-edges of the nodes.
    pub edges: Option<f64>,
    /// Nodes of the train split.
    pub train: Option<f64>,
    /// Nodes of the validation split.
    pub val: Option<f64>,
    /// Nodes of the test split.
    pub test: Option<f64>,
    /// Nodes of every type, each type by itself.
    pub types: Option<f64>,
}

impl Default for Targets {
    /// Nodes within 5%, as SDT-GNN has it; nothing else is asked for.
    fn default() -> Self {
        Self { nodes: 1.05, edges: None, train: None, val: None, test: None, types: None }
    }
}

/// A way to cut a graph into parts.
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
    /// Its name, as in `partition.method`.
    fn name(&self) -> &str;

    /// Whatever else decides the result (thresholds, a file's digest, …), as text. Part of the dataset's fingerprint.
    fn settings(&self) -> String {
        String::new()
    }

    /// Bytes that [`assign`](Partitioner::assign) holds however small the budget: arrays over all nodes. A budget that does not
    /// hold them is refused before any work.
    fn state_bytes(&self, _nodes: u64, _goal: &Goal) -> u64 {
        0
    }

    /// Whether `goal.memory` decides the result, and not only how long it takes.
    fn memory_decides(&self) -> bool {
        false
    }

    /// Gives every node one of `goal.parts` parts. The same graph and goal give the same assignment, whatever the
    /// number of threads and processes.
    ///
    /// When several processes prepare one dataset, each of them runs this method on the same stream and comes to the same
    /// result. So whatever decides how often the stream's methods are called has to come from the stream and the goal.
    ///
    /// # Errors
    /// Errors of the stream, or [`Error::Partitioner`](crate::Error::Partitioner).
    fn assign(&self, graph: &dyn GraphStream, goal: &Goal) -> Result<Assignment>;
}

/// A graph that can be read as often as one likes, but never held whole. Nodes are their indexes: rows of the dump.
///
/// Every method that reads edges is told the name of the pass, which users see while it runs and in `partition.json`.
pub trait GraphStream {
    /// Number of nodes.
    fn num_nodes(&self) -> u64;

    /// Number of edge rows in the dump: before mirroring, and before duplicates are dropped; without those of nodes that a filter
    /// has dropped.
    fn num_edges(&self) -> u64;

    /// Whether each row stands for both directions.
    fn undirected(&self) -> bool;

    /// Split of each node: 0 none, 1 train, 2 validation, 3 test.
    fn splits(&self) -> &[u8];

    /// Type of each node; empty when nodes have no types.
    fn node_types(&self) -> &[u16];

    /// The user's ids of the nodes, for methods that read something else about them.
    fn node_ids(&self) -> &NodeIds;

    /// Visits all edges `(source, destination)` in dump order, some thousands at a time, one call after the other.
    ///
    /// # Errors
    /// What is wrong with the dump, or what `visit` returned.
    fn for_each_edges(&self, pass: &str, visit: &mut VisitEdges<'_>) -> Result<()>;

    /// Visits all edges in any order, from several threads at once, for sums: `visit` may only add to `cells` (with
    /// [`Relaxed`](std::sync::atomic::Ordering::Relaxed) `fetch_add`), and look at what does not change meanwhile. When it
    /// returns, `cells` has grown by the contributions of all edges, also of those that other processes have visited.
    ///
    /// # Errors
    /// What is wrong with the dump.
    fn accumulate(&self, pass: &str, cells: &[AtomicU32], visit: &AddEdges<'_>) -> Result<()>;

    /// Counts keys: `key` gives one for each edge, or none. `consume` gets every key with how often it came, in ascending order,
    /// some thousands at a time. Sorts on disk what does not fit in `memory` bytes.
    ///
    /// # Errors
    /// What is wrong with the dump, a full disk, or what `consume` returned.
    fn count_keys(&self, pass: &str, memory: u64, key: &EdgeKey<'_>, consume: &mut ConsumeKeys<'_>) -> Result<()>;

    /// Work without the stream that is too much to be done by every process: one does it, all get the result.
    ///
    /// # Errors
    /// What `work` returned.
    fn once(&self, pass: &str, work: &mut dyn FnMut() -> Result<Vec<u8>>) -> Result<Vec<u8>>;

    /// What [`keep`](GraphStream::keep) was last given under `name`, perhaps by a preparation that was killed. A partitioner
    /// of several passes goes on from there.
    ///
    /// # Errors
    /// It cannot be read.
    fn kept(&self, name: &str) -> Result<Option<Vec<u8>>>;

    /// Keeps `bytes` under `name`, for the next try should this one be killed.
    ///
    /// # Errors
    /// It cannot be written.
    fn keep(&self, name: &str, bytes: &[u8]) -> Result<()>;
}

/// What looks at some thousands of edges `(source, destination)` at a time.
pub type VisitEdges<'a> = dyn FnMut(&[(u32, u32)]) -> Result<()> + 'a;

/// What adds up something over some thousands of edges `(source, destination)` at a time.
pub type AddEdges<'a> = dyn Fn(&[(u32, u32)]) + Sync + 'a;

/// The key of an edge `(source, destination)`.
pub type EdgeKey<'a> = dyn Fn(u32, u32) -> Option<u64> + Sync + 'a;

/// What takes keys and their counts.
pub type ConsumeKeys<'a> = dyn FnMut(&[(u64, u64)]) -> Result<()> + 'a;

/// A part for every node, by the node's index.
pub enum Assignment {
    /// Part `p` is the range `p` of the book.
    Ranges(PartitionBook),
    /// Computed when asked for.
    Computed(Box<dyn Fn(u64) -> u32 + Send + Sync>),
    /// Looked up.
    Stored(Vec<u16>),
}

impl Assignment {
    /// An assignment that is computed when asked for.
    pub fn computed(part: impl Fn(u64) -> u32 + Send + Sync + 'static) -> Self {
        Self::Computed(Box::new(part))
    }

    /// The part of node index `node`.
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
