//! Listening: a tensor worker's server, and a graph worker's.

use std::io::Read;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::Arc;

use arrow_flight::flight_service_server::FlightServiceServer;
use gnnflow_pipelines::{Error as PipelineError, Registry};
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

use super::auth::Guard;
use super::enlist::{Post, enlist};
use super::runtime;
use super::service::{Serves, Service};
use super::tasks::Tasks;
use crate::Error;
use crate::cluster::{ClusterError, Secret};

/// What a tensor worker may take, and when it ends.
#[derive(Debug, Clone)]
pub(crate) struct Limits {
    /// Threads of arithmetic.
    pub(crate) threads: usize,
    /// Whether it ends with its standard input: with the process that launched it, however that ends.
    pub(crate) with_input: bool,
    /// The run that it enlists with, and ends with.
    pub(crate) post: Option<Post>,
}

/// Listens at `address` and does tasks until the process is ended, or the run that it enlists with. `told` is given what there is to say.
///
/// # Errors
/// When the address cannot be listened at, or may not be without a secret; and when the run cannot be reached, or refuses it.
pub(crate) fn listen(
    (key, address): (&str, &str),
    secret: Option<Secret>,
    registry: Registry,
    limits: Limits,
    told: impl Fn(&str) -> Result<(), Error>,
) -> Result<(), Error> {
    let wrong = |problem: String| ClusterError::Usage(format!("{key} {address}: {problem}"));
    let found = address.to_socket_addrs().map_err(|error| wrong(format!("expected HOST:PORT ({error})")))?;
    let addresses: Vec<SocketAddr> = found.collect();
    if secret.is_none() && !addresses.iter().all(|address| address.ip().is_loopback()) {
        let message = "others can reach it: give a secret of 16 bytes or more, in GNNFLOW_SECRET or with --secret-file";
        return Err(wrong(message.into()).into());
    }
    let (listener, local) = bound(&addresses[..])
        .map_err(|error| PipelineError::Machine(format!("cannot listen at {address}: {error}")))?;
    let tasks = Arc::new(Tasks::new(secret.clone(), registry, limits.threads)?);
    let guard = Guard::new(secret.clone()).map_err(|status| PipelineError::Machine(status.message().to_owned()))?;
    let runtime = runtime("tensor-flight")?;
    told(&format!("listening at {local}"))?;
    if limits.with_input {
        let watch = || {
            let _ = std::io::stdin().read(&mut [0]);
            std::process::exit(0);
        };
        let started = std::thread::Builder::new().name("tensor-input".into()).spawn(watch);
        started.map_err(|source| gnnflow_data::Error::Threads { what: "the thread that watches the input", source })?;
    }
    let service = Service { guard: Arc::new(guard), serves: Serves::Tasks(Arc::clone(&tasks)) };
    let serving = serve(listener, service);
    let Some(post) = limits.post else {
        return runtime.block_on(serving).map_err(|error| PipelineError::Machine(error).into());
    };
    runtime.spawn(serving);
    let ended = runtime.block_on(enlist(&post, local, secret, &told));
    runtime.shutdown_background();
    ended?;
    told(&format!("the run at {} is over: {} tasks were done here", post.at, tasks.done()))
}

/// A socket that listens, and where.
pub(super) fn bound(addresses: &[SocketAddr]) -> std::io::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(addresses)?;
    listener.set_nonblocking(true)?;
    let local = listener.local_addr()?;
    Ok((listener, local))
}

/// Serves on a listening socket until the end.
pub(super) async fn serve(listener: TcpListener, service: Service) -> Result<(), String> {
    let listener = tokio::net::TcpListener::from_std(listener).map_err(|error| error.to_string())?;
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    let server = Server::builder().initial_stream_window_size(1 << 20).initial_connection_window_size(4 << 20);
    let mut server = server;
    let served = server.add_service(FlightServiceServer::new(service)).serve_with_incoming(incoming).await;
    served.map_err(|error| format!("a tensor worker's server ended: {error}"))
}
