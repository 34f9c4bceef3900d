//! Softmax over the edges of every destination, separately per head, and its gradient.
//!
//! Values are `[E, heads]` in the edges' order. The largest value is subtracted first.

use super::offsets::{Offset, ROWS, SMALL, split_by_row};
use crate::parallel;
use crate::simd::dispatch::multiversion;
use crate::simd::element::Real;

/// `out[e, h] = exp(logits[e, h]) / Σ exp(logits[e', h])`, summed over the edges `e'` of the row of `e`.
///
/// ```
/// use gnnflow_kernels::aggregate::edge_softmax;
///
/// let mut out = [0f32; 3];
/// edge_softmax::forward(&[0u32, 2, 3], &[1., 1., 7.], 1, &mut out);
/// assert_eq!(out, [0.5, 0.5, 1.]);
/// ```
///
/// # Panics
/// If lengths do not match.
pub fn forward<P: Offset, A: Real>(indptr: &[P], logits: &[A], heads: usize, out: &mut [A]) {
    assert_eq!(out.len(), logits.len(), "one output value per input value");
    by_row(indptr, heads, out, |edges, out, scratch| {
        let (largest, total) = scratch.split_at_mut(heads);
        out.copy_from_slice(&logits[edges.start * heads..edges.end * heads]);
        softmax_row(out, heads, largest, total);
    });
}

/// Gradient of [`forward`] with respect to the logits, given its result `alpha`.
///
/// # Panics
/// If lengths do not match.
pub fn backward<P: Offset, A: Real>(indptr: &[P], alpha: &[A], gradient: &[A], heads: usize, out: &mut [A]) {
    assert_eq!(out.len(), alpha.len(), "one output value per input value");
    assert_eq!(out.len(), gradient.len(), "one gradient per value");
    by_row(indptr, heads, out, |edges, out, scratch| {
        let row = edges.start * heads..edges.end * heads;
        softmax_row_backward(&alpha[row.clone()], &gradient[row], heads, out, scratch);
    });
}

/// Calls `f(edges of the row, its values, 2 · heads scratch numbers)` for every row.
fn by_row<P: Offset, A: Real>(
    indptr: &[P],
    heads: usize,
    out: &mut [A],
    f: impl Fn(std::ops::Range<usize>, &mut [A], &mut [A]) + Sync,
) {
    let rows = indptr.len() - 1;
    assert_eq!(out.len(), indptr[rows].at() * heads, "one value per edge and head");
    if heads == 0 {
        return;
    }
    let small = out.len() < SMALL;
    let task = |(first, out): (usize, &mut [A])| {
        let base = indptr[first].at();
        let mut scratch = vec![A::ZERO; 2 * heads];
        for row in first..(first + ROWS).min(rows) {
            let edges = indptr[row].at()..indptr[row + 1].at();
            let place = (edges.start - base) * heads..(edges.end - base) * heads;
            f(edges, &mut out[place], &mut scratch);
        }
    };
    let pieces = split_by_row(indptr, heads, out);
    if small { pieces.into_iter().for_each(task) } else { parallel::each(pieces, &task) }
}

/// Numbers processed together, equal for all instruction sets.
const LANES: usize = 16;

multiversion! {
    /// Replaces the logits of one row's edges, `[edges, heads]`, by their softmax. Returns each head's largest logit
    /// and sum of exponentials.
    pub(crate) fn softmax_row [A: Real] (values: &mut [A], heads: usize, largest: &mut [A], total: &mut [A]) {
        largest.fill(A::NEG_INFINITY);
        total.fill(A::ZERO);
        if !LANES.is_multiple_of(heads) {
            for edge in values.chunks_exact(heads) {
                for (m, &z) in largest.iter_mut().zip(edge) {
                    *m = if z > *m { z } else { *m };
                }
            }
            for edge in values.chunks_exact_mut(heads) {
                for h in 0..heads {
                    edge[h] = (edge[h] - largest[h]).exp();
                    total[h] += edge[h];
                }
            }
            return divide(values, heads, total);
        }
        // Lane `k` belongs to head `k % heads`.
        let mut lanes = [A::NEG_INFINITY; LANES];
        let (whole, rest) = values.as_chunks_mut::<LANES>();
        for values in whole.iter() {
            for k in 0..LANES {
                lanes[k] = if values[k] > lanes[k] { values[k] } else { lanes[k] };
            }
        }
        for (&z, lane) in rest.iter().zip(&mut lanes) {
            *lane = if z > *lane { z } else { *lane };
        }
        for (k, &z) in lanes.iter().enumerate() {
            let m = &mut largest[k % heads];
            *m = if z > *m { z } else { *m };
        }
        let shift: [A; LANES] = std::array::from_fn(|k| largest[k % heads]);
        let mut lanes = [A::ZERO; LANES];
        for values in whole.iter_mut() {
            for k in 0..LANES {
                values[k] = (values[k] - shift[k]).exp();
                lanes[k] += values[k];
            }
        }
        for ((value, &shift), lane) in rest.iter_mut().zip(&shift).zip(&mut lanes) {
            *value = (*value - shift).exp();
            *lane += *value;
        }
        for (k, &sum) in lanes.iter().enumerate() {
            total[k % heads] += sum;
        }
        divide(values, heads, total);
    }
}

/// Divides each head's numbers by its total.
#[inline(always)]
fn divide<A: Real>(values: &mut [A], heads: usize, total: &[A]) {
    if !LANES.is_multiple_of(heads) {
        return values
            .chunks_exact_mut(heads)
            .for_each(|edge| edge.iter_mut().zip(total).for_each(|(v, &t)| *v = *v / t));
    }
    let by: [A; LANES] = std::array::from_fn(|k| total[k % heads]);
    let (whole, rest) = values.as_chunks_mut::<LANES>();
    for values in whole {
        for k in 0..LANES {
            values[k] = values[k] / by[k];
        }
    }
    rest.iter_mut().zip(&by).for_each(|(value, &by)| *value = *value / by);
}

multiversion! {
    /// Recomputes the softmax from logits minus their row's largest, `values`, and the row's `totals`.
    pub(crate) fn recompute_softmax [A: Real] (values: &mut [A], totals: &[A]) {
        for (value, &total) in values.iter_mut().zip(totals) {
            *value = value.exp() / total;
        }
    }
}

multiversion! {
    fn softmax_row_backward [A: Real] (alpha: &[A], gradient: &[A], heads: usize, out: &mut [A], scratch: &mut [A]) {
        let total = &mut scratch[..heads];
        total.fill(A::ZERO);
        for (alpha, gradient) in alpha.chunks_exact(heads).zip(gradient.chunks_exact(heads)) {
            for h in 0..heads {
                total[h] += alpha[h] * gradient[h];
            }
        }
        for ((out, alpha), gradient) in
            out.chunks_exact_mut(heads).zip(alpha.chunks_exact(heads)).zip(gradient.chunks_exact(heads))
        {
            for h in 0..heads {
                out[h] = alpha[h] * (gradient[h] - total[h]);
            }
        }
    }
}
