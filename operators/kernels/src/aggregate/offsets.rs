//! Common code of loops over rows of edges: offset types, division into tasks, prefetching.

/// Rows per task.
pub(crate) const ROWS: usize = 256;
/// Below this many numbers to read, loops are not parallel.
pub(crate) const SMALL: usize = 1 << 15;

/// The type of edge offsets: `u32` in blocks, `i64` in prepared partitions.
pub trait Offset: Copy + Send + Sync {
    /// Converts to an index.
    fn at(self) -> usize;
}

impl Offset for u32 {
    #[inline(always)]
    fn at(self) -> usize {
        self as usize
    }
}

impl Offset for i64 {
    #[inline(always)]
    fn at(self) -> usize {
        self as usize
    }
}

/// Prefetches every cache line of `bytes` from `p`, for any alignment.
#[inline(always)]
pub(crate) fn prefetch<T>(p: *const T, bytes: usize) {
    let p = p.cast::<u8>();
    for line in (0..bytes).step_by(64) {
        crate::prefetch::prefetch(p.wrapping_add(line));
    }
    crate::prefetch::prefetch(p.wrapping_add(bytes.saturating_sub(1)));
}

/// Splits `values`, `width` numbers per edge, by chunks of [`ROWS`] rows. Returns the first row and the values of each.
pub(crate) fn split_by_row<'a, P: Offset, A>(
    indptr: &[P],
    width: usize,
    mut values: &'a mut [A],
) -> Vec<(usize, &'a mut [A])> {
    let rows = indptr.len() - 1;
    let mut pieces = Vec::with_capacity(rows.div_ceil(ROWS));
    for first in (0..rows).step_by(ROWS) {
        let edges = indptr[(first + ROWS).min(rows)].at() - indptr[first].at();
        let (piece, rest) = values.split_at_mut(edges * width);
        pieces.push((first, piece));
        values = rest;
    }
    pieces
}
