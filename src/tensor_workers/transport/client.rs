//! A Flight client on an authenticated connection.

use std::io;
use std::time::Duration;

use arrow_flight::flight_service_client::FlightServiceClient;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

use super::handshake::{HANDSHAKE_TIMEOUT, HandshakeError, dial};
use super::{CONNECTION_WINDOW, FRAME_BYTES, STREAM_WINDOW};
use crate::cluster::Secret;

/// Time limit for an address of a name to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// A connection could not be made, or was lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ConnectError {
    /// A later attempt would fail in the same way.
    Refused(String),
    /// A later attempt may succeed.
    Lost(String),
}

impl ConnectError {
    /// Makes the error of a status.
    pub(super) fn of(status: &Status) -> Self {
        use tonic::Code::{FailedPrecondition, InvalidArgument, Unimplemented};
        match status.code() {
            FailedPrecondition | InvalidArgument | Unimplemented => Self::Refused(describe(status)),
            _ => Self::Lost(describe(status)),
        }
    }
}

impl From<HandshakeError> for ConnectError {
    fn from(error: HandshakeError) -> Self {
        match error {
            HandshakeError::WrongSecret => Self::Refused("says that this process has a wrong secret".to_owned()),
            HandshakeError::WrongProof => Self::Refused("proved a wrong secret".to_owned()),
            HandshakeError::Version(text) => Self::Refused(text),
            HandshakeError::Lost(text) => Self::Lost(text),
        }
    }
}

impl From<ConnectError> for String {
    fn from(error: ConnectError) -> Self {
        match error {
            ConnectError::Refused(text) | ConnectError::Lost(text) => text,
        }
    }
}

/// A Flight client of a server that has proven the secret.
pub(super) type Client = FlightServiceClient<Channel>;

/// Connects to `address` and makes the handshake. A lost connection is not made again. `encrypt` is the user's choice.
///
/// # Errors
/// If the server cannot be reached, refuses this client, or fails to prove the secret.
pub(super) async fn connect(
    address: &str,
    secret: Option<&Secret>,
    encrypt: Option<bool>,
    limit: Duration,
) -> Result<Client, ConnectError> {
    let connected = tokio::time::timeout(limit.min(HANDSHAKE_TIMEOUT), open(address, secret, encrypt)).await;
    connected.unwrap_or_else(|_| Err(ConnectError::Lost("did not answer the handshake in time".to_owned())))
}

async fn open(address: &str, secret: Option<&Secret>, encrypt: Option<bool>) -> Result<Client, ConnectError> {
    let unreachable = |error: &dyn std::error::Error| ConnectError::Lost(format!("cannot be reached: {}", root(error)));
    let socket = reach(address).await.map_err(|error| unreachable(&error))?;
    let mut stream = Some(TokioIo::new(dial(socket, secret, encrypt).await?));
    let endpoint = Endpoint::from_shared(format!("http://{address}"));
    let endpoint = endpoint.map_err(|error| ConnectError::Refused(error.to_string()))?;
    let endpoint = endpoint.initial_stream_window_size(STREAM_WINDOW).max_frame_size(FRAME_BYTES);
    let endpoint = endpoint.initial_connection_window_size(CONNECTION_WINDOW);
    let connector = tower::service_fn(move |_| {
        let stream = stream.take().ok_or_else(|| io::Error::other("the connection was lost"));
        std::future::ready(stream)
    });
    let channel = endpoint.connect_with_connector(connector).await.map_err(|error| unreachable(&error))?;
    Ok(Client::new(channel))
}

/// Opens a connection to the first address of a name that answers.
async fn reach(address: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "its host name has no address");
    for target in tokio::net::lookup_host(address).await? {
        match tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(target)).await {
            Ok(Ok(socket)) => {
                socket.set_nodelay(true)?;
                return Ok(socket);
            }
            Ok(Err(error)) => last = error,
            Err(_) => last = io::Error::new(io::ErrorKind::TimedOut, format!("{target} does not answer")),
        }
    }
    Err(last)
}

/// Describes a status as a predicate of the server.
pub(super) fn describe(status: &Status) -> String {
    match (status.code(), status.message()) {
        (tonic::Code::FailedPrecondition | tonic::Code::InvalidArgument, message) => {
            format!("refused: {}", message.chars().take(300).collect::<String>())
        }
        (tonic::Code::Unimplemented, _) => "does not speak gnnflow's tensor-worker protocol".to_owned(),
        // The HTTP/2 library's text has its cause, such as changed bytes, in the source.
        (_, message) if message.starts_with("h2 protocol error") => root(status),
        (_, message) => message.chars().take(300).collect(),
    }
}

/// Returns the innermost cause of an error.
fn root(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => root(source),
        None => error.to_string(),
    }
}
