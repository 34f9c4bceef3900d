//! Tensor workers over Arrow Flight.
//!
//! ```text
//! client        ⇄  server          both sides prove the secret, before HTTP/2 (handshake; client, incoming)
//! graph worker  ⇄  tensor worker   DoExchange: tasks, their rows; results     (connection, task_runner, call_buffer; wire, matrices)
//! tensor worker →  graph worker    DoGet: parameters by version               (parameters)
//! graph worker  ⇄  tensor worker   DoAction: its device                       (device_kind)
//! tensor worker →  graph worker    DoAction: registration                     (register, registry)
//! ```
//!
//! Rows travel in messages of about 256 KiB, one matrix after another. Small tasks of one kind share a call. A long forward task is split: the first half is computed, and its results are sent, while the second half arrives. A backward
//! task sends the inputs of its forward pass first, which runs while the gradients arrive (Dorylus, section 6: internal streaming). Every wait
//! has a deadline. Connections to other machines are encrypted, unless `cluster.encrypt` is false.

mod address;
mod call_buffer;
mod client;
mod connection;
mod device_kind;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod handshake;
mod incoming;
mod matrices;
mod parameters;
mod register;
mod registry;
mod server;
mod service;
mod task_runner;
mod wire;
mod worker_pool;

pub(crate) use register::{RegisterAt, default_listen_address};
pub(crate) use server::{Limits, listen};
pub(crate) use worker_pool::FlightWorkers;

use gnnflow_data::error::FEWER_THREADS;
use tokio::runtime::{Builder, Runtime};

use crate::error::Error;

/// The version of the messages; it changes with them.
pub(crate) const PROTOCOL: u32 = 5;
/// The version that both sides must have.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Bytes of a stream and of a connection that may be in flight. With HTTP/2's default of 64 KiB, calls wait for each other.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 4 << 20;
/// Maximum bytes of an HTTP/2 frame.
const FRAME_BYTES: u32 = 256 << 10;

/// Starts the threads that send and receive messages.
fn runtime(name: &str) -> Result<Runtime, Error> {
    let mut builder = Builder::new_multi_thread();
    let runtime = builder.worker_threads(2).thread_name(name).enable_all().build();
    runtime.map_err(|error| {
        gnnflow_pipelines::Error::Machine(format!("cannot start threads for tensor workers: {error}; {FEWER_THREADS}"))
            .into()
    })
}
