//! What changes when the graph does, maintained by differential dataflow.
//!
//! Bulk work (sorting, deduplicating, relabelling) is plain timely and many times faster there; differential dataflow is
//! for keeping an answer right while edges come and go.

pub mod affected;
pub mod differential;
pub mod net;

pub use differential::Differential;
