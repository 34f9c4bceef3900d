//! Seeds, sampling of hops, random walks, and subgraph batches.

pub mod batch_keys;
pub mod clusters;
mod draw;
pub mod edge_seeds;
pub mod edge_share;
pub mod induce;
pub mod node_groups;
pub mod own_samples;
mod pieces;
pub mod random_walk;
pub mod saint;
pub mod sample_batch;
pub mod sample_hop;
pub mod sampling_threads;
pub mod seeds;
pub mod subgraph_counts;
