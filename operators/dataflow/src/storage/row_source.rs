//! Rows of nodes as bytes, which are gathered into batches and messages.

use std::fmt;

/// Rows of nodes: features, learned rows, the output of a layer.
///
/// Rows are read through a [`RowReader`], opened once per gather. A source whose rows never change is its own reader.
///
/// ```
/// use gnnflow_dataflow::storage::{Busy, RowReader, RowSource};
///
/// /// One byte per node.
/// struct Bytes(Vec<u8>);
///
/// impl RowReader for Bytes {
///     fn row(&self, node: u32) -> &[u8] {
///         &self.0[node as usize..][..1]
///     }
/// }
///
/// impl RowSource for Bytes {
///     fn row_bytes(&self) -> usize {
///         1
///     }
///     fn open(&self) -> Result<Box<dyn RowReader + '_>, Busy> {
///         Ok(Box::new(self))
///     }
/// }
///
/// assert_eq!(Bytes(vec![5, 6, 7]).open().unwrap().row(2), [7]);
/// ```
pub trait RowSource: Send + Sync {
    /// Returns the size of one row in bytes.
    fn row_bytes(&self) -> usize;

    /// Opens the rows for one gather. Never blocks.
    ///
    /// # Errors
    /// [`Busy`] when the rows are being written.
    fn open(&self) -> Result<Box<dyn RowReader + '_>, Busy>;

    /// Returns whether rows may change between a request and the time at which its reply is sent. Replies then hold copies.
    fn changes(&self) -> bool {
        false
    }

    /// Returns whether [`will_need`](Self::will_need) has an effect: the rows may be on disk.
    fn reads_ahead(&self) -> bool {
        false
    }

    /// Starts reading from disk the rows of those `nodes` that this process holds.
    fn will_need(&self, _nodes: &[u32]) {}

    /// Returns whether the row of `node`, which another worker hosts, can be read here, too. It is then not fetched. Workers of one
    /// host share a feature store in this way.
    fn shares(&self, _node: u32) -> bool {
        false
    }
}

/// Rows that stay the same while the reader is open.
pub trait RowReader {
    /// Returns the row of global node id `node`.
    ///
    /// # Panics
    /// When this process does not hold the row. Requests are routed by ownership, so this is a bug.
    fn row(&self, node: u32) -> &[u8];

    /// Returns the rows of all nodes of the graph, in the order of their ids, if this process has them in one array.
    fn all(&self) -> Option<&[u8]> {
        None
    }
}

impl<R: RowReader + ?Sized> RowReader for &R {
    #[inline]
    fn row(&self, node: u32) -> &[u8] {
        (**self).row(node)
    }

    fn all(&self) -> Option<&[u8]> {
        (**self).all()
    }
}

/// Rows are read and written at the same time.
///
/// The frontiers of a correct dataflow keep reads and writes apart, so this error is always a bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Busy {
    /// A read was refused: the rows are being written.
    Written,
    /// A write was refused: the rows are being read or written.
    InUse,
    /// A thread panicked while it wrote the rows, which are therefore incomplete.
    Incomplete,
}

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Written => "rows cannot be read: they are being written",
            Self::InUse => "rows cannot be written: they are being read or written",
            Self::Incomplete => "rows are incomplete: a thread panicked while it wrote them",
        })
    }
}

impl std::error::Error for Busy {}
