//! The timely operators of gnnflow: sampling, fetching, aggregation and collectives between workers.
//!
//! Each operator is one file with one extension trait on timely's streams. To compose them into a dataflow of your own, import
//! [`prelude`] and start with [`context`].

pub mod apply_operator;
pub mod batch;
pub mod collective;
pub mod context;
pub mod embed;
pub mod fetch;
pub mod flow;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
pub mod ghost;
pub mod graph;
pub mod incremental;
pub mod links;
pub mod prelude;

pub mod sample;
pub mod storage;
#[cfg(test)]
pub(crate) mod testing;
pub mod time;
pub mod trace;
pub mod wire;
