//! GATv2's attention before its softmax: `out[e, h] = a[h, :] · leaky(left[source, h, :] + right[destination, h, :])`.
//!
//! Computes one dot product per edge and head, without storing a row per edge; the gradients recompute the sums.

use std::ops::Range;

use super::offsets::{Offset, ROWS, split_by_row};
use super::transpose::Transpose;
use crate::dense::dot::dot_by_head;
use crate::dense::elementwise::by_panel;
use crate::parallel;
use crate::simd::dispatch::multiversion;
use crate::simd::element::Real;

/// Inputs of all passes.
#[derive(Clone, Copy, Debug)]
pub struct Attention<'a, A> {
    /// `[num_src, H·F]`
    pub left: &'a [A],
    /// `[num_dst, H·F]`
    pub right: &'a [A],
    /// `[H, F]`
    pub vectors: &'a [A],
    /// `H`
    pub heads: usize,
    /// The negative slope of leaky ReLU.
    pub slope: f64,
}

impl<A: Real> Attention<'_, A> {
    fn columns(&self) -> usize {
        let columns = self.vectors.len();
        assert!(self.heads > 0 && columns > 0 && columns.is_multiple_of(self.heads), "one vector per head");
        columns
    }

    fn left(&self, source: u32) -> &[A] {
        &self.left[source as usize * self.vectors.len()..][..self.vectors.len()]
    }

    fn right(&self, row: usize) -> &[A] {
        &self.right[row * self.vectors.len()..][..self.vectors.len()]
    }

    /// Fills `out`, `[E, H]`, in the edges' order.
    ///
    /// ```
    /// use gnnflow_kernels::aggregate::attention_logits::Attention;
    ///
    /// // One destination with in-edges from sources 0 and 1; one head of two columns.
    /// let attention =
    ///     Attention { left: &[1f32, 2., 3., -9.], right: &[0., 1.], vectors: &[1., 10.], heads: 1, slope: 0.5 };
    /// let mut out = [0f32; 2];
    /// attention.logits(&[0u32, 2], &[0, 1], &mut out);
    /// assert_eq!(out, [31., 3. - 40.]);
    /// ```
    ///
    /// # Panics
    /// If lengths do not match or an index is past the last source.
    pub fn logits<P: Offset>(&self, indptr: &[P], indices: &[u32], out: &mut [A]) {
        let (rows, columns, slope) = (indptr.len() - 1, self.columns(), A::from_f64(self.slope));
        assert_eq!(out.len(), indices.len() * self.heads, "one number per edge and head");
        parallel::each(split_by_row(indptr, self.heads, out), &|(first, out): (usize, &mut [A])| {
            let mut edges = out.chunks_exact_mut(self.heads);
            let mut activated = vec![A::ZERO; columns];
            for row in first..(first + ROWS).min(rows) {
                let right = self.right(row);
                for &source in &indices[indptr[row].at()..indptr[row + 1].at()] {
                    let Some(out) = edges.next() else { return };
                    activate(self.left(source), right, slope, &mut activated);
                    dot_by_head(self.vectors, &activated, columns / self.heads, out);
                }
            }
        });
    }

    /// Gradient with respect to `right`, `[num_dst, H·F]`, from the `gradient` of the logits, `[E, H]`.
    ///
    /// # Panics
    /// As [`Attention::logits`].
    pub fn backward_right<P: Offset>(&self, indptr: &[P], indices: &[u32], gradient: &[A], out: &mut [A]) {
        let columns = self.columns();
        assert_eq!(out.len(), (indptr.len() - 1) * columns, "one output row per destination");
        parallel::chunks(out, ROWS * columns, &|chunk, out| {
            for (k, out) in out.chunks_exact_mut(columns).enumerate() {
                let row = chunk * ROWS + k;
                out.fill(A::ZERO);
                let edges = indptr[row].at()..indptr[row + 1].at();
                for (e, &source) in edges.clone().zip(&indices[edges]) {
                    self.add(source, row, e, gradient, out);
                }
            }
        });
    }

    /// Gradient with respect to `left`, `[num_src, H·F]`: each source sums over its edges.
    ///
    /// # Panics
    /// As [`Attention::logits`].
    pub fn backward_left(&self, by_source: &Transpose, gradient: &[A], out: &mut [A]) {
        let columns = self.columns();
        assert_eq!(out.len(), (by_source.indptr.len() - 1) * columns, "one output row per source");
        parallel::chunks(out, ROWS * columns, &|chunk, out| {
            for (k, out) in out.chunks_exact_mut(columns).enumerate() {
                let source = chunk * ROWS + k;
                out.fill(A::ZERO);
                for place in by_source.indptr[source] as usize..by_source.indptr[source + 1] as usize {
                    let (row, e) = (by_source.indices[place] as usize, by_source.edges[place] as usize);
                    self.add(source as u32, row, e, gradient, out);
                }
            }
        });
    }

    /// Gradient with respect to `vectors`, `[H, F]`.
    ///
    /// # Panics
    /// As [`Attention::logits`].
    pub fn backward_vectors<P: Offset>(&self, indptr: &[P], indices: &[u32], gradient: &[A], out: &mut [A]) {
        let (columns, heads, slope) = (self.columns(), self.heads, A::from_f64(self.slope));
        assert_eq!(out.len(), columns, "one vector per head");
        by_panel(indptr.len() - 1, out, |rows: Range<usize>, sums| {
            for row in rows {
                let edges = indptr[row].at()..indptr[row + 1].at();
                for (e, &source) in edges.clone().zip(&indices[edges]) {
                    let gradient = &gradient[e * heads..][..heads];
                    add_activated(self.left(source), self.right(row), gradient, columns / heads, slope, sums);
                }
            }
        });
    }

    /// Adds edge `e`'s part of the gradient of `left[source] + right[row]`.
    fn add(&self, source: u32, row: usize, e: usize, gradient: &[A], sums: &mut [A]) {
        let width = self.vectors.len() / self.heads;
        let gradient = &gradient[e * self.heads..][..self.heads];
        add_slopes(self.left(source), self.right(row), self.vectors, gradient, width, A::from_f64(self.slope), sums);
    }
}

multiversion! {
    fn activate [A: Real] (left: &[A], right: &[A], slope: A, out: &mut [A]) {
        for ((&l, &r), out) in left.iter().zip(right).zip(out) {
            let sum = l + r;
            *out = if sum > A::ZERO { sum } else { slope * sum };
        }
    }
}

multiversion! {
    fn add_slopes [A: Real] (left: &[A], right: &[A], vectors: &[A], gradient: &[A], width: usize, slope: A, sums: &mut [A]) {
        for (h, &g) in gradient.iter().enumerate() {
            let head = h * width..(h + 1) * width;
            let (left, right, vectors) = (&left[head.clone()], &right[head.clone()], &vectors[head.clone()]);
            for (((&l, &r), &a), sum) in left.iter().zip(right).zip(vectors).zip(&mut sums[head]) {
                *sum += g * a * if l + r > A::ZERO { A::ONE } else { slope };
            }
        }
    }
}

multiversion! {
    fn add_activated [A: Real] (left: &[A], right: &[A], gradient: &[A], width: usize, slope: A, sums: &mut [A]) {
        for (h, &g) in gradient.iter().enumerate() {
            let head = h * width..(h + 1) * width;
            for ((&l, &r), sum) in left[head.clone()].iter().zip(&right[head.clone()]).zip(&mut sums[head]) {
                let x = l + r;
                *sum += g * if x > A::ZERO { x } else { slope * x };
            }
        }
    }
}
