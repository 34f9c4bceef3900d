//! Vectors of lanes: the operations that the row loops need, plain arrays for any machine, and the vectors of AVX-512 and AVX2.

use std::ops::{Add, Mul};

/// A vector of `N` numbers.
///
/// # Safety
/// Methods require the instruction set of the implementing type, and pointers that are valid for the numbers that they
/// read or write.
#[allow(clippy::missing_safety_doc)] // documented above for all methods
pub trait Lanes: Copy {
    /// One lane.
    type Scalar;
    /// Number of lanes.
    const N: usize;
    /// All lanes 0.
    unsafe fn zero() -> Self;
    /// All lanes `x`.
    unsafe fn splat(x: Self::Scalar) -> Self;
    /// Sum per lane.
    unsafe fn add(self, other: Self) -> Self;
    /// Product per lane.
    unsafe fn mul(self, other: Self) -> Self;
    /// Writes all lanes to `p`.
    unsafe fn store(self, p: *mut Self::Scalar);
    /// Writes the first `n` lanes to `p`.
    unsafe fn store_head(self, p: *mut Self::Scalar, n: usize);
}

/// An array of eight numbers, for any machine.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Plain<A>([A; 8]);

impl<A> Plain<A> {
    /// Makes the array of `value(0)` to `value(7)`.
    #[inline(always)]
    pub(super) fn new(value: impl FnMut(usize) -> A) -> Self {
        Plain(std::array::from_fn(value))
    }
}

impl<A: Copy + Default + Add<Output = A> + Mul<Output = A>> Lanes for Plain<A> {
    type Scalar = A;
    const N: usize = 8;
    #[inline(always)]
    unsafe fn zero() -> Self {
        Plain([A::default(); 8])
    }
    #[inline(always)]
    unsafe fn splat(x: A) -> Self {
        Plain([x; 8])
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        Plain(std::array::from_fn(|k| self.0[k] + other.0[k]))
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        Plain(std::array::from_fn(|k| self.0[k] * other.0[k]))
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut A) {
        // SAFETY: the caller guarantees space for N numbers.
        unsafe { self.store_head(p, 8) }
    }
    #[inline(always)]
    unsafe fn store_head(self, p: *mut A, n: usize) {
        for (k, &x) in self.0.iter().enumerate().take(n) {
            // SAFETY: the caller guarantees space for n numbers.
            unsafe { p.add(k).write(x) }
        }
    }
}

/// The vectors of x86-64.
#[cfg(target_arch = "x86_64")]
#[doc(hidden)]
pub mod x86 {
    // Every function here has the safety conditions of `Lanes`: the instruction set is available, and pointers are
    // valid for the numbers read or written.
    #![allow(clippy::missing_safety_doc, clippy::undocumented_unsafe_blocks, missing_docs)]

    use super::Lanes;
    use half::{bf16, f16};
    use std::arch::x86_64::*;

    macro_rules! lanes {
        ($name:ident, $raw:ident, $scalar:ty, $n:expr, $zero:ident, $set:ident, $add:ident, $mul:ident, $store:ident,
         |$p:ident, $x:ident, $k:ident| $head:expr) => {
            #[derive(Clone, Copy)]
            pub struct $name($raw);
            impl Lanes for $name {
                type Scalar = $scalar;
                const N: usize = $n;
                #[inline(always)]
                unsafe fn zero() -> Self {
                    unsafe { $name($zero()) }
                }
                #[inline(always)]
                unsafe fn splat(x: $scalar) -> Self {
                    unsafe { $name($set(x)) }
                }
                #[inline(always)]
                unsafe fn add(self, other: Self) -> Self {
                    unsafe { $name($add(self.0, other.0)) }
                }
                #[inline(always)]
                unsafe fn mul(self, other: Self) -> Self {
                    unsafe { $name($mul(self.0, other.0)) }
                }
                #[inline(always)]
                unsafe fn store(self, p: *mut $scalar) {
                    unsafe { $store(p, self.0) }
                }
                #[inline(always)]
                unsafe fn store_head(self, $p: *mut $scalar, $k: usize) {
                    let $x = self.0;
                    unsafe { $head }
                }
            }
        };
    }

    lanes!(
        F32x16,
        __m512,
        f32,
        16,
        _mm512_setzero_ps,
        _mm512_set1_ps,
        _mm512_add_ps,
        _mm512_mul_ps,
        _mm512_storeu_ps,
        |p, x, n| _mm512_mask_storeu_ps(p, mask16(n), x)
    );
    lanes!(
        F32x8,
        __m256,
        f32,
        8,
        _mm256_setzero_ps,
        _mm256_set1_ps,
        _mm256_add_ps,
        _mm256_mul_ps,
        _mm256_storeu_ps,
        |p, x, n| _mm256_maskstore_ps(p, window32(n), x)
    );

    /// The lowest `n` of 16 bits.
    #[inline(always)]
    fn mask16(n: usize) -> u16 {
        ((1u32 << n) - 1) as u16
    }

    /// Eight 32-bit words, the first `n` all ones.
    #[inline(always)]
    unsafe fn window32(n: usize) -> __m256i {
        static ONES: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];
        unsafe { _mm256_loadu_si256(ONES.as_ptr().add(8 - n).cast()) }
    }

    /// The first `n` of eight 16-bit words; AVX2 has no masked load for them.
    #[inline(always)]
    unsafe fn head16(p: *const u16, n: usize) -> __m128i {
        let mut words = [0u16; 8];
        unsafe {
            std::ptr::copy_nonoverlapping(p, words.as_mut_ptr(), n);
            _mm_loadu_si128(words.as_ptr().cast())
        }
    }

    #[inline(always)]
    unsafe fn widen_bf16_v4(x: __m256i) -> F32x16 {
        unsafe { F32x16(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(x)))) }
    }

    #[inline(always)]
    unsafe fn widen_bf16_v3(x: __m128i) -> F32x8 {
        unsafe { F32x8(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(x)))) }
    }

    macro_rules! load {
        ($name:ident, $from:ty => $to:ident, |$p:ident| $body:expr) => {
            #[inline(always)]
            pub unsafe fn $name($p: *const $from) -> $to {
                unsafe { $body }
            }
        };
        ($name:ident, $from:ty => $to:ident, |$p:ident, $n:ident| $body:expr) => {
            #[inline(always)]
            pub unsafe fn $name($p: *const $from, $n: usize) -> $to {
                unsafe { $body }
            }
        };
    }

    load!(f32_v4, f32 => F32x16, |p| F32x16(_mm512_loadu_ps(p)));
    load!(f32_head_v4, f32 => F32x16, |p, n| F32x16(_mm512_maskz_loadu_ps(mask16(n), p)));
    load!(f32_v3, f32 => F32x8, |p| F32x8(_mm256_loadu_ps(p)));
    load!(f32_head_v3, f32 => F32x8, |p, n| F32x8(_mm256_maskload_ps(p, window32(n))));
    load!(bf16_v4, bf16 => F32x16, |p| widen_bf16_v4(_mm256_loadu_si256(p.cast())));
    load!(bf16_head_v4, bf16 => F32x16, |p, n| widen_bf16_v4(_mm256_maskz_loadu_epi16(mask16(n), p.cast())));
    load!(bf16_v3, bf16 => F32x8, |p| widen_bf16_v3(_mm_loadu_si128(p.cast())));
    load!(bf16_head_v3, bf16 => F32x8, |p, n| widen_bf16_v3(head16(p.cast(), n)));
    load!(f16_v4, f16 => F32x16, |p| F32x16(_mm512_cvtph_ps(_mm256_loadu_si256(p.cast()))));
    load!(f16_head_v4, f16 => F32x16, |p, n| F32x16(_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask16(n), p.cast()))));
    load!(f16_v3, f16 => F32x8, |p| F32x8(_mm256_cvtph_ps(_mm_loadu_si128(p.cast()))));
    load!(f16_head_v3, f16 => F32x8, |p, n| F32x8(_mm256_cvtph_ps(head16(p.cast(), n))));
}
