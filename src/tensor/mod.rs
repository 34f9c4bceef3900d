//! Tensor workers over Arrow Flight: processes that hold nothing and do the arithmetic on nodes for whoever proves the secret.
//!
//! ```text
//! graph worker  → tensor worker   Handshake: who are you, prove it          (auth)
//! graph worker ⇄  tensor worker   DoExchange: a task, its rows; its results  (client, server, wire)
//! tensor worker → graph worker    Handshake, DoGet: parameters by version    (parameters)
//! ```
//!
//! A task's rows travel as record batches of some 128 KB, one matrix after another, each behind its own schema. Those that the
//! way forwards needs come first, so that a task that goes back begins while the gradients are still on their way (Dorylus, section 6:
//! internal streaming). Everything has a deadline. Nothing after the proof is encrypted, as between all processes.

mod auth;
mod client;
mod parameters;
mod server;
mod service;
mod wire;

pub(crate) use client::FlightWorkers;
pub(crate) use server::{Limits, listen};

use tokio::runtime::{Builder, Runtime};

use crate::Error;

/// Changes when the questions or the answers do.
pub(crate) const PROTOCOL: u32 = 1;
/// The version that both sides must have.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Threads for messages.
fn runtime(name: &str) -> Result<Runtime, Error> {
    let mut builder = Builder::new_multi_thread();
    let runtime = builder.worker_threads(2).thread_name(name).enable_all().build();
    runtime.map_err(|error| {
        gnnflow_pipelines::Error::Machine(format!("cannot start threads for tensor workers: {error}")).into()
    })
}
