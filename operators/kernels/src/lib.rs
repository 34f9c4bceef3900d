//! Kernels: loops over slices, without any dataflow.
//!
//! Every kernel is a pure function of its arguments. Its tests compare it with a naive implementation.

pub mod aggregate;
pub mod block;
pub mod compact;
pub mod dense;
pub mod matrix;
pub mod node_index;
pub mod pages;
pub mod pair_scores;
pub mod pairs;
pub mod parallel;
mod prefetch;
pub mod sample;
pub mod score_matrix;
pub mod simd;
pub mod sparse;

pub use aggregate::offsets::Offset;
