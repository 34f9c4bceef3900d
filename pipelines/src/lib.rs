//! `pipeline.toml`, checked, planned and run.

mod agree;
mod checkpoint;
mod drive;
mod embedding;
mod error;
mod evaluate;
pub mod islands;
mod job;
mod layer_store;
mod machine;
mod outputs;
pub mod plan;
mod prepare;
mod registry;
mod run_folder;
mod sampling;
mod schedule;
mod seed_split;
mod setup;
pub mod spec;
mod subgraphs;
pub mod summary;
mod task;
mod threads;
mod trainer;
mod whole_graph;
mod work;

pub use error::{Error, Fault};
pub use job::{Host, Job, NoHost};
pub use plan::Plan;
pub use prepare::{prepare, prepare_on};
pub use registry::Registry;
pub use spec::Spec;
pub use summary::Summary;
pub use work::work;
