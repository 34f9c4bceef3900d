//! The handshake: each side sends one message, which proves that it knows the secret.
//!
//! ```text
//! dialer → listener   ephemeral key, payload      encrypted with the secret
//! listener → dialer   ephemeral key, payload      encrypted with the secret and both ephemeral keys
//! ```
//!
//! A recorded first message can be sent again by others. So the listener knows that the dialer has the secret only when it has decrypted
//! a record of the dialer.

use std::io;
use std::sync::Arc;

use snow::{Builder, HandshakeState};

use super::records::{Channel, Opener, Sealer};

/// The key that both sides derive from the shared secret.
pub(crate) type Key = [u8; 32];

const PATTERN: &str = "Noise_NNpsk0_25519_AESGCM_SHA256";
/// Maximum bytes of a payload.
const MAX_PAYLOAD: usize = 1 << 10;
/// Bytes that a message has in addition to its payload: an ephemeral key and a tag.
const ADDED: usize = 32 + 16;

/// One side of a handshake.
#[derive(Debug)]
pub(crate) struct Handshake(HandshakeState);

impl Handshake {
    /// Begins a handshake as the side that has opened the connection. The `prologue` must be equal on both sides; it is not sent.
    pub(crate) fn dialer(key: &Key, prologue: &[u8]) -> Self {
        let state = builder(key, prologue).and_then(Builder::build_initiator);
        Handshake(state.expect("the pattern needs a pre-shared key only"))
    }

    /// Begins a handshake as the side that has accepted the connection.
    pub(crate) fn listener(key: &Key, prologue: &[u8]) -> Self {
        let state = builder(key, prologue).and_then(Builder::build_responder);
        Handshake(state.expect("the pattern needs a pre-shared key only"))
    }

    /// Returns this side's message.
    ///
    /// # Errors
    /// If the system gives no random bytes.
    pub(crate) fn write(&mut self, payload: &[u8]) -> io::Result<Vec<u8>> {
        debug_assert!(payload.len() <= MAX_PAYLOAD);
        let mut message = vec![0; payload.len() + ADDED];
        let length = self.0.write_message(payload, &mut message).map_err(io::Error::other)?;
        message.truncate(length);
        Ok(message)
    }

    /// Reads the other side's message and returns its payload; `None` if the other side has another secret or prologue, or if the message
    /// was changed.
    pub(crate) fn read(&mut self, message: &[u8]) -> Option<Vec<u8>> {
        if message.len() > MAX_PAYLOAD + ADDED {
            return None;
        }
        let mut payload = vec![0; message.len()];
        let length = self.0.read_message(message, &mut payload).ok()?;
        payload.truncate(length);
        Some(payload)
    }

    /// Returns the two directions of the connection, after both messages.
    ///
    /// # Errors
    /// If a message is missing.
    pub(crate) fn finish(self) -> io::Result<Channel> {
        let keys = Arc::new(self.0.into_stateless_transport_mode().map_err(io::Error::other)?);
        Ok(Channel { seal: Sealer::new(keys.clone()), open: Opener::new(keys) })
    }
}

fn builder<'a>(key: &'a Key, prologue: &'a [u8]) -> Result<Builder<'a>, snow::Error> {
    Builder::new(PATTERN.parse()?).psk(0, key)?.prologue(prologue)
}

#[cfg(test)]
mod tests {
    use super::super::records::Records;
    use super::*;

    /// Returns the dialer and the listener after the dialer's message.
    fn begun(keys: [Key; 2], prologues: [&[u8]; 2]) -> (Handshake, Handshake, Option<Vec<u8>>) {
        let (mut dialer, mut listener) =
            (Handshake::dialer(&keys[0], prologues[0]), Handshake::listener(&keys[1], prologues[1]));
        let read = listener.read(&dialer.write(b"hello").unwrap());
        (dialer, listener, read)
    }

    #[test]
    fn both_sides_prove_the_secret() {
        let (mut dialer, mut listener, read) = begun([[1; 32]; 2], [b"rank 1"; 2]);
        assert_eq!(read.as_deref(), Some(&b"hello"[..]));
        let answer = listener.write(b"").unwrap();
        assert_eq!(dialer.read(&answer), Some(Vec::new()));
        let (Channel { mut seal, .. }, Channel { mut open, .. }) =
            (dialer.finish().unwrap(), listener.finish().unwrap());
        let mut records = Records::default();
        seal.seal(b"data", &mut records).unwrap();
        assert_eq!(open.open_one(&mut records.unsent()).unwrap(), b"data");
    }

    #[test]
    fn other_secrets_prologues_and_changed_messages_are_refused() {
        assert_eq!(begun([[1; 32], [2; 32]], [b"rank 1"; 2]).2, None);
        assert_eq!(begun([[1; 32]; 2], [b"rank 1", b"rank 2"]).2, None);
        for byte in 0..ADDED {
            let (mut dialer, mut listener, _) = begun([[1; 32]; 2], [b""; 2]);
            let mut answer = listener.write(b"").unwrap();
            answer[byte] ^= 1;
            assert_eq!(dialer.read(&answer), None, "byte {byte}");
        }
        // The dialer's own message, sent back.
        let mut dialer = Handshake::dialer(&[1; 32], b"");
        let own = dialer.write(b"").unwrap();
        assert_eq!(dialer.read(&own), None);
        assert_eq!(Handshake::listener(&[1; 32], b"").read(&[0; 1 << 20]), None);
    }

    #[test]
    fn recorded_messages_give_no_keys() {
        let (mut dialer, mut listener) = (Handshake::dialer(&[1; 32], b""), Handshake::listener(&[1; 32], b""));
        let first = dialer.write(b"").unwrap();
        listener.read(&first).unwrap();
        dialer.read(&listener.write(b"").unwrap()).unwrap();
        let mut records = Records::default();
        dialer.finish().unwrap().seal.seal(b"claim", &mut records).unwrap();
        assert_eq!(listener.finish().unwrap().open.open_one(&mut records.unsent()).unwrap(), b"claim");
        // A later connection accepts the recorded first message, but not the recorded record.
        let mut later = Handshake::listener(&[1; 32], b"");
        assert!(later.read(&first).is_some());
        later.write(b"").unwrap();
        let error = later.finish().unwrap().open.open_one(&mut records.unsent()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}
