//! Normalization of columns over the rows of a batch and of rows over their columns, and the gradients.
//!
//! Sums over rows run in panels of fixed size and then in `f64`, so the bits depend on the rows only.

use super::dot::tree;
use super::elementwise::{by_panel, column_sum};
use crate::parallel;
use crate::simd::dispatch::multiversion;
use crate::simd::element::Real;

/// Rows per task.
const ROWS: usize = 256;

/// Returns the mean and the biased variance of every column of `x`, `[N, width]`; zeros without rows.
///
/// ```
/// let (mean, variance) = gnnflow_kernels::dense::norm::column_moments(&[1f32, 5., 3., 5.], 2);
/// assert_eq!((mean, variance), (vec![2., 5.], vec![1., 0.]));
/// ```
///
/// # Panics
/// If `x` does not have whole rows.
pub fn column_moments<A: Real>(x: &[A], width: usize) -> (Vec<f64>, Vec<f64>) {
    let rows = x.len() / width.max(1);
    let share = 1.0 / rows.max(1) as f64;
    let mut sums = vec![A::ZERO; width];
    column_sum(x, &mut sums);
    let mean: Vec<A> = sums.iter().map(|sum| A::from_f64(sum.to_f64() * share)).collect();
    by_panel(rows, &mut sums, |rows, sums| add_squares(&x[rows.start * width..rows.end * width], &mean, sums));
    let of = |values: &[A], factor: f64| values.iter().map(|value| value.to_f64() * factor).collect();
    (of(&mean, 1.0), of(&sums, share))
}

multiversion! {
    fn add_squares [A: Real] (x: &[A], mean: &[A], sums: &mut [A]) {
        for row in x.chunks_exact(mean.len()) {
            for ((&x, &m), sum) in row.iter().zip(mean).zip(sums.iter_mut()) {
                let centered = x - m;
                *sum += centered * centered;
            }
        }
    }
}

/// The statistics that normalize columns: `x̂ = (x − mean) · inverse`.
#[derive(Clone, Copy, Debug)]
pub struct Columns<'a, A> {
    /// `[D]`
    pub mean: &'a [A],
    /// One over the standard deviation, `[D]`.
    pub inverse: &'a [A],
}

impl<A: Real> Columns<'_, A> {
    /// `out = x̂ · weight + bias`
    ///
    /// # Panics
    /// If lengths do not match.
    pub fn normalize(&self, x: &[A], weight: &[A], bias: &[A], out: &mut [A]) {
        let width = self.check(x, out);
        assert!(weight.len() == width && bias.len() == width, "one weight and bias per column");
        let scale: Vec<A> = self.inverse.iter().zip(weight).map(|(&inverse, &weight)| inverse * weight).collect();
        parallel::chunks(out, ROWS * width, &|at, out| {
            scale_columns(parallel::chunk(x, at, ROWS * width), self.mean, &scale, bias, out);
        });
    }

    /// Gradient of the weight: `out[c] = Σ gradient · x̂`.
    ///
    /// # Panics
    /// If lengths do not match.
    pub fn weight_gradient(&self, x: &[A], gradient: &[A], out: &mut [A]) {
        let width = self.check(x, gradient);
        assert_eq!(out.len(), width, "one number per column");
        by_panel(x.len() / width, out, |rows, sums| {
            let rows = rows.start * width..rows.end * width;
            add_products(&x[rows.clone()], self.mean, self.inverse, &gradient[rows], sums);
        });
    }

    /// Gradient of `x` if mean and variance are those of `x`; `sums` are the gradients of bias and weight.
    ///
    /// # Panics
    /// If lengths do not match.
    pub fn backward(&self, x: &[A], weight: &[A], gradient: &[A], sums: [&[A]; 2], out: &mut [A]) {
        let width = self.check(x, gradient);
        let share = A::from_f64(1.0 / (x.len() / width).max(1) as f64);
        let of_mean: Vec<A> = sums[0].iter().map(|&sum| sum * share).collect();
        let of_scale: Vec<A> = sums[1].iter().zip(self.inverse).map(|(&sum, &inverse)| sum * share * inverse).collect();
        let scale: Vec<A> = self.inverse.iter().zip(weight).map(|(&inverse, &weight)| inverse * weight).collect();
        parallel::chunks(out, ROWS * width, &|at, out| {
            let [x, g] = [x, gradient].map(|numbers| parallel::chunk(numbers, at, ROWS * width));
            columns_backward(x, g, self.mean, &scale, &of_mean, &of_scale, out);
        });
    }

    fn check(&self, x: &[A], other: &[A]) -> usize {
        let width = self.mean.len();
        assert!(width > 0 && self.inverse.len() == width && x.len().is_multiple_of(width), "x has whole rows");
        assert_eq!(x.len(), other.len(), "one output number per input number");
        width
    }
}

multiversion! {
    fn scale_columns [A: Real] (x: &[A], mean: &[A], scale: &[A], bias: &[A], out: &mut [A]) {
        for (x, out) in x.chunks_exact(mean.len()).zip(out.chunks_exact_mut(mean.len())) {
            for ((((&x, &m), &s), &b), out) in x.iter().zip(mean).zip(scale).zip(bias).zip(out) {
                *out = (x - m) * s + b;
            }
        }
    }
}

multiversion! {
    fn add_products [A: Real] (x: &[A], mean: &[A], inverse: &[A], gradient: &[A], sums: &mut [A]) {
        for (x, g) in x.chunks_exact(mean.len()).zip(gradient.chunks_exact(mean.len())) {
            for ((((&x, &m), &i), &g), sum) in x.iter().zip(mean).zip(inverse).zip(g).zip(sums.iter_mut()) {
                *sum += (x - m) * i * g;
            }
        }
    }
}

multiversion! {
    fn columns_backward [A: Real] (x: &[A], gradient: &[A], mean: &[A], scale: &[A], of_mean: &[A], of_scale: &[A], out: &mut [A]) {
        let width = mean.len();
        let rows = x.chunks_exact(width).zip(gradient.chunks_exact(width)).zip(out.chunks_exact_mut(width));
        for ((x, g), out) in rows {
            for c in 0..width {
                out[c] = scale[c] * (g[c] - of_mean[c] - (x[c] - mean[c]) * of_scale[c]);
            }
        }
    }
}

/// Normalizes rows to mean 0 and variance 1, then applies `· weight + bias`; `epsilon` is added to the variance.
///
/// ```
/// let mut out = [0f32; 2];
/// gnnflow_kernels::dense::norm::rows(&[1., 3.], 0.0, &[1., 1.], &[0., 1.], &mut out);
/// assert_eq!(out, [-1., 2.]);
/// ```
///
/// # Panics
/// If lengths do not match.
pub fn rows<A: Real>(x: &[A], epsilon: f64, weight: &[A], bias: &[A], out: &mut [A]) {
    let width = weight.len();
    assert!(width > 0 && bias.len() == width && x.len().is_multiple_of(width), "x has whole rows");
    assert_eq!(x.len(), out.len(), "one output number per input number");
    parallel::chunks(out, ROWS * width, &|at, out| {
        rows_piece(parallel::chunk(x, at, ROWS * width), A::from_f64(epsilon), weight, bias, out);
    });
}

/// Gradient of [`rows`] with respect to `x`.
///
/// # Panics
/// If lengths do not match.
pub fn rows_backward<A: Real>(x: &[A], epsilon: f64, weight: &[A], gradient: &[A], out: &mut [A]) {
    let width = weight.len();
    assert!(width > 0 && x.len().is_multiple_of(width), "x has whole rows");
    assert!(x.len() == gradient.len() && x.len() == out.len(), "one output number per input number");
    parallel::chunks(out, ROWS * width, &|at, out| {
        let [x, g] = [x, gradient].map(|numbers| parallel::chunk(numbers, at, ROWS * width));
        rows_backward_piece(x, A::from_f64(epsilon), weight, g, out);
    });
}

/// Gradient of [`rows`] with respect to the weight: `out[c] = Σ gradient · x̂`.
///
/// # Panics
/// If lengths do not match.
pub fn rows_weight_gradient<A: Real>(x: &[A], epsilon: f64, gradient: &[A], out: &mut [A]) {
    let width = out.len();
    assert!(width > 0 && x.len().is_multiple_of(width) && x.len() == gradient.len(), "x has whole rows");
    by_panel(x.len() / width, out, |rows, sums| {
        let rows = rows.start * width..rows.end * width;
        rows_products(&x[rows.clone()], A::from_f64(epsilon), &gradient[rows], sums);
    });
}

/// `Σ f(c)` over `width` columns, in a fixed order that vectorizes.
#[inline(always)]
fn sum_of<A: Real>(width: usize, f: impl Fn(usize) -> A) -> A {
    let mut partial = [A::ZERO; 16];
    let whole = width / 16 * 16;
    for first in (0..whole).step_by(16) {
        for (k, partial) in partial.iter_mut().enumerate() {
            *partial += f(first + k);
        }
    }
    for c in whole..width {
        partial[c - whole] += f(c);
    }
    tree(partial)
}

/// Returns the mean, and one over the standard deviation.
#[inline(always)]
fn moments<A: Real>(x: &[A], epsilon: A) -> (A, A) {
    let share = A::ONE / A::from_f64(x.len() as f64);
    let mean = sum_of(x.len(), |c| x[c]) * share;
    let variance = sum_of(x.len(), |c| (x[c] - mean) * (x[c] - mean)) * share;
    (mean, A::ONE / (variance + epsilon).sqrt())
}

multiversion! {
    fn rows_piece [A: Real] (x: &[A], epsilon: A, weight: &[A], bias: &[A], out: &mut [A]) {
        let width = weight.len();
        for (x, out) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
            let (mean, inverse) = moments(x, epsilon);
            for (((&x, &w), &b), out) in x.iter().zip(weight).zip(bias).zip(out) {
                *out = (x - mean) * inverse * w + b;
            }
        }
    }
}

multiversion! {
    fn rows_backward_piece [A: Real] (x: &[A], epsilon: A, weight: &[A], gradient: &[A], out: &mut [A]) {
        let width = weight.len();
        let share = A::ONE / A::from_f64(width as f64);
        let rows = x.chunks_exact(width).zip(gradient.chunks_exact(width)).zip(out.chunks_exact_mut(width));
        for ((x, g), out) in rows {
            let (mean, inverse) = moments(x, epsilon);
            let of_mean = sum_of(width, |c| g[c] * weight[c]) * share;
            let of_scale = sum_of(width, |c| g[c] * weight[c] * ((x[c] - mean) * inverse)) * share;
            for c in 0..width {
                out[c] = inverse * (g[c] * weight[c] - of_mean - (x[c] - mean) * inverse * of_scale);
            }
        }
    }
}

multiversion! {
    fn rows_products [A: Real] (x: &[A], epsilon: A, gradient: &[A], sums: &mut [A]) {
        let width = sums.len();
        for (x, g) in x.chunks_exact(width).zip(gradient.chunks_exact(width)) {
            let (mean, inverse) = moments(x, epsilon);
            for ((&x, &g), sum) in x.iter().zip(g).zip(sums.iter_mut()) {
                *sum += (x - mean) * inverse * g;
            }
        }
    }
}
