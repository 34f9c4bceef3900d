//! Streaming readers of Parquet dumps.
//!
//! Files on disk or in object stores are read row group by row group, several row groups in parallel, and only the needed columns. Chunks
//! have several thousand rows. Memory holds a few chunks per thread, for any size of dump. Every value is checked when it is read. Errors
//! name file, row group, row and column.

mod candidates;
mod edges;
mod node_list;
mod node_lookup;
mod node_weights;
mod nodes;
mod ordered;
mod parts;
mod prefetch;
mod table;
mod values;

pub use candidates::{CandidateTable, Candidates};
pub use edges::{EdgeChunk, EdgeLabels, EdgeReader};
pub use node_list::NodeListTable;
pub use node_weights::NodeWeightTable;
pub(crate) use nodes::MAX_CLASSES;
pub use nodes::{NodeChunk, NodeReader, RawLabels};
pub(crate) use ordered::ordered;
pub use parts::PartTable;
pub(crate) use table::Table as Files;
pub use values::Types;
pub(crate) use values::{is_number, is_time};

pub use crate::store::DumpFile;
