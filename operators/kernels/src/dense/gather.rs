//! Gathers rows by id into a buffer.
//!
//! Rows are bytes of any element type. Ids are random, so later rows are prefetched while one is copied. Non-temporal
//! stores were slower here, also for large results.

use crate::prefetch_row;

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
    for_each_ahead(row_bytes, ids.len(), |i| row_of(ids[i]), |i, row| copy_row(row, row_bytes, i, out));
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

/// Copies the row of `ids[place]` to row `place` of `out`, for all of `places`; other rows are unchanged.
///
/// # Panics
/// Unless every row is `row_bytes` long and every place is one of `ids` and a row of `out`.
pub fn gather_places<'a>(
    row_bytes: usize,
    row_of: impl Fn(u32) -> &'a [u8],
    ids: &[u32],
    places: &[u32],
    out: &mut [u8],
) {
    let row_at = |i: usize| row_of(ids[places[i] as usize]);
    for_each_ahead(row_bytes, places.len(), row_at, |i, row| copy_row(row, row_bytes, places[i] as usize, out));
}

/// Puts row `i` of `rows` at row `places[i]` of `out`; other rows stay as they are. The asker's half of a fetch.
///
/// # Panics
/// Unless `rows` is one row of `row_bytes` per place, and every place is a row of `out`.
pub fn scatter_rows(row_bytes: usize, rows: &[u8], places: &[u32], out: &mut [u8]) {
    assert_eq!(rows.len(), places.len() * row_bytes, "one row per place");
    if row_bytes > 0 {
        rows.chunks_exact(row_bytes)
            .zip(places)
            .for_each(|(row, &place)| copy_row(row, row_bytes, place as usize, out));
    }
}

#[inline(always)]
fn copy_row(row: &[u8], row_bytes: usize, place: usize, out: &mut [u8]) {
    out[place * row_bytes..][..row_bytes].copy_from_slice(row);
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

            // Every third row, from the last one backwards; other rows are unchanged.
            let places: Vec<u32> = (0..ids.len() as u32).rev().step_by(3).collect();
            let mut expected = vec![7; ids.len() * row_bytes];
            let mut sent = vec![];
            for &place in &places {
                let at = place as usize * row_bytes;
                expected[at..at + row_bytes].copy_from_slice(row_of(ids[place as usize]));
                sent.extend_from_slice(row_of(ids[place as usize]));
            }
            let (mut gathered, mut scattered) = (vec![7; expected.len()], vec![7; expected.len()]);
            gather_places(row_bytes, row_of, &ids, &places, &mut gathered);
            scatter_rows(row_bytes, &sent, &places, &mut scattered);
            assert!(gathered == expected && scattered == expected, "{row_bytes} bytes, {count} rows");
        }
    }

    #[test]
    #[should_panic(expected = "one row per id")]
    fn gather_rows_into_a_buffer_of_another_size_panics() {
        gather_rows(1, |_| &[0], &[9], &mut [0, 0]);
    }
}
