//! From an epoch's seeds to sampled blocks.

pub mod clusters;
mod draw;
pub mod draw_batches;
pub mod induce;
pub mod mini_batch;
mod pieces;
pub mod random_walk;
pub mod saint;
pub mod sample_batch;
pub mod sample_hop;
pub mod seeds;
pub mod subgraph_counts;
