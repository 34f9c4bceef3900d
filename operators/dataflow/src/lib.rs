//! The timely operators of gnnflow: sampling, fetching, propagation and collectives between workers.

pub mod batch;
pub mod collective;
pub mod embed;
pub mod fetch;
pub mod flow;
pub mod ghost;
pub mod graph;
pub mod incremental;

pub mod sample;
pub mod storage;
#[cfg(test)]
pub(crate) mod testing;
pub mod time;
pub mod wire;
