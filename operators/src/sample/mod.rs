//! From an epoch's seeds to sampled blocks.

pub mod mini_batch;
pub mod sample_hop;
pub mod seeds;
