//! Collective operations: every worker contributes and receives the result.

pub mod all_reduce;
pub mod group;
