//! Results that are maintained by differential dataflow while the graph changes.
//!
//! Bulk work (sorting, deduplicating, relabeling) is plain timely, which is many times faster for it. Differential dataflow
//! keeps a result correct while edges are added and removed.

pub mod affected;
pub mod differential;
pub mod net;

pub use differential::Differential;
