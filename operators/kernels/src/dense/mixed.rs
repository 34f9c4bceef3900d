//! Rows of relations combined by coefficients, for R-GCN's basis decomposition: sums before the bases are applied.
//!
//! Sums run over relations, then over rows, in order. Tasks are pieces of a fixed number of rows.

use crate::parallel;
use crate::simd::dispatch::multiversion;
use crate::simd::element::Real;

/// Rows per task.
const ROWS: usize = 256;
const LANES: usize = 8;

/// Adds the outer product of the coefficients and row `k` of `x`, `[rows.len(), width]`, to row `rows[k]` of `out`,
/// `[_, coefficients.len(), width]`; `rows` must be ascending.
///
/// ```
/// use gnnflow_kernels::dense::mixed::add_mixed;
///
/// let mut out = [0f32; 8];
/// add_mixed(&[3., 4.], 2, &[1], &[10., 100.], &mut out);
/// assert_eq!(out, [0., 0., 0., 0., 30., 40., 300., 400.]);
/// ```
///
/// # Panics
/// If `rows` are not ascending or out of bounds.
pub fn add_mixed<A: Real>(x: &[A], width: usize, rows: &[u32], coefficients: &[A], mut out: &mut [A]) {
    let wide = width * coefficients.len();
    if wide == 0 {
        return;
    }
    let (mut pieces, mut begin) = (Vec::with_capacity(rows.len().div_ceil(ROWS)), 0);
    for (x, rows) in x.chunks(ROWS * width).zip(rows.chunks(ROWS)) {
        let (first, end) = (rows[0] as usize, rows[rows.len() - 1] as usize + 1);
        let (_, rest) = out.split_at_mut((first - begin) * wide);
        let (piece, rest) = rest.split_at_mut((end - first) * wide);
        pieces.push((x, rows, piece));
        (out, begin) = (rest, end);
    }
    parallel::each(pieces, &|(x, rows, out): (&[A], &[u32], &mut [A])| add_piece(x, width, rows, coefficients, out));
}

multiversion! {
fn add_piece [A: Real] (x: &[A], width: usize, rows: &[u32], coefficients: &[A], out: &mut [A]) {
    let wide = width * coefficients.len();
    for (x, &row) in x.chunks_exact(width).zip(rows) {
        let out = &mut out[(row - rows[0]) as usize * wide..][..wide];
        for (out, &coefficient) in out.chunks_exact_mut(width).zip(coefficients) {
            for (out, &x) in out.iter_mut().zip(x) {
                *out += coefficient * x;
            }
        }
    }
}
}

/// Gradient of [`add_mixed`] with respect to `x`: row `k` of the result, `[rows.len(), width]`, is the sum of the parts
/// of row `rows[k]` of `mixed`, weighted by the coefficients.
///
/// # Panics
/// If `rows` are out of bounds.
pub fn unmixed<A: Real>(mixed: &[A], width: usize, rows: &[u32], coefficients: &[A]) -> Vec<A> {
    let mut out = vec![A::ZERO; rows.len() * width];
    parallel::chunks(&mut out, ROWS * width, &|at, out| {
        unmix_piece(mixed, width, parallel::chunk(rows, at, ROWS), coefficients, out);
    });
    out
}

multiversion! {
fn unmix_piece [A: Real] (mixed: &[A], width: usize, rows: &[u32], coefficients: &[A], out: &mut [A]) {
    let wide = width * coefficients.len();
    for (out, &row) in out.chunks_exact_mut(width).zip(rows) {
        let mixed = &mixed[row as usize * wide..][..wide];
        for (mixed, &coefficient) in mixed.chunks_exact(width).zip(coefficients) {
            for (out, &x) in out.iter_mut().zip(mixed) {
                *out += coefficient * x;
            }
        }
    }
}
}

/// Adds the gradient of [`add_mixed`] with respect to the coefficients to `sums`, given that of `out`.
///
/// # Panics
/// As [`unmixed`].
pub fn add_products<A: Real>(x: &[A], width: usize, rows: &[u32], gradient: &[A], sums: &mut [A]) {
    if width == 0 {
        return;
    }
    let count = sums.len();
    let pieces: Vec<Vec<A>> = parallel::map(rows.len().div_ceil(ROWS), &|at| {
        let (x, rows) = (parallel::chunk(x, at, ROWS * width), parallel::chunk(rows, at, ROWS));
        let mut sums = vec![A::ZERO; count];
        products_piece(x, width, rows, gradient, &mut sums);
        sums
    });
    for piece in pieces {
        sums.iter_mut().zip(piece).for_each(|(sum, piece)| *sum += piece);
    }
}

multiversion! {
fn products_piece [A: Real] (x: &[A], width: usize, rows: &[u32], gradient: &[A], sums: &mut [A]) {
    let (wide, whole) = (width * sums.len(), width / LANES * LANES);
    for (x, &row) in x.chunks_exact(width).zip(rows) {
        let gradient = &gradient[row as usize * wide..][..wide];
        for (gradient, sum) in gradient.chunks_exact(width).zip(sums.iter_mut()) {
            let mut lanes = [A::ZERO; LANES];
            for first in (0..whole).step_by(LANES) {
                let (x, gradient) = (&x[first..first + LANES], &gradient[first..first + LANES]);
                for lane in 0..LANES {
                    lanes[lane] += x[lane] * gradient[lane];
                }
            }
            let mut product = A::ZERO;
            for i in whole..width {
                product += x[i] * gradient[i];
            }
            let [a, b, c, d, e, f, g, h] = lanes;
            *sum += ((a + b) + (c + d)) + ((e + f) + (g + h)) + product;
        }
    }
}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn add_mixed_and_its_gradients_equal_plain_sums() {
        for (width, count) in [(3, 2), (17, 5), (8, 1), (4, 0)] {
            let rows: Vec<u32> = (0..900).filter(|row| row % 3 != 1).collect();
            let number = |i: usize, c: f64| (i as f64 * c).sin();
            let x: Vec<f64> = (0..rows.len() * width).map(|i| number(i, 0.7)).collect();
            let coefficients: Vec<f64> = (0..count).map(|i| number(i, 1.3)).collect();
            let gradient: Vec<f64> = (0..900 * count * width).map(|i| number(i, 0.31)).collect();
            let mut out = vec![1.0; 900 * count * width];
            add_mixed(&x, width, &rows, &coefficients, &mut out);
            let mut wanted = vec![1.0; out.len()];
            let (mut back, mut sums) = (vec![0.0; x.len()], vec![0.0; count]);
            for (k, &row) in rows.iter().enumerate() {
                for (b, coefficient) in coefficients.iter().enumerate() {
                    for i in 0..width {
                        let at = (row as usize * count + b) * width + i;
                        wanted[at] += coefficient * x[k * width + i];
                        back[k * width + i] += coefficient * gradient[at];
                        sums[b] += x[k * width + i] * gradient[at];
                    }
                }
            }
            assert_eq!(out, wanted);
            assert_eq!(unmixed(&gradient, width, &rows, &coefficients), back);
            let mut found = vec![0.5; count];
            add_products(&x, width, &rows, &gradient, &mut found);
            assert!(found.iter().zip(&sums).all(|(found, sum)| (found - 0.5 - sum).abs() < 1e-9));
        }
    }
}
