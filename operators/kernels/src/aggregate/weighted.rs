//! Weighted sums of source rows with weights per edge and head, and their gradients.
//!
//! Rows have `heads · width` columns. Weights are `[E, heads]` in the edges' order.

use super::Sources;
use super::offsets::{Offset, ROWS, SMALL, prefetch, split_by_row};
use super::rows::Rows;
use super::transpose::Transpose;
use super::weight::ByEdge;
use crate::dense::dot::dot_by_head;
use crate::parallel;
use crate::simd::element::{Element, Real};

/// `out[r, h, :] = Σ weights[e, h] · x[s, h, :]` over the edges `e` of row `r`, where `s` is the source of `e`.
///
/// ```
/// use gnnflow_kernels::aggregate::weighted;
///
/// let mut out = [0f32; 2];
/// weighted::sum(&[0u32, 2, 3], &[1, 2, 2], &[0.5, 2., 1.], 1, &[1f32, 10., 100.], 1, &mut out);
/// assert_eq!(out, [205., 100.]);
/// ```
///
/// # Panics
/// If lengths do not match or an index is past the last row of `x`.
pub fn sum<P: Offset, T: Element>(
    indptr: &[P],
    indices: &[u32],
    weights: &[T::Acc],
    heads: usize,
    x: &[T],
    width: usize,
    out: &mut [T::Acc],
) {
    assert_eq!(weights.len(), indices.len() * heads, "one weight per edge and head");
    assert_eq!(indptr[indptr.len() - 1].at(), indices.len(), "indptr ends at the number of edges");
    let x = Sources::new(x, (heads * width).max(1));
    Rows::sum(indptr, indices, x, heads, width).run(&ByEdge { weights, heads, first: 0, edges: None }, out);
}

/// Gradient of [`sum`] with respect to `x`: each source sums its destinations' gradients by the weights of its edges.
///
/// # Panics
/// As [`sum`].
pub fn backward_rows<A: Real>(
    by_source: &Transpose,
    weights: &[A],
    heads: usize,
    gradient: &[A],
    width: usize,
    out: &mut [A],
) {
    let Transpose { indptr, indices, edges } = by_source;
    assert_eq!(weights.len(), indices.len() * heads, "one weight per edge and head");
    let gradient = Sources::new(gradient, (heads * width).max(1));
    let weight = ByEdge { weights, heads, first: 0, edges: Some(edges) };
    Rows::sum(indptr, indices, gradient, heads, width).run(&weight, out);
}

/// Gradient of [`sum`] with respect to the weights: `out[e, h] = gradient[r, h, :] · x[s, h, :]`.
///
/// # Panics
/// As [`sum`].
pub fn backward_weights<P: Offset, T: Element>(
    indptr: &[P],
    indices: &[u32],
    gradient: &[T::Acc],
    heads: usize,
    x: &[T],
    width: usize,
    out: &mut [T::Acc],
) {
    let (rows, columns) = (indptr.len() - 1, heads * width);
    assert_eq!(gradient.len(), rows * columns, "one gradient per row");
    assert_eq!(out.len(), indices.len() * heads, "one weight per edge and head");
    if heads == 0 {
        return;
    }
    let task = |(first, out): (usize, &mut [T::Acc])| {
        let base = indptr[first].at();
        let last = indptr[(first + ROWS).min(rows)].at();
        for row in first..(first + ROWS).min(rows) {
            let g = &gradient[row * columns..][..columns];
            for e in indptr[row].at()..indptr[row + 1].at() {
                if e + 4 < last {
                    prefetch(x.as_ptr().wrapping_add(indices[e + 4] as usize * columns), size_of::<T>() * columns);
                }
                let source = &x[indices[e] as usize * columns..][..columns];
                dot_by_head(g, source, width, &mut out[(e - base) * heads..][..heads]);
            }
        }
    };
    let pieces = split_by_row(indptr, heads, out);
    if indices.len() * columns < SMALL { pieces.into_iter().for_each(task) } else { parallel::each(pieces, &task) }
}
