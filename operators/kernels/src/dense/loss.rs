//! Losses over rows of logits, their gradients, and log-softmax.
//!
//! A loss is the sum over rows, in `f64` and in order. Each row is summed in sixteen partial sums on every machine, so
//! loops over columns vectorize and give the same bits.

use crate::parallel;
use crate::simd::dispatch::multiversion;
use crate::simd::element::Real;

/// Partial sums per row.
const LANES: usize = 16;
/// Rows per task.
const ROWS: usize = 64;

/// `Σ −log softmax(logits[r])[labels[r]]`, for rows of `classes` logits.
///
/// ```
/// let loss = gnnflow_kernels::dense::loss::cross_entropy(&[0f32, 0., 0., 0.], &[0, 1], 2);
/// assert!((loss - 2. * 2f64.ln()).abs() < 1e-12);
/// ```
///
/// # Panics
/// If lengths do not match or a label is not a class.
pub fn cross_entropy<A: Real>(logits: &[A], labels: &[u32], classes: usize) -> f64 {
    assert_eq!(logits.len(), labels.len() * classes, "one logit per label and class");
    sum_of_rows(logits, classes, |r, row| {
        let largest = largest(row);
        sum_of_exponentials(row, largest).ln() + largest.to_f64() - row[labels[r] as usize].to_f64()
    })
}

/// Gradient of [`cross_entropy`] times `scale`: `scale · (softmax(logits[r]) − onehot(labels[r]))`.
///
/// # Panics
/// As [`cross_entropy`].
pub fn cross_entropy_backward<A: Real>(logits: &[A], labels: &[u32], classes: usize, scale: f64, out: &mut [A]) {
    assert_eq!(logits.len(), labels.len() * classes, "one logit per label and class");
    rows(logits, classes, out, |r, row, out| {
        let largest = largest(row);
        let total = exponentials(row, largest, out);
        multiply(A::from_f64(scale / total), out);
        let label = &mut out[labels[r] as usize];
        *label = *label - A::from_f64(scale);
    });
}

/// `Σ max(x, 0) − x·y + log(1 + e^−|x|)` over all logits `x` and targets `y` in `[0, 1]`, for rows of `labels` logits.
///
/// # Panics
/// If lengths do not match.
pub fn binary_cross_entropy<A: Real>(logits: &[A], targets: &[A], labels: usize) -> f64 {
    assert_eq!(logits.len(), targets.len(), "one target per logit");
    sum_of_rows(logits, labels, |r, row| {
        let targets = &targets[r * labels..][..labels];
        sum_of_binary(row, targets)
    })
}

/// Gradient of [`binary_cross_entropy`] times `scale`: `scale · (sigmoid(x) − y)`.
///
/// # Panics
/// If lengths do not match.
pub fn binary_cross_entropy_backward<A: Real>(logits: &[A], targets: &[A], labels: usize, scale: f64, out: &mut [A]) {
    assert_eq!(logits.len(), targets.len(), "one target per logit");
    let scale = A::from_f64(scale);
    rows(logits, labels, out, |r, row, out| {
        sigmoid_gradient(row, &targets[r * labels..][..labels], scale, out);
    });
}

/// `Σ |w| · (1 − p)^gamma · −log p` over all logits `x` and weights `w`, for rows of `labels` logits. `p` is `sigmoid(x)` for a
/// positive weight, and `sigmoid(−x)` for a negative one.
///
/// ```
/// let loss = gnnflow_kernels::dense::loss::sigmoid_focal_loss(&[0f32, 0.], &[3., -1.], 2., 2);
/// assert!((loss - 4. * 0.25 * 2f64.ln()).abs() < 1e-6);
/// ```
///
/// # Panics
/// If lengths do not match.
pub fn sigmoid_focal_loss<A: Real>(logits: &[A], weights: &[A], gamma: f64, labels: usize) -> f64 {
    assert_eq!(logits.len(), weights.len(), "one weight per logit");
    sum_of_rows(logits, labels, |r, row| sum_of_focal(row, &weights[r * labels..][..labels], gamma))
}

/// Gradient of [`sigmoid_focal_loss`] times `scale`: `−scale · w · (1 − p)^gamma · (1 − p − gamma · p · log p)`.
///
/// # Panics
/// If lengths do not match.
pub fn sigmoid_focal_loss_backward<A: Real>(
    logits: &[A],
    weights: &[A],
    gamma: f64,
    labels: usize,
    scale: f64,
    out: &mut [A],
) {
    assert_eq!(logits.len(), weights.len(), "one weight per logit");
    rows(logits, labels, out, |r, row, out| {
        focal_gradient(row, &weights[r * labels..][..labels], gamma, scale, out);
    });
}

/// `out[r, c] = x[r, c] − log Σ exp(x[r, :])`
///
/// # Panics
/// If lengths do not match.
pub fn log_softmax<A: Real>(x: &[A], classes: usize, out: &mut [A]) {
    rows(x, classes, out, |_, row, out| {
        let largest = largest(row);
        let log = A::from_f64(sum_of_exponentials(row, largest).ln());
        out.iter_mut().zip(row).for_each(|(o, &x)| *o = x - largest - log);
    });
}

/// Gradient of [`log_softmax`], given its `result`: `gradient − softmax · Σ gradient`.
///
/// # Panics
/// If lengths do not match.
pub fn log_softmax_backward<A: Real>(result: &[A], gradient: &[A], classes: usize, out: &mut [A]) {
    assert_eq!(result.len(), gradient.len(), "one gradient per number");
    rows(result, classes, out, |r, row, out| {
        let g = &gradient[r * classes..][..classes];
        subtract_softmax(row, g, A::from_f64(sum(g)), out);
    });
}

/// Sums `term` of the two numbers of each column in [`LANES`] partial sums, which are summed pairwise.
#[inline(always)]
fn sum_by_lanes<A: Real>(left: &[A], right: &[A], term: impl Fn(A, A) -> f64) -> f64 {
    let mut sums = [0f64; LANES];
    let ((left, left_rest), (right, right_rest)) = (left.as_chunks::<LANES>(), right.as_chunks::<LANES>());
    for (left, right) in left.iter().zip(right) {
        for lane in 0..LANES {
            sums[lane] += term(left[lane], right[lane]);
        }
    }
    for ((&x, &y), sum) in left_rest.iter().zip(right_rest).zip(&mut sums) {
        *sum += term(x, y);
    }
    for half in [8, 4, 2, 1] {
        for lane in 0..half {
            sums[lane] += sums[lane + half];
        }
    }
    sums[0]
}

multiversion! {
    fn largest [A: Real] (row: &[A]) -> A {
        let larger = |a: A, b: A| if b > a { b } else { a };
        let mut max = [A::NEG_INFINITY; LANES];
        let (whole, rest) = row.as_chunks::<LANES>();
        for chunk in whole {
            max.iter_mut().zip(chunk).for_each(|(max, &x)| *max = larger(*max, x));
        }
        max.iter().chain(rest).fold(A::NEG_INFINITY, |max, &x| larger(max, x))
    }
}

multiversion! {
    /// `Σ e^(x − largest)`
    fn sum_of_exponentials [A: Real] (row: &[A], largest: A) -> f64 {
        sum_by_lanes(row, row, |x, _| (x - largest).exp().to_f64())
    }
}

multiversion! {
    /// `out[c] = e^(row[c] − largest)`, and their sum.
    fn exponentials [A: Real] (row: &[A], largest: A, out: &mut [A]) -> f64 {
        for (o, &x) in out.iter_mut().zip(row) {
            *o = (x - largest).exp();
        }
        sum(out)
    }
}

multiversion! {
    fn multiply [A: Real] (factor: A, out: &mut [A]) {
        out.iter_mut().for_each(|o| *o = *o * factor);
    }
}

multiversion! {
    fn sum [A: Real] (row: &[A]) -> f64 {
        sum_by_lanes(row, row, |x, _| x.to_f64())
    }
}

multiversion! {
    /// `out[c] = gradient[c] − e^result[c] · total`
    fn subtract_softmax [A: Real] (result: &[A], gradient: &[A], total: A, out: &mut [A]) {
        for ((o, &x), &g) in out.iter_mut().zip(result).zip(gradient) {
            *o = g - x.exp() * total;
        }
    }
}

multiversion! {
    /// `Σ max(x, 0) − x·y + log(1 + e^−|x|)`
    fn sum_of_binary [A: Real] (row: &[A], targets: &[A]) -> f64 {
        sum_by_lanes(row, targets, |x, y| {
            let (positive, negative) = if x > A::ZERO { (x, -x) } else { (A::ZERO, x) };
            positive.to_f64() - x.to_f64() * y.to_f64() + ln_1p(negative.exp().to_f64())
        })
    }
}

multiversion! {
    /// `out[c] = scale · (sigmoid(row[c]) − targets[c])`
    fn sigmoid_gradient [A: Real] (row: &[A], targets: &[A], scale: A, out: &mut [A]) {
        for ((o, &x), &y) in out.iter_mut().zip(row).zip(targets) {
            *o = scale * (A::ONE / (A::ONE + (-x).exp()) - y);
        }
    }
}

multiversion! {
    /// `Σ |w| · (1 − p)^gamma · −log p`
    fn sum_of_focal [A: Real] (row: &[A], weights: &[A], gamma: f64) -> f64 {
        sum_by_lanes(row, weights, |x, w| {
            let (z, w) = if w > A::ZERO { (x, w) } else { (-x, -w) };
            let (missed, loss) = logarithms(z);
            w.to_f64() * A::from_f64(gamma * missed).exp().to_f64() * loss
        })
    }
}

multiversion! {
    /// `out[c] = −scale · w · (1 − p)^gamma · (1 − p − gamma · p · log p)`
    fn focal_gradient [A: Real] (row: &[A], weights: &[A], gamma: f64, scale: f64, out: &mut [A]) {
        for ((o, &x), &w) in out.iter_mut().zip(row).zip(weights) {
            let (missed, loss) = logarithms(if w > A::ZERO { x } else { -x });
            let exp = |x: f64| A::from_f64(x).exp().to_f64();
            let slope = exp(gamma * missed) * (exp(missed) + gamma * exp(-loss) * loss);
            *o = A::from_f64(-scale * w.to_f64() * slope);
        }
    }
}

/// `log(1 − p)` and `−log p`, where `p = sigmoid(z)`.
#[inline(always)]
fn logarithms<A: Real>(z: A) -> (f64, f64) {
    let (positive, negative) = if z > A::ZERO { (z, -z) } else { (A::ZERO, z) };
    let rest = ln_1p(negative.exp().to_f64());
    (-positive.to_f64() - rest, positive.to_f64() - z.to_f64() + rest)
}

/// `log(1 + x)` for `x` in `[0, 1]`, without branches: `2·artanh(s)` by its series, where `s = x / (2 + x)` is at most
/// 1/3.
#[inline(always)]
fn ln_1p(x: f64) -> f64 {
    let s = x / (2.0 + x);
    let square = s * s;
    let mut series = 1.0 / 31.0;
    let mut odd = 29.0;
    // Sixteen terms; the remainder is below 3^-33.
    for _ in 0..15 {
        series = series * square + 1.0 / odd;
        odd -= 2.0;
    }
    2.0 * s * series
}

fn sum_of_rows<A: Real>(x: &[A], width: usize, f: impl Fn(usize, &[A]) -> f64 + Sync) -> f64 {
    if x.is_empty() {
        return 0.0;
    }
    let mut each = vec![0f64; x.len().div_ceil(width)];
    parallel::chunks(&mut each, ROWS, &|at, each| {
        for (r, of_row) in (at * ROWS..).zip(each) {
            *of_row = f(r, parallel::chunk(x, r, width));
        }
    });
    each.iter().sum()
}

fn rows<A: Real>(x: &[A], width: usize, out: &mut [A], f: impl Fn(usize, &[A], &mut [A]) + Sync) {
    assert_eq!(x.len(), out.len(), "one output number per input number");
    parallel::chunks(out, ROWS * width, &|at, out| {
        for (r, out) in (at * ROWS..).zip(out.chunks_mut(width)) {
            f(r, parallel::chunk(x, r, width), out);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ln_1p_equals_that_of_the_standard_library() {
        for i in 0..=10_000 {
            let x = f64::from(i) * 1e-4;
            assert!((ln_1p(x) - x.ln_1p()).abs() <= 1e-15 * x.ln_1p(), "{x}");
        }
        assert!((ln_1p(1e-30) - 1e-30).abs() < 1e-45);
    }

    #[test]
    fn losses_of_all_widths_equal_plain_sums() {
        for width in 1..70 {
            let row: Vec<f64> = (0..width).map(|c| (f64::from(c) * 0.7).sin()).collect();
            let whole: f64 = row.iter().map(|x| x.exp()).sum();
            let loss = cross_entropy(&row, &[width as u32 - 1], width as usize);
            assert!((loss - (whole.ln() - row[width as usize - 1])).abs() < 1e-13, "{width}");
            let targets: Vec<f64> = row.iter().map(|x| x.abs()).collect();
            let naive: f64 =
                row.iter().zip(&targets).map(|(&x, &y)| x.max(0.0) - x * y + (-x.abs()).exp().ln_1p()).sum();
            assert!((binary_cross_entropy(&row, &targets, width as usize) - naive).abs() < 1e-13, "{width}");
            let weights: Vec<f64> = (0..width).map(|c| f64::from(c % 5) - 2.0).collect();
            for gamma in [0.0, 1.5] {
                let term = |(&x, &w): (&f64, &f64)| {
                    let p = 1.0 / (1.0 + (-x * w.signum()).exp());
                    -w.abs() * (1.0 - p).powf(gamma) * p.ln()
                };
                let naive: f64 = row.iter().zip(&weights).map(term).sum();
                let loss = sigmoid_focal_loss(&row, &weights, gamma, width as usize);
                assert!((loss - naive).abs() < 1e-13, "{width}");
            }
        }
    }
}
