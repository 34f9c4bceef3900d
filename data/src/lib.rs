//! Graphs on disk and in memory: Parquet dumps in, prepared datasets of memory-mapped Arrow files out.

mod convert;
pub mod dataset;
pub mod decoding;
pub mod dump;
pub mod error;
pub mod export;
pub mod format;
pub mod fs;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
pub mod generate;
pub mod group;
pub mod heartbeat;
pub mod ids;
pub mod import;
pub mod init;
pub mod inspect;
pub mod lock_file;
pub(crate) mod partition_book;
pub mod partitioner;
mod pipeline_file;
pub mod prepare;
pub mod process_memory;
pub mod progress;
pub mod rng;
pub mod source;
mod store;
pub use store::{folders, upload};
#[doc(hidden)]
pub mod testing;
pub mod update;
mod usual_names;

pub use dataset::{Dataset, Features, Halo, Manifest, Nodes, Partition, Topology};
pub use error::{Error, Fault, Result};
pub use partition_book::PartitionBook;
pub use partitioner::{Assignment, Goal, GraphSize, GraphStream, Partitioner, Targets};
pub use prepare::{PrepareSettings, prepare};
pub use progress::{Progress, Silent};
pub use source::GraphSource;
