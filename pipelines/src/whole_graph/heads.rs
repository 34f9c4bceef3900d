//! Which columns of attention's heads each worker has, where rows are cut by columns.
//!
//! A hop's columns are cut into *granules*, one for each partition of the graph, and a worker has those of a range. A granule is
//! cut where a head ends unless it has the whole head: what is left are *pieces*, whose gradients are computed one by one. Who has
//! a granule therefore decides no bit of any sum.

use std::ops::Range;

use gnnflow_operators::propagate::intervals::intervals;

/// Columns that lie in one granule, and the heads that they are of: whole ones, or a part of one.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Piece {
    pub(crate) columns: Range<usize>,
    pub(crate) heads: Range<usize>,
    /// Where its heads stand among all pieces' heads.
    pub(crate) first: usize,
}

/// The pieces of a hop.
#[derive(Clone, Debug)]
pub(crate) struct Heads {
    heads: usize,
    pieces: Vec<Piece>,
    /// By worker, its pieces.
    of_worker: Vec<Range<usize>>,
}

impl Heads {
    /// Cuts `heads` heads of together `width` columns for as many granules as there are `parts`, shared by `workers`.
    pub(crate) fn new(width: usize, heads: usize, parts: usize, workers: usize) -> Self {
        let (each, granules) = (width / heads, intervals(width, parts.max(1)));
        let (mut pieces, mut ends, mut first) = (Vec::new(), Vec::new(), 0);
        for granule in &granules {
            let mut begin = granule.start;
            while begin < granule.end {
                let head = begin / each;
                let whole = if begin % each == 0 { (granule.end - begin) / each } else { 0 };
                let end = if whole > 0 { begin + whole * each } else { granule.end.min((head + 1) * each) };
                let heads = head..head + whole.max(1);
                pieces.push(Piece { columns: begin..end, first, heads: heads.clone() });
                (begin, first) = (end, first + heads.len());
            }
            ends.push(pieces.len());
        }
        let before = |granule: usize| granule.checked_sub(1).map_or(0, |last| ends[last]);
        let shared = intervals(granules.len(), workers);
        let mut of_worker: Vec<Range<usize>> =
            shared.iter().map(|range| before(range.start)..before(range.end)).collect();
        of_worker.resize(workers, pieces.len()..pieces.len());
        Self { heads, pieces, of_worker }
    }

    /// How many heads there are.
    pub(crate) fn heads(&self) -> usize {
        self.heads
    }

    /// The pieces of a worker.
    pub(crate) fn pieces(&self, worker: usize) -> &[Piece] {
        &self.pieces[self.of_worker[worker].clone()]
    }

    /// The columns that a worker's pieces have, and the heads that any of them has something of.
    pub(crate) fn of(&self, worker: usize) -> [Range<usize>; 2] {
        match self.pieces(worker) {
            [] => [0..0, 0..0],
            [first, .., last] => [first.columns.start..last.columns.end, first.heads.start..last.heads.end],
            [only] => [only.columns.clone(), only.heads.clone()],
        }
    }

    /// Where a worker's heads stand among all pieces' heads.
    pub(crate) fn entries(&self, worker: usize) -> Range<usize> {
        match self.pieces(worker) {
            [] => 0..0,
            pieces => pieces[0].first..pieces.last().map_or(0, |last| last.first + last.heads.len()),
        }
    }

    /// How many heads all pieces have: one that is cut counts for each of its parts.
    pub(crate) fn count(&self) -> usize {
        self.pieces.last().map_or(0, |last| last.first + last.heads.len())
    }

    /// For every node, the sums over pieces, head by head, of what they have: from `[N, count]` to `[N, heads]`.
    pub(crate) fn sums(&self, entries: &[f32]) -> Vec<f32> {
        let (count, heads) = (self.count(), self.heads);
        let head_of: Vec<usize> = self.pieces.iter().flat_map(|piece| piece.heads.clone()).collect();
        let mut sums = vec![0.0; entries.len() / count.max(1) * heads];
        for (sums, entries) in sums.chunks_exact_mut(heads).zip(entries.chunks_exact(count.max(1))) {
            entries.iter().zip(&head_of).for_each(|(x, &head)| sums[head] += x);
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_whole_heads_or_parts_of_one_and_do_not_depend_on_workers() {
        for (width, heads, parts) in [(64, 8, 4), (64, 4, 3), (47, 1, 4), (6, 2, 4), (3, 1, 4), (12, 3, 1), (40, 5, 8)]
        {
            let alone = Heads::new(width, heads, parts, 1);
            let each = width / heads;
            let mut next = 0;
            for piece in alone.pieces(0) {
                let whole = piece.columns.len() == piece.heads.len() * each && piece.columns.start % each == 0;
                let inside = piece.columns.start / each == (piece.columns.end - 1) / each;
                assert!(whole || inside && piece.heads.len() == 1, "{piece:?}");
                assert_eq!((piece.columns.start, piece.columns.start / each), (next, piece.heads.start));
                next = piece.columns.end;
            }
            assert_eq!(next, width);
            for workers in 1..=parts.min(width) {
                let some = Heads::new(width, heads, parts, workers);
                let all: Vec<Piece> = (0..workers).flat_map(|worker| some.pieces(worker).to_vec()).collect();
                assert_eq!(all, alone.pieces(0), "{workers} workers");
                assert!((0..workers).all(|worker| !some.pieces(worker).is_empty()));
                let entries: Vec<usize> = (0..workers).flat_map(|worker| some.entries(worker)).collect();
                assert_eq!(entries, (0..some.count()).collect::<Vec<_>>());
                let columns: Vec<usize> = (0..workers).flat_map(|worker| some.of(worker)[0].clone()).collect();
                assert_eq!(columns, (0..width).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn parts_of_a_head_are_summed_up() {
        let heads = Heads::new(6, 2, 4, 2);
        // Granules 0..2, 2..4, 4..5, 5..6: the second is cut where head 0 ends.
        let found: Vec<_> = heads.pieces.iter().map(|piece| piece.heads.start).collect();
        assert_eq!(found, [0, 0, 1, 1, 1]);
        assert_eq!(heads.sums(&[1., 2., 3., 4., 5., 10., 20., 30., 40., 50.]), [3., 12., 30., 120.]);
        assert_eq!(heads.of(0), [0..4, 0..2]);
    }
}
