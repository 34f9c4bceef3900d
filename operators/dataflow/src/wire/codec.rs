//! Encodings of blocks. A process writes one of them; the first word of every block names it.

use std::sync::atomic::{AtomicU32, Ordering};

#[cfg(feature = "abomonation")]
pub(super) mod abomonation;

/// An encoding of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Codec {
    /// Sections as they are, read in place. The default.
    Plain = 0,
    /// The encoding of the `abomonation` crate, which is unsound upstream. The module lists the checks that guard it.
    #[cfg(feature = "abomonation")]
    Abomonation = 1,
}

static CHOSEN: AtomicU32 = AtomicU32::new(Codec::Plain as u32);

/// Sets the encoding that this process writes. All encodings can be read at any time.
pub fn set_codec(codec: Codec) {
    CHOSEN.store(codec as u32, Ordering::Relaxed);
}

/// Returns the encoding that this process writes.
pub fn codec() -> Codec {
    match CHOSEN.load(Ordering::Relaxed) {
        #[cfg(feature = "abomonation")]
        chosen if chosen == Codec::Abomonation as u32 => Codec::Abomonation,
        _ => Codec::Plain,
    }
}
