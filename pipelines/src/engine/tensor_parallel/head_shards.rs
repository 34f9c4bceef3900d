//! The columns of attention heads of each worker, in column-parallel training.
//!
//! A hop's columns are cut into *granules*, one per partition of the graph, and each worker has a range of them. Granules are cut at the ends of
//! heads into *head parts*: whole heads, or a part of one. Gradients are computed part by part, so their bits do not depend on the number
//! of workers. If scores are as wide as rows (GATv2), the logit of an edge needs all columns of a head, and granules are whole heads.

use std::ops::Range;

use gnnflow_dataflow::ghost::intervals::intervals;
use gnnflow_nn::model::Hop;

/// The columns of whole heads, or of a part of one head, in one granule.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct HeadPart {
    pub(crate) columns: Range<usize>,
    pub(crate) heads: Range<usize>,
    /// The range of a node's scores that it reads: one per head, or one per column.
    pub(crate) terms: Range<usize>,
    /// The position of its scores among those of all parts.
    pub(crate) first: usize,
}

/// The head parts of a hop.
#[derive(Clone, Debug)]
pub(crate) struct HeadShards {
    heads: usize,
    /// Columns of a node's source or destination scores.
    terms: usize,
    /// Whether there is a score per column.
    per_column: bool,
    parts: Vec<HeadPart>,
    /// By worker, the range of its parts.
    of_worker: Vec<Range<usize>>,
}

impl HeadShards {
    /// Cuts the heads of a hop with attention into a granule per partition, for `workers` workers.
    pub(crate) fn of_hop(hop: &Hop, parts: usize, workers: usize) -> Self {
        match hop.attends_by_column() {
            true => Self::whole(hop.width, hop.heads(), parts, workers),
            false => Self::new(hop.width, hop.heads(), parts, workers),
        }
    }

    /// Cuts `heads` heads of `width` columns in total.
    fn new(width: usize, heads: usize, parts: usize, workers: usize) -> Self {
        Self::cut([width, heads], &intervals(width, parts.max(1)), workers, false)
    }

    /// Cuts into whole heads, with a score per column.
    fn whole(width: usize, heads: usize, parts: usize, workers: usize) -> Self {
        let each = width / heads;
        let granules: Vec<Range<usize>> =
            intervals(heads, parts.max(1)).iter().map(|heads| heads.start * each..heads.end * each).collect();
        Self::cut([width, heads], &granules, workers, true)
    }

    fn cut([width, heads]: [usize; 2], granules: &[Range<usize>], workers: usize, per_column: bool) -> Self {
        let each = width / heads;
        let (mut parts, mut ends, mut first) = (Vec::<HeadPart>::new(), Vec::new(), 0);
        for granule in granules {
            let mut begin = granule.start;
            while begin < granule.end {
                let head = begin / each;
                let whole = if begin % each == 0 { (granule.end - begin) / each } else { 0 };
                let end = if whole > 0 { begin + whole * each } else { granule.end.min((head + 1) * each) };
                let heads = head..head + whole.max(1);
                let terms = if per_column { begin..end } else { heads.clone() };
                parts.push(HeadPart { columns: begin..end, heads, terms: terms.clone(), first });
                (begin, first) = (end, first + terms.len());
            }
            ends.push(parts.len());
        }
        let before = |granule: usize| granule.checked_sub(1).map_or(0, |last| ends[last]);
        let shared = intervals(granules.len(), workers);
        let mut of_worker: Vec<Range<usize>> =
            shared.iter().map(|range| before(range.start)..before(range.end)).collect();
        of_worker.resize(workers, parts.len()..parts.len());
        Self { heads, terms: if per_column { width } else { heads }, per_column, parts, of_worker }
    }

    pub(crate) fn heads(&self) -> usize {
        self.heads
    }

    /// Returns the columns of a node's source or destination scores.
    pub(crate) fn terms(&self) -> usize {
        self.terms
    }

    /// Tells whether there is a score per column. Source scores are then recomputed from the row.
    pub(crate) fn per_column(&self) -> bool {
        self.per_column
    }

    /// Returns the head parts of a worker.
    pub(crate) fn parts(&self, worker: usize) -> &[HeadPart] {
        &self.parts[self.of_worker[worker].clone()]
    }

    /// Returns the columns of a worker's parts, and the range of scores that they read.
    pub(crate) fn of(&self, worker: usize) -> [Range<usize>; 2] {
        match self.parts(worker) {
            [] => [0..0, 0..0],
            [first, .., last] => [first.columns.start..last.columns.end, first.terms.start..last.terms.end],
            [only] => [only.columns.clone(), only.terms.clone()],
        }
    }

    /// Returns the positions of a worker's scores among those of all parts.
    pub(crate) fn entries(&self, worker: usize) -> Range<usize> {
        match self.parts(worker) {
            [] => 0..0,
            parts => parts[0].first..parts.last().map_or(0, |last| last.first + last.terms.len()),
        }
    }

    /// Returns the number of scores of all parts. A cut head has a score per part.
    pub(crate) fn count(&self) -> usize {
        self.parts.last().map_or(0, |last| last.first + last.terms.len())
    }

    /// Sums the values of all parts by score: from `[N, count]` to `[N, terms]`.
    pub(crate) fn sums(&self, entries: &[f32]) -> Vec<f32> {
        let (count, terms) = (self.count(), self.terms);
        let term_of: Vec<usize> = self.parts.iter().flat_map(|part| part.terms.clone()).collect();
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
    fn head_parts_do_not_depend_on_the_number_of_workers() {
        for (width, heads, parts) in [(64, 8, 4), (64, 4, 3), (47, 1, 4), (6, 2, 4), (3, 1, 4), (12, 3, 1), (40, 5, 8)]
        {
            let alone = HeadShards::new(width, heads, parts, 1);
            let each = width / heads;
            let mut next = 0;
            for part in alone.parts(0) {
                let whole = part.columns.len() == part.heads.len() * each && part.columns.start % each == 0;
                let inside = part.columns.start / each == (part.columns.end - 1) / each;
                assert!(whole || inside && part.heads.len() == 1, "{part:?}");
                assert_eq!((part.columns.start, part.columns.start / each), (next, part.heads.start));
                next = part.columns.end;
            }
            assert_eq!(next, width);
            for workers in 1..=parts.min(width) {
                let some = HeadShards::new(width, heads, parts, workers);
                let all: Vec<HeadPart> = (0..workers).flat_map(|worker| some.parts(worker).to_vec()).collect();
                assert_eq!(all, alone.parts(0), "{workers} workers");
                assert!((0..workers).all(|worker| !some.parts(worker).is_empty()));
                let entries: Vec<usize> = (0..workers).flat_map(|worker| some.entries(worker)).collect();
                assert_eq!(entries, (0..some.count()).collect::<Vec<_>>());
                let columns: Vec<usize> = (0..workers).flat_map(|worker| some.of(worker)[0].clone()).collect();
                assert_eq!(columns, (0..width).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn scores_per_column_keep_whole_heads() {
        let alone = HeadShards::whole(24, 6, 4, 1);
        for workers in 1..=4 {
            let some = HeadShards::whole(24, 6, 4, workers);
            let all: Vec<HeadPart> = (0..workers).flat_map(|worker| some.parts(worker).to_vec()).collect();
            assert_eq!(all, alone.parts(0), "{workers} workers");
            assert!((0..workers).all(|worker| some.of(worker)[0] == some.entries(worker) && some.per_column()));
        }
        assert!(alone.parts(0).iter().all(|part| part.columns == (part.heads.start * 4..part.heads.end * 4)));
        assert_eq!((alone.count(), alone.terms(), alone.heads()), (24, 24, 6));
        let sums: Vec<f32> = (0..48).map(|x| x as f32).collect();
        assert_eq!(alone.sums(&sums), sums);
    }

    #[test]
    fn sums_add_the_parts_of_a_head() {
        let heads = HeadShards::new(6, 2, 4, 2);
        // Granules 0..2, 2..4, 4..5, 5..6: the second is cut where head 0 ends.
        let found: Vec<_> = heads.parts.iter().map(|part| part.heads.start).collect();
        assert_eq!(found, [0, 0, 1, 1, 1]);
        assert_eq!(heads.sums(&[1., 2., 3., 4., 5., 10., 20., 30., 40., 50.]), [3., 12., 30., 120.]);
        assert_eq!(heads.of(0), [0..4, 0..2]);
    }
}
