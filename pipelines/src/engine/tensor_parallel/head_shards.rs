//! Which columns of attention's heads each worker has, where rows are cut by columns.
//!
//! A hop's columns are cut into *granules*, one for each partition of the graph, and a worker has those of a range. A granule is
//! cut where a head ends unless it has the whole head: what is left are *pieces*, whose gradients are computed one by one. Who has
//! a granule therefore decides no bit of any sum. Where terms are as wide as rows (GATv2), an edge's logit takes all columns of a head, and
//! granules are whole heads.

use std::ops::Range;

use gnnflow_dataflow::ghost::intervals::intervals;
use gnnflow_nn::model::Hop;

/// Columns that lie in one granule, and the heads that they are of: whole ones, or a part of one.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Piece {
    pub(crate) columns: Range<usize>,
    pub(crate) heads: Range<usize>,
    /// What it reads of a node's terms: a number for each head, or for each column.
    pub(crate) terms: Range<usize>,
    /// Where its terms stand among all pieces' terms.
    pub(crate) first: usize,
}

/// The pieces of a hop.
#[derive(Clone, Debug)]
pub(crate) struct HeadShards {
    heads: usize,
    /// Columns of a node's term; and whether those are the row's.
    terms: usize,
    by_column: bool,
    pieces: Vec<Piece>,
    /// By worker, its pieces.
    of_worker: Vec<Range<usize>>,
}

impl HeadShards {
    /// Cuts the heads of a hop that attends for as many granules as there are `parts`, shared by `workers`.
    pub(crate) fn of_hop(hop: &Hop, parts: usize, workers: usize) -> Self {
        match hop.attends_by_column() {
            true => Self::whole(hop.width, hop.heads(), parts, workers),
            false => Self::new(hop.width, hop.heads(), parts, workers),
        }
    }

    /// Cuts `heads` heads of together `width` columns.
    fn new(width: usize, heads: usize, parts: usize, workers: usize) -> Self {
        Self::cut([width, heads], &intervals(width, parts.max(1)), workers, false)
    }

    /// The same in whole heads, whose terms have a number for each column.
    fn whole(width: usize, heads: usize, parts: usize, workers: usize) -> Self {
        let each = width / heads;
        let granules: Vec<Range<usize>> =
            intervals(heads, parts.max(1)).iter().map(|heads| heads.start * each..heads.end * each).collect();
        Self::cut([width, heads], &granules, workers, true)
    }

    fn cut([width, heads]: [usize; 2], granules: &[Range<usize>], workers: usize, by_column: bool) -> Self {
        let each = width / heads;
        let (mut pieces, mut ends, mut first) = (Vec::<Piece>::new(), Vec::new(), 0);
        for granule in granules {
            let mut begin = granule.start;
            while begin < granule.end {
                let head = begin / each;
                let whole = if begin % each == 0 { (granule.end - begin) / each } else { 0 };
                let end = if whole > 0 { begin + whole * each } else { granule.end.min((head + 1) * each) };
                let heads = head..head + whole.max(1);
                let terms = if by_column { begin..end } else { heads.clone() };
                pieces.push(Piece { columns: begin..end, heads, terms: terms.clone(), first });
                (begin, first) = (end, first + terms.len());
            }
            ends.push(pieces.len());
        }
        let before = |granule: usize| granule.checked_sub(1).map_or(0, |last| ends[last]);
        let shared = intervals(granules.len(), workers);
        let mut of_worker: Vec<Range<usize>> =
            shared.iter().map(|range| before(range.start)..before(range.end)).collect();
        of_worker.resize(workers, pieces.len()..pieces.len());
        Self { heads, terms: if by_column { width } else { heads }, by_column, pieces, of_worker }
    }

    /// How many heads there are.
    pub(crate) fn heads(&self) -> usize {
        self.heads
    }

    /// How many numbers a node's term has.
    pub(crate) fn terms(&self) -> usize {
        self.terms
    }

    /// Whether those are one for each column, of which a slice's own row makes those of out-edges again.
    pub(crate) fn by_column(&self) -> bool {
        self.by_column
    }

    /// The pieces of a worker.
    pub(crate) fn pieces(&self, worker: usize) -> &[Piece] {
        &self.pieces[self.of_worker[worker].clone()]
    }

    /// The columns that a worker's pieces have, and what any of them reads of a node's terms.
    pub(crate) fn of(&self, worker: usize) -> [Range<usize>; 2] {
        match self.pieces(worker) {
            [] => [0..0, 0..0],
            [first, .., last] => [first.columns.start..last.columns.end, first.terms.start..last.terms.end],
            [only] => [only.columns.clone(), only.terms.clone()],
        }
    }

    /// Where a worker's terms stand among all pieces' terms.
    pub(crate) fn entries(&self, worker: usize) -> Range<usize> {
        match self.pieces(worker) {
            [] => 0..0,
            pieces => pieces[0].first..pieces.last().map_or(0, |last| last.first + last.terms.len()),
        }
    }

    /// How many terms all pieces have: a head that is cut counts for each of its parts.
    pub(crate) fn count(&self) -> usize {
        self.pieces.last().map_or(0, |last| last.first + last.terms.len())
    }

    /// For every node, the sums over pieces, term by term, of what they have: from `[N, count]` to `[N, terms]`.
    pub(crate) fn sums(&self, entries: &[f32]) -> Vec<f32> {
        let (count, terms) = (self.count(), self.terms);
        let term_of: Vec<usize> = self.pieces.iter().flat_map(|piece| piece.terms.clone()).collect();
        let mut sums = vec![0.0; entries.len() / count.max(1) * terms];
        for (sums, entries) in sums.chunks_exact_mut(terms).zip(entries.chunks_exact(count.max(1))) {
            entries.iter().zip(&term_of).for_each(|(x, &term)| sums[term] += x);
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
            let alone = HeadShards::new(width, heads, parts, 1);
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
                let some = HeadShards::new(width, heads, parts, workers);
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
    fn terms_of_columns_are_of_whole_heads() {
        let alone = HeadShards::whole(24, 6, 4, 1);
        for workers in 1..=4 {
            let some = HeadShards::whole(24, 6, 4, workers);
            let all: Vec<Piece> = (0..workers).flat_map(|worker| some.pieces(worker).to_vec()).collect();
            assert_eq!(all, alone.pieces(0), "{workers} workers");
            assert!((0..workers).all(|worker| some.of(worker)[0] == some.entries(worker) && some.by_column()));
        }
        assert!(alone.pieces(0).iter().all(|piece| piece.columns == (piece.heads.start * 4..piece.heads.end * 4)));
        assert_eq!((alone.count(), alone.terms(), alone.heads()), (24, 24, 6));
        let sums: Vec<f32> = (0..48).map(|x| x as f32).collect();
        assert_eq!(alone.sums(&sums), sums);
    }

    #[test]
    fn parts_of_a_head_are_summed_up() {
        let heads = HeadShards::new(6, 2, 4, 2);
        // Granules 0..2, 2..4, 4..5, 5..6: the second is cut where head 0 ends.
        let found: Vec<_> = heads.pieces.iter().map(|piece| piece.heads.start).collect();
        assert_eq!(found, [0, 0, 1, 1, 1]);
        assert_eq!(heads.sums(&[1., 2., 3., 4., 5., 10., 20., 30., 40., 50.]), [3., 12., 30., 120.]);
        assert_eq!(heads.of(0), [0..4, 0..2]);
    }
}
