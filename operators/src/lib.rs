//! The timely operators of gnnflow, the kernels that they run, and the candle operations that they feed.

pub mod block;
pub mod change;
pub mod compute;
pub mod embed;
pub mod fetch;
pub mod kernel;
pub mod local_graph;
pub mod meter;
pub mod partition;
pub mod placement;
pub mod prepare;
pub mod propagate;
pub mod sample;
pub mod sync;
#[cfg(test)]
pub(crate) mod testing;
pub mod tick;
pub mod wire;
