//! What multiplies the row at the end of an edge.

use crate::prefetch;
use crate::simd::element::Real;

/// What multiplies a source's row on its way along an edge.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Weights<'a, A> {
    /// Nothing.
    One,
    /// A number for each source.
    BySource(&'a [A]),
    /// A number for each edge and head.
    ByEdge {
        /// `[edges, heads]`
        values: &'a [A],
        /// The edge that `values` begin with: 0, or the first one of an interval.
        first: usize,
        /// Where the edge at each position of `indices` lies in `values`; `None` when in the same place.
        edges: Option<&'a [u32]>,
    },
}

/// What multiplies the row of `x` at the end of an edge, for loops that are compiled for each kind.
pub(crate) trait Weight<A>: Sync {
    /// Whether every weight is 1 and need not be asked for.
    const UNIT: bool = false;
    /// The weight for columns of `head` of edge `e` (a position in `indices`), whose row of `x` is `index`.
    fn at(&self, e: usize, index: usize, head: usize) -> A;
    /// Asks for what an edge of row `index` will need.
    #[inline(always)]
    fn fetch(&self, index: usize) {
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

/// A weight for each row of `x`.
pub(crate) struct ByIndex<'a, S>(pub &'a [S]);

impl<A: Real, S: Real> Weight<A> for ByIndex<'_, S> {
    #[inline(always)]
    fn at(&self, _: usize, index: usize, _: usize) -> A {
        A::from_f64(self.0[index].to_f64())
    }
    #[inline(always)]
    fn fetch(&self, index: usize) {
        prefetch(self.0.as_ptr().wrapping_add(index));
    }
}

/// A weight for each edge and head, `[E, H]`.
pub(crate) struct ByEdge<'a, A> {
    pub weights: &'a [A],
    pub heads: usize,
    /// The edge that `weights` begin with.
    pub first: usize,
    /// Where the edge at each position lies in `weights`; `None` when in the same place.
    pub edges: Option<&'a [u32]>,
}

impl<A: Real> Weight<A> for ByEdge<'_, A> {
    #[inline(always)]
    fn at(&self, e: usize, _: usize, head: usize) -> A {
        let edge = self.edges.map_or(e, |edges| edges[e] as usize);
        self.weights[(edge - self.first) * self.heads + head]
    }
}
