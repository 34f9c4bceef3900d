//! Checks, plans and runs the pipelines that `pipeline.toml` files define.

mod checkpoint;
mod collectives;
mod compute;
pub mod config;
mod context;
mod embedding;
mod engine;
mod error;
mod evaluate;
mod follow;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod model_file;
mod neighborhood;
mod outputs;
pub mod plan;
mod refresh;
mod run;
mod runtime;
pub mod simulate;
mod task;

pub use checkpoint::tensor_file::verify_tensors;
pub use config::Config;
pub use context::machine::available_memory;
pub use error::{Error, Fault, Problem, Problems, REJOIN};
pub use gnnflow_nn::parameter_versions;
pub use model_file::{FittingModel, ModelDescription, Unseen, WarmStart};
pub use outputs::run_folder::{has_checkpoint, keep_earlier_run, last_checkpoint};
pub use outputs::settings::{defines_results, read_settings};
pub use outputs::summary::{self, Summary};
pub use outputs::trace_table;
pub use plan::Plan;
pub use run::prepare::{prepare, prepare_on};
pub use run::run_worker;
pub use runtime::executor;
pub use runtime::job::{Feed, InNeighbors, Job, NoRuntime, NodeSplit, Runtime, Scope, Work, scratch_folder};
pub use runtime::registry::Registry;
pub use runtime::stage::Stage;
