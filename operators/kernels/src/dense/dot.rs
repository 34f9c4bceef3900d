//! Dot products of rows, summed in the same order on every instruction set.

use crate::simd::dispatch::{Level, level};
use crate::simd::element::{Element, Real};
use crate::simd::isa::{Generic, Isa};
#[cfg(target_arch = "x86_64")]
use crate::simd::isa::{V3, V4};
use crate::simd::lanes::Lanes;

/// Number of interleaved partial sums, equal on every instruction set.
const PARTIAL: usize = 16;

/// Sums `partial` as a tree.
#[inline(always)]
pub(crate) fn tree<A: Real>(mut partial: [A; PARTIAL]) -> A {
    let mut half = PARTIAL / 2;
    while half > 0 {
        for k in 0..half {
            partial[k] += partial[k + half];
        }
        half /= 2;
    }
    partial[0]
}

/// `Σ a·b`, for loops compiled for an instruction set. The remainder behind whole [`PARTIAL`]s is summed first. Uses
/// explicit lanes, because the compiler's own vectorization shuffles single numbers.
///
/// # Safety
/// The machine has `I`.
///
/// # Panics
/// If lengths differ.
#[inline(always)]
pub(crate) unsafe fn dot_in_lanes<I: Isa, T: Element>(a: &[T::Acc], b: &[T]) -> T::Acc {
    assert_eq!(a.len(), b.len(), "rows have one length");
    let lanes = I::Of::<T::Acc>::N;
    let rest = a.len() % PARTIAL;
    let whole = a.len() - rest;
    let mut partial = [T::Acc::ZERO; PARTIAL];
    for first in (0..PARTIAL).step_by(lanes) {
        // SAFETY: guaranteed by the caller; both slices have the length of `a`, and `partial` has whole vectors.
        unsafe {
            let mut sum = I::Of::<T::Acc>::zero();
            if rest > first {
                let (at, count) = (whole + first, (rest - first).min(lanes));
                sum = sum.add(
                    I::load_head::<T::Acc>(a.as_ptr().add(at), count).mul(I::load_head(b.as_ptr().add(at), count)),
                );
            }
            for at in (first..whole).step_by(PARTIAL) {
                sum = sum.add(I::load::<T::Acc>(a.as_ptr().add(at)).mul(I::load(b.as_ptr().add(at))));
            }
            sum.store(partial.as_mut_ptr().add(first));
        }
    }
    tree(partial)
}

/// `out[h] = a[h, :] · b[h, :]`
pub(crate) fn dot_by_head<T: Element>(a: &[T::Acc], b: &[T], width: usize, out: &mut [T::Acc]) {
    #[cfg(target_arch = "x86_64")]
    if T::VECTORS {
        match level() {
            // SAFETY: `level` found the features.
            Level::V4 => return unsafe { by_head_v4(a, b, width, out) },
            // SAFETY: as above.
            Level::V3 => return unsafe { by_head_v3(a, b, width, out) },
            Level::Baseline => {}
        }
    }
    // SAFETY: `Generic` needs no features.
    unsafe { dots_of_heads::<Generic, T>(a, b, width, out) }
}

/// [`dot_by_head`] for loops compiled for an instruction set.
///
/// # Safety
/// The machine has `I`.
#[inline(always)]
pub(crate) unsafe fn dots_of_heads<I: Isa, T: Element>(a: &[T::Acc], b: &[T], width: usize, out: &mut [T::Acc]) {
    for (h, out) in out.iter_mut().enumerate() {
        // SAFETY: guaranteed by the caller.
        *out = unsafe { dot_in_lanes::<I, T>(&a[h * width..][..width], &b[h * width..][..width]) };
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,f16c")]
fn by_head_v4<T: Element>(a: &[T::Acc], b: &[T], width: usize, out: &mut [T::Acc]) {
    // SAFETY: the features are enabled here.
    unsafe { dots_of_heads::<V4, T>(a, b, width, out) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
fn by_head_v3<T: Element>(a: &[T::Acc], b: &[T], width: usize, out: &mut [T::Acc]) {
    // SAFETY: as above.
    unsafe { dots_of_heads::<V3, T>(a, b, width, out) }
}

#[cfg(test)]
mod tests {
    use gnnflow_data::rng::{Key, Purpose};
    use half::bf16;

    use super::*;

    /// Plain loops.
    fn dot<A: Real, T: Element<Acc = A>>(a: &[A], b: &[T]) -> A {
        let mut partial = [A::ZERO; PARTIAL];
        let (a, b) = (a.chunks_exact(PARTIAL), b.chunks_exact(PARTIAL));
        for (k, (&a, &b)) in a.remainder().iter().zip(b.remainder()).enumerate() {
            partial[k] += a * b.widen();
        }
        for (a, b) in a.zip(b) {
            for k in 0..PARTIAL {
                partial[k] += a[k] * b[k].widen();
            }
        }
        tree(partial)
    }

    #[test]
    fn dot_by_head_has_the_bits_of_a_plain_loop() {
        let key = Key::new(9, Purpose::GenerateNodes);
        for length in (0..70).chain([128, 1000]) {
            let numbers = |k: u64| (0..length as u64).map(move |i| key.fold(k).normal(i) as f32);
            let (a, b): (Vec<f32>, Vec<f32>) = (numbers(0).collect(), numbers(1).collect());
            let half: Vec<bf16> = numbers(1).map(bf16::from_f32).collect();
            let doubles: Vec<f64> = numbers(1).map(f64::from).collect();
            let mut out = [0.0];
            dot_by_head(&a, &b, length, &mut out);
            assert_eq!(out[0].to_bits(), dot(&a, &b).to_bits(), "{length}");
            dot_by_head(&a, &half, length, &mut out);
            assert_eq!(out[0].to_bits(), dot(&a, &half).to_bits(), "{length}, bf16");
            let mut out = [0.0];
            dot_by_head(&doubles, &doubles, length, &mut out);
            assert_eq!(out[0].to_bits(), dot(&doubles, &doubles).to_bits(), "{length}, f64");
        }
    }
}
