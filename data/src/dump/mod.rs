//! Streaming readers of Parquet dumps.
//!
//! Files, on disk or in object stores, are read row group by row group, row groups in parallel, in chunks of some thousand rows,
//! and only the columns that are wanted. What is in memory is a few chunks a thread, however large the dump. Every value is checked as it is
//! read; an error names file, row group, row and column.

mod candidates;
mod coming;
mod edges;
mod file;
mod nodes;
mod ordered;
mod parts;
mod table;
mod values;

pub use candidates::{CandidateTable, Candidates};
pub use edges::{EdgeChunk, EdgeLabels, EdgeReader};
pub use file::DumpFile;
pub(crate) use nodes::MAX_CLASSES;
pub use nodes::{NodeChunk, NodeReader, RawLabels};
pub(crate) use ordered::ordered;
pub use parts::PartTable;
pub(crate) use table::Table as Files;
pub use values::{Ids, Types};
