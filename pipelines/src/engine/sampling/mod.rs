//! How batches are sampled: seeds, strategies by name, and batches that are subgraphs.

pub(crate) mod node_batches;
pub(crate) mod operators;
pub(crate) mod strategies;
pub(crate) mod subgraphs;
