//! Divides rows among threads: pieces of complete rows with about equal numbers of edges.
//!
//! One thread sums a row in order, so the numbers of pieces and threads do not change results.

use std::ops::Range;

use crate::aggregate::offsets::Offset;

/// Largest number of edges per task, except for a single row with more.
const MAX_EDGES: usize = 1 << 14;
/// Smallest number of edges per task.
const MIN_EDGES: usize = 1 << 10;
/// Tasks per thread; small tasks let all threads end at about the same time.
const TASKS: usize = 16;
/// The cost of a row besides its edges, in edges.
const ROW_COST: usize = 2;

/// Divides the rows `0..indptr.len() - 1` into consecutive pieces.
pub(crate) fn pieces<P: Offset>(indptr: &[P]) -> Vec<Range<usize>> {
    let rows = indptr.len() - 1;
    let work = |row: usize| indptr[row].at().saturating_sub(indptr[0].at()) + ROW_COST * row;
    let each = (work(rows) / (TASKS * rayon::current_num_threads())).clamp(MIN_EDGES, MAX_EDGES);
    let mut pieces = Vec::with_capacity(work(rows) / each + 1);
    let mut first = 0;
    while first < rows {
        let until = work(first) + each;
        // Extends the piece up to `until`, by at least one row; doubles the step, then bisects.
        let mut step = 1;
        while first + step < rows && work(first + step) < until {
            step *= 2;
        }
        let (mut low, mut high) = (first + step / 2, (first + step).min(rows));
        while low + 1 < high {
            let middle = low.midpoint(high);
            if work(middle) < until { low = middle } else { high = middle }
        }
        pieces.push(first..high);
        first = high;
    }
    pieces
}

/// Splits `values`, rows of `stride` numbers of which the last may be shorter, by `pieces`.
pub(crate) fn split<'a, A>(pieces: &[Range<usize>], stride: usize, mut values: &'a mut [A]) -> Vec<&'a mut [A]> {
    let mut parts = Vec::with_capacity(pieces.len());
    for rows in pieces {
        let (part, rest) = values.split_at_mut((rows.len() * stride).min(values.len()));
        parts.push(part);
        values = rest;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_contain_every_row_once() {
        for degrees in [vec![], vec![0], vec![1], vec![3; 5000], vec![100_000, 0, 0, 1], vec![0; 10_000]] {
            let mut indptr = vec![7i64];
            degrees.iter().for_each(|d| indptr.push(indptr[indptr.len() - 1] + d));
            let pieces = pieces(&indptr);
            let all: Vec<usize> = pieces.iter().cloned().flatten().collect();
            assert_eq!(all, (0..degrees.len()).collect::<Vec<_>>());
            assert!(pieces.iter().all(|piece| !piece.is_empty()));
            let mut values = vec![0; (3 * degrees.len()).saturating_sub(1)];
            let total = values.len();
            let parts = split(&pieces, 3, &mut values);
            assert_eq!(parts.iter().map(|part| part.len()).sum::<usize>(), total);
        }
    }

    #[test]
    fn pieces_have_bounded_numbers_of_edges() {
        let mut indptr = vec![0u32];
        (0..200_000).for_each(|row| indptr.push(indptr[row] + if row % 997 == 0 { 3000 } else { 5 }));
        let edges = |rows: &Range<usize>| (indptr[rows.end] - indptr[rows.start]) as usize;
        assert!(pieces(&indptr).iter().all(|rows| edges(rows) <= MAX_EDGES + 3000));
    }
}
