//! Tensor workers over Arrow Flight: processes that hold nothing and do the arithmetic on nodes for whoever proves the secret.
//!
//! ```text
//! graph worker  → tensor worker   Handshake: who are you, prove it          (auth)
//! graph worker ⇄  tensor worker   DoExchange: tasks, their rows; results     (client, tasks, desk; wire, matrices)
//! tensor worker → graph worker    Handshake, DoGet: parameters by version    (parameters)
//! tensor worker → graph worker    Handshake, DoAction: I am here             (enlist, roll)
//! ```
//!
//! Rows travel as record batches of some 128 KB, one matrix after another, each behind its own schema; tasks that are alike and small share a
//! call. A long task that goes forwards comes in halves, and the first is computed, and its results leave, while the second is on its way; of
//! one that goes back, what the way forwards needs comes first, and that is run again while the gradients come (Dorylus, section 6:
//! internal streaming). Everything has a deadline. Nothing after the proof is encrypted, as between all processes.

mod auth;
mod client;
mod desk;
mod enlist;
mod matrices;
mod parameters;
mod roll;
mod server;
mod service;
mod tasks;
mod way;
mod wire;

pub(crate) use client::FlightWorkers;
pub(crate) use enlist::{Post, listens_towards};
pub(crate) use server::{Limits, listen};

use gnnflow_data::error::FEWER_THREADS;
use tokio::runtime::{Builder, Runtime};

use crate::Error;

/// Changes when the questions or the answers do.
pub(crate) const PROTOCOL: u32 = 2;
/// The version that both sides must have.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Threads for messages.
fn runtime(name: &str) -> Result<Runtime, Error> {
    let mut builder = Builder::new_multi_thread();
    let runtime = builder.worker_threads(2).thread_name(name).enable_all().build();
    runtime.map_err(|error| {
        gnnflow_pipelines::Error::Machine(format!("cannot start threads for tensor workers: {error}; {FEWER_THREADS}"))
            .into()
    })
}
