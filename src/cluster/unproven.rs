//! Connections that have not proven the secret yet: their number is limited.

use std::collections::VecDeque;
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Maximum number of connections that have not proven the secret. If there are more, the oldest are closed, so that members need not
/// wait for the time limits of silent ones.
const MAX_UNPROVEN: usize = 256;

/// The accepted connections of a listener that have not proven the secret.
#[derive(Debug, Default)]
pub(super) struct Unproven {
    /// With the number of their handshake.
    connections: Mutex<VecDeque<(u64, Arc<TcpStream>)>>,
    handshakes: AtomicU64,
}

impl Unproven {
    fn connections(&self) -> MutexGuard<'_, VecDeque<(u64, Arc<TcpStream>)>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.connections().is_empty()
    }

    /// Adds a connection, and closes the oldest one if there are too many. Returns the number of its handshake.
    pub(super) fn add(&self, stream: &Arc<TcpStream>) -> std::io::Result<u64> {
        stream.set_nonblocking(false)?;
        let number = self.handshakes.fetch_add(1, Ordering::Relaxed);
        let mut connections = self.connections();
        connections.push_back((number, Arc::clone(stream)));
        if connections.len() > MAX_UNPROVEN
            && let Some((_, oldest)) = connections.pop_front()
        {
            let _ = oldest.shutdown(Shutdown::Both);
        }
        Ok(number)
    }

    /// Keeps a connection from being closed, because it has proven the secret or has ended.
    pub(super) fn remove(&self, number: u64) {
        self.connections().retain(|(other, _)| *other != number);
    }
}
