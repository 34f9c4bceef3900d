//! Checksums of rows in files. They find rows that have changed on disk.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::array::Array;

/// The checksums of the rows in a file, in a file beside it. A row is compared with its checksum when it is first read.
pub(super) struct RowChecks {
    /// The CRC-32 of each row.
    sums: Array<u32>,
    /// A bit for each row: it has been compared, or written since.
    known: Vec<AtomicU64>,
    damaged: AtomicBool,
}

/// Returns the file of the checksums of the rows in `rows`.
pub fn sums_file(rows: &Path) -> PathBuf {
    rows.with_extension("crc32")
}

/// Returns the checksum of a row.
#[inline]
pub fn checksum(row: &[f32]) -> u32 {
    crc32fast::hash(bytemuck::cast_slice(row))
}

impl RowChecks {
    /// Uses these checksums for as many rows.
    pub(super) fn new(sums: Array<u32>) -> Self {
        let known = (0..sums.len().div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Self { sums, known, damaged: AtomicBool::new(false) }
    }

    /// Compares a row that is read with its checksum, if it has not been compared yet.
    #[inline]
    pub(super) fn check(&self, row: usize, numbers: &[f32]) {
        let (word, bit) = (&self.known[row / 64], 1 << (row % 64));
        if word.load(Ordering::Relaxed) & bit == 0 {
            if checksum(numbers) == self.sums[row] {
                word.fetch_or(bit, Ordering::Relaxed);
            } else {
                self.damaged.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Sets the checksum of a row that has been written.
    pub(super) fn set(&mut self, row: usize, numbers: &[f32]) {
        self.sums[row] = checksum(numbers);
        *self.known[row / 64].get_mut() |= 1 << (row % 64);
    }

    /// Whether a row that was read differs from its checksum.
    pub(super) fn damaged(&self) -> bool {
        self.damaged.load(Ordering::Relaxed)
    }

    /// Returns the number of bytes reserved for checksums.
    pub(super) fn reserved(&self) -> u64 {
        4 * self.sums.len() as u64
    }

    /// Waits until the checksums are on disk.
    pub(super) fn sync(&self) -> std::io::Result<()> {
        self.sums.sync()
    }
}
