//! Neighborhoods of nodes in the graph of all workers.
//!
//! - [`reached`]: the rows that a change of nodes reaches, along the edges;
//! - [`read`]: the rows that results of nodes are computed from, against the edges.

pub(crate) mod reached;
pub(crate) mod read;
mod search;

#[cfg(test)]
mod tests;
