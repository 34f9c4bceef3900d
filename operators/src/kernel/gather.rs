//! Rows by id: feature rows gathered into a buffer, and received rows put where they belong.
//!
//! A row is bytes: the element type (f32, f16, bf16, …) does not matter to moving it. Ids jump about, so the rows to
//! come are asked for while one is copied. A result larger than the caches is written past them (non-temporal stores):
//! it would only push out rows that are about to be read.

use super::prefetch;

/// Bytes of rows asked for ahead of the copy.
const AHEAD_BYTES: usize = 4096;
/// From this size on a result is written past the caches.
const STREAM_BYTES: usize = 4 << 20;
const LINE: usize = 64;

/// The rows of consecutive nodes: a partition's feature matrix, in place.
///
/// ```
/// use gnnflow_operators::kernel::gather::{Matrix, gather_rows};
///
/// // Nodes 10, 11 and 12; two bytes each.
/// let matrix = Matrix::new(10, 2, &[1, 1, 2, 2, 3, 3]);
/// let mut out = [0; 4];
/// gather_rows(matrix, &[12, 10], &mut out);
/// assert_eq!(out, [3, 3, 1, 1]);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    first: u32,
    row_bytes: usize,
    bytes: &'a [u8],
}

impl<'a> Matrix<'a> {
    /// The rows, `row_bytes` each, of nodes `first..`.
    ///
    /// # Panics
    /// When `bytes` are not whole rows.
    pub fn new(first: u32, row_bytes: usize, bytes: &'a [u8]) -> Self {
        let whole = if row_bytes == 0 { bytes.is_empty() } else { bytes.len().is_multiple_of(row_bytes) };
        assert!(whole, "{} bytes are not whole rows of {row_bytes}", bytes.len());
        Self { first, row_bytes, bytes }
    }

    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// The row of `node`.
    ///
    /// # Panics
    /// When the row is not here.
    #[inline(always)]
    pub fn row(&self, node: u32) -> &'a [u8] {
        let start = node.wrapping_sub(self.first) as usize * self.row_bytes;
        &self.bytes[start..start + self.row_bytes]
    }

    #[inline(always)]
    fn prefetch(&self, node: u32) {
        let row = self.bytes.as_ptr().wrapping_add(node.wrapping_sub(self.first) as usize * self.row_bytes);
        (0..self.row_bytes).step_by(LINE).for_each(|at| prefetch(row.wrapping_add(at)));
    }
}

/// Copies the rows of `ids`, in order, into `out`.
///
/// # Panics
/// When `out` is not `ids.len()` rows long, or a row is not in the matrix.
pub fn gather_rows(matrix: Matrix, ids: &[u32], out: &mut [u8]) {
    assert_eq!(out.len(), ids.len() * matrix.row_bytes, "the buffer holds one row per id");
    if matrix.row_bytes == 0 {
        return;
    }
    let copy = Copy::new(out, matrix.row_bytes);
    for_each_ahead(matrix, ids, |i, row| copy.row(&mut out[i * row.len()..][..row.len()], row));
    copy.finish();
}

/// Copies the row of `ids[i]` to row `positions[i]` of `out`; other rows of `out` stay as they are.
///
/// # Panics
/// Unless there are as many positions as ids and every row is in its matrix.
pub fn gather_rows_to(matrix: Matrix, ids: &[u32], positions: &[u32], out: &mut [u8]) {
    assert_eq!(ids.len(), positions.len(), "one position per id");
    if matrix.row_bytes == 0 {
        return;
    }
    let copy = Copy::new(out, matrix.row_bytes);
    for_each_ahead(matrix, ids, |i, row| copy.row(&mut out[positions[i] as usize * row.len()..][..row.len()], row));
    copy.finish();
}

/// Puts row `i` of `rows` at row `positions[i]` of `out`; other rows of `out` stay as they are. The asker's half of a
/// fetch.
///
/// # Panics
/// Unless `rows` is one row of `row_bytes` per position, and every position is a row of `out`.
pub fn scatter_rows(rows: &[u8], row_bytes: usize, positions: &[u32], out: &mut [u8]) {
    assert_eq!(rows.len(), positions.len() * row_bytes, "one row per position");
    if row_bytes == 0 {
        return;
    }
    let copy = Copy::new(out, row_bytes);
    for (row, &position) in rows.chunks_exact(row_bytes).zip(positions) {
        copy.row(&mut out[position as usize * row_bytes..][..row_bytes], row);
    }
    copy.finish();
}

/// Calls `visit` with each id's place and row, with the rows to come on their way.
#[inline(always)]
fn for_each_ahead(matrix: Matrix, ids: &[u32], mut visit: impl FnMut(usize, &[u8])) {
    let ahead = (AHEAD_BYTES / matrix.row_bytes).clamp(1, 64);
    ids.iter().take(ahead).for_each(|&id| matrix.prefetch(id));
    for (i, &id) in ids.iter().enumerate() {
        if let Some(&next) = ids.get(i + ahead) {
            matrix.prefetch(next);
        }
        visit(i, matrix.row(id));
    }
}

/// How rows are copied into one buffer.
#[derive(Clone, Copy)]
struct Copy {
    stream: bool,
}

impl Copy {
    /// Streams when the buffer is large and its rows lie at multiples of 16 bytes.
    fn new(out: &[u8], row_bytes: usize) -> Self {
        let aligned = row_bytes.is_multiple_of(16) && out.as_ptr().addr().is_multiple_of(16);
        Self { stream: cfg!(target_arch = "x86_64") && aligned && out.len() >= STREAM_BYTES }
    }

    #[inline(always)]
    fn row(self, to: &mut [u8], from: &[u8]) {
        #[cfg(target_arch = "x86_64")]
        if self.stream {
            return stream_row(to, from);
        }
        to.copy_from_slice(from);
    }

    /// Makes streamed rows visible to other threads, as ordinary stores are.
    fn finish(self) {
        #[cfg(target_arch = "x86_64")]
        if self.stream {
            // SAFETY: the instruction is SSE's, which is part of x86-64.
            unsafe { std::arch::x86_64::_mm_sfence() };
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn stream_row(to: &mut [u8], from: &[u8]) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};

    let (to, rest) = to.as_chunks_mut::<16>();
    let (from, _) = from.as_chunks::<16>();
    debug_assert!(rest.is_empty());
    for (to, from) in to.iter_mut().zip(from) {
        debug_assert!(to.as_ptr().addr().is_multiple_of(16));
        // SAFETY: both are 16 bytes long; `to` lies at a multiple of 16, because `Copy::new` found that of the buffer
        // and of the row length; SSE2 is part of x86-64; `Copy::finish` fences before the buffer is given back.
        unsafe {
            _mm_stream_si128(to.as_mut_ptr().cast::<__m128i>(), _mm_loadu_si128(from.as_ptr().cast::<__m128i>()))
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gnnflow_data::rng::{Key, Purpose};

    /// Sizes around the thresholds: rows of no bytes, of odd ones, of whole lines; results small and streamed.
    fn cases() -> impl Iterator<Item = (usize, usize, Key)> {
        [(0, 5), (1, 9), (2, 0), (7, 300), (16, 1), (64, 100), (188, 2000), (400, 12_000), (401, 12_000), (8192, 700)]
            .into_iter()
            .map(|(row_bytes, count)| (row_bytes, count, Key::new(row_bytes as u64, Purpose::GenerateNodes)))
    }

    fn bytes(key: Key, len: usize) -> Vec<u8> {
        (0..len as u64).map(|i| key.draw(i) as u8).collect()
    }

    #[test]
    fn rows_arrive_as_a_plain_loop_brings_them() {
        let (first, nodes) = (100u32, 500usize);
        for (row_bytes, count, key) in cases() {
            let data = bytes(key.fold(0), nodes * row_bytes);
            let matrix = Matrix::new(first, row_bytes, &data);
            let ids: Vec<u32> = (0..count as u64).map(|i| first + key.fold(1).below(i, nodes as u64) as u32).collect();
            let mut expected = vec![];
            for &id in &ids {
                let at = (id - first) as usize * row_bytes;
                expected.extend_from_slice(&data[at..at + row_bytes]);
            }
            // At an odd address too, where nothing may be streamed.
            for shift in [0, 1] {
                let mut out = vec![7; count * row_bytes + shift];
                gather_rows(matrix, &ids, &mut out[shift..]);
                assert_eq!(out[shift..], expected, "{row_bytes} bytes, {count} rows");
            }
            // Last first: the rows of `expected` the other way round, and two rows that nobody writes.
            let positions: Vec<u32> = (0..count as u32).rev().collect();
            let (mut gathered, mut scattered) = (vec![7; (count + 2) * row_bytes], vec![7; (count + 2) * row_bytes]);
            gather_rows_to(matrix, &ids, &positions, &mut gathered);
            scatter_rows(&expected, row_bytes, &positions, &mut scattered);
            let mut reversed = vec![];
            (0..count).rev().for_each(|i| reversed.extend_from_slice(&expected[i * row_bytes..(i + 1) * row_bytes]));
            reversed.resize((count + 2) * row_bytes, 7);
            assert!(gathered == reversed && scattered == reversed, "{row_bytes} bytes, {count} rows");
        }
    }

    #[test]
    #[should_panic]
    fn a_row_of_another_partition_is_refused() {
        gather_rows(Matrix::new(10, 1, &[1, 2, 3]), &[9], &mut [0]);
    }

    #[test]
    #[should_panic(expected = "not whole rows")]
    fn half_rows_are_refused() {
        Matrix::new(0, 2, &[1, 2, 3]);
    }
}
