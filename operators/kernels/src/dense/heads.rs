//! Rows of several heads, `[N, heads · width]`: a dot product with a vector per head, the mean over heads, and their
//! gradients.

use super::dot::dot_by_head;
use super::elementwise::by_panel;
use crate::parallel;
use crate::simd::dispatch::multiversion;
use crate::simd::element::Real;

/// Rows per task.
const ROWS: usize = 256;

/// `out[n, h] = x[n, h, :] · a[h, :]`
///
/// # Panics
/// If lengths do not match.
pub fn dot<A: Real>(x: &[A], a: &[A], heads: usize, out: &mut [A]) {
    let (columns, width) = shape(a, heads);
    assert_eq!(x.len() * heads, out.len() * columns, "one number for each row and head");
    parallel::chunks(out, ROWS * heads, &|at, out| {
        let x = parallel::chunk(x, at, ROWS * columns);
        for (x, out) in x.chunks_exact(columns).zip(out.chunks_exact_mut(heads)) {
            dot_by_head(x, a, width, out);
        }
    });
}

/// Gradient of [`dot`] with respect to `x`: `out[n, h, :] = gradient[n, h] · a[h, :]`.
///
/// # Panics
/// If lengths do not match.
pub fn dot_backward_rows<A: Real>(a: &[A], gradient: &[A], heads: usize, out: &mut [A]) {
    let (columns, width) = shape(a, heads);
    assert_eq!(out.len() * heads, gradient.len() * columns, "one gradient per row and head");
    parallel::chunks(out, ROWS * columns, &|at, out| {
        let g = parallel::chunk(gradient, at, ROWS * heads);
        for (out, g) in out.chunks_exact_mut(columns).zip(g.chunks_exact(heads)) {
            for (h, &g) in g.iter().enumerate() {
                let head = h * width..(h + 1) * width;
                out[head.clone()].iter_mut().zip(&a[head]).for_each(|(o, &a)| *o = g * a);
            }
        }
    });
}

/// Gradient of [`dot`] with respect to `a`: `out[h, :] = Σ gradient[n, h] · x[n, h, :]`.
///
/// # Panics
/// If lengths do not match.
pub fn dot_backward_vectors<A: Real>(x: &[A], gradient: &[A], heads: usize, out: &mut [A]) {
    let (columns, _) = shape(out, heads);
    assert_eq!(x.len() * heads, gradient.len() * columns, "one gradient per row and head");
    by_panel(x.len() / columns, out, |rows, sums| {
        add_scaled(
            &x[rows.start * columns..rows.end * columns],
            &gradient[rows.start * heads..rows.end * heads],
            heads,
            sums,
        );
    });
}

multiversion! {
    fn add_scaled [A: Real] (x: &[A], gradient: &[A], heads: usize, sums: &mut [A]) {
        let (columns, width) = (sums.len(), sums.len() / heads);
        for (x, g) in x.chunks_exact(columns).zip(gradient.chunks_exact(heads)) {
            for (h, &g) in g.iter().enumerate() {
                let head = h * width..(h + 1) * width;
                for (sum, &x) in sums[head.clone()].iter_mut().zip(&x[head]) {
                    *sum += g * x;
                }
            }
        }
    }
}

/// `out[n, :] = Σ x[n, h, :] / heads`
///
/// # Panics
/// If lengths do not match.
pub fn mean<A: Real>(x: &[A], heads: usize, width: usize, out: &mut [A]) {
    assert_eq!(x.len(), out.len() * heads, "one output row per input row");
    let share = A::ONE / A::from_f64(heads as f64);
    parallel::chunks(out, ROWS * width, &|at, out| {
        let x = parallel::chunk(x, at, ROWS * heads * width);
        for (x, out) in x.chunks_exact(heads * width).zip(out.chunks_exact_mut(width)) {
            out.fill(A::ZERO);
            for head in x.chunks_exact(width) {
                out.iter_mut().zip(head).for_each(|(o, &x)| *o += x);
            }
            out.iter_mut().for_each(|o| *o = *o * share);
        }
    });
}

/// Gradient of [`mean`]: each head gets `1 / heads` of it.
///
/// # Panics
/// If lengths do not match.
pub fn mean_backward<A: Real>(gradient: &[A], heads: usize, width: usize, out: &mut [A]) {
    assert_eq!(out.len(), gradient.len() * heads, "one gradient row per output row");
    let share = A::ONE / A::from_f64(heads as f64);
    parallel::chunks(out, ROWS * heads * width, &|at, out| {
        let g = parallel::chunk(gradient, at, ROWS * width);
        for (out, g) in out.chunks_exact_mut(heads * width).zip(g.chunks_exact(width)) {
            for head in out.chunks_exact_mut(width) {
                head.iter_mut().zip(g).for_each(|(o, &g)| *o = g * share);
            }
        }
    });
}

/// Returns the columns of a row and of a head.
fn shape<A>(vectors: &[A], heads: usize) -> (usize, usize) {
    assert!(heads > 0 && !vectors.is_empty() && vectors.len().is_multiple_of(heads), "one vector per head");
    (vectors.len(), vectors.len() / heads)
}
