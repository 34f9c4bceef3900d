//! Scores of pairs of nodes: the dot product of their rows, or DistMult (Yang et al. 2015) with the vector of a
//! relation.
//!
//! Sums run over eight lanes and then over the lanes, in order: a score has the same bits on every machine.

use super::parallel;
use super::simd::dispatch::multiversion;

pub(crate) const LANES: usize = 8;
/// Pairs per task.
const CHUNK: usize = 256;
/// Rows per task.
const ROWS: usize = 32;

/// `Σ a[i] · b[i]`
///
/// # Panics
/// If `b` is shorter than `a`.
#[inline(always)]
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    let b = &b[..a.len()];
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    let mut lanes = [0f32; LANES];
    for (a, b) in a.iter().zip(b) {
        for lane in 0..LANES {
            lanes[lane] += a[lane] * b[lane];
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    let [a, b, c, d, e, f, g, h] = lanes;
    ((a + b) + (c + d)) + ((e + f) + (g + h)) + rest
}

/// Computes the query of a row: the row, times the vector of its relation if there is one.
#[inline(always)]
pub fn query(row: &[f32], relation: Option<&[f32]>, into: &mut [f32]) {
    match relation {
        Some(relation) => into.iter_mut().zip(row.iter().zip(relation)).for_each(|(q, (x, r))| *q = x * r),
        None => into.copy_from_slice(row),
    }
}

/// The pairs to score.
#[derive(Clone, Copy, Debug)]
pub struct Ends<'a> {
    /// The row of each pair's head.
    pub heads: &'a [u32],
    /// The row of each pair's tail.
    pub tails: &'a [u32],
    /// The relation of each pair.
    pub relations: &'a [u16],
}

#[inline(always)]
fn row(matrix: &[f32], at: usize, width: usize) -> &[f32] {
    &matrix[at * width..(at + 1) * width]
}

/// Computes the score of each pair: the dot product of the tail's row of `x`, `width` wide, and the head's query.
/// `relations` has one vector per relation.
///
/// # Panics
/// If a node or a relation has no row, or `out` does not have one number per pair.
pub fn scores(ends: Ends<'_>, x: &[f32], relations: Option<&[f32]>, width: usize, out: &mut [f32]) {
    assert_eq!(out.len(), ends.heads.len(), "one score per pair");
    parallel::chunks(out, CHUNK, &|chunk, out| {
        let mut query_row = vec![0.0; width];
        score_some(ends, chunk * CHUNK, x, relations, &mut query_row, out);
    });
}

multiversion! {
/// Scores the pairs from `first` on; `query_row` is a buffer for a row.
fn score_some(ends: Ends<'_>, first: usize, x: &[f32], relations: Option<&[f32]>, query_row: &mut [f32], out: &mut [f32]) {
    let (width, mut current) = (query_row.len(), None);
    for (i, out) in (first..).zip(out) {
        // Negatives of one edge are adjacent and often share the query.
        if current != Some((ends.heads[i], ends.relations[i])) {
            let relation = relations.map(|relations| row(relations, usize::from(ends.relations[i]), width));
            query(row(x, ends.heads[i] as usize, width), relation, query_row);
            current = Some((ends.heads[i], ends.relations[i]));
        }
        *out = dot(query_row, row(x, ends.tails[i] as usize, width));
    }
}
}

/// Pairs grouped by row: those of row `r` are `pairs[starts[r]..starts[r + 1]]`, in order.
struct ByRow {
    starts: Vec<usize>,
    pairs: Vec<u32>,
}

impl ByRow {
    fn new(rows: usize, row_of_pair: impl Iterator<Item = usize> + Clone) -> Self {
        let mut starts = vec![0usize; rows + 1];
        row_of_pair.clone().for_each(|row| starts[row + 1] += 1);
        (0..rows).for_each(|row| starts[row + 1] += starts[row]);
        let (mut next, mut pairs) = (starts.clone(), vec![0u32; starts[rows]]);
        for (i, row) in row_of_pair.enumerate() {
            pairs[next[row]] = i as u32;
            next[row] += 1;
        }
        Self { starts, pairs }
    }

    fn pairs_of(&self, row: usize) -> &[u32] {
        &self.pairs[self.starts[row]..self.starts[row + 1]]
    }
}

/// Adds `gradient · a · b`, or `gradient · a` without `b`, to `out`.
#[inline(always)]
fn add(gradient: f32, a: &[f32], b: Option<&[f32]>, out: &mut [f32]) {
    match b {
        Some(b) => out.iter_mut().zip(a.iter().zip(b)).for_each(|(out, (a, b))| *out += gradient * (a * b)),
        None => out.iter_mut().zip(a).for_each(|(out, a)| *out += gradient * a),
    }
}

/// The gradient of [`scores`] with respect to `x`, given that of each score. Sums run over a row's pairs in order,
/// first as head, then as tail.
///
/// # Panics
/// As [`scores`].
pub fn backward_rows(
    ends: Ends<'_>,
    x: &[f32],
    relations: Option<&[f32]>,
    width: usize,
    gradient: &[f32],
    out: &mut [f32],
) {
    let width = width.max(1);
    let rows = out.len() / width;
    let by_head = ByRow::new(rows, ends.heads.iter().map(|&head| head as usize));
    let by_tail = ByRow::new(rows, ends.tails.iter().map(|&tail| tail as usize));
    parallel::chunks(out, ROWS * width, &|chunk, out| {
        for (row, out) in (chunk * ROWS..).zip(out.chunks_mut(width)) {
            add_rows(by_head.pairs_of(row), ends.tails, ends.relations, x, relations, gradient, out);
            add_rows(by_tail.pairs_of(row), ends.heads, ends.relations, x, relations, gradient, out);
        }
    });
}

multiversion! {
/// Adds the rows of the other nodes of `pairs`, times their relations' vectors and gradients, to `out`.
fn add_rows(
    pairs: &[u32],
    others: &[u32],
    types: &[u16],
    x: &[f32],
    relations: Option<&[f32]>,
    gradient: &[f32],
    out: &mut [f32],
) {
    let width = out.len();
    for &i in pairs {
        let i = i as usize;
        let relation = relations.map(|relations| row(relations, usize::from(types[i]), width));
        add(gradient[i], row(x, others[i] as usize, width), relation, out);
    }
}
}

multiversion! {
/// Adds the products of the two rows of `pairs`, times their gradients, to `out`.
fn add_products(pairs: &[u32], ends: Ends<'_>, x: &[f32], gradient: &[f32], out: &mut [f32]) {
    let width = out.len();
    for &i in pairs {
        let i = i as usize;
        let [head, tail] = [ends.heads[i], ends.tails[i]].map(|node| row(x, node as usize, width));
        add(gradient[i], head, Some(tail), out);
    }
}
}

/// The gradient of [`scores`] with respect to the relations: sums over a relation's pairs in order.
///
/// # Panics
/// As [`scores`].
pub fn backward_relations(ends: Ends<'_>, x: &[f32], width: usize, gradient: &[f32], out: &mut [f32]) {
    let by_relation = ByRow::new(out.len() / width.max(1), ends.relations.iter().map(|&r| usize::from(r)));
    parallel::chunks(out, width.max(1), &|relation, out| {
        add_products(by_relation.pairs_of(relation), ends, x, gradient, out);
    });
}

multiversion! {
/// Returns how many of `scores` are higher than `own`, and how many equal; NaN counts as higher.
pub fn higher_and_equal(scores: &[f32], own: f32) -> [u64; 2] {
    let mut counts = [0, 0];
    // 32-bit counts have the width of scores.
    for scores in scores.chunks(1 << 16) {
        let (mut lower_or_equal, mut equal) = (0u32, 0u32);
        for &score in scores {
            lower_or_equal += u32::from(score <= own);
            equal += u32::from(score == own);
        }
        counts = [counts[0] + u64::from(scores.len() as u32 - lower_or_equal), counts[1] + u64::from(equal)];
    }
    counts
}
}

#[cfg(test)]
mod tests {
    use super::*;
    use gnnflow_data::rng::{Key, Purpose};

    /// Random rows, relations and pairs.
    fn case(rows: u64, width: usize, pairs: u64) -> (Vec<f32>, Vec<f32>, [Vec<u32>; 2], Vec<u16>) {
        let key = Key::new(rows, Purpose::Init);
        let numbers = |key: Key, count: usize| (0..count as u64).map(|i| key.unit(i) as f32 - 0.5).collect::<Vec<_>>();
        let ends = [1, 2].map(|c| (0..pairs).map(|i| key.fold(c).below(i, rows) as u32).collect());
        let relations = (0..pairs).map(|i| key.fold(3).below(i, 3) as u16).collect();
        (numbers(key.fold(4), rows as usize * width), numbers(key.fold(5), 3 * width), ends, relations)
    }

    #[test]
    fn scores_and_gradients_equal_sums_in_f64() {
        for (rows, width, pairs) in [(5, 3, 20), (40, 17, 700), (3, 32, 1), (4, 8, 0)] {
            let (x, relations, [heads, tails], types) = case(rows, width, pairs);
            let ends = Ends { heads: &heads, tails: &tails, relations: &types };
            let gradient: Vec<f32> = (0..pairs).map(|i| (i as f32 * 0.37).sin()).collect();
            for relations in [None, Some(&relations[..])] {
                let factor =
                    |i: usize, c: usize| relations.map_or(1.0, |r| f64::from(r[usize::from(types[i]) * width + c]));
                let at = |row: u32, c: usize| f64::from(x[row as usize * width + c]);
                let mut found = vec![0.0; pairs as usize];
                scores(ends, &x, relations, width, &mut found);
                let (mut dx, mut dr) = (vec![0f64; x.len()], vec![0f64; 3 * width]);
                for i in 0..pairs as usize {
                    let (h, t, g) = (heads[i], tails[i], f64::from(gradient[i]));
                    let expected: f64 = (0..width).map(|c| at(h, c) * factor(i, c) * at(t, c)).sum();
                    assert!((f64::from(found[i]) - expected).abs() < 1e-5);
                    for c in 0..width {
                        dx[h as usize * width + c] += g * factor(i, c) * at(t, c);
                        dx[t as usize * width + c] += g * factor(i, c) * at(h, c);
                        dr[usize::from(types[i]) * width + c] += g * at(h, c) * at(t, c);
                    }
                }
                let close = |found: &[f32], expected: &[f64]| {
                    assert!(found.iter().zip(expected).all(|(&f, e)| (f64::from(f) - e).abs() < 1e-4), "{found:?}");
                };
                let mut out = vec![0.0; x.len()];
                backward_rows(ends, &x, relations, width, &gradient, &mut out);
                close(&out, &dx);
                let mut out = vec![0.0; 3 * width];
                backward_relations(ends, &x, width, &gradient, &mut out);
                close(&out, &dr);
            }
        }
    }

    #[test]
    fn dot_sums_over_lanes_and_nan_counts_as_higher() {
        for (rows, width) in [(9, 3), (4, 8), (31, 21), (1, 1), (0, 5)] {
            let (x, relations, ..) = case(rows, width, 0);
            let query = &relations[..width];
            for row in x.chunks_exact(width) {
                let lanes = (0..LANES).map(|lane| {
                    let places = (lane..width / LANES * LANES).step_by(LANES);
                    places.fold(0f32, |sum, c| sum + query[c] * row[c])
                });
                let l: Vec<f32> = lanes.collect();
                let rest: f32 = (width / LANES * LANES..width).map(|c| query[c] * row[c]).sum();
                let sum = ((l[0] + l[1]) + (l[2] + l[3])) + ((l[4] + l[5]) + (l[6] + l[7])) + rest;
                assert_eq!(dot(query, row).to_bits(), sum.to_bits());
            }
        }
        let scores = [0.5, 1.0, f32::NAN, 1.5, 1.0];
        assert_eq!(higher_and_equal(&scores, 1.0), [2, 2]);
        assert_eq!(higher_and_equal(&scores, 0.75), [4, 0]);
        assert_eq!(higher_and_equal(&scores, f32::NAN), [5, 0]);
        assert_eq!(higher_and_equal(&[2.0; 200_000], 1.0), [200_000, 0]);
    }
}
