//! `pipeline.toml`, checked, planned and run.

mod error;
pub mod plan;
mod registry;
pub mod spec;
pub mod summary;

pub use error::{Error, Fault};
pub use plan::Plan;
pub use registry::Registry;
pub use spec::Spec;
pub use summary::Summary;
