//! Messages between workers: one flat container, [`WireBlock`], routed as a whole.
//!
//! A block is a header, two columns and one row matrix. Its header names the destination worker. Timely's default serialization
//! (bincode) is several times slower than this flat layout, and its exchange routes records one by one.

mod block;
mod codec;
mod container_bytes;
pub mod meter;
mod route;

pub use block::{Header, Rows, WireBlock};
pub use codec::{Codec, codec, set_codec};
pub use route::{WholeBlock, to_destination};

/// The largest payload of a message in bytes. One connection carries all messages in order, so a large message delays the small ones
/// behind it.
pub const MESSAGE_BYTES: usize = 256 << 10;
