//! What crosses processes: one flat container, routed whole.
//!
//! Timely's default serialization is several times slower than a flat layout (bincode against plain bytes), and
//! per-record routing touches every row. A [`WireBlock`] is a header, two columns and one row matrix; it knows its
//! destination and is pushed there in one piece.

mod block;
mod codec;
pub mod meter;
mod route;

pub use block::{Header, Rows, WireBlock};
pub use codec::{Codec, codec, set_codec};
pub use route::{WholeBlock, to_destination};

/// How many payload bytes a message should have at most: one connection carries everything in order, so a large
/// message delays the small ones behind it.
pub const MESSAGE_BYTES: usize = 256 << 10;
