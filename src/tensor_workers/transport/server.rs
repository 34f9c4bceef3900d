//! The servers of tensor workers and of graph workers.

use std::io::Read;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::Arc;

use arrow_flight::flight_service_server::FlightServiceServer;
use gnnflow_pipelines::config::Device;
use gnnflow_pipelines::{Error as PipelineError, Registry};
use tonic::transport::Server;

use super::incoming::authenticated;
use super::register::{RegisterAt, register};
use super::registry::Registration;
use super::service::{Role, Service, stream_of};
use super::task_runner::TaskRunner;
use super::{CONNECTION_WINDOW, FRAME_BYTES, STREAM_WINDOW, runtime};
use crate::cluster::{ClusterError, Secret};
use crate::error::Error;

/// The resources of a tensor worker, and when it ends.
#[derive(Debug, Clone)]
pub(crate) struct Limits {
    /// The device that computes.
    pub(crate) device: Device,
    /// Compute threads.
    pub(crate) threads: usize,
    /// Whether it ends when its standard input ends, and so with the process that launched it.
    pub(crate) until_input_ends: bool,
    /// The run at which it registers, and with which it ends.
    pub(crate) register_at: Option<RegisterAt>,
}

/// Listens at `address` and runs tasks until the process ends, or the run at which it registers. Reports through `report`.
///
/// # Errors
/// If it cannot listen at the address, or must not without a secret; and if the run cannot be reached, or refuses it.
pub(crate) fn listen(
    (key, address): (&str, &str),
    secret: Option<Secret>,
    registry: Registry,
    limits: Limits,
    report: impl Fn(&str) -> Result<(), Error>,
) -> Result<(), Error> {
    let wrong = |problem: String| ClusterError::Usage(format!("{key} {address}: {problem}"));
    let found = address.to_socket_addrs().map_err(|error| wrong(format!("expected HOST:PORT ({error})")))?;
    let addresses: Vec<SocketAddr> = found.collect();
    if secret.is_none() && !addresses.iter().all(|address| address.ip().is_loopback()) {
        let message = "other machines can reach this address; give a secret of 16 bytes or more, in GNNFLOW_SECRET or with --secret-file";
        return Err(wrong(message.into()).into());
    }
    let (listener, local) =
        bind(&addresses[..]).map_err(|error| PipelineError::Machine(format!("cannot listen at {address}: {error}")))?;
    let runner = Arc::new(TaskRunner::new(secret.clone(), registry, limits.device, limits.threads)?);
    let runtime = runtime("tensor-flight")?;
    report(&format!("listening at {local}"))?;
    if limits.until_input_ends {
        let watch = || {
            let _ = std::io::stdin().read(&mut [0]);
            std::process::exit(0);
        };
        let started = std::thread::Builder::new().name("tensor-input".into()).spawn(watch);
        started.map_err(|source| gnnflow_data::Error::Threads { what: "the thread that watches the input", source })?;
    }
    let service = Service { role: Role::TensorWorker(Arc::clone(&runner)) };
    let serving = serve(listener, secret.clone(), service);
    let Some(register_at) = limits.register_at else {
        return runtime.block_on(serving).map_err(|error| PipelineError::Machine(error).into());
    };
    runtime.spawn(serving);
    let ended = runtime.block_on(register(
        &register_at,
        &Registration { listens: local, device: runner.kind().clone() },
        secret,
        &report,
    ));
    runtime.shutdown_background();
    ended?;
    report(&format!("the run at {} is over; this worker did {} tasks", register_at.address, runner.done()))
}

/// Binds a listening socket. Returns it and its address.
pub(super) fn bind(addresses: &[SocketAddr]) -> std::io::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(addresses)?;
    listener.set_nonblocking(true)?;
    let local = listener.local_addr()?;
    Ok((listener, local))
}

/// Serves clients that prove the secret, on a listening socket.
pub(super) async fn serve(listener: TcpListener, secret: Option<Secret>, service: Service) -> Result<(), String> {
    let listener = tokio::net::TcpListener::from_std(listener).map_err(|error| error.to_string())?;
    let incoming = stream_of(authenticated(listener, secret));
    let server = Server::builder().initial_stream_window_size(STREAM_WINDOW).max_frame_size(FRAME_BYTES);
    let mut server = server.initial_connection_window_size(CONNECTION_WINDOW);
    let served = server.add_service(FlightServiceServer::new(service)).serve_with_incoming(incoming).await;
    served.map_err(|error| format!("a tensor worker's server ended: {error}"))
}
