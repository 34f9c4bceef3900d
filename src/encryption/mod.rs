//! Authenticated and encrypted connections, by the [Noise protocol](https://noiseprotocol.org) with the run's shared secret.
//!
//! | file | content |
//! |---|---|
//! | `handshake` | two messages by which both sides prove the secret and agree on keys |
//! | `records` | encryption of bytes in both directions, without a socket |
//! | `link` | a blocking TCP connection, for timely and for heartbeats |
//! | `traffic` | the bytes of connections |
//! | `stream` | a TCP connection of tokio, for tensor workers |
//!
//! The pattern is `Noise_NNpsk0_25519_AESGCM_SHA256`. Each connection has fresh keys: a secret that becomes known later does not
//! decrypt recorded connections. Records are numbered. A record that is changed, repeated, omitted or moved is an error.
//!
//! A connection may carry plain bytes after the handshake; both sides must have agreed on that in the handshake.

mod handshake;
mod link;
mod records;
#[cfg(feature = "tensor-workers")]
mod stream;
mod traffic;

pub(crate) use handshake::{Handshake, Key};
pub(crate) use link::Link;
#[cfg(feature = "tensor-workers")]
pub(crate) use records::Sealer;
pub(crate) use records::{CHANGED, Channel, Records};
#[cfg(feature = "tensor-workers")]
pub(crate) use stream::Stream;
pub(crate) use traffic::Traffic;
