//! The part of the graph that a worker holds, and which worker holds which partition.

pub mod local_graph;
pub mod placement;
