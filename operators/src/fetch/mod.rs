//! Getting rows (features, a layer's outputs) from the workers that own them.

pub mod cache;
pub mod edge_rows;
pub mod fetch_degrees;
pub mod fetch_edge_rows;
pub mod fetch_rows;
pub(crate) mod filling;
pub mod halo;
pub mod matrix;
pub mod read_ahead;
mod rows_at;
