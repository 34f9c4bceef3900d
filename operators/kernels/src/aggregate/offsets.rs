//! What loops over rows of edges have in common: offsets of either width, how rows are shared out among threads, prefetching.

/// Rows that one task takes.
pub(crate) const ROWS: usize = 256;
/// Below this many numbers read, threads cost more than they bring.
pub(crate) const SMALL: usize = 1 << 15;

/// Edges by row: `u32` in blocks, `i64` in a prepared partition.
pub trait Offset: Copy + Send + Sync {
    /// As an index.
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

/// Asks for `bytes` from `p` to be brought near: every line that they touch, wherever in one `p` is.
#[inline(always)]
pub(crate) fn prefetch<T>(p: *const T, bytes: usize) {
    let p = p.cast::<u8>();
    for line in (0..bytes).step_by(64) {
        crate::prefetch(p.wrapping_add(line));
    }
    crate::prefetch(p.wrapping_add(bytes.saturating_sub(1)));
}

/// Splits `values`, `width` numbers an edge, into the pieces that belong to chunks of [`ROWS`] rows: (first row, its
/// edges' values).
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
