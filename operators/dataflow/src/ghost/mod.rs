//! Putting rows together over a whole graph: who needs whose rows, tables of them, and the operator that moves them.
//!
//! A worker's [`Links`] say, for each of its nodes, which rows of a [`Table`](crate::storage::Table) belong together: those of its own nodes, and behind
//! them the *ghost buffer*, those of nodes that other workers host (Dorylus, section 3). [`Scatter`](scatter::Scatter) brings
//! rows to the ghost buffers of those who need them, and [`PacedScatter`](paced_scatter::PacedScatter) no more of them at once than have room;
//! [`intervals`](intervals::intervals) cut nodes into what is computed at once.

pub mod intervals;
pub mod links;
pub mod numbering;
pub mod paced_scatter;
pub mod scatter;

pub use links::{Ends, Links};
pub use numbering::Numbering;
