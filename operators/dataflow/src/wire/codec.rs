//! How blocks are written: a choice of the process, named in every block's first word.

use std::sync::atomic::{AtomicU32, Ordering};

#[cfg(feature = "abomonation")]
pub(super) mod abomonation;

/// A way of writing blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Codec {
    /// Sections as they are, read in place: the default.
    Plain = 0,
    /// The `abomonation` crate's; unsound upstream, see the module for what guards it.
    #[cfg(feature = "abomonation")]
    Abomonation = 1,
}

static CHOSEN: AtomicU32 = AtomicU32::new(Codec::Plain as u32);

/// Chooses how this process writes blocks; all can be read at any time.
pub fn set_codec(codec: Codec) {
    CHOSEN.store(codec as u32, Ordering::Relaxed);
}

/// How this process writes blocks.
pub fn codec() -> Codec {
    match CHOSEN.load(Ordering::Relaxed) {
        #[cfg(feature = "abomonation")]
        chosen if chosen == Codec::Abomonation as u32 => Codec::Abomonation,
        _ => Codec::Plain,
    }
}

/// The codec that a block says it was written with; what is no block is left for the plain decoder to refuse.
pub(super) fn of(bytes: &[u8]) -> Codec {
    match bytes.get(4..8) {
        #[cfg(feature = "abomonation")]
        Some([1, 0, 0, 0]) => Codec::Abomonation,
        _ => Codec::Plain,
    }
}
