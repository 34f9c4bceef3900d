//! From an epoch's seeds to sampled blocks.

mod draw;
pub mod mini_batch;
pub mod sample_batch;
pub mod sample_hop;
pub mod seeds;
