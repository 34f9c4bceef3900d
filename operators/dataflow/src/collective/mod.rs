//! Collective operations: every worker contributes, every worker gets the result.

pub mod all_reduce;
pub mod group;
