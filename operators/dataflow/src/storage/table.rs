//! Tables: rows of numbers of own nodes, followed by the ghost buffer.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use bytemuck::Pod;

use super::array::{Array, Place};

/// The size in bytes of all tables of the process.
static ALLOCATED: AtomicU64 = AtomicU64::new(0);

/// A matrix `[rows, width]`.
#[derive(Debug)]
pub struct Table<T: Pod = f32> {
    values: Array<T>,
    width: usize,
    rows: usize,
}

impl Table {
    /// Returns the size in bytes of all tables of this process, in memory and in files.
    pub fn allocated() -> u64 {
        ALLOCATED.load(Ordering::Relaxed)
    }
}

impl<T: Pod> Table<T> {
    /// Reserves rows of zeros.
    ///
    /// # Errors
    /// When memory or disk is full, or the folder is not writable.
    pub fn zeros(rows: usize, width: usize, place: &Place) -> std::io::Result<Self> {
        let len = rows.checked_mul(width).ok_or(std::io::ErrorKind::OutOfMemory)?;
        let table = Self { values: Array::zeros(len, place)?, width, rows };
        ALLOCATED.fetch_add(table.bytes(), Ordering::Relaxed);
        Ok(table)
    }

    /// Returns the number of columns.
    #[inline]
    pub fn width(&self) -> usize {
        self.width
    }

    /// Returns the number of rows.
    #[inline]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the size of all rows in bytes.
    pub fn bytes(&self) -> u64 {
        size_of_val(self.values()) as u64
    }

    /// Returns all rows.
    pub fn values(&self) -> &[T] {
        &self.values
    }

    /// Returns a range of rows.
    ///
    /// # Panics
    /// When the range exceeds the table.
    pub fn some(&self, rows: Range<usize>) -> &[T] {
        &self.values[rows.start * self.width..rows.end * self.width]
    }

    /// Returns a range of rows for writing.
    ///
    /// # Panics
    /// When the range exceeds the table.
    pub fn some_mut(&mut self, rows: Range<usize>) -> &mut [T] {
        &mut self.values[rows.start * self.width..rows.end * self.width]
    }

    /// Copies some columns of a range of rows.
    ///
    /// # Panics
    /// When a range exceeds the table.
    pub fn columns(&self, rows: Range<usize>, columns: Range<usize>) -> Vec<T> {
        if columns == (0..self.width) {
            return self.some(rows).to_vec();
        }
        self.some(rows).chunks_exact(self.width.max(1)).flat_map(|row| &row[columns.clone()]).copied().collect()
    }
}

impl<T: Pod> Drop for Table<T> {
    fn drop(&mut self) {
        ALLOCATED.fetch_sub(self.bytes(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_and_columns_equal_plain_lists() {
        let folder = tempfile::tempdir().unwrap();
        for place in [Place::Memory, Place::Folder(folder.path().to_owned())] {
            for (rows, width) in [(0, 3), (1, 1), (7, 5), (4, 0)] {
                let mut table: Table = Table::zeros(rows, width, &place).unwrap();
                assert!(table.values().iter().all(|&x| x == 0.0));
                let mut plain = vec![vec![0.0f32; width]; rows];
                for (row, plain) in plain.iter_mut().enumerate() {
                    plain.iter_mut().enumerate().for_each(|(column, x)| *x = (row * 100 + column) as f32);
                    table.some_mut(row..row + 1).copy_from_slice(plain);
                }
                assert_eq!((table.rows(), table.width(), table.bytes()), (rows, width, 4 * (rows * width) as u64));
                assert!(Table::allocated() >= table.bytes());
                assert_eq!(table.values(), plain.concat());
                for first in 0..=rows {
                    for end in first..=rows {
                        assert_eq!(table.some(first..end), plain[first..end].concat());
                        for columns in [0..width, 0..width / 2, width / 2..width] {
                            let cut: Vec<f32> =
                                plain[first..end].iter().flat_map(|row| row[columns.clone()].to_vec()).collect();
                            assert_eq!(table.columns(first..end, columns), cut);
                        }
                    }
                }
            }
        }
        assert!(Table::<f32>::zeros(usize::MAX, 2, &Place::Memory).is_err(), "the size overflows");
    }
}
