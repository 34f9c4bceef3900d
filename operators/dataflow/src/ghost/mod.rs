//! Aggregation over the full graph: edges between rows, ghost rows, and the operators that send rows.
//!
//! A worker's [`Links`] are its edges as row numbers of a [`Table`](crate::storage::Table). The table holds the rows of own nodes
//! and behind them the *ghost buffer*: the rows of neighbors that other workers host (Dorylus, section 3).
//! [`Scatter`](scatter::Scatter) sends rows to the workers that need them, and [`PacedScatter`](paced_scatter::PacedScatter)
//! bounds the number of messages in flight. [`intervals`](intervals::intervals) splits nodes into the units of work.

pub mod intervals;
pub mod links;
pub mod numbering;
pub mod paced_scatter;
pub mod scatter;

pub use links::{Ends, Links};
pub use numbering::Numbering;
