//! Gradients of [`DynamicAttention`](super::dynamic_attention::DynamicAttention) by source, over the out-edges of an
//! interval of sources. Attention is recomputed from the rows and states of both nodes.

use std::ops::Range;

use super::attention::{EdgeDropout, on_this_machine};
use super::dynamic_attention::{SOFTMAX_STATE, Vectors};
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

/// Edges per block; their rows are read several times and stay in the cache.
const BLOCK: usize = 32;

/// The out-edges of an interval of sources, and the data of their destinations.
#[derive(Clone, Copy, Debug)]
pub struct DynamicAttentionBackward<'a, P, T: Element> {
    /// The out-edges of row `r` of the interval are `indptr[r]..indptr[r + 1]`. An interval is a window.
    pub indptr: &'a [P],
    /// The destination of each edge.
    pub indices: &'a [u32],
    /// The gradient of each destination's aggregate, `[destinations, heads · width]`.
    pub gradient: Sources<'a, T::Acc>,
    /// `[destinations, heads · width + SOFTMAX_STATE · heads]`, filled by
    /// [`DynamicAttention::backward_right`](super::dynamic_attention::DynamicAttention::backward_right).
    pub states: Sources<'a, T::Acc>,
    /// The rows of the interval's sources, `[rows, heads · width]`.
    pub x: &'a [T],
    /// The vectors a, `[heads, width]`.
    pub vectors: &'a [T::Acc],
    /// Number of heads.
    pub heads: usize,
    /// Columns per head.
    pub width: usize,
    /// The negative slope of leaky ReLU.
    pub slope: f64,
    /// As in the forward pass; here rows are the interval's sources, and `neighbors` the destinations.
    pub dropout: Option<EdgeDropout<'a>>,
}

/// Buffers for a row, and for a block of edges, `[BLOCK, heads]` each.
struct Scratch<A> {
    activated: Vec<A>,
    attention: Vec<A>,
    totals: Vec<A>,
    gradient: Vec<A>,
}

impl<P: Offset, T: Element> DynamicAttentionBackward<'_, P, T> {
    fn rows(&self) -> Rows<'_, P, T::Acc> {
        Rows::sum(self.indptr, self.indices, self.gradient, self.heads, self.width)
    }

    /// Computes the gradients of the sources' rows, `dx`, without the part through their terms, and of these terms,
    /// `d_left`; both are `[rows, heads · width]`.
    ///
    /// ```
    /// use gnnflow_kernels::aggregate::Sources;
    /// use gnnflow_kernels::aggregate::dynamic_attention_backward::DynamicAttentionBackward;
    ///
    /// // A source with weight 1/2 gets half of the gradient, and its term none.
    /// let job = DynamicAttentionBackward {
    ///     indptr: &[0u32, 1],
    ///     indices: &[0],
    ///     gradient: Sources::new(&[3f32], 1),
    ///     // Term, largest logit, sum of exponentials, mean of gradients: 3 · −4.
    ///     states: Sources::new(&[2., 1., 2., -12.], 4),
    ///     x: &[-4f32],
    ///     vectors: &[-1.],
    ///     heads: 1,
    ///     width: 1,
    ///     slope: 0.5,
    ///     dropout: None,
    /// };
    /// let (mut dx, mut d_left) = ([0f32], [7f32]);
    /// job.run(&mut dx, &mut d_left);
    /// assert_eq!((dx, d_left), ([1.5], [0.]));
    /// ```
    ///
    /// # Panics
    /// If lengths do not match or an index is past the last destination.
    pub fn run(&self, dx: &mut [T::Acc], d_left: &mut [T::Acc]) {
        let (rows, heads, columns) = (self.indptr.len() - 1, self.heads, self.heads * self.width);
        assert_eq!(dx.len(), rows * columns, "one output row per row of edges");
        assert_eq!(d_left.len(), dx.len(), "`d_left` has the length of `dx`");
        if rows == 0 || columns == 0 {
            return;
        }
        assert!(self.x.len() == rows * columns && self.vectors.len() == columns, "one value per column");
        assert!(self.states.len() >= self.gradient.len(), "one state per destination");
        self.states.check(columns + SOFTMAX_STATE * heads);
        self.rows().check();
        if let Some(dropout) = &self.dropout {
            let has_ids = dropout.rows.len() == rows && dropout.neighbors.len() >= self.gradient.len();
            assert!(has_ids, "one id per node");
        }
        let (pieces, vectors) = (pieces(self.indptr), Vectors::new(self.vectors, self.slope));
        let parts = split(&pieces, columns, dx).into_iter().zip(split(&pieces, columns, d_left));
        let buffer = |each: usize| vec![T::Acc::ZERO; each];
        let scratch = || Scratch {
            activated: buffer(columns),
            attention: buffer(BLOCK * heads),
            totals: buffer(BLOCK * heads),
            gradient: buffer(heads),
        };
        let parts = pieces.into_iter().zip(parts).collect();
        parallel::each_with(parts, &scratch, &|scratch, (rows, (dx, d_left))| {
            let task = BySource { params: self, vectors: &vectors, rows, dx, d_left, scratch };
            task.run();
        });
    }
}

/// Some rows of the backward pass.
struct BySource<'t, P, T: Element> {
    params: &'t DynamicAttentionBackward<'t, P, T>,
    vectors: &'t Vectors<T::Acc>,
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
        let columns = heads * width;
        let (bases, states, ahead) = (job.x.base(), params.states.base(), job.ahead(columns));
        let until = params.indices.len().saturating_sub(ahead);
        let Scratch { activated, attention, totals, gradient: of_logits } = self.scratch;
        let places = self.dx.chunks_exact_mut(columns).zip(self.d_left.chunks_exact_mut(columns));
        for (r, (dx, d_left)) in self.rows.zip(places) {
            let (all, x) = (job.edges(r), &params.x[r * columns..][..columns]);
            dx.fill(T::Acc::ZERO);
            d_left.fill(T::Acc::ZERO);
            for begin in all.clone().step_by(BLOCK) {
                let edges = begin..(begin + BLOCK).min(all.end);
                let state = |e: usize| {
                    params.states.row(params.indices[e] as usize, columns + SOFTMAX_STATE * heads).split_at(columns)
                };
                for (k, e) in edges.clone().enumerate() {
                    if e < until {
                        let place = params.indices[e + ahead];
                        prefetch_bytes(bases.row(place), columns * size_of::<T::Acc>());
                        prefetch_bytes(states.row(place), (columns + SOFTMAX_STATE * heads) * size_of::<T::Acc>());
                    }
                    let ((right, softmax_state), place) = (state(e), k * heads..(k + 1) * heads);
                    let logits = &mut attention[place.clone()];
                    // SAFETY: guaranteed by the caller.
                    unsafe { self.vectors.logits::<I, T>(x, right, width, activated, logits) };
                    logits.iter_mut().zip(softmax_state).for_each(|(logit, largest)| *logit = *logit - *largest);
                    // A loop, because a copy of a short slice is a more expensive call.
                    totals[place].iter_mut().zip(&softmax_state[heads..]).for_each(|(total, sum)| *total = *sum);
                }
                let count = edges.len() * heads;
                recompute_softmax(&mut attention[..count], &totals[..count]);
                for (k, e) in edges.clone().enumerate() {
                    let (right, softmax_state) = state(e);
                    let gradient = params.gradient.row(params.indices[e] as usize, columns);
                    for h in 0..heads {
                        let place = k * heads + h;
                        let (gradient, x) = (&gradient[h * width..][..width], &x[h * width..][..width]);
                        // SAFETY: guaranteed by the caller.
                        let mut product = unsafe { dot_in_lanes::<I, T>(gradient, x) };
                        let alpha = attention[place];
                        if let Some(dropout) = &params.dropout {
                            let destination = dropout.neighbors[params.indices[e] as usize];
                            let factor: T::Acc = dropout.factor(dropout.rows[r], destination, h);
                            product = product * factor;
                            attention[place] = alpha * factor;
                        }
                        of_logits[h] = alpha * (product - softmax_state[2 * heads + h]);
                    }
                    self.vectors.add_slopes(x, right, width, of_logits, d_left);
                }
                let weights = ByEdge { weights: attention, heads, first: begin, edges: None };
                // SAFETY: the edges and lengths were checked, and `dx` is a row.
                unsafe { job.row::<I, _>(&bases, r, edges, &weights, Onto::Sum, false, dx.as_mut_ptr()) };
            }
        }
    }
}
