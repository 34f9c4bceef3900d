//! gnnflow, the library entry: [`App`] is the program with a user's own parts, [`run`](run::run) a pipeline without command line,
//! [`cluster`] several processes as one.

mod app;
mod cli;
pub mod cluster;
mod console;
mod error;
mod log;
mod options;
mod panics;
pub mod prelude;
pub mod prepare;
pub mod report;
pub mod run;
mod run_lock;
#[cfg_attr(not(feature = "tensor-workers"), path = "tensor_workers/absent.rs")]
mod tensor_workers;
mod threads;

pub use app::App;
pub use console::Console;
pub use error::Error;
pub use options::{Outcome, RunOptions};
pub use prepare::{PrepareOptions, Prepared};
