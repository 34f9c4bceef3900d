//! Factors of source rows.

use crate::prefetch::prefetch;
use crate::simd::element::Real;

/// The factor of a source row in a sum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Weights<'a, A> {
    /// Always 1.
    One,
    /// One number per source.
    BySource(&'a [A]),
    /// One number per edge and head.
    ByEdge {
        /// `[edges, heads]`
        values: &'a [A],
        /// The edge of the first row of `values`: 0, or the first edge of an interval.
        first: usize,
        /// The position in `values` of the edge at each position of `indices`; `None` if they are equal.
        edges: Option<&'a [u32]>,
    },
}

/// [`Weights`] as a trait, which specializes loops at compile time.
pub(crate) trait Weight<A>: Sync {
    /// Whether every weight is 1.
    const UNIT: bool = false;
    /// Returns the weight for `head` of edge `e`, a position in `indices`, from row `index` of `x`.
    fn at(&self, e: usize, index: usize, head: usize) -> A;
    /// Prefetches the weight of row `index`.
    #[inline(always)]
    fn prefetch(&self, index: usize) {
        let _ = index;
    }
}

/// No weights.
pub(crate) struct Unit;

impl<A: Real> Weight<A> for Unit {
    const UNIT: bool = true;
    #[inline(always)]
    fn at(&self, _: usize, _: usize, _: usize) -> A {
        A::ONE
    }
}

/// One weight per row of `x`.
pub(crate) struct ByIndex<'a, S>(pub &'a [S]);

impl<A: Real, S: Real> Weight<A> for ByIndex<'_, S> {
    #[inline(always)]
    fn at(&self, _: usize, index: usize, _: usize) -> A {
        A::from_f64(self.0[index].to_f64())
    }
    #[inline(always)]
    fn prefetch(&self, index: usize) {
        prefetch(self.0.as_ptr().wrapping_add(index));
    }
}

/// One weight per edge and head, `[E, H]`.
pub(crate) struct ByEdge<'a, A> {
    pub weights: &'a [A],
    pub heads: usize,
    /// The edge of the first row of `weights`.
    pub first: usize,
    /// The position in `weights` of each edge; `None` if they are equal.
    pub edges: Option<&'a [u32]>,
}

impl<A: Real> Weight<A> for ByEdge<'_, A> {
    #[inline(always)]
    fn at(&self, e: usize, _: usize, head: usize) -> A {
        let edge = self.edges.map_or(e, |edges| edges[e] as usize);
        self.weights[(edge - self.first) * self.heads + head]
    }
}
