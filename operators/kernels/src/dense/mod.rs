//! Kernels over rows of dense matrices: activations, norms, losses, products and gathers.

pub mod dot;
pub mod elementwise;
pub mod gather;
pub mod heads;
pub mod loss;
pub mod mixed;
pub mod norm;
pub mod to_bf16;
