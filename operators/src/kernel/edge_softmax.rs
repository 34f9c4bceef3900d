//! Softmax over the edges of every destination, for each head on its own, and its gradient.
//!
//! Values are `[E, heads]` in the edges' order. Largest values are subtracted first, as everywhere.

use rayon::prelude::*;

use super::dispatch::multiversion;
use super::element::Real;
use super::rows::{Offset, ROWS, SMALL, split_by_row};

/// `out[e, h] = exp(logits[e, h]) / Σ exp(logits[e', h])`, summed over the edges `e'` of the row of `e`.
///
/// ```
/// use gnnflow_operators::kernel::edge_softmax;
///
/// let mut out = [0f32; 3];
/// edge_softmax::forward(&[0u32, 2, 3], &[1., 1., 7.], 1, &mut out);
/// assert_eq!(out, [0.5, 0.5, 1.]);
/// ```
///
/// # Panics
/// When lengths disagree.
pub fn forward<P: Offset, A: Real>(indptr: &[P], logits: &[A], heads: usize, out: &mut [A]) {
    assert_eq!(out.len(), logits.len(), "as many values out as in");
    by_row(indptr, heads, out, |edges, out, scratch| {
        softmax_row(&logits[edges.start * heads..edges.end * heads], heads, out, scratch);
    });
}

/// Gradient of [`forward`] with respect to the logits, given its result `alpha`.
///
/// # Panics
/// When lengths disagree.
pub fn backward<P: Offset, A: Real>(indptr: &[P], alpha: &[A], gradient: &[A], heads: usize, out: &mut [A]) {
    assert_eq!(out.len(), alpha.len(), "as many values out as in");
    assert_eq!(out.len(), gradient.len(), "a gradient for every value");
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
    assert_eq!(out.len(), indptr[rows].at() * heads, "a value for every edge and head");
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
    if small { pieces.into_iter().for_each(task) } else { pieces.into_par_iter().for_each(task) }
}

multiversion! {
    fn softmax_row [A: Real] (logits: &[A], heads: usize, out: &mut [A], scratch: &mut [A]) {
        let (largest, total) = scratch.split_at_mut(heads);
        largest.fill(A::NEG_INFINITY);
        total.fill(A::ZERO);
        for edge in logits.chunks_exact(heads) {
            for (m, &z) in largest.iter_mut().zip(edge) {
                *m = if z > *m { z } else { *m };
            }
        }
        for (out, edge) in out.chunks_exact_mut(heads).zip(logits.chunks_exact(heads)) {
            for h in 0..heads {
                out[h] = (edge[h] - largest[h]).exp();
                total[h] += out[h];
            }
        }
        for out in out.chunks_exact_mut(heads) {
            for (o, &t) in out.iter_mut().zip(&*total) {
                *o = *o / t;
            }
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
