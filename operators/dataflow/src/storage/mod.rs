//! Arrays, tables and rows of nodes, in memory or in mapped files without names.

pub mod array;
mod row_checks;
pub(crate) mod row_source;
pub mod row_store;
pub mod table;

pub use array::{Array, Place};
pub use row_checks::{checksum, sums_file};
pub use row_source::{Busy, RowReader, RowSource};
pub use row_store::{RowStore, Rows, RowsMut};
pub use table::Table;
