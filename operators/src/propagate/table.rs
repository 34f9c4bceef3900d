//! Rows of numbers by own node, and behind them the ghost buffer.

use std::ops::Range;

use super::array::{Array, Place};

/// `[rows, width]` of `f32`.
#[derive(Debug)]
pub struct Table {
    values: Array<f32>,
    width: usize,
    rows: usize,
}

impl Table {
    /// Rows of zeros.
    ///
    /// # Errors
    /// When there is no room.
    pub fn zeros(rows: usize, width: usize, place: &Place) -> std::io::Result<Self> {
        let len = rows.checked_mul(width).ok_or(std::io::ErrorKind::OutOfMemory)?;
        Ok(Self { values: Array::zeros(len, place)?, width, rows })
    }

    /// Numbers in a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// How many rows there are.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// All rows, one after another.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Some rows.
    ///
    /// # Panics
    /// When there are not so many.
    pub fn some(&self, rows: Range<usize>) -> &[f32] {
        &self.values[rows.start * self.width..rows.end * self.width]
    }

    /// Some rows, to be written.
    ///
    /// # Panics
    /// When there are not so many.
    pub fn some_mut(&mut self, rows: Range<usize>) -> &mut [f32] {
        &mut self.values[rows.start * self.width..rows.end * self.width]
    }

    /// Columns `columns` of some rows, copied.
    ///
    /// # Panics
    /// When there are not so many.
    pub fn columns(&self, rows: Range<usize>, columns: Range<usize>) -> Vec<f32> {
        if columns == (0..self.width) {
            return self.some(rows).to_vec();
        }
        self.some(rows).chunks_exact(self.width.max(1)).flat_map(|row| &row[columns.clone()]).copied().collect()
    }
}
