//! Scores of many queries with many rows, as a product of two matrices.
//!
//! Every score has the bits of [`dot`](crate::pair_scores::dot). The rows of a group are interleaved, so sums over lanes of columns are sums of
//! vectors with a number per row, and no vector is summed within itself.

use super::pair_scores::LANES;
use super::parallel;
use super::simd::dispatch::{Level, level, multiversion};
use super::simd::isa::{Generic, Isa, V3, V4};
use super::simd::lanes::Lanes;

/// Queries of a group.
pub const QUERIES: usize = 8;
/// Rows of a group.
pub const ROWS: usize = 16;
/// Groups per task that interleaves rows.
const GROUPS: usize = 64;

/// The rows of a matrix in groups of `N`, and each group column by column: `[groups, columns, N]`. The last group is filled with zeros.
#[derive(Default)]
pub struct Interleaved<const N: usize> {
    width: usize,
    columns: Vec<[f32; N]>,
}

impl<const N: usize> Interleaved<N> {
    /// Interleaves rows that are `width` wide.
    ///
    /// # Panics
    /// If `width` is 0, or `rows` are not whole rows.
    pub fn new(rows: &[f32], width: usize) -> Self {
        assert_eq!(rows.len() % width, 0, "whole rows");
        let mut columns = vec![[0.0; N]; (rows.len() / width).div_ceil(N) * width];
        parallel::chunks(&mut columns, GROUPS * width, &|task, columns| {
            let rows = parallel::chunk(rows, task, GROUPS * N * width);
            for (columns, rows) in columns.chunks_exact_mut(width).zip(rows.chunks(N * width)) {
                for (place, row) in rows.chunks_exact(width).enumerate() {
                    columns.iter_mut().zip(row).for_each(|(column, &number)| column[place] = number);
                }
            }
        });
        Self { width, columns }
    }

    /// Returns the groups in order, `groups` at a time.
    pub fn groups(&self, groups: usize) -> std::slice::Chunks<'_, [f32; N]> {
        self.columns.chunks((groups * self.width).max(1))
    }
}

/// Computes the scores of the queries of one group with the rows of some groups, `[QUERIES, rows]`.
///
/// # Panics
/// Unless `out` has one number per query and row.
pub fn scores(queries: &[[f32; QUERIES]], rows: &[[f32; ROWS]], out: &mut [f32]) {
    assert_eq!(out.len() * queries.len(), QUERIES * ROWS * rows.len(), "one score per query and row");
    let task = Task { queries, rows, out };
    #[cfg(target_arch = "x86_64")]
    match level() {
        // SAFETY: `level` found the features; lengths were checked.
        Level::V4 => return unsafe { task.v4() },
        // SAFETY: as above.
        Level::V3 => return unsafe { task.v3() },
        Level::Baseline => {}
    }
    // SAFETY: as above; `Generic` needs no features.
    unsafe { task.body::<Generic>() }
}

multiversion! {
/// Returns whether any of `scores` is at least `least`.
pub fn any_at_least(scores: &[f32], least: f32) -> bool {
    let mut any = false;
    for &score in scores {
        any |= score >= least;
    }
    any
}
}

/// The arguments of [`scores`].
struct Task<'t> {
    queries: &'t [[f32; QUERIES]],
    rows: &'t [[f32; ROWS]],
    out: &'t mut [f32],
}

/// # Safety
/// All methods: the machine has the instruction set, and the lengths were checked.
impl Task<'_> {
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,f16c")]
    unsafe fn v4(self) {
        // SAFETY: the features are enabled here.
        unsafe { self.body::<V4>() }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn v3(self) {
        // SAFETY: as above.
        unsafe { self.body::<V3>() }
    }

    #[inline(always)]
    unsafe fn body<I: Isa>(self) {
        let (width, of_query) = (self.queries.len(), self.out.len() / QUERIES);
        for (group, rows) in self.rows.chunks_exact(width).enumerate() {
            for first in (0..ROWS).step_by(I::Of::<f32>::N) {
                let columns = Columns { queries: self.queries, rows, first };
                // SAFETY: guaranteed by the caller.
                let sums = unsafe { columns.scores::<I>() };
                for (query, sum) in sums.into_iter().enumerate() {
                    let place = query * of_query + group * ROWS + first;
                    // SAFETY: as above; the vector is within the scores of the group.
                    unsafe { sum.store(self.out[place..][..I::Of::<f32>::N].as_mut_ptr()) };
                }
            }
        }
    }
}

/// Numbers of all queries with one vector of rows.
type OfVector<V> = [V; QUERIES];

/// A group of queries, and the rows from `first` on of a group.
#[derive(Clone, Copy)]
struct Columns<'t> {
    queries: &'t [[f32; QUERIES]],
    rows: &'t [[f32; ROWS]],
    first: usize,
}

/// # Safety
/// All methods: the machine has `I`, and its vectors fit into the group from `first` on.
impl Columns<'_> {
    /// Adds the products as `dot` does.
    #[inline(always)]
    unsafe fn scores<I: Isa>(self) -> OfVector<I::Of<f32>> {
        let ((_, queries), (_, rows)) = (self.queries.as_chunks::<LANES>(), self.rows.as_chunks::<LANES>());
        // SAFETY: guaranteed by the caller.
        unsafe {
            let mut rest = [I::Of::splat(std::iter::empty::<f32>().sum()); QUERIES];
            for (queries, row) in queries.iter().zip(rows) {
                add_products::<I>(&mut rest, queries, row, self.first);
            }
            add(add(self.four_lanes::<I>(0), self.four_lanes::<I>(4)), rest)
        }
    }

    #[inline(always)]
    unsafe fn four_lanes<I: Isa>(self, first: usize) -> OfVector<I::Of<f32>> {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let firsts = add(self.lane::<I>(first), self.lane::<I>(first + 1));
            add(firsts, add(self.lane::<I>(first + 2), self.lane::<I>(first + 3)))
        }
    }

    #[inline(always)]
    unsafe fn lane<I: Isa>(self, lane: usize) -> OfVector<I::Of<f32>> {
        let ((queries, _), (rows, _)) = (self.queries.as_chunks::<LANES>(), self.rows.as_chunks::<LANES>());
        // SAFETY: guaranteed by the caller.
        unsafe {
            let mut sums = [I::Of::splat(0.0); QUERIES];
            for (queries, rows) in queries.iter().zip(rows) {
                add_products::<I>(&mut sums, &queries[lane], &rows[lane], self.first);
            }
            sums
        }
    }
}

#[inline(always)]
unsafe fn add_products<I: Isa>(
    sums: &mut OfVector<I::Of<f32>>,
    queries: &[f32; QUERIES],
    rows: &[f32; ROWS],
    first: usize,
) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let rows = I::load(rows[first..].as_ptr());
        for (sum, &query) in sums.iter_mut().zip(queries) {
            *sum = sum.add(I::Of::splat(query).mul(rows));
        }
    }
}

/// # Safety
/// The machine has the vectors.
#[inline(always)]
unsafe fn add<V: Lanes>(mut a: OfVector<V>, b: OfVector<V>) -> OfVector<V> {
    for (a, b) in a.iter_mut().zip(b) {
        // SAFETY: guaranteed by the caller.
        *a = unsafe { a.add(b) };
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pair_scores::dot;
    use gnnflow_data::rng::{Key, Purpose};

    #[test]
    fn scores_have_the_bits_of_dot() {
        for (queries, rows, width) in [(1, 1, 1), (4, 16, 8), (5, 33, 21), (9, 3000, 64), (3, 0, 5), (2, 40, 7)] {
            let key = Key::new(width as u64, Purpose::Init);
            let numbers =
                |count: usize, k| (0..count as u64).map(|i| key.fold(k).unit(i) as f32 - 0.5).collect::<Vec<_>>();
            let (q, mut x) = (numbers(queries * width, 1), numbers(rows * width, 2));
            if let Some(last) = x.last_mut() {
                *last = f32::NAN;
            }
            let (grouped, by_column) = (Interleaved::<QUERIES>::new(&q, width), Interleaved::<ROWS>::new(&x, width));
            let mut seen = 0;
            for (of_group, group) in q.chunks(QUERIES * width).zip(grouped.groups(1)) {
                for (rows, columns) in x.chunks(3 * ROWS * width).zip(by_column.groups(3)) {
                    let mut found = vec![0.0; QUERIES * ROWS * columns.len() / width];
                    scores(group, columns, &mut found);
                    let of_query = found.len() / QUERIES;
                    for (query, found) in of_group.chunks_exact(width).zip(found.chunks_exact(of_query)) {
                        for (row, score) in rows.chunks_exact(width).zip(found) {
                            assert_eq!(score.to_bits(), dot(query, row).to_bits());
                            seen += 1;
                        }
                    }
                }
            }
            assert_eq!(seen, queries * rows);
        }
    }

    #[test]
    fn nan_is_not_at_least_anything() {
        assert!(any_at_least(&[0.5, 1.0], 1.0) && !any_at_least(&[0.5, 0.9, f32::NAN], 1.0));
        assert!(
            !any_at_least(&[f32::NAN; 20], f32::NEG_INFINITY) && any_at_least(&[f32::NEG_INFINITY], f32::NEG_INFINITY)
        );
        assert!(!any_at_least(&[], 0.0));
    }
}
