//! Fetches rows (features, outputs of a layer) from the workers that own them.

pub mod cache;
pub mod fetch_degrees;
pub mod fetch_edge_rows;
pub mod fetch_rows;
pub mod read_ahead;
