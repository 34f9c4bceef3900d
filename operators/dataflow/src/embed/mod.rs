//! Learned rows of nodes: a table sharded by partition, and the operator that sends gradients to it.

pub mod push_rows;
pub mod table;
