//! `pipeline.toml`, checked, planned and run.

mod error;
pub mod spec;

pub use error::{Error, Fault};
