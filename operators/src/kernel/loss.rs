//! Losses over rows of logits, their gradients, and log-softmax.
//!
//! A loss is the sum over rows, made in `f64` and in the order of the rows.

use rayon::prelude::*;

use super::element::Real;

/// Rows that one task takes.
const ROWS: usize = 64;

/// `Σ −log softmax(logits[r])[labels[r]]`, rows being `classes` wide.
///
/// ```
/// let loss = gnnflow_operators::kernel::loss::cross_entropy(&[0f32, 0., 0., 0.], &[0, 1], 2);
/// assert!((loss - 2. * 2f64.ln()).abs() < 1e-12);
/// ```
///
/// # Panics
/// When lengths disagree or a label is not a class.
pub fn cross_entropy<A: Real>(logits: &[A], labels: &[u32], classes: usize) -> f64 {
    assert_eq!(logits.len(), labels.len() * classes, "logits of every class for each label");
    sum_of_rows(logits, classes, |r, row| {
        let largest = largest(row);
        let total: f64 = row.iter().map(|&x| (x - largest).exp().to_f64()).sum();
        total.ln() + largest.to_f64() - row[labels[r] as usize].to_f64()
    })
}

/// Gradient of [`cross_entropy`] times `scale`: `scale · (softmax(logits[r]) − onehot(labels[r]))`.
///
/// # Panics
/// As [`cross_entropy`].
pub fn cross_entropy_backward<A: Real>(logits: &[A], labels: &[u32], classes: usize, scale: f64, out: &mut [A]) {
    assert_eq!(logits.len(), labels.len() * classes, "logits of every class for each label");
    rows(logits, classes, out, |r, row, out| {
        let largest = largest(row);
        let mut total = 0.0;
        for (o, &x) in out.iter_mut().zip(row) {
            *o = (x - largest).exp();
            total += o.to_f64();
        }
        let factor = A::from_f64(scale / total);
        out.iter_mut().for_each(|o| *o = *o * factor);
        let label = &mut out[labels[r] as usize];
        *label = *label - A::from_f64(scale);
    });
}

/// `Σ max(x, 0) − x·y + log(1 + e^−|x|)` over all logits `x` and targets `y` in `[0, 1]`; rows are `labels` wide.
///
/// # Panics
/// When lengths disagree.
pub fn binary_cross_entropy<A: Real>(logits: &[A], targets: &[A], labels: usize) -> f64 {
    assert_eq!(logits.len(), targets.len(), "a target for each logit");
    sum_of_rows(logits, labels, |r, row| {
        let targets = &targets[r * labels..][..labels];
        row.iter()
            .zip(targets)
            .map(|(&x, &y)| {
                let (x, y) = (x.to_f64(), y.to_f64());
                x.max(0.0) - x * y + (-x.abs()).exp().ln_1p()
            })
            .sum()
    })
}

/// Gradient of [`binary_cross_entropy`] times `scale`: `scale · (sigmoid(x) − y)`.
///
/// # Panics
/// When lengths disagree.
pub fn binary_cross_entropy_backward<A: Real>(logits: &[A], targets: &[A], labels: usize, scale: f64, out: &mut [A]) {
    assert_eq!(logits.len(), targets.len(), "a target for each logit");
    let scale = A::from_f64(scale);
    rows(logits, labels, out, |r, row, out| {
        for ((o, &x), &y) in out.iter_mut().zip(row).zip(&targets[r * labels..]) {
            *o = scale * (A::ONE / (A::ONE + (-x).exp()) - y);
        }
    });
}

/// `out[r, c] = x[r, c] − log Σ exp(x[r, :])`
///
/// # Panics
/// When lengths disagree.
pub fn log_softmax<A: Real>(x: &[A], classes: usize, out: &mut [A]) {
    rows(x, classes, out, |_, row, out| {
        let largest = largest(row);
        let total: f64 = row.iter().map(|&x| (x - largest).exp().to_f64()).sum();
        let log = A::from_f64(total.ln());
        out.iter_mut().zip(row).for_each(|(o, &x)| *o = x - largest - log);
    });
}

/// Gradient of [`log_softmax`], given its `result`: `gradient − softmax · Σ gradient`.
///
/// # Panics
/// When lengths disagree.
pub fn log_softmax_backward<A: Real>(result: &[A], gradient: &[A], classes: usize, out: &mut [A]) {
    assert_eq!(result.len(), gradient.len(), "a gradient for each number");
    rows(result, classes, out, |r, row, out| {
        let g = &gradient[r * classes..][..classes];
        let total = A::from_f64(g.iter().map(|g| g.to_f64()).sum());
        out.iter_mut().zip(row).zip(g).for_each(|((o, &x), &g)| *o = g - x.exp() * total);
    });
}

fn largest<A: Real>(row: &[A]) -> A {
    row.iter().fold(A::NEG_INFINITY, |m, &x| if x > m { x } else { m })
}

fn sum_of_rows<A: Real>(x: &[A], width: usize, f: impl Fn(usize, &[A]) -> f64 + Sync) -> f64 {
    if x.is_empty() {
        return 0.0;
    }
    let each: Vec<f64> = x.par_chunks(width).with_min_len(ROWS).enumerate().map(|(r, row)| f(r, row)).collect();
    each.iter().sum()
}

fn rows<A: Real>(x: &[A], width: usize, out: &mut [A], f: impl Fn(usize, &[A], &mut [A]) + Sync) {
    assert_eq!(x.len(), out.len(), "as many numbers out as in");
    if !x.is_empty() {
        x.par_chunks(width)
            .zip(out.par_chunks_mut(width))
            .with_min_len(ROWS)
            .enumerate()
            .for_each(|(r, (x, out))| f(r, x, out));
    }
}
