//! What a partition method is: a function from a stream of edges to a part for every node.

use std::fmt;

use crate::error::Result;
use crate::partition_book::PartitionBook;

/// Most partitions that a dataset can have.
pub const MAX_PARTS: u32 = 1 << 16;

/// A way to cut a graph into parts.
///
/// ```
/// use gnnflow_data::partitioner::{Assignment, GraphStream, Partitioner};
///
/// /// Even indexes to part 0, odd ones to part 1, and so on.
/// struct Modulo;
///
/// impl Partitioner for Modulo {
///     fn name(&self) -> &str {
///         "modulo"
///     }
///     fn assign(&self, _: &dyn GraphStream, parts: u32, _seed: u64) -> gnnflow_data::Result<Assignment> {
///         Ok(Assignment::computed(move |node| (node % u64::from(parts)) as u32))
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

    /// Gives every node one of `parts` parts. The same graph, parts and seed give the same assignment, whatever the
    /// number of threads.
    ///
    /// # Errors
    /// Errors of the stream, or [`Error::Partitioner`](crate::Error::Partitioner).
    fn assign(&self, graph: &dyn GraphStream, parts: u32, seed: u64) -> Result<Assignment>;
}

/// A graph that can be read as often as one likes, but never held whole. Nodes are their indexes: rows of the dump.
pub trait GraphStream: Sync {
    /// Number of nodes.
    fn num_nodes(&self) -> u64;

    /// Number of edge rows in the dump: before mirroring, and before duplicates are dropped.
    fn num_edges(&self) -> u64;

    /// Whether each row stands for both directions.
    fn undirected(&self) -> bool;

    /// Split of each node: 0 none, 1 train, 2 validation, 3 test.
    fn splits(&self) -> &[u8];

    /// Visits all edges `(source, destination)` in dump order, some thousands at a time. Reads the dump anew each time.
    ///
    /// # Errors
    /// What is wrong with the dump, or what `visit` returned.
    fn for_each_edges(&self, visit: &mut VisitEdges<'_>) -> Result<()>;
}

/// What looks at some thousands of edges `(source, destination)` at a time.
pub type VisitEdges<'a> = dyn FnMut(&[(u32, u32)]) -> Result<()> + 'a;

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
