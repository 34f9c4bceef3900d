//! A row matrix whose rows arrive in any order.
//!
//! Its memory is not filled with zeros first, which would cost as much as writing the rows. The buffer remembers which rows have
//! been written, and in the end fills only the others with zeros.

use half::{bf16, f16};

use gnnflow_kernels::dense::gather::for_each_ahead;
use gnnflow_kernels::matrix::{Matrix, Number, Values};

/// A matrix, some of whose rows have been written.
pub(crate) struct GatherBuffer {
    /// A vector of length 0 with capacity for all rows.
    values: Values,
    dim: usize,
    row_bytes: usize,
    rows: usize,
    /// A bit for each row.
    written: Vec<u64>,
}

impl GatherBuffer {
    /// Reserves memory for `rows` rows, none of which are written.
    pub(crate) fn new(number: Number, rows: usize, dim: usize) -> Self {
        let values = match number {
            Number::F32 => Values::F32(Vec::with_capacity(rows * dim)),
            Number::F16 => Values::F16(Vec::with_capacity(rows * dim)),
            Number::Bf16 => Values::Bf16(Vec::with_capacity(rows * dim)),
        };
        Self { values, dim, row_bytes: number.bytes() * dim, rows, written: vec![0; rows.div_ceil(64)] }
    }

    fn start(&mut self) -> *mut u8 {
        match &mut self.values {
            Values::F32(values) => values.as_mut_ptr().cast(),
            Values::F16(values) => values.as_mut_ptr().cast(),
            Values::Bf16(values) => values.as_mut_ptr().cast(),
        }
    }

    /// Writes row `position`.
    ///
    /// # Panics
    /// When there is no such row, or `row` has another length.
    #[inline]
    pub(crate) fn put(&mut self, position: usize, row: &[u8]) {
        assert!(position < self.rows, "row {position} of {}", self.rows);
        assert_eq!(row.len(), self.row_bytes, "a row has another length");
        // SAFETY: `rows` rows of `row_bytes` bytes (the element's size times `dim`) fit, and `position` is one of them;
        // `row` cannot overlap memory that only this vector owns, and that nothing borrows while `self` is borrowed mutably.
        unsafe { std::ptr::copy_nonoverlapping(row.as_ptr(), self.start().add(position * self.row_bytes), row.len()) };
        self.written[position / 64] |= 1 << (position % 64);
    }

    /// Writes `row_of(ids[position])` to row `position`, for each of `positions`.
    pub(crate) fn gather<'a>(&mut self, row_of: impl Fn(u32) -> &'a [u8], ids: &[u32], positions: &[u32]) {
        let row_at = |i: usize| row_of(ids[positions[i] as usize]);
        for_each_ahead(self.row_bytes, positions.len(), row_at, |i, row| self.put(positions[i] as usize, row));
    }

    /// Writes consecutive `rows` to the rows `positions`.
    ///
    /// # Panics
    /// Unless there is one row for each position.
    pub(crate) fn scatter(&mut self, rows: &[u8], positions: &[u32]) {
        assert_eq!(rows.len(), positions.len() * self.row_bytes, "one row per position");
        if self.row_bytes > 0 {
            let rows = rows.chunks_exact(self.row_bytes).zip(positions);
            rows.for_each(|(row, &position)| self.put(position as usize, row));
        }
    }

    /// Returns row `position` if it has been written.
    pub(crate) fn row(&self, position: usize) -> Option<&[u8]> {
        let start: *const u8 = match &self.values {
            Values::F32(values) => values.as_ptr().cast(),
            Values::F16(values) => values.as_ptr().cast(),
            Values::Bf16(values) => values.as_ptr().cast(),
        };
        let written = position < self.rows && self.written[position / 64] >> (position % 64) & 1 == 1;
        // SAFETY: the row lies within the reserved memory, and `put` has written all of its bytes.
        written.then(|| unsafe { std::slice::from_raw_parts(start.add(position * self.row_bytes), self.row_bytes) })
    }

    /// Returns the matrix. Rows that were not written are zeros.
    pub(crate) fn finish(mut self) -> Matrix {
        let start = self.start();
        for position in 0..self.rows {
            if self.written[position / 64] == u64::MAX {
                continue;
            }
            if self.written[position / 64] >> (position % 64) & 1 == 0 {
                // SAFETY: as in `put`.
                unsafe { std::ptr::write_bytes(start.add(position * self.row_bytes), 0, self.row_bytes) };
            }
        }
        fn whole<T>(mut values: Vec<T>, len: usize) -> Vec<T> {
            debug_assert!(values.capacity() >= len);
            // SAFETY: room for `len` was reserved, and every row has been written, by `put` or just now; any bytes are an f32,
            // f16 or bf16.
            unsafe { values.set_len(len) };
            values
        }
        let len = self.rows * self.dim;
        let values = match self.values {
            Values::F32(values) => Values::F32(whole::<f32>(values, len)),
            Values::F16(values) => Values::F16(whole::<f16>(values, len)),
            Values::Bf16(values) => Values::Bf16(whole::<bf16>(values, len)),
        };
        Matrix { values, dim: self.dim }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_rows_are_returned_and_all_others_are_zeros() {
        for rows in [0, 1, 63, 64, 65, 200] {
            let mut buffer = GatherBuffer::new(Number::F32, rows, 2);
            let row = |position: usize| [position as f32, -1.0];
            let chosen = |position: &usize| position % 3 != 1;
            (0..rows).rev().filter(chosen).for_each(|i| buffer.put(i, bytemuck::cast_slice(&row(i))));
            assert!((0..rows).all(|position| buffer.row(position).is_some() == chosen(&position)));
            assert!(buffer.row(rows).is_none());
            let expected: Vec<f32> =
                (0..rows).flat_map(|position| if chosen(&position) { row(position) } else { [0.0; 2] }).collect();
            assert_eq!(buffer.finish(), Matrix { values: Values::F32(expected), dim: 2 });
        }
    }

    #[test]
    fn half_rows_are_gathered_and_scattered() {
        let stored: Vec<f16> = (0..8u8).map(|i| f16::from_f32(f32::from(i))).collect();
        let bytes: &[u8] = bytemuck::cast_slice(&stored);
        let mut buffer = GatherBuffer::new(Number::F16, 3, 2);
        buffer.gather(|id| &bytes[4 * id as usize..][..4], &[3, 0, 1], &[2, 0]);
        buffer.scatter(&bytes[8..12], &[1]);
        let expected = [6, 7, 4, 5, 2, 3].map(|i| f16::from_f32(i as f32)).to_vec();
        assert_eq!(buffer.finish().values, Values::F16(expected));
    }

    #[test]
    #[should_panic(expected = "row 4 of 4")]
    fn a_row_beyond_the_last_is_refused() {
        GatherBuffer::new(Number::Bf16, 4, 1).put(4, &[0, 0]);
    }
}
