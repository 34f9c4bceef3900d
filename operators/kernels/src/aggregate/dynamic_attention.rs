//! GATv2's aggregation (Brody, Alon, Yahav 2022): the sum of source rows `S·h_u`, weighted per head by the softmax of
//! `a · leaky_relu(S·h_u + D·h_v)` over a destination's in-edges.
//!
//! Leaky ReLU commutes with nonnegative factors, so `|a|` can move inside. With the *terms* `left = |a| ⊙ S·h_u` and
//! `right = |a| ⊙ D·h_v`, a logit is `Σ sign(a) · leaky_relu(left + right)` over the head's columns. A source's term is
//! recomputed from its row; a destination's term is stored. All parameters, including `a`, are learned from the
//! gradients of terms, one row per node. As in [`Attention`](super::attention::Attention), no array has one entry per
//! edge of the graph.

use std::ops::Range;

use super::attention::{EdgeDropout, Scratch, on_this_machine, softmax_means};
use super::pieces::{pieces, split};
use super::rows::{Onto, Rows};
use super::sources::Sources;
use super::weight::ByEdge;
use crate::aggregate::edge_softmax::softmax_row;
use crate::aggregate::offsets::{Offset, prefetch as prefetch_bytes};
use crate::dense::dot::dots_of_heads;
use crate::parallel;
use crate::simd::dispatch::{Level, level};
use crate::simd::element::{Element, Real};
use crate::simd::isa::{Generic, Isa};
#[cfg(target_arch = "x86_64")]
use crate::simd::isa::{V3, V4};

/// Numbers of a destination's state per head, after its term of `heads · width` numbers: the largest logit, the sum of
/// exponentials (by [`DynamicAttention::forward`]), and the mean of the edges' gradients weighted by attention (by
/// [`DynamicAttention::backward_right`]).
pub const SOFTMAX_STATE: usize = 3;

/// GATv2's attention over the in-edges of an interval of destinations.
#[derive(Clone, Copy, Debug)]
pub struct DynamicAttention<'a, P, T: Element> {
    /// The in-edges of row `r` of the interval are `indptr[r]..indptr[r + 1]`. An interval is a window.
    pub indptr: &'a [P],
    /// The source of each edge.
    pub indices: &'a [u32],
    /// Source rows, `[sources, heads · width]`.
    pub x: Sources<'a, T>,
    /// The vectors a, `[heads, width]`.
    pub vectors: &'a [T::Acc],
    /// Number of heads.
    pub heads: usize,
    /// Columns per head.
    pub width: usize,
    /// The negative slope of leaky ReLU; at least 0.
    pub slope: f64,
    /// Dropout of attention weights.
    pub dropout: Option<EdgeDropout<'a>>,
}

/// Magnitudes and signs of the vectors a.
pub(crate) struct Vectors<A> {
    sizes: Vec<A>,
    pub(crate) signs: Vec<A>,
    slope: A,
}

impl<A: Real> Vectors<A> {
    pub(crate) fn new(vectors: &[A], slope: f64) -> Self {
        let positive = |x: A| x >= A::ZERO;
        Self {
            sizes: vectors.iter().map(|&x| if positive(x) { x } else { -x }).collect(),
            signs: vectors.iter().map(|&x| if positive(x) { A::ONE } else { -A::ONE }).collect(),
            slope: A::from_f64(slope),
        }
    }

    /// Computes the logits of one edge by head; `activated` is a buffer for a row.
    ///
    /// # Safety
    /// The machine has `I`.
    #[inline(always)]
    pub(crate) unsafe fn logits<I: Isa, T: Element<Acc = A>>(
        &self,
        x: &[T],
        right: &[A],
        width: usize,
        activated: &mut [A],
        out: &mut [A],
    ) {
        for (((activated, x), right), size) in activated.iter_mut().zip(x).zip(right).zip(&self.sizes) {
            let sum = *size * x.widen() + *right;
            *activated = if sum > A::ZERO { sum } else { self.slope * sum };
        }
        // SAFETY: guaranteed by the caller.
        unsafe { dots_of_heads::<I, A>(&self.signs, activated, width, out) };
    }

    /// Adds one edge's part of the gradient of the terms of both nodes, from the `gradient` of its logits.
    #[inline(always)]
    pub(crate) fn add_slopes<T: Element<Acc = A>>(
        &self,
        x: &[T],
        right: &[A],
        width: usize,
        gradient: &[A],
        sums: &mut [A],
    ) {
        for (h, &gradient) in gradient.iter().enumerate() {
            let head = h * width..(h + 1) * width;
            let (sizes, signs, below) = (&self.sizes[head.clone()], &self.signs[head.clone()], self.slope * gradient);
            let columns = x[head.clone()].iter().zip(&right[head.clone()]).zip(sizes).zip(signs);
            for ((((x, right), size), sign), sum) in columns.zip(&mut sums[head]) {
                let above = *size * x.widen() + *right > A::ZERO;
                *sum += *sign * if above { gradient } else { below };
            }
        }
    }
}

impl<'a, P: Offset, T: Element> DynamicAttention<'a, P, T> {
    fn columns(&self) -> usize {
        self.heads * self.width
    }

    /// Returns the numbers per row of states: the destination's term, `[heads · width]`, and [`SOFTMAX_STATE`] per head.
    pub(crate) fn state_len(&self) -> usize {
        self.columns() + SOFTMAX_STATE * self.heads
    }

    fn rows(&self) -> Rows<'a, P, T> {
        Rows::sum(self.indptr, self.indices, self.x, self.heads, self.width)
    }

    /// Panics unless lengths match.
    fn check(&self, states: usize) {
        let rows = self.indptr.len() - 1;
        assert!(self.slope >= 0.0, "leaky ReLU's slope is not negative");
        assert_eq!(self.vectors.len(), self.columns(), "one vector per head");
        assert_eq!(states, rows * self.state_len(), "one state per row");
        self.rows().check();
        if let Some(dropout) = &self.dropout {
            assert!(dropout.rows.len() == rows && dropout.neighbors.len() >= self.x.len(), "one id per node");
        }
    }

    /// Fills `out`, `[rows, heads · width]`, with `Σ attention · x`. Fills largest logits and sums of exponentials in
    /// `states`, `[rows, heads · width + SOFTMAX_STATE · heads]`.
    ///
    /// ```
    /// use gnnflow_kernels::aggregate::Sources;
    /// use gnnflow_kernels::aggregate::dynamic_attention::DynamicAttention;
    ///
    /// // One destination has two sources with equal logits: −leaky(−4 + 2).
    /// let x = [-4f32, -4.];
    /// let job = DynamicAttention {
    ///     indptr: &[0u32, 2],
    ///     indices: &[0, 1],
    ///     x: Sources::new(&x, 1),
    ///     vectors: &[-1.],
    ///     heads: 1,
    ///     width: 1,
    ///     slope: 0.5,
    ///     dropout: None,
    /// };
    /// let (mut states, mut out) = ([2f32, 0., 0., 0.], [0f32]);
    /// job.forward(&mut states, &mut out);
    /// assert_eq!((out, states), ([-4.], [2., 1., 2., 0.]));
    /// ```
    ///
    /// # Panics
    /// If lengths do not match or an index is past the last source.
    pub fn forward(&self, states: &mut [T::Acc], out: &mut [T::Acc]) {
        let (rows, columns) = (self.indptr.len() - 1, self.columns());
        assert_eq!(out.len(), rows * columns, "one output row per row of edges");
        if rows == 0 || columns == 0 {
            return;
        }
        self.check(states.len());
        let (pieces, vectors) = (pieces(self.indptr), Vectors::new(self.vectors, self.slope));
        let parts = split(&pieces, columns, out).into_iter().zip(split(&pieces, self.state_len(), states));
        let parts = pieces.into_iter().zip(parts).collect();
        parallel::each_with(parts, &Scratch::default, &|scratch, (rows, (out, states))| {
            let task = Forward { params: self, vectors: &vectors, rows, states, out, scratch };
            task.run();
        });
    }

    /// Computes the gradient of the destinations' terms, `d_right`, `[rows, heads · width]`, from that of the result of
    /// [`DynamicAttention::forward`]. Fills the last number of each head in `states`, which
    /// [`DynamicAttentionBackward`](super::dynamic_attention_backward::DynamicAttentionBackward) needs.
    ///
    /// # Panics
    /// As [`DynamicAttention::forward`].
    pub fn backward_right(&self, gradient: &[T::Acc], states: &mut [T::Acc], d_right: &mut [T::Acc]) {
        let (rows, columns) = (self.indptr.len() - 1, self.columns());
        assert_eq!(gradient.len(), rows * columns, "one gradient per row");
        assert_eq!(d_right.len(), rows * columns, "one gradient of a term per row");
        if rows == 0 || columns == 0 {
            return;
        }
        self.check(states.len());
        let (pieces, vectors) = (pieces(self.indptr), Vectors::new(self.vectors, self.slope));
        let parts = split(&pieces, columns, d_right).into_iter().zip(split(&pieces, self.state_len(), states));
        let parts = pieces.into_iter().zip(parts).collect();
        parallel::each_with(parts, &Scratch::default, &|scratch, (rows, (d_right, states))| {
            let task = BackwardRight { params: self, vectors: &vectors, rows, gradient, states, d_right, scratch };
            task.run();
        });
    }

    /// Computes the logits of one row's edges, `out`, `[edges, heads]`.
    ///
    /// # Safety
    /// The machine has `I`.
    #[inline(always)]
    unsafe fn logits<I: Isa>(
        &self,
        job: &Rows<'a, P, T>,
        vectors: &Vectors<T::Acc>,
        edges: Range<usize>,
        right: &[T::Acc],
        activated: &mut [T::Acc],
        out: &mut [T::Acc],
    ) {
        let columns = self.columns();
        let (bases, ahead) = (job.x.base(), job.ahead(columns));
        let until = self.indices.len().saturating_sub(ahead);
        for (e, out) in edges.zip(out.chunks_exact_mut(self.heads)) {
            if e < until {
                prefetch_bytes(bases.row(self.indices[e + ahead]), columns * size_of::<T>());
            }
            let row = self.x.row(self.indices[e] as usize, columns);
            // SAFETY: guaranteed by the caller.
            unsafe { vectors.logits::<I, T>(row, right, self.width, activated, out) };
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

/// Some rows of the forward pass.
struct Forward<'t, P, T: Element> {
    params: &'t DynamicAttention<'t, P, T>,
    vectors: &'t Vectors<T::Acc>,
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
        let (params, heads, columns, job) = (self.params, self.params.heads, self.params.columns(), self.params.rows());
        job.check_edges(&self.rows);
        let bases = job.x.base();
        let Scratch { attention, row, .. } = self.scratch;
        row.resize(columns, T::Acc::ZERO);
        let places = self.states.chunks_exact_mut(params.state_len()).zip(self.out.chunks_exact_mut(columns));
        for (r, (state, out)) in self.rows.zip(places) {
            let edges = job.edges(r);
            attention.resize(edges.len() * heads, T::Acc::ZERO);
            let (right, softmax_state) = state.split_at_mut(columns);
            // SAFETY: guaranteed by the caller.
            unsafe { params.logits::<I>(&job, self.vectors, edges.clone(), right, row, attention) };
            let (largest, rest) = softmax_state.split_at_mut(heads);
            softmax_row(attention, heads, largest, &mut rest[..heads]);
            params.apply_dropout(r, edges.clone(), attention);
            let weights = ByEdge { weights: attention, heads, first: edges.start, edges: None };
            // SAFETY: the edges and lengths were checked, and `out` is a row.
            unsafe { job.row::<I, _>(&bases, r, edges, &weights, Onto::Nothing, true, out.as_mut_ptr()) };
        }
    }
}

/// Some rows of the backward pass by destination.
struct BackwardRight<'t, P, T: Element> {
    params: &'t DynamicAttention<'t, P, T>,
    vectors: &'t Vectors<T::Acc>,
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
        let (params, heads, width, columns) =
            (self.params, self.params.heads, self.params.width, self.params.columns());
        let job = params.rows();
        job.check_edges(&self.rows);
        let Scratch { attention, gradients, row: activated, .. } = self.scratch;
        activated.resize(columns, T::Acc::ZERO);
        let places = self.states.chunks_exact_mut(params.state_len()).zip(self.d_right.chunks_exact_mut(columns));
        for (r, (state, d_right)) in self.rows.zip(places) {
            let edges = job.edges(r);
            for buffer in [&mut *attention, &mut *gradients] {
                buffer.resize(edges.len() * heads, T::Acc::ZERO);
            }
            let (right, softmax_state) = state.split_at_mut(columns);
            // SAFETY: guaranteed by the caller.
            unsafe { params.logits::<I>(&job, self.vectors, edges.clone(), right, activated, attention) };
            // Recomputed, as in [`Attention`](super::attention::Attention): rows may have changed.
            let (largest, rest) = softmax_state.split_at_mut(heads);
            softmax_row(attention, heads, largest, &mut rest[..heads]);
            let gradient = &self.gradient[r * columns..][..columns];
            for (e, out) in edges.clone().zip(gradients.chunks_exact_mut(heads)) {
                let row = params.x.row(params.indices[e] as usize, columns);
                // SAFETY: guaranteed by the caller.
                unsafe { dots_of_heads::<I, T>(gradient, row, width, out) };
            }
            params.apply_dropout(r, edges.clone(), gradients);
            let means = &mut softmax_state[2 * heads..];
            softmax_means(attention, gradients, means);
            d_right.fill(T::Acc::ZERO);
            let all = attention.chunks_exact(heads).zip(gradients.chunks_exact_mut(heads));
            for (e, (alpha, gradient)) in edges.zip(all) {
                for h in 0..heads {
                    gradient[h] = alpha[h] * (gradient[h] - means[h]);
                }
                let row = params.x.row(params.indices[e] as usize, columns);
                self.vectors.add_slopes(row, right, width, gradient, d_right);
            }
        }
    }
}
