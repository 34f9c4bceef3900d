//! Arrays and tables in memory or in mapped scratch files.

pub mod array;
pub mod layer_store;
pub mod table;

pub use array::{Array, Place};
pub use table::Table;
