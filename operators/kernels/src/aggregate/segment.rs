//! Sums, means and maxima over the edges of every destination, and their gradients.
//!
//! `x` has one row of `width` numbers per source and `out` one per destination; a destination without edges gets zeros.
//! Half-precision rows are widened when read. Gradients use the [`Transpose`], where one thread owns each source.

use super::offsets::{Offset, ROWS, SMALL};
use super::rows::Rows;
use super::transpose::Transpose;
use super::weight::{ByIndex, Unit};
use super::{Coefficient, Own, Scale, Sources};
use crate::parallel;
use crate::simd::dispatch::multiversion;
use crate::simd::element::{Element, Real};

/// The result of [`argmax`] for a destination without edges.
pub const NO_EDGE: u32 = u32::MAX;

/// `out[r] = Σ x[s]` over the sources `s` of row `r`.
///
/// `indptr` may be a block's (`u32`) or a prepared partition's (`i64`).
///
/// ```
/// use gnnflow_kernels::aggregate::segment;
///
/// let mut out = [0f32; 4];
/// segment::sum(&[0u32, 2, 3], &[1, 2, 2], &[1f32, 2., 3., 4., 5., 6.], 2, &mut out);
/// assert_eq!(out, [8., 10., 5., 6.]);
/// ```
///
/// # Panics
/// If lengths do not match or an index is past the last row of `x`.
pub fn sum<P: Offset, T: Element>(indptr: &[P], indices: &[u32], x: &[T], width: usize, out: &mut [T::Acc]) {
    rows(indptr, indices, x, width, width).run(&Unit, out);
}

/// The sum over rows of `width` columns, `stride` numbers apart.
fn rows<'a, P: Offset, T: Element>(
    indptr: &'a [P],
    indices: &'a [u32],
    x: &'a [T],
    stride: usize,
    width: usize,
) -> Rows<'a, P, T> {
    assert_eq!(indptr[indptr.len() - 1].at(), indices.len(), "indptr ends at the number of edges");
    Rows::sum(indptr, indices, Sources::new(x, stride.max(1)), 1, width)
}

/// Like [`sum`], divided by the number of edges of the row.
///
/// # Panics
/// As [`sum`].
pub fn mean<P: Offset, T: Element>(indptr: &[P], indices: &[u32], x: &[T], width: usize, out: &mut [T::Acc]) {
    Rows { scale: Scale::InverseDegree, ..rows(indptr, indices, x, width, width) }.run(&Unit, out);
}

/// Gradient of [`sum`] with respect to `x`: each source sums the gradients of its destinations.
///
/// # Panics
/// As [`sum`].
pub fn sum_backward<A: Real>(by_source: &Transpose, gradient: &[A], width: usize, out: &mut [A]) {
    sum(&by_source.indptr, &by_source.indices, gradient, width, out);
}

/// Gradient of [`mean`] with respect to `x`; `inverse_degrees` has one number per destination.
///
/// # Panics
/// As [`sum`].
pub fn mean_backward<A: Real>(
    by_source: &Transpose,
    inverse_degrees: &[f64],
    gradient: &[A],
    width: usize,
    out: &mut [A],
) {
    let Transpose { indptr, indices, .. } = by_source;
    rows(indptr, indices, gradient, width, width).run(&ByIndex(inverse_degrees), out);
}

/// Concatenates row `r` of `x` and row `r` of [`mean`]: `[rows, 2 · width]`, in one pass without copies.
///
/// ```
/// use gnnflow_kernels::aggregate::segment;
///
/// let mut out = [0f32; 4];
/// segment::self_and_mean(&[0u32, 2, 2], &[1, 2], &[1f32, 2., 4.], 1, &mut out);
/// assert_eq!(out, [1., 3., 2., 0.]);
/// ```
///
/// # Panics
/// As [`sum`], and if `x` has fewer rows than there are destinations.
pub fn self_and_mean<P: Offset, T: Element>(indptr: &[P], indices: &[u32], x: &[T], width: usize, out: &mut [T::Acc]) {
    let job = rows(indptr, indices, x, width, width);
    Rows { scale: Scale::InverseDegree, front: Some(x), out_stride: 2 * width, ..job }.run(&Unit, out);
}

/// Gradient of [`self_and_mean`] with respect to `x`, from gradients of `2 · width` columns.
///
/// # Panics
/// As [`sum`].
pub fn self_and_mean_backward<A: Real>(
    by_source: &Transpose,
    inverse_degrees: &[f64],
    gradient: &[A],
    width: usize,
    out: &mut [A],
) {
    let Transpose { indptr, indices, .. } = by_source;
    // A gradient row consists of the gradient of the node's own row and that of its mean.
    let own = Own { rows: gradient, stride: 2 * width, coefficient: Coefficient::Same(A::ONE) };
    let of_means = gradient.get(width..).unwrap_or_default();
    Rows { own: Some(own), ..rows(indptr, indices, of_means, 2 * width, width) }.run(&ByIndex(inverse_degrees), out);
}

/// Returns per row and column the edge whose source has the largest number, the first of equals; [`NO_EDGE`] for none.
///
/// # Panics
/// As [`sum`], and for 2³² − 1 edges or more.
pub fn argmax<P: Offset, T: Element>(indptr: &[P], indices: &[u32], x: &[T], width: usize, out: &mut [u32]) {
    let rows = indptr.len() - 1;
    assert_eq!(out.len(), rows * width, "one output row per row of edges");
    assert!(indices.len() < NO_EDGE as usize, "edge numbers fit 32 bits");
    if width == 0 {
        return;
    }
    let task = |chunk: usize, out: &mut [u32]| {
        let mut best = vec![T::Acc::NEG_INFINITY; width];
        for (k, out) in out.chunks_exact_mut(width).enumerate() {
            let row = chunk * ROWS + k;
            out.fill(NO_EDGE);
            let edges = indptr[row].at()..indptr[row + 1].at();
            for (e, &source) in edges.clone().zip(&indices[edges.clone()]) {
                update_maxima(&x[source as usize * width..][..width], e as u32, e == edges.start, &mut best, out);
            }
        }
    };
    if indices.len() * width < SMALL {
        out.chunks_mut(ROWS * width).enumerate().for_each(|(chunk, out)| task(chunk, out));
    } else {
        parallel::chunks(out, ROWS * width, &task);
    }
}

multiversion! {
    fn update_maxima [T: Element] (row: &[T], edge: u32, first: bool, best: &mut [T::Acc], out: &mut [u32]) {
        for ((x, best), out) in row.iter().zip(best).zip(out) {
            let x = x.widen();
            let larger = first | (x > *best);
            *best = if larger { x } else { *best };
            *out = if larger { edge } else { *out };
        }
    }
}

/// `out[r, c] = x[source of edge arg[r, c], c]`: the maxima of [`argmax`]; 0 without an edge.
///
/// # Panics
/// If lengths do not match or there is no such edge.
pub fn pick<T: Element>(indices: &[u32], arg: &[u32], x: &[T], width: usize, out: &mut [T::Acc]) {
    assert_eq!(arg.len(), out.len(), "one output number per picked edge");
    if width == 0 {
        return;
    }
    parallel::chunks(out, ROWS * width, &|chunk, out| {
        let arg = parallel::chunk(arg, chunk, ROWS * width);
        for (c, (&edge, out)) in arg.iter().zip(out).enumerate() {
            *out = match edge {
                NO_EDGE => T::Acc::ZERO,
                edge => x[indices[edge as usize] as usize * width + c % width].widen(),
            };
        }
    });
}

/// Gradient of [`pick`] with respect to `x`: each source sums the gradients of the picks of its edges.
///
/// # Panics
/// If lengths do not match.
pub fn pick_backward<A: Real>(by_source: &Transpose, arg: &[u32], gradient: &[A], width: usize, out: &mut [A]) {
    assert_eq!(arg.len(), gradient.len(), "one gradient per picked edge");
    assert_eq!(out.len(), (by_source.indptr.len() - 1) * width, "one output row per source");
    if width == 0 {
        return;
    }
    parallel::chunks(out, ROWS * width, &|chunk, out| {
        for (k, out) in out.chunks_exact_mut(width).enumerate() {
            let source = chunk * ROWS + k;
            out.fill(A::ZERO);
            for place in by_source.indptr[source] as usize..by_source.indptr[source + 1] as usize {
                let row = by_source.indices[place] as usize * width;
                add_where(&arg[row..][..width], by_source.edges[place], &gradient[row..][..width], out);
            }
        }
    });
}

multiversion! {
    fn add_where [A: Real] (arg: &[u32], edge: u32, gradient: &[A], out: &mut [A]) {
        for ((&arg, &g), out) in arg.iter().zip(gradient).zip(out) {
            *out += if arg == edge { g } else { A::ZERO };
        }
    }
}

/// `out[r] = Σ values[e]` over the edges of row `r`; `values` has `width` numbers per edge, in the edges' order.
///
/// # Panics
/// If lengths do not match.
pub fn edge_sum<P: Offset, A: Real>(indptr: &[P], values: &[A], width: usize, out: &mut [A]) {
    let rows = indptr.len() - 1;
    assert_eq!(out.len(), rows * width, "one output row per row of edges");
    assert_eq!(values.len(), indptr[rows].at() * width, "one row of values per edge");
    if width == 0 {
        return;
    }
    parallel::chunks(out, ROWS * width, &|chunk, out| {
        for (k, out) in out.chunks_exact_mut(width).enumerate() {
            let row = chunk * ROWS + k;
            out.fill(A::ZERO);
            for edge in values[indptr[row].at() * width..indptr[row + 1].at() * width].chunks_exact(width) {
                out.iter_mut().zip(edge).for_each(|(o, &v)| *o += v);
            }
        }
    });
}

/// Like [`edge_sum`], over the edges of every source.
///
/// # Panics
/// If lengths do not match.
pub fn edge_sum_by_source<A: Real>(by_source: &Transpose, values: &[A], width: usize, out: &mut [A]) {
    sum(&by_source.indptr, &by_source.edges, values, width, out);
}
