//! Gradients of [`Attention`](super::attention::Attention) by source, over the out-edges of an interval of sources.
//! Attention is recomputed from the scores and states of both nodes.

use std::ops::Range;

use super::attention::{EdgeDropout, STATE, by_heads, on_this_machine};
use super::pieces::{pieces, split};
use super::rows::{Onto, Rows};
use super::sources::Sources;
use super::weight::ByEdge;
use crate::aggregate::edge_softmax::recompute_softmax;
use crate::aggregate::offsets::{Offset, prefetch as prefetch_bytes};
use crate::dense::dot::dot_in_lanes;
use crate::parallel;
use crate::simd::dispatch::{Level, level};
use crate::simd::element::{Element, Real};
use crate::simd::isa::{Generic, Isa};
#[cfg(target_arch = "x86_64")]
use crate::simd::isa::{V3, V4};

/// Edges per block; their rows are read twice and stay in the cache.
const BLOCK: usize = 32;

/// The out-edges of an interval of sources, and the data of their destinations.
#[derive(Clone, Copy, Debug)]
pub struct AttentionBackward<'a, P, T: Element> {
    /// The out-edges of row `r` of the interval are `indptr[r]..indptr[r + 1]`. An interval is a window.
    pub indptr: &'a [P],
    /// The destination of each edge.
    pub indices: &'a [u32],
    /// The gradient of each destination's aggregate, `[destinations, heads · width]`.
    pub gradient: Sources<'a, T::Acc>,
    /// `[destinations, STATE, heads]`, filled by
    /// [`Attention::backward_right`](super::attention::Attention::backward_right).
    pub states: Sources<'a, T::Acc>,
    /// The rows of the interval's sources, `[rows, heads · width]`.
    pub x: &'a [T],
    /// The scores of the interval's sources, `[rows, heads]`.
    pub left: &'a [T::Acc],
    /// Number of heads.
    pub heads: usize,
    /// Columns per head.
    pub width: usize,
    /// The negative slope of leaky ReLU.
    pub slope: f64,
    /// As in the forward pass; here rows are the interval's sources, and `neighbors` the destinations.
    pub dropout: Option<EdgeDropout<'a>>,
}

/// Buffers for a block of edges, `[BLOCK, heads]` each.
struct Scratch<A> {
    attention: Vec<A>,
    totals: Vec<A>,
    means: Vec<A>,
    slopes: Vec<A>,
}

impl<P: Offset, T: Element> AttentionBackward<'_, P, T> {
    fn rows(&self) -> Rows<'_, P, T::Acc> {
        Rows::sum(self.indptr, self.indices, self.gradient, self.heads, self.width)
    }

    /// Computes the gradients of the sources' rows, `dx`, `[rows, heads · width]`, and of their scores, `d_left`,
    /// `[rows, heads]`.
    ///
    /// # Panics
    /// If lengths do not match or an index is past the last destination.
    pub fn run(&self, dx: &mut [T::Acc], d_left: &mut [T::Acc]) {
        let (rows, heads, columns) = (self.indptr.len() - 1, self.heads, self.heads * self.width);
        assert_eq!(dx.len(), rows * columns, "one output row per row of edges");
        assert_eq!(d_left.len(), rows * heads, "one number per row and head");
        if rows == 0 || columns == 0 {
            return d_left.fill(T::Acc::ZERO);
        }
        assert!(self.x.len() == rows * columns && self.left.len() == rows * heads, "one value per column");
        assert!(self.states.len() >= self.gradient.len(), "one state per destination");
        self.states.check(STATE * heads);
        self.rows().check();
        if let Some(dropout) = &self.dropout {
            let has_ids = dropout.rows.len() == rows && dropout.neighbors.len() >= self.gradient.len();
            assert!(has_ids, "one id per node");
        }
        let pieces = pieces(self.indptr);
        let parts = split(&pieces, columns, dx).into_iter().zip(split(&pieces, heads, d_left));
        let buffer = || vec![T::Acc::ZERO; BLOCK * heads];
        let scratch = || Scratch { attention: buffer(), totals: buffer(), means: buffer(), slopes: buffer() };
        let parts = pieces.into_iter().zip(parts).collect();
        parallel::each_with(parts, &scratch, &|scratch, (rows, (dx, d_left))| {
            let task = BySource { params: self, rows, dx, d_left, scratch };
            task.run();
        });
    }

    /// Reads the states of a block of row `r`'s edges, and recomputes their attention.
    #[inline(always)]
    fn recompute_attention(&self, r: usize, edges: Range<usize>, scratch: &mut Scratch<T::Acc>) {
        by_heads!(self.recompute_attention_of(r, edges, scratch));
    }

    /// Implements [`AttentionBackward::recompute_attention`] for `H` heads; 0 means any number.
    #[inline(always)]
    fn recompute_attention_of<const H: usize>(&self, r: usize, edges: Range<usize>, scratch: &mut Scratch<T::Acc>) {
        let (heads, slope) = (if H > 0 { H } else { self.heads }, T::Acc::from_f64(self.slope));
        let left = &self.left[r * heads..][..heads];
        let until = self.indices.len().saturating_sub(BLOCK);
        let bases = self.states.base();
        let count = edges.len() * heads;
        for (k, e) in edges.enumerate() {
            if e < until {
                prefetch_bytes(bases.row(self.indices[e + BLOCK]), STATE * heads * size_of::<T::Acc>());
            }
            let state = self.states.row(self.indices[e] as usize, STATE * heads);
            let place = k * heads..(k + 1) * heads;
            let (attention, slopes) = (&mut scratch.attention[place.clone()], &mut scratch.slopes[place.clone()]);
            let (totals, means) = (&mut scratch.totals[place.clone()], &mut scratch.means[place]);
            for h in 0..heads {
                let sum = left[h] + state[h];
                let above = sum > T::Acc::ZERO;
                slopes[h] = if above { T::Acc::ONE } else { slope };
                attention[h] = if above { sum } else { slope * sum } - state[heads + h];
                // A loop, because a copy of a short slice is a more expensive call.
                totals[h] = state[2 * heads + h];
                means[h] = state[3 * heads + h];
            }
        }
        recompute_softmax(&mut scratch.attention[..count], &scratch.totals[..count]);
    }
}

/// Some rows of the backward pass.
struct BySource<'t, P, T: Element> {
    params: &'t AttentionBackward<'t, P, T>,
    rows: Range<usize>,
    dx: &'t mut [T::Acc],
    d_left: &'t mut [T::Acc],
    scratch: &'t mut Scratch<T::Acc>,
}

on_this_machine!(BySource [P: Offset, T: Element]);

impl<P: Offset, T: Element> BySource<'_, P, T> {
    /// # Safety
    /// The machine has `I`, and lengths were checked.
    #[inline(always)]
    unsafe fn body<I: Isa>(self) {
        let (params, heads, width, job) = (self.params, self.params.heads, self.params.width, self.params.rows());
        job.check_edges(&self.rows);
        let (bases, columns) = (job.x.base(), heads * width);
        let ahead = job.ahead(columns);
        let until = params.indices.len().saturating_sub(ahead);
        let places = self.dx.chunks_exact_mut(columns).zip(self.d_left.chunks_exact_mut(heads));
        for (r, (dx, d_left)) in self.rows.zip(places) {
            let (all, x) = (job.edges(r), &params.x[r * columns..][..columns]);
            dx.fill(T::Acc::ZERO);
            d_left.fill(T::Acc::ZERO);
            for begin in all.clone().step_by(BLOCK) {
                let edges = begin..(begin + BLOCK).min(all.end);
                params.recompute_attention(r, edges.clone(), self.scratch);
                for (k, e) in edges.clone().enumerate() {
                    if e < until {
                        prefetch_bytes(bases.row(params.indices[e + ahead]), columns * size_of::<T::Acc>());
                    }
                    let gradient = params.gradient.row(params.indices[e] as usize, columns);
                    for h in 0..heads {
                        let place = k * heads + h;
                        let (gradient, x) = (&gradient[h * width..][..width], &x[h * width..][..width]);
                        // SAFETY: guaranteed by the caller.
                        let mut product = unsafe { dot_in_lanes::<I, T>(gradient, x) };
                        let attention = self.scratch.attention[place];
                        if let Some(dropout) = &params.dropout {
                            let destination = dropout.neighbors[params.indices[e] as usize];
                            let factor: T::Acc = dropout.factor(dropout.rows[r], destination, h);
                            product = product * factor;
                            self.scratch.attention[place] = attention * factor;
                        }
                        d_left[h] += attention * (product - self.scratch.means[place]) * self.scratch.slopes[place];
                    }
                }
                let weights = ByEdge { weights: &self.scratch.attention, heads, first: begin, edges: None };
                // SAFETY: the edges and lengths were checked, and `dx` is a row.
                unsafe { job.row::<I, _>(&bases, r, edges, &weights, Onto::Sum, false, dx.as_mut_ptr()) };
            }
        }
    }
}
