//! Aggregation over complete in-neighborhoods, for one interval of destinations at a time.
//!
//! [`Propagate`] is the weighted sum of source rows, fused with the normalization on both sides and the destination's
//! own row. Its exact gradient is the same kernel over the inverse edges, with both scales swapped. [`attention`] is
//! GAT's aggregation and [`dynamic_attention`] GATv2's; [`maximum`] takes maxima instead of sums. No intermediate
//! result has a row per edge.
//!
//! **Reproducibility.** One thread sums a destination's edges, in the order of `indices`, in `f32` (or `f64`) for any
//! storage type and instruction set. Results are therefore independent of threads, intervals and the array that holds a
//! row. For independence of partitions, store neighbors in the order of the entire graph.

pub mod attention;
pub mod attention_backward;
pub mod attention_logits;
pub mod dynamic_attention;
pub mod dynamic_attention_backward;
pub mod edge_add;
pub mod edge_softmax;
pub mod maximum;
pub mod messages;
pub mod offsets;
mod pieces;
pub mod relations;
pub(crate) mod rows;
pub mod segment;
mod sources;
#[cfg(test)]
mod tests;
pub mod transpose;
pub(crate) mod weight;
pub mod weighted;

pub use rows::{Coefficient, Onto, Own, Scale};
pub use sources::Sources;
pub use weight::Weights;

use super::aggregate::offsets::Offset;
use super::simd::element::Element;
use rows::Rows;
use weight::{ByEdge, ByIndex, Unit};

/// `out[r] = own(r) + scale(r) · Σ weight(e) · x[s]` over the edges `e` of destination `r`, from source `s`.
///
/// GCN's normalization `1/√((d_u + 1)(d_v + 1))` with self loops is [`Weights::BySource`] and [`Scale::ByRow`] with
/// `1/√(d + 1)`, and an [`Own`] row with `1/(d + 1)`; the mean is [`Scale::InverseDegree`].
///
/// ```
/// use gnnflow_kernels::aggregate::{Coefficient, Own, Propagate, Scale, Sources, Weights};
///
/// // Destination 0 has in-edges from 1 and 2, destination 1 from 2, destination 2 none.
/// let (indptr, indices, x) = ([0u32, 2, 3, 3], [1, 2, 2], [1f32, 2., 3.]);
/// let mut out = [0f32; 3];
/// Propagate::sum(&indptr, &indices, Sources::new(&x, 1), 1).run(&mut out);
/// assert_eq!(out, [5., 3., 0.]);
///
/// // An interval is a window of `indptr`; here the last two destinations.
/// let own = Own { rows: &x[1..], stride: 1, coefficient: Coefficient::Same(10.) };
/// let job = Propagate {
///     weights: Weights::BySource(&[1., 2., 4.]),
///     scale: Scale::ByRow(&[0.5, 0.5]),
///     own: Some(own),
///     ..Propagate::sum(&indptr[1..], &indices, Sources::new(&x, 1), 1)
/// };
/// job.run(&mut out[1..]);
/// assert_eq!(out, [5., 26., 30.]);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Propagate<'a, P, T: Element> {
    /// The edges of row `r` of the interval are `indptr[r]..indptr[r + 1]`. An interval is a window of a longer
    /// `indptr`.
    pub indptr: &'a [P],
    /// The source of each edge, as a row of `sources`; includes the edges of other intervals.
    pub indices: &'a [u32],
    /// `[sources, heads · width]`
    pub sources: Sources<'a, T>,
    /// Groups of columns with separate weights; 1 unless weights are [`Weights::ByEdge`].
    pub heads: usize,
    /// Columns per head.
    pub width: usize,
    /// Factors of the source rows.
    pub weights: Weights<'a, T::Acc>,
    /// Factors of the sums.
    pub scale: Scale<'a, T::Acc>,
    /// Rows that are added per destination.
    pub own: Option<Own<'a, T>>,
    /// The use of the previous contents of `out`.
    pub onto: Onto,
    /// Numbers from one row of `out` to the next; the columns in between are unchanged.
    pub out_stride: usize,
}

impl<'a, P: Offset, T: Element> Propagate<'a, P, T> {
    /// The plain sum of rows of `width` columns, into contiguous rows.
    pub fn sum(indptr: &'a [P], indices: &'a [u32], sources: Sources<'a, T>, width: usize) -> Self {
        let (weights, scale, onto) = (Weights::One, Scale::One, Onto::Nothing);
        Self { indptr, indices, sources, heads: 1, width, weights, scale, own: None, onto, out_stride: width }
    }

    /// Fills `out`, `[indptr.len() - 1, out_stride]`; the last row may end after its last column.
    ///
    /// # Panics
    /// If lengths do not match, an index is past the last source, or `indptr` is empty or decreases.
    pub fn run(&self, out: &mut [T::Acc]) {
        let Self { indptr, indices, sources: x, heads, width, scale, own, onto, out_stride, .. } = *self;
        let rows = Rows { indptr, indices, x, heads, width, scale, own, onto, front: None, out_stride };
        match self.weights {
            Weights::One => rows.run(&Unit, out),
            Weights::BySource(weights) => rows.run(&ByIndex(weights), out),
            Weights::ByEdge { values: weights, first, edges } => {
                rows.run(&ByEdge { weights, heads, first, edges }, out);
            }
        }
    }
}
