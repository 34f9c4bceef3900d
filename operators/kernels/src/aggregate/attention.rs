//! GAT's aggregation: the sum of source rows, weighted per head by the softmax of `leaky_relu(left[u] + right[v])` over
//! a destination's in-edges. `left` is GAT's source score, `right` its destination score.
//!
//! Attention is computed per destination. The backward pass recomputes it from the largest logit and the sum of
//! exponentials of each destination and head. No array has one entry per edge of the graph. Self loops are ordinary
//! edges.

use std::ops::Range;

use super::pieces::{pieces, split};
use super::rows::{Onto, Rows};
use super::sources::Sources;
use super::weight::ByEdge;
use crate::aggregate::edge_softmax::softmax_row;
use crate::aggregate::offsets::{Offset, prefetch as prefetch_bytes};
use crate::dense::dot::dots_of_heads;
use crate::dense::elementwise::Dropout;
use crate::parallel;
use crate::prefetch::prefetch;
use crate::simd::dispatch::{Level, level};
use crate::simd::element::{Element, Real};
use crate::simd::isa::{Generic, Isa};
#[cfg(target_arch = "x86_64")]
use crate::simd::isa::{V3, V4};

/// Calls a method with the number of heads as a constant, for the usual numbers; 0 means any other number.
macro_rules! by_heads {
    ($self:ident.$method:ident($($argument:expr),*)) => {
        match $self.heads {
            1 => $self.$method::<1>($($argument),*),
            2 => $self.$method::<2>($($argument),*),
            4 => $self.$method::<4>($($argument),*),
            8 => $self.$method::<8>($($argument),*),
            _ => $self.$method::<0>($($argument),*),
        }
    };
}

pub(crate) use by_heads;

/// Numbers of a destination's state per head. A state is `[STATE, heads]`. Its first number, the destination score, is
/// an input. [`Attention::forward`] fills the largest logit and the sum of exponentials. [`Attention::backward_right`]
/// fills the mean of the edges' gradients weighted by attention.
///
/// States are sent with the gradients of destinations to the owners of their sources.
pub const STATE: usize = 4;

/// Prefetch distance of source scores, in edges.
const AHEAD: usize = 32;

/// Dropout of attention weights. An edge's mask is a function of its two global ids, so both passes compute it on any
/// process without storing it. Parallel edges share a mask.
#[derive(Clone, Copy, Debug)]
pub struct EdgeDropout<'a> {
    /// The probability and the key.
    pub dropout: Dropout,
    /// The global id of each row of the interval.
    pub rows: &'a [u32],
    /// The global id of every node that `indices` can refer to.
    pub neighbors: &'a [u32],
    /// The total number of heads.
    pub heads: usize,
    /// The first of the heads computed here.
    pub first_head: usize,
}

impl EdgeDropout<'_> {
    /// Returns the factor of head `head` of the edge from `source` to `destination` (global ids).
    #[inline(always)]
    pub(crate) fn factor<A: Real>(&self, source: u32, destination: u32, head: usize) -> A {
        let i = u64::from(source) * self.heads as u64 + (self.first_head + head) as u64;
        A::from_f64(self.dropout.under(u64::from(destination)).factor(i))
    }

    /// Multiplies the values of edges from `sources` to a destination, `[edges, heads]`, by their masks.
    #[inline(always)]
    pub(crate) fn apply<A: Real>(&self, destination: u32, sources: &[u32], heads: usize, values: &mut [A]) {
        for (values, &source) in values.chunks_exact_mut(heads).zip(sources) {
            for (h, value) in values.iter_mut().enumerate() {
                let factor: A = self.factor(self.neighbors[source as usize], destination, h);
                *value = *value * factor;
            }
        }
    }
}

/// Attention over the in-edges of an interval of destinations.
#[derive(Clone, Copy, Debug)]
pub struct Attention<'a, P, T: Element> {
    /// The in-edges of row `r` of the interval are `indptr[r]..indptr[r + 1]`. An interval is a window.
    pub indptr: &'a [P],
    /// The source of each edge.
    pub indices: &'a [u32],
    /// `[sources, heads · width]`
    pub x: Sources<'a, T>,
    /// Source scores, `[sources, heads]`.
    pub left: Sources<'a, T::Acc>,
    /// Number of heads.
    pub heads: usize,
    /// Columns per head.
    pub width: usize,
    /// The negative slope of leaky ReLU; at least 0.
    pub slope: f64,
    /// Dropout of attention weights.
    pub dropout: Option<EdgeDropout<'a>>,
}

/// Buffers for the edges of one row, `[edges, heads]` each, and for a row.
#[derive(Default)]
pub(crate) struct Scratch<A> {
    pub(crate) attention: Vec<A>,
    pub(crate) gradients: Vec<A>,
    slopes: Vec<A>,
    pub(crate) row: Vec<A>,
}

impl<'a, P: Offset, T: Element> Attention<'a, P, T> {
    fn rows(&self) -> Rows<'a, P, T> {
        Rows::sum(self.indptr, self.indices, self.x, self.heads, self.width)
    }

    /// Panics unless lengths match.
    fn check(&self, states: usize) {
        let rows = self.indptr.len() - 1;
        assert!(self.slope >= 0.0, "leaky ReLU's slope is not negative");
        assert_eq!(states, rows * STATE * self.heads, "one state per row");
        assert!(self.left.len() >= self.x.len(), "one score per source");
        self.left.check(self.heads);
        self.rows().check();
        if let Some(dropout) = &self.dropout {
            assert!(dropout.rows.len() == rows && dropout.neighbors.len() >= self.x.len(), "one id per node");
        }
    }

    /// Fills `out`, `[rows, heads · width]`, with `Σ attention · x`. Fills the second and third number of each state of
    /// `states`, `[rows, STATE, heads]`, from the first.
    ///
    /// ```
    /// use gnnflow_kernels::aggregate::Sources;
    /// use gnnflow_kernels::aggregate::attention::Attention;
    ///
    /// // One destination has two sources with equal logits.
    /// let (x, left) = ([2f32, 6.], [1f32, 1.]);
    /// let job = Attention {
    ///     indptr: &[0u32, 2],
    ///     indices: &[0, 1],
    ///     x: Sources::new(&x, 1),
    ///     left: Sources::new(&left, 1),
    ///     heads: 1,
    ///     width: 1,
    ///     slope: 0.2,
    ///     dropout: None,
    /// };
    /// let (mut states, mut out) = ([3f32, 0., 0., 0.], [0f32]);
    /// job.forward(&mut states, &mut out);
    /// assert_eq!((out, states), ([4.], [3., 4., 2., 0.]));
    /// ```
    ///
    /// # Panics
    /// If lengths do not match or an index is past the last source.
    pub fn forward(&self, states: &mut [T::Acc], out: &mut [T::Acc]) {
        let (rows, columns) = (self.indptr.len() - 1, self.heads * self.width);
        assert_eq!(out.len(), rows * columns, "one output row per row of edges");
        if rows == 0 || columns == 0 {
            return;
        }
        self.check(states.len());
        let pieces = pieces(self.indptr);
        let parts = split(&pieces, columns, out).into_iter().zip(split(&pieces, STATE * self.heads, states));
        let parts = pieces.into_iter().zip(parts).collect();
        parallel::each_with(parts, &Scratch::default, &|scratch, (rows, (out, states))| {
            let task = Forward { params: self, rows, states, out, scratch };
            task.run();
        });
    }

    /// Computes the gradient of the destination scores, `d_right`, `[rows, heads]`, from that of the result of
    /// [`Attention::forward`]. Fills the fourth number of each state, which
    /// [`AttentionBackward`](super::attention_backward::AttentionBackward) needs.
    ///
    /// # Panics
    /// As [`Attention::forward`].
    pub fn backward_right(&self, gradient: &[T::Acc], states: &mut [T::Acc], d_right: &mut [T::Acc]) {
        let (rows, columns) = (self.indptr.len() - 1, self.heads * self.width);
        assert_eq!(gradient.len(), rows * columns, "one gradient per row");
        assert_eq!(d_right.len(), rows * self.heads, "one number per row and head");
        if rows == 0 || columns == 0 {
            return d_right.fill(T::Acc::ZERO);
        }
        self.check(states.len());
        let pieces = pieces(self.indptr);
        let parts = split(&pieces, self.heads, d_right).into_iter().zip(split(&pieces, STATE * self.heads, states));
        let parts = pieces.into_iter().zip(parts).collect();
        parallel::each_with(parts, &Scratch::default, &|scratch, (rows, (d_right, states))| {
            let task = BackwardRight { params: self, rows, gradient, states, d_right, scratch };
            task.run();
        });
    }

    /// Computes the attention of one row's edges, `out`, `[edges, heads]`, and the maxima and sums of its `state`.
    #[inline(always)]
    fn compute_attention(&self, edges: Range<usize>, state: &mut [T::Acc], out: &mut [T::Acc]) {
        let (right, rest) = state.split_at_mut(self.heads);
        let (largest, rest) = rest.split_at_mut(self.heads);
        self.logits(edges, right, out);
        softmax_row(out, self.heads, largest, &mut rest[..self.heads]);
    }

    /// Recomputes the attention and the slopes of leaky ReLU of one row's edges, `scratch`, and the maxima and sums of
    /// its `state`. With stale rows the scores may have changed since the forward pass, and the weights must sum to 1.
    #[inline(always)]
    fn recompute_attention(&self, edges: Range<usize>, state: &mut [T::Acc], scratch: &mut Scratch<T::Acc>) {
        let heads = self.heads;
        let numbers = edges.len() * heads;
        let slope = T::Acc::from_f64(self.slope);
        for buffer in [&mut scratch.attention, &mut scratch.slopes] {
            buffer.resize(numbers, T::Acc::ZERO);
        }
        let (right, rest) = state.split_at_mut(heads);
        let (largest, rest) = rest.split_at_mut(heads);
        self.logits(edges, right, &mut scratch.attention);
        for (&logit, of_edge) in scratch.attention.iter().zip(&mut scratch.slopes) {
            *of_edge = if logit > T::Acc::ZERO { T::Acc::ONE } else { slope };
        }
        softmax_row(&mut scratch.attention, heads, largest, &mut rest[..heads]);
    }

    /// Computes `leaky_relu(left[source] + right)` for `edges`, whose indices must have passed [`Rows::check_edges`].
    #[inline(always)]
    fn logits(&self, edges: Range<usize>, right: &[T::Acc], out: &mut [T::Acc]) {
        by_heads!(self.logits_of(edges, right, out));
    }

    /// Implements [`Attention::logits`] for `H` heads; 0 means any number.
    #[inline(always)]
    fn logits_of<const H: usize>(&self, edges: Range<usize>, right: &[T::Acc], out: &mut [T::Acc]) {
        let heads = if H > 0 { H } else { self.heads };
        let (slope, bases) = (T::Acc::from_f64(self.slope), self.left.base());
        let right = &right[..heads];
        let until = self.indices.len().saturating_sub(AHEAD);
        for (e, out) in edges.zip(out.chunks_exact_mut(heads)) {
            if e < until {
                prefetch(bases.row(self.indices[e + AHEAD]));
            }
            let left = self.left.row(self.indices[e] as usize, heads);
            for h in 0..heads {
                let sum = left[h] + right[h];
                out[h] = if sum > T::Acc::ZERO { sum } else { slope * sum };
            }
        }
    }

    /// Applies the dropout masks of row `r`'s edges.
    #[inline(always)]
    fn apply_dropout(&self, r: usize, edges: Range<usize>, values: &mut [T::Acc]) {
        if let Some(dropout) = &self.dropout {
            dropout.apply(dropout.rows[r], &self.indices[edges], self.heads, values);
        }
    }
}

/// Computes per head the mean of `gradients`, `[edges, heads]`, weighted by `attention`.
#[inline(always)]
pub(crate) fn softmax_means<A: Real>(attention: &[A], gradients: &[A], means: &mut [A]) {
    let heads = means.len();
    means.fill(A::ZERO);
    for (alpha, gradient) in attention.chunks_exact(heads).zip(gradients.chunks_exact(heads)) {
        for h in 0..heads {
            means[h] += alpha[h] * gradient[h];
        }
    }
}

/// Computes these means, `totals`, and the gradient of the destination score.
#[inline(always)]
fn softmax_gradient<A: Real>(scratch: &Scratch<A>, gradients: &[A], totals: &mut [A], d_right: &mut [A]) {
    let heads = totals.len();
    d_right.fill(A::ZERO);
    softmax_means(&scratch.attention, gradients, totals);
    let edges = || scratch.attention.chunks_exact(heads).zip(gradients.chunks_exact(heads));
    for ((alpha, gradient), slope) in edges().zip(scratch.slopes.chunks_exact(heads)) {
        for h in 0..heads {
            d_right[h] += alpha[h] * (gradient[h] - totals[h]) * slope[h];
        }
    }
}

/// Runs `self.body`, compiled for this machine's instruction set.
macro_rules! on_this_machine {
    ($task:ident [$($generics:tt)*]) => {
        impl<$($generics)*> $task<'_, P, T> {
            fn run(self) {
                #[cfg(target_arch = "x86_64")]
                if T::VECTORS {
                    match level() {
                        // SAFETY: `level` found the features; lengths were checked when the task was created.
                        Level::V4 => return unsafe { self.v4() },
                        // SAFETY: as above.
                        Level::V3 => return unsafe { self.v3() },
                        Level::Baseline => {}
                    }
                }
                // SAFETY: as above; `Generic` needs no features.
                unsafe { self.body::<Generic>() }
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,f16c")]
            unsafe fn v4(self) {
                // SAFETY: the features are enabled here.
                unsafe { self.body::<V4>() }
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,f16c")]
            unsafe fn v3(self) {
                // SAFETY: as above.
                unsafe { self.body::<V3>() }
            }
        }
    };
}
pub(crate) use on_this_machine;

/// Some rows of the forward pass.
struct Forward<'t, P, T: Element> {
    params: &'t Attention<'t, P, T>,
    rows: Range<usize>,
    states: &'t mut [T::Acc],
    out: &'t mut [T::Acc],
    scratch: &'t mut Scratch<T::Acc>,
}

on_this_machine!(Forward [P: Offset, T: Element]);

impl<P: Offset, T: Element> Forward<'_, P, T> {
    /// # Safety
    /// The machine has `I`, and lengths were checked.
    #[inline(always)]
    unsafe fn body<I: Isa>(self) {
        let (params, heads, job) = (self.params, self.params.heads, self.params.rows());
        job.check_edges(&self.rows);
        let (bases, columns) = (job.x.base(), heads * params.width);
        let places = self.states.chunks_exact_mut(STATE * heads).zip(self.out.chunks_exact_mut(columns));
        for (r, (state, out)) in self.rows.zip(places) {
            let edges = job.edges(r);
            self.scratch.attention.resize(edges.len() * heads, T::Acc::ZERO);
            params.compute_attention(edges.clone(), state, &mut self.scratch.attention);
            params.apply_dropout(r, edges.clone(), &mut self.scratch.attention);
            let weights = ByEdge { weights: &self.scratch.attention, heads, first: edges.start, edges: None };
            // SAFETY: the edges and lengths were checked, and `out` is a row.
            unsafe { job.row::<I, _>(&bases, r, edges, &weights, Onto::Nothing, true, out.as_mut_ptr()) };
        }
    }
}

/// Some rows of the backward pass by destination.
struct BackwardRight<'t, P, T: Element> {
    params: &'t Attention<'t, P, T>,
    rows: Range<usize>,
    gradient: &'t [T::Acc],
    states: &'t mut [T::Acc],
    d_right: &'t mut [T::Acc],
    scratch: &'t mut Scratch<T::Acc>,
}

on_this_machine!(BackwardRight [P: Offset, T: Element]);

impl<P: Offset, T: Element> BackwardRight<'_, P, T> {
    /// # Safety
    /// The machine has `I`.
    #[inline(always)]
    unsafe fn body<I: Isa>(self) {
        let (params, heads, job) = (self.params, self.params.heads, self.params.rows());
        job.check_edges(&self.rows);
        let (bases, columns) = (job.x.base(), heads * params.width);
        let (ahead, scratch) = (job.ahead(columns), self.scratch);
        let until = params.indices.len().saturating_sub(ahead);
        let places = self.states.chunks_exact_mut(STATE * heads).zip(self.d_right.chunks_exact_mut(heads));
        for (r, (state, d_right)) in self.rows.zip(places) {
            let edges = job.edges(r);
            params.recompute_attention(edges.clone(), state, scratch);
            let mut gradients = std::mem::take(&mut scratch.gradients);
            gradients.resize(edges.len() * heads, T::Acc::ZERO);
            let gradient = &self.gradient[r * columns..][..columns];
            for (e, out) in edges.clone().zip(gradients.chunks_exact_mut(heads)) {
                if e < until {
                    prefetch_bytes(bases.row(params.indices[e + ahead]), columns * size_of::<T>());
                }
                let row = params.x.row(params.indices[e] as usize, columns);
                // SAFETY: guaranteed by the caller.
                unsafe { dots_of_heads::<I, T>(gradient, row, params.width, out) };
            }
            params.apply_dropout(r, edges, &mut gradients);
            softmax_gradient(scratch, &gradients, &mut state[3 * heads..], d_right);
            scratch.gradients = gradients;
        }
    }
}
