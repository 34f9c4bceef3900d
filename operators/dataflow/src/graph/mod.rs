//! The part of the graph that a worker holds, and the placement of partitions on workers.

pub mod live_graph;
pub mod local_graph;
pub mod placement;
