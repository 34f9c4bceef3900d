//! A relay between two processes: it sees all bytes, and may change one, delay them, or lose those of the dataflow.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// In each heartbeat of a plain control connection.
const HEARTBEAT: &[u8] = b"Heartbeat";

/// Forwards connections to an address until the test ends.
pub(crate) struct Relay {
    /// The address of the relay.
    pub(crate) address: String,
    state: Arc<State>,
}

struct State {
    seen: Mutex<Vec<u8>>,
    /// Bytes of the client until the one that is changed; negative for none.
    until_change: AtomicI64,
    /// Most bytes per second of a connection in one direction; 0 for no limit.
    limit: AtomicU64,
    /// Whether messages of the dataflow are lost.
    loses: AtomicBool,
}

impl Relay {
    /// Starts a relay to `target`.
    pub(crate) fn to(target: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let until_change = AtomicI64::new(-1);
        let state = State { seen: Mutex::default(), until_change, limit: 0.into(), loses: false.into() };
        let state = Arc::new(state);
        let (target, shared) = (target.to_owned(), Arc::clone(&state));
        std::thread::spawn(move || {
            while let Ok((client, _)) = listener.accept() {
                // The target may not listen yet; the client then tries again.
                let Ok(server) = TcpStream::connect(&target) else { continue };
                let (back, forth) = ((server.try_clone().unwrap(), client.try_clone().unwrap()), (client, server));
                let has_heartbeats = Arc::new(AtomicBool::new(false));
                for (from_client, (from, to)) in [(true, forth), (false, back)] {
                    let (shared, has_heartbeats) = (Arc::clone(&shared), Arc::clone(&has_heartbeats));
                    std::thread::spawn(move || forward(from, to, from_client, &has_heartbeats, &shared));
                }
            }
        });
        Relay { address, state }
    }

    /// Changes one bit of the byte that a client sends after `bytes` other ones, counted from now over all connections.
    pub(crate) fn change_after(&self, bytes: i64) {
        self.state.until_change.store(bytes, Ordering::SeqCst);
    }

    /// From now on, loses all bytes except those of unencrypted control connections, which carry heartbeats.
    pub(crate) fn lose_data(&self) {
        self.state.loses.store(true, Ordering::SeqCst);
    }

    /// Limits the bytes per second of each connection in each direction.
    pub(crate) fn limit_to(&self, bytes_per_second: u64) {
        self.state.limit.store(bytes_per_second, Ordering::SeqCst);
    }

    /// Returns whether `text` passed the relay in clear.
    pub(crate) fn has_seen(&self, text: &str) -> bool {
        let seen = self.state.seen.lock().unwrap();
        assert!(!seen.is_empty(), "nothing passed the relay");
        seen.windows(text.len()).any(|bytes| bytes == text.as_bytes())
    }
}

fn forward(mut from: TcpStream, mut to: TcpStream, from_client: bool, has_heartbeats: &AtomicBool, state: &State) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        let bytes = &mut buffer[..count];
        state.seen.lock().unwrap().extend_from_slice(bytes);
        if bytes.windows(HEARTBEAT.len()).any(|words| words == HEARTBEAT) {
            has_heartbeats.store(true, Ordering::SeqCst);
        }
        if state.loses.load(Ordering::SeqCst) && !has_heartbeats.load(Ordering::SeqCst) {
            continue;
        }
        if from_client {
            let before = state.until_change.load(Ordering::SeqCst);
            if let Ok(place) = usize::try_from(before) {
                state.until_change.store(before - count as i64, Ordering::SeqCst);
                if let Some(byte) = bytes.get_mut(place) {
                    *byte ^= 1;
                    state.until_change.store(-1, Ordering::SeqCst);
                }
            }
        }
        match state.limit.load(Ordering::SeqCst) {
            0 => {}
            limit => std::thread::sleep(Duration::from_secs_f64(count as f64 / limit as f64)),
        }
        if to.write_all(bytes).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
    let _ = from.shutdown(Shutdown::Read);
}
