//! Graphs on disk and in memory: Parquet dumps in, prepared datasets of memory-mapped Arrow files out.

pub mod partition_book;
pub mod rng;

pub use partition_book::PartitionBook;
