//! Sums of rectified messages: `out[r] = Σ max(x[source of e] + edges[e], 0)` over the edges `e` of row `r`.
//!
//! Messages are never stored; the gradients recompute them.

use super::offsets::{Offset, ROWS, split_by_row};
use super::transpose::Transpose;
use crate::parallel;
use crate::simd::dispatch::multiversion;
use crate::simd::element::Real;

/// Fills `out`, `[num_dst, width]`, from `x`, `[num_src, width]`, and `edges`, `[E, width]`.
///
/// ```
/// use gnnflow_kernels::aggregate::messages;
///
/// // One destination with in-edges from sources 0 and 1.
/// let mut out = [0f32; 2];
/// messages::sum(&[0u32, 2], &[0, 1], &[1., 2., 3., 4.], &[1., -5., 1., 1.], 2, &mut out);
/// assert_eq!(out, [2. + 4., 0. + 5.]);
/// ```
///
/// # Panics
/// If lengths do not match or an index is past the last source.
pub fn sum<P: Offset, A: Real>(indptr: &[P], indices: &[u32], x: &[A], edges: &[A], width: usize, out: &mut [A]) {
    check(indptr, indices, edges, width, out.len());
    if width == 0 {
        return;
    }
    parallel::chunks(out, ROWS * width, &|chunk, out| {
        for (k, out) in out.chunks_exact_mut(width).enumerate() {
            let row = chunk * ROWS + k;
            out.fill(A::ZERO);
            let range = indptr[row].at()..indptr[row + 1].at();
            for (e, &source) in range.clone().zip(&indices[range]) {
                add(&x[source as usize * width..][..width], &edges[e * width..][..width], out);
            }
        }
    });
}

/// Gradient of [`sum`] with respect to `x`, `[num_src, width]`: each source sums over its edges.
///
/// # Panics
/// As [`sum`].
pub fn backward_rows<A: Real>(
    by_source: &Transpose,
    x: &[A],
    edges: &[A],
    gradient: &[A],
    width: usize,
    out: &mut [A],
) {
    assert_eq!(out.len(), (by_source.indptr.len() - 1) * width, "one output row per source");
    if width == 0 {
        return;
    }
    parallel::chunks(out, ROWS * width, &|chunk, out| {
        for (k, out) in out.chunks_exact_mut(width).enumerate() {
            let source = chunk * ROWS + k;
            out.fill(A::ZERO);
            let own = &x[source * width..][..width];
            for place in by_source.indptr[source] as usize..by_source.indptr[source + 1] as usize {
                let (row, e) = (by_source.indices[place] as usize, by_source.edges[place] as usize);
                add_where_positive(own, &edges[e * width..][..width], &gradient[row * width..][..width], out);
            }
        }
    });
}

/// Gradient of [`sum`] with respect to `edges`, `[E, width]`.
///
/// # Panics
/// As [`sum`].
pub fn backward_edges<P: Offset, A: Real>(
    indptr: &[P],
    indices: &[u32],
    x: &[A],
    edges: &[A],
    gradient: &[A],
    width: usize,
    out: &mut [A],
) {
    check(indptr, indices, edges, width, gradient.len());
    assert_eq!(out.len(), edges.len(), "one output row per edge");
    if width == 0 {
        return;
    }
    let rows = indptr.len() - 1;
    parallel::each(split_by_row(indptr, width, out), &|(first, out): (usize, &mut [A])| {
        let mut out = out.chunks_exact_mut(width);
        for row in first..(first + ROWS).min(rows) {
            let gradient = &gradient[row * width..][..width];
            let range = indptr[row].at()..indptr[row + 1].at();
            for (e, &source) in range.clone().zip(&indices[range]) {
                let Some(out) = out.next() else { return };
                out.fill(A::ZERO);
                add_where_positive(&x[source as usize * width..][..width], &edges[e * width..][..width], gradient, out);
            }
        }
    });
}

fn check<P, A>(indptr: &[P], indices: &[u32], edges: &[A], width: usize, out: usize) {
    assert_eq!(edges.len(), indices.len() * width, "one row per edge");
    assert_eq!(out, (indptr.len() - 1) * width, "one row per destination");
}

multiversion! {
    fn add [A: Real] (row: &[A], edge: &[A], sums: &mut [A]) {
        for ((&x, &e), sum) in row.iter().zip(edge).zip(sums) {
            let message = x + e;
            *sum += if message > A::ZERO { message } else { A::ZERO };
        }
    }
}

multiversion! {
    fn add_where_positive [A: Real] (row: &[A], edge: &[A], gradient: &[A], sums: &mut [A]) {
        for (((&x, &e), &g), sum) in row.iter().zip(edge).zip(gradient).zip(sums) {
            *sum += if x + e > A::ZERO { g } else { A::ZERO };
        }
    }
}
