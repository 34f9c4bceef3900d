//! State that differential dataflow maintains while the graph changes.
//!
//! Bulk work (sorting, deduplicating, relabeling) is plain timely, which is many times faster for it. An arrangement is an index of changes that
//! forgets those which cancel out.

pub mod edge_deltas;
