//! Scores of pairs of rows, by the sum of products of their numbers and, where there are relations, of the relation's:
//! DistMult (Yang et al. 2015); without relations, the dot product.
//!
//! Sums run over eight lanes and then over the lanes, in order: a score has the same bits wherever it is computed.

use rayon::prelude::*;

use super::dispatch::multiversion;

const LANES: usize = 8;
/// Pairs, or rows, that one task takes.
const CHUNK: usize = 256;

/// `Σ a[i] · b[i]`
#[inline(always)]
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    let (a, b) = (&a[..b.len()], b);
    let (mut lanes, whole) = ([0f32; LANES], b.len() / LANES * LANES);
    for (a, b) in a[..whole].chunks_exact(LANES).zip(b[..whole].chunks_exact(LANES)) {
        for lane in 0..LANES {
            lanes[lane] += a[lane] * b[lane];
        }
    }
    let rest: f32 = a[whole..].iter().zip(&b[whole..]).map(|(a, b)| a * b).sum();
    let [a, b, c, d, e, f, g, h] = lanes;
    ((a + b) + (c + d)) + ((e + f) + (g + h)) + rest
}

/// What a row is compared with: `row`, times its relation's numbers where there are relations.
#[inline]
pub fn query(row: &[f32], relation: Option<&[f32]>, into: &mut [f32]) {
    match relation {
        Some(relation) => into.iter_mut().zip(row.iter().zip(relation)).for_each(|(q, (x, r))| *q = x * r),
        None => into.copy_from_slice(row),
    }
}

/// The pairs to be scored: rows of two ends, and of relations.
#[derive(Clone, Copy, Debug)]
pub struct Ends<'a> {
    /// Row of each pair's head.
    pub heads: &'a [u32],
    /// Row of its tail.
    pub tails: &'a [u32],
    /// Its relation.
    pub relations: &'a [u16],
}

fn row(matrix: &[f32], at: usize, width: usize) -> &[f32] {
    &matrix[at * width..(at + 1) * width]
}

/// One score a pair: of the tail's row of `x`, `width` wide, with the query of the head's. `relations` has a row for each
/// relation.
///
/// # Panics
/// When an end or a relation has no row, or `out` is not as long as the pairs are many.
pub fn scores(ends: Ends<'_>, x: &[f32], relations: Option<&[f32]>, width: usize, out: &mut [f32]) {
    assert_eq!(out.len(), ends.heads.len(), "a score for each pair");
    out.par_chunks_mut(CHUNK).enumerate().for_each(|(chunk, out)| {
        let mut asked = vec![0.0; width];
        for (i, out) in (chunk * CHUNK..).zip(out) {
            let relation = relations.map(|relations| row(relations, usize::from(ends.relations[i]), width));
            query(row(x, ends.heads[i] as usize, width), relation, &mut asked);
            *out = dot(&asked, row(x, ends.tails[i] as usize, width));
        }
    });
}

/// Pairs by one of their rows: those of row `r` are `pairs[starts[r]..starts[r + 1]]`, in order.
struct ByRow {
    starts: Vec<usize>,
    pairs: Vec<u32>,
}

impl ByRow {
    fn new(rows: usize, of: impl Iterator<Item = usize> + Clone) -> Self {
        let mut starts = vec![0usize; rows + 1];
        of.clone().for_each(|row| starts[row + 1] += 1);
        (0..rows).for_each(|row| starts[row + 1] += starts[row]);
        let (mut next, mut pairs) = (starts.clone(), vec![0u32; starts[rows]]);
        for (i, row) in of.enumerate() {
            pairs[next[row]] = i as u32;
            next[row] += 1;
        }
        Self { starts, pairs }
    }

    fn of(&self, row: usize) -> impl Iterator<Item = usize> {
        self.pairs[self.starts[row]..self.starts[row + 1]].iter().map(|&pair| pair as usize)
    }
}

/// Adds `gradient · a · b` (`b` of ones where there is none) to `out`.
#[inline]
fn add(gradient: f32, a: &[f32], b: Option<&[f32]>, out: &mut [f32]) {
    match b {
        Some(b) => out.iter_mut().zip(a.iter().zip(b)).for_each(|(out, (a, b))| *out += gradient * (a * b)),
        None => out.iter_mut().zip(a).for_each(|(out, a)| *out += gradient * a),
    }
}

/// The gradient of [`scores`] with respect to `x`, given that of each score: sums over the pairs of a row in order, those that
/// begin there before those that end there.
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
    let rows = out.len() / width.max(1);
    let begin = ByRow::new(rows, ends.heads.iter().map(|&head| head as usize));
    let end = ByRow::new(rows, ends.tails.iter().map(|&tail| tail as usize));
    out.par_chunks_mut(width.max(1)).enumerate().with_min_len(CHUNK / 8).for_each(|(at, out)| {
        let relation = |i: usize| relations.map(|relations| row(relations, usize::from(ends.relations[i]), width));
        for i in begin.of(at) {
            add(gradient[i], row(x, ends.tails[i] as usize, width), relation(i), out);
        }
        for i in end.of(at) {
            add(gradient[i], row(x, ends.heads[i] as usize, width), relation(i), out);
        }
    });
}

/// The gradient of [`scores`] with respect to the relations: sums over the pairs of a relation in order.
///
/// # Panics
/// As [`scores`].
pub fn backward_relations(ends: Ends<'_>, x: &[f32], width: usize, gradient: &[f32], out: &mut [f32]) {
    let of = ByRow::new(out.len() / width.max(1), ends.relations.iter().map(|&relation| usize::from(relation)));
    out.par_chunks_mut(width.max(1)).enumerate().for_each(|(relation, out)| {
        for i in of.of(relation) {
            let [head, tail] = [ends.heads[i], ends.tails[i]].map(|end| row(x, end as usize, width));
            add(gradient[i], head, Some(tail), out);
        }
    });
}

multiversion! {
/// How many candidates score higher than `own`, and how many the same; a score that is not a number counts as higher.
pub fn higher_and_equal(asked: &[f32], own: f32, candidates: &[f32]) -> [u64; 2] {
    let mut counts = [0, 0];
    for candidate in candidates.chunks_exact(asked.len().max(1)) {
        let [higher, equal] = compare(asked, own, candidate);
        counts = [counts[0] + u64::from(higher), counts[1] + u64::from(equal)];
    }
    counts
}
}

/// Whether `candidate` scores higher than `own`, and whether the same.
#[inline(always)]
pub fn compare(asked: &[f32], own: f32, candidate: &[f32]) -> [bool; 2] {
    let score = dot(asked, candidate);
    let equal = score == own;
    [!equal && score.partial_cmp(&own) != Some(std::cmp::Ordering::Less), equal]
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
    fn scores_and_gradients_against_sums_in_64_bits() {
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
    fn what_is_not_a_number_is_never_better() {
        let rows = [1.0, 0.0, 0.5, 0.0, f32::NAN, 0.0, 1.0, 0.0];
        assert_eq!(higher_and_equal(&[1.0, 1.0], 0.75, &rows), [3, 0]);
        assert_eq!(higher_and_equal(&[1.0, 1.0], 1.0, &rows), [1, 2]);
        assert_eq!(higher_and_equal(&[1.0, 1.0], f32::NAN, &rows), [4, 0]);
    }
}
