//! Values of the split column.

/// In no split.
pub const NONE: u8 = 0;
/// Training.
pub const TRAIN: u8 = 1;
/// Validation.
pub const VAL: u8 = 2;
/// Test.
pub const TEST: u8 = 3;
