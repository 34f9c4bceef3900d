//! Mini-batches and the rows that they gather.

pub mod edge_rows;
pub(crate) mod feature_view;
pub(crate) mod gather_buffer;
pub mod halo;
pub mod mini_batch;
