//! The best tails of some sources, on the compute thread.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use gnnflow_kernels::pair_scores::query;
use gnnflow_kernels::pairs::Pairs;
use gnnflow_kernels::score_matrix::{Interleaved, QUERIES, ROWS, any_at_least, scores};
use rayon::prelude::*;

/// Groups of rows per tile, which stays in the cache.
const TILE: usize = 4;
/// Groups of sources per task.
const TASK: usize = 4;

/// Lists of the best tails of some sources.
#[derive(Default)]
pub(crate) struct Lists {
    length: usize,
    width: usize,
    sources: Vec<Source>,
    /// The sources' query vectors.
    queries: Interleaved<QUERIES>,
}

/// A source and its best tails so far.
struct Source {
    /// The tails that are left out, ascending.
    known: Vec<u32>,
    /// The worst one is on top.
    best: BinaryHeap<Listed>,
}

/// A tail on a list. The worse one is the greater one: that with the lower score, or of equal scores with the larger id.
#[derive(Clone, Copy, Debug)]
struct Listed {
    score: f32,
    tail: u32,
}

impl Ord for Listed {
    fn cmp(&self, other: &Self) -> Ordering {
        other.score.total_cmp(&self.score).then(self.tail.cmp(&other.tail))
    }
}

impl PartialOrd for Listed {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Listed {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Listed {}

impl Lists {
    /// Creates empty lists of at most `length` tails, for sources with these known tails, ascending. Rows are `width` wide.
    pub(super) fn new(length: usize, width: usize, known: Vec<Vec<u32>>) -> Self {
        let source = |known| Source { known, best: BinaryHeap::new() };
        Self { length, width, sources: known.into_iter().map(source).collect(), queries: Interleaved::default() }
    }

    /// Computes the query vectors of the sources, the heads of the pairs.
    pub(super) fn set_queries(&mut self, pairs: &Pairs, rows: &[f32], relations: Option<&[f32]>) {
        let width = self.width;
        let at = |row: usize| row * width..(row + 1) * width;
        let mut vectors = vec![0.0; self.sources.len() * width];
        for (source, (&head, &relation)) in pairs.heads.iter().zip(&pairs.relations).enumerate() {
            let relation = relations.map(|relations| &relations[at(usize::from(relation))]);
            query(&rows[at(head as usize)], relation, &mut vectors[at(source)]);
        }
        self.queries = Interleaved::new(&vectors, width);
    }

    /// Scores `tails`, ascending, with these rows.
    pub(super) fn add(&mut self, tails: &[u32], rows: &[f32]) {
        let (width, length) = (self.width, self.length);
        let rows = Interleaved::<ROWS>::new(rows, width);
        let queries: Vec<_> = self.queries.groups(TASK).collect();
        self.sources.par_chunks_mut(TASK * QUERIES).zip(queries).for_each(|(sources, queries)| {
            let mut of_tile = [0.0; QUERIES * TILE * ROWS];
            for (tails, rows) in tails.chunks(TILE * ROWS).zip(rows.groups(TILE)) {
                for (sources, queries) in sources.chunks_mut(QUERIES).zip(queries.chunks_exact(width)) {
                    let count = rows.len() / width * ROWS;
                    let of_tile = &mut of_tile[..QUERIES * count];
                    scores(queries, rows, of_tile);
                    for (source, scores) in sources.iter_mut().zip(of_tile.chunks_exact(count)) {
                        if any_at_least(scores, source.least(length)) {
                            let listed = tails.iter().zip(scores).map(|(&tail, &score)| Listed { score, tail });
                            listed.for_each(|listed| source.add(listed, length));
                        }
                    }
                }
            }
        });
    }

    /// Returns the tails of each source with their scores, the best first.
    pub(super) fn finish(self) -> impl Iterator<Item = Vec<(u32, f32)>> {
        let list =
            |source: Source| source.best.into_sorted_vec().iter().map(|listed| (listed.tail, listed.score)).collect();
        self.sources.into_iter().map(list)
    }
}

impl Source {
    /// Returns the lowest score that a tail on the list can have.
    fn least(&self, length: usize) -> f32 {
        self.best.peek().filter(|_| self.best.len() >= length).map_or(f32::NEG_INFINITY, |worst| worst.score)
    }

    /// Adds a tail if it is among the best `length`, and not known. Scores that are not numbers are left out.
    fn add(&mut self, listed: Listed, length: usize) {
        let full = self.best.len() >= length;
        let better = !full || self.best.peek().is_some_and(|worst| listed < *worst);
        if !better || listed.score.is_nan() || self.known.binary_search(&listed.tail).is_ok() {
            return;
        }
        if full {
            self.best.pop();
        }
        self.best.push(listed);
    }
}

#[cfg(test)]
mod tests {
    use gnnflow_kernels::pair_scores::dot;

    use super::*;

    #[test]
    fn lists_equal_those_of_a_sort_for_any_order_of_blocks() {
        let (width, tails, sources) = (5, 300u32, 40u32);
        // Rows have five different values. Therefore many scores are equal.
        let value = |at: u32| ((at * 7919) % 5) as f32 - 2.0;
        let row = |node: u32| (0..5).map(|column| value(node * 5 + column)).collect::<Vec<f32>>();
        let relation = [1.0, -1.0, 0.5, 2.0, 0.0];
        let known: Vec<Vec<u32>> =
            (0..sources).map(|source| (0..tails).filter(|tail| (tail + source) % 3 == 0).collect()).collect();
        let expected = |source: u32, length: usize| {
            let mut vector = [0.0; 5];
            query(&row(source), Some(&relation), &mut vector);
            let candidates = (0..tails).filter(|tail| !known[source as usize].contains(tail));
            let mut all: Vec<(u32, f32)> = candidates.map(|tail| (tail, dot(&vector, &row(tail)))).collect();
            all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            all.truncate(length);
            all
        };
        for length in [1, 7, 1000] {
            let blocks = [0..100, 100..164, 164..165, 165..300];
            for order in [[0, 1, 2, 3], [3, 1, 0, 2]] {
                let mut lists = Lists::new(length, width, known.clone());
                let pairs =
                    Pairs { heads: (0..sources).collect(), relations: vec![0; sources as usize], ..Pairs::default() };
                lists.set_queries(&pairs, &(0..sources).flat_map(row).collect::<Vec<_>>(), Some(&relation));
                for block in order.map(|at| blocks[at].clone()) {
                    lists.add(&block.clone().collect::<Vec<_>>(), &block.flat_map(row).collect::<Vec<_>>());
                }
                for (source, list) in lists.finish().enumerate() {
                    assert_eq!(list, expected(source as u32, length), "{length}, source {source}");
                }
            }
        }
    }

    #[test]
    fn scores_that_are_not_numbers_are_left_out() {
        let mut lists = Lists::new(2, 1, vec![Vec::new()]);
        lists.queries = Interleaved::new(&[1.0], 1);
        lists.add(&[0, 1, 2], &[f32::NAN, -1.0, f32::INFINITY]);
        assert_eq!(lists.finish().next().unwrap(), [(2, f32::INFINITY), (1, -1.0)]);
    }
}
