//! The timely operators of gnnflow, the kernels that they run, and the candle operations that they feed.

pub mod block;
pub mod compute;
pub mod kernel;
