//! Gathers rows by id into a buffer.
//!
//! Rows are bytes of any element type. Ids are random, so later rows are prefetched while one is copied. Non-temporal
//! stores were slower here, also for large results.

use crate::prefetch::prefetch_row;

/// Prefetch distance in bytes of rows.
const AHEAD_BYTES: usize = 4096;

/// Copies the rows of `ids`, in order, into `out`; `row_of` returns the row of an id.
///
/// ```
/// use gnnflow_kernels::dense::gather::gather_rows;
///
/// let matrix = [1, 1, 2, 2, 3, 3];
/// let mut out = [0; 4];
/// gather_rows(2, |id| &matrix[2 * id as usize..][..2], &[2, 0], &mut out);
/// assert_eq!(out, [3, 3, 1, 1]);
/// ```
///
/// # Panics
/// Unless every row has `row_bytes` bytes and `out` has `ids.len()` rows.
pub fn gather_rows<'a>(row_bytes: usize, row_of: impl Fn(u32) -> &'a [u8], ids: &[u32], out: &mut [u8]) {
    assert_eq!(out.len(), ids.len() * row_bytes, "one row per id");
    for_each_ahead(
        row_bytes,
        ids.len(),
        |i| row_of(ids[i]),
        |i, row| {
            out[i * row_bytes..][..row_bytes].copy_from_slice(row);
        },
    );
}

/// Returns the rows of `ids`, in order, in a new vector, without initializing it first.
///
/// # Panics
/// Unless every row has `row_bytes` bytes, which must be a multiple of the size of `T`.
pub(crate) fn gathered_rows<'a, T: bytemuck::Pod>(
    row_bytes: usize,
    row_of: impl Fn(u32) -> &'a [u8],
    ids: &[u32],
) -> Vec<T> {
    assert!(row_bytes.is_multiple_of(size_of::<T>()), "rows consist of whole values");
    let mut values = Vec::<T>::with_capacity(ids.len() * (row_bytes / size_of::<T>()));
    let out = values.spare_capacity_mut().as_mut_ptr().cast::<u8>();
    for_each_ahead(
        row_bytes,
        ids.len(),
        |i| row_of(ids[i]),
        |i, row| {
            assert_eq!(row.len(), row_bytes, "all rows have `row_bytes` bytes");
            // SAFETY: row `i` is within the capacity for `ids.len()` rows of `row_bytes`, and `row` is a separate
            // borrow, so the two do not overlap.
            unsafe { std::ptr::copy_nonoverlapping(row.as_ptr(), out.add(i * row_bytes), row_bytes) };
        },
    );
    // SAFETY: all rows, and so all values, have been written; any bytes are a `T`, which is `Pod`.
    unsafe { values.set_len(ids.len() * (row_bytes / size_of::<T>())) };
    values
}

/// Calls `visit` with each of `count` rows, and prefetches later rows.
#[inline(always)]
pub fn for_each_ahead<'a>(
    row_bytes: usize,
    count: usize,
    row_at: impl Fn(usize) -> &'a [u8],
    mut visit: impl FnMut(usize, &[u8]),
) {
    let ahead = (AHEAD_BYTES / row_bytes.max(1)).clamp(1, 64);
    (0..ahead.min(count)).for_each(|i| prefetch_row(row_at(i)));
    for i in 0..count {
        if i + ahead < count {
            prefetch_row(row_at(i + ahead));
        }
        visit(i, row_at(i));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gnnflow_data::rng::{Key, Purpose};

    fn bytes(key: Key, len: usize) -> Vec<u8> {
        (0..len as u64).map(|i| key.draw(i) as u8).collect()
    }

    #[test]
    fn gathered_rows_equal_those_of_a_plain_loop() {
        let nodes = 500u32;
        for (row_bytes, count) in [(0, 5), (1, 9), (2, 0), (7, 300), (64, 100), (188, 2000), (401, 3000), (8192, 70)] {
            let key = Key::new(row_bytes as u64, Purpose::GenerateNodes);
            let matrix = bytes(key.fold(0), nodes as usize * row_bytes);
            let row_of = |id: u32| &matrix[id as usize * row_bytes..][..row_bytes];
            let ids: Vec<u32> = (0..count).map(|i| key.fold(1).below(i, u64::from(nodes)) as u32).collect();

            let expected: Vec<u8> = ids.iter().flat_map(|&id| row_of(id).to_vec()).collect();
            let mut out = vec![7; ids.len() * row_bytes];
            gather_rows(row_bytes, row_of, &ids, &mut out);
            assert_eq!(out, expected, "{row_bytes} bytes, {count} rows");
            assert_eq!(gathered_rows::<u8>(row_bytes, row_of, &ids), expected, "{row_bytes} bytes, {count} rows");
        }
    }

    #[test]
    #[should_panic(expected = "one row per id")]
    fn gather_rows_into_a_buffer_of_another_size_panics() {
        gather_rows(1, |_| &[0], &[9], &mut [0, 0]);
    }
}
