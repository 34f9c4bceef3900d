//! How batches are sampled: strategies by name, and batches that are subgraphs.

pub(crate) mod operators;
pub(crate) mod strategies;
pub(crate) mod subgraphs;
