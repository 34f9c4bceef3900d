//! The connections of a server: clients that have not proven the secret never reach HTTP/2.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tonic::transport::server::Connected;

use super::handshake::{HANDSHAKE_TIMEOUT, HandshakeError, accept};
use crate::cluster::Secret;
use crate::encryption::Stream;

/// Maximum number of connections in their handshake. If there are more, the oldest are closed, so that members need not wait for the
/// time limits of silent ones.
const MAX_HANDSHAKES: usize = 256;
/// Maximum number of log lines about refused clients.
const MAX_WARNINGS: u32 = 20;
/// Time after an error of the listener, which is that of a client or temporary.
const PAUSE: Duration = Duration::from_millis(20);

impl Connected for Stream {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

/// Accepts connections until the receiver is dropped, and sends those of clients that have proven the secret. Errors of the listener are
/// those of clients, or temporary.
pub(super) fn authenticated(listener: TcpListener, secret: Option<Secret>) -> mpsc::Receiver<io::Result<Stream>> {
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        let (secret, refused) = (Arc::new(secret), Arc::new(AtomicU32::new(0)));
        let (mut handshakes, mut reported): (VecDeque<AbortHandle>, bool) = (VecDeque::new(), false);
        while !sender.is_closed() {
            let (socket, from) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    if !std::mem::replace(&mut reported, true) {
                        tracing::warn!("cannot accept a connection: {error}; trying again");
                    }
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            handshakes.retain(|handshake| !handshake.is_finished());
            if handshakes.len() == MAX_HANDSHAKES
                && let Some(oldest) = handshakes.pop_front()
            {
                oldest.abort();
            }
            let (secret, refused, sender) = (Arc::clone(&secret), Arc::clone(&refused), sender.clone());
            let handshake = tokio::spawn(async move {
                match in_time(socket, secret.as_ref().as_ref()).await {
                    // A task of its own, which is not closed as a handshake.
                    Ok(stream) => drop(tokio::spawn(async move { sender.send(Ok(stream)).await })),
                    Err(error) => log_refusal(&refused, from, &error),
                }
            });
            handshakes.push_back(handshake.abort_handle());
        }
    });
    receiver
}

async fn in_time(socket: TcpStream, secret: Option<&Secret>) -> Result<Stream, HandshakeError> {
    socket.set_nodelay(true)?;
    let accepted = tokio::time::timeout(HANDSHAKE_TIMEOUT, accept(socket, secret)).await;
    accepted.unwrap_or_else(|_| Err(HandshakeError::Lost("sent no complete handshake in time".to_owned())))
}

/// Logs that a client has been refused, a limited number of times.
fn log_refusal(refused: &AtomicU32, from: SocketAddr, error: &HandshakeError) {
    let why = match error {
        HandshakeError::WrongSecret | HandshakeError::WrongProof => "showed a wrong secret",
        HandshakeError::Version(text) | HandshakeError::Lost(text) => text,
    };
    if refused.fetch_add(1, Ordering::Relaxed) < MAX_WARNINGS {
        tracing::warn!("refused a connection from {from}: it {why}");
    }
}
