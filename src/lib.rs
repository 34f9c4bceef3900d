//! The library of the program gnnflow. [`App`] is the program with user-defined parts, [`run`](run::run) runs a pipeline without a
//! command line, and [`cluster`] connects several processes.

mod app;
mod c_heap;
mod check_cluster;
mod cli;
pub mod cluster;
pub mod compare;
mod console;
mod encryption;
mod error;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod launch;
mod log;
mod loop_state;
mod metrics;
mod options;
mod panics;
pub mod prelude;
pub mod prepare;
mod prepare_alone;
pub mod report;
pub mod run;
mod run_lock;
mod status;
mod stderr;
pub mod sweep;
#[cfg_attr(not(feature = "tensor-workers"), path = "tensor_workers/absent.rs")]
mod tensor_workers;
mod threads;
mod top;
mod upload;

pub use app::App;
pub use console::Console;
pub use error::Error;
pub use options::{Action, Outcome, RunOptions};
pub use prepare::{PrepareOptions, Prepared};
pub use upload::Upload;
