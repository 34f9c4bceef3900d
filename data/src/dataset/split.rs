//! Values of the split column.

/// In no split.
pub const NONE: u8 = 0;
/// Training.
pub const TRAIN: u8 = 1;
/// Validation.
pub const VAL: u8 = 2;
/// Test.
pub const TEST: u8 = 3;

/// Returns the split of a name in a dump; a missing name is in no split. Returns `None` for another word.
pub(crate) fn named(name: Option<&str>) -> Option<u8> {
    match name {
        None | Some("" | "none") => Some(NONE),
        Some("train") => Some(TRAIN),
        Some("val" | "valid" | "validation") => Some(VAL),
        Some("test") => Some(TEST),
        Some(_) => None,
    }
}
