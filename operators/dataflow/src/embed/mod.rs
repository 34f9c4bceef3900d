//! Learnt rows of nodes: a table sharded by partition, and the push that brings gradients to it.

pub mod push_rows;
pub mod table;
