//! How timely sends blocks: the encoding of each block that is written, and of each one that is read.

use std::io::Write;

use timely::bytes::arc::Bytes;
use timely::dataflow::channels::ContainerBytes;

use super::block::WireBlock;
#[cfg(feature = "abomonation")]
use super::codec::abomonation;
use super::codec::{Codec, codec};

/// Returns the encoding of a block. The plain decoder refuses bytes that are no block.
fn of(bytes: &[u8]) -> Codec {
    match bytes.get(4..8) {
        #[cfg(feature = "abomonation")]
        Some([1, 0, 0, 0]) => Codec::Abomonation,
        _ => Codec::Plain,
    }
}

impl ContainerBytes for WireBlock {
    /// # Panics
    /// When the bytes are no block. Peers are authenticated and messages are framed, so this is a bug.
    fn from_bytes(bytes: Bytes) -> Self {
        let decoded = match of(&bytes) {
            Codec::Plain => Self::decode_plain(bytes),
            #[cfg(feature = "abomonation")]
            Codec::Abomonation => abomonation::decode(&bytes),
        };
        decoded.unwrap_or_else(|reason| panic!("wire block: {reason}"))
    }

    fn length_in_bytes(&self) -> usize {
        match codec() {
            Codec::Plain => self.wire_bytes(),
            #[cfg(feature = "abomonation")]
            Codec::Abomonation => abomonation::encoded_len(self),
        }
    }

    fn into_bytes<W: Write>(&self, writer: &mut W) {
        let written = match codec() {
            Codec::Plain => self.encode_plain(writer),
            #[cfg(feature = "abomonation")]
            Codec::Abomonation => abomonation::encode(self, writer),
        };
        written.expect("timely provides a buffer of `length_in_bytes`");
    }
}
