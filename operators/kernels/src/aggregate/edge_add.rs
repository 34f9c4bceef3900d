//! Sums of source and destination scores per edge: `out[e, h] = left[source, h] + right[destination, h]`.
//!
//! The gradients are sums over edges: [`super::segment::edge_sum`] for the destinations,
//! [`super::segment::edge_sum_by_source`] for the sources.

use super::offsets::{Offset, ROWS, split_by_row};
use crate::parallel;
use crate::simd::element::Real;

/// Fills `out`, `[E, heads]` in the edges' order.
///
/// ```
/// let mut out = [0f32; 3];
/// gnnflow_kernels::aggregate::edge_add::forward(&[0u32, 2, 3], &[1, 2, 2], &[0., 1., 2.], &[10., 20.], 1, &mut out);
/// assert_eq!(out, [11., 12., 22.]);
/// ```
///
/// # Panics
/// If lengths do not match or an index is past the last source.
pub fn forward<P: Offset, A: Real>(
    indptr: &[P],
    indices: &[u32],
    left: &[A],
    right: &[A],
    heads: usize,
    out: &mut [A],
) {
    let rows = indptr.len() - 1;
    assert_eq!(right.len(), rows * heads, "one number per destination and head");
    assert_eq!(out.len(), indices.len() * heads, "one number per edge and head");
    if heads == 0 {
        return;
    }
    parallel::each(split_by_row(indptr, heads, out), &|(first, out): (usize, &mut [A])| {
        let mut edges = out.chunks_exact_mut(heads);
        for row in first..(first + ROWS).min(rows) {
            let right = &right[row * heads..][..heads];
            for &source in &indices[indptr[row].at()..indptr[row + 1].at()] {
                let left = &left[source as usize * heads..][..heads];
                let Some(out) = edges.next() else { return };
                out.iter_mut().zip(left.iter().zip(right)).for_each(|(o, (&l, &r))| *o = l + r);
            }
        }
    });
}
