//! Element types: numbers as stored, and the types of their sums.
//!
//! Features may be stored as `bf16` or `f16`; sums are always `f32` or `f64`. The widening conversions and
//! [`Real::exp`] are branch-free, so that loops vectorize, and give the same bits on every instruction set.

use std::ops::{Add, AddAssign, Div, Mul, Neg, Sub};

use half::{bf16, f16};

#[cfg(target_arch = "x86_64")]
use super::lanes::{Lanes, Plain, x86};

/// A number type of computations: `f32`; or `f64` for gradient checks, without vectors, which would only take time to compile.
pub trait Real:
    Copy
    + Default
    + Send
    + Sync
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + AddAssign
    + Element<Acc = Self>
    + 'static
{
    /// 0.
    const ZERO: Self;
    /// 1.
    const ONE: Self;
    /// −∞.
    const NEG_INFINITY: Self;
    #[doc(hidden)]
    #[cfg(target_arch = "x86_64")]
    type V4: Lanes<Scalar = Self>;
    #[doc(hidden)]
    #[cfg(target_arch = "x86_64")]
    type V3: Lanes<Scalar = Self>;

    /// Converts to the nearest number of this type.
    fn from_f64(x: f64) -> Self;
    /// Converts exactly.
    fn to_f64(self) -> f64;
    /// `e^self`; the `f32` version is within 2 units in the last place and vectorizes.
    fn exp(self) -> Self;
    /// Square root.
    fn sqrt(self) -> Self;
}

/// A stored number: read as `Self`, summed as [`Element::Acc`].
pub trait Element: Copy + Send + Sync + 'static {
    /// The type of sums.
    type Acc: Real;
    /// Whether loops over this type are compiled for AVX-512 and AVX2.
    const VECTORS: bool = true;
    /// Converts to the type of sums, exactly.
    fn widen(self) -> Self::Acc;
    /// Widens `LANES` numbers from `p`.
    ///
    /// # Safety
    /// `p` must be readable for this number of elements, and the machine must have AVX-512 (F, BW, VL, DQ).
    #[doc(hidden)]
    #[cfg(target_arch = "x86_64")]
    unsafe fn load_v4(p: *const Self) -> <Self::Acc as Real>::V4;
    /// Like [`Element::load_v4`], for the first `n` numbers only.
    ///
    /// # Safety
    /// As [`Element::load_v4`], for `n` numbers.
    #[doc(hidden)]
    #[cfg(target_arch = "x86_64")]
    unsafe fn load_head_v4(p: *const Self, n: usize) -> <Self::Acc as Real>::V4;
    /// Like [`Element::load_v4`] for AVX2.
    ///
    /// # Safety
    /// As [`Element::load_v4`], with AVX2 and F16C.
    #[doc(hidden)]
    #[cfg(target_arch = "x86_64")]
    unsafe fn load_v3(p: *const Self) -> <Self::Acc as Real>::V3;
    /// Like [`Element::load_head_v4`] for AVX2.
    ///
    /// # Safety
    /// As [`Element::load_head_v4`], with AVX2 and F16C.
    #[doc(hidden)]
    #[cfg(target_arch = "x86_64")]
    unsafe fn load_head_v3(p: *const Self, n: usize) -> <Self::Acc as Real>::V3;
}

/// `e^x` by range reduction to `[−ln 2 / 2, ln 2 / 2]` and a polynomial of degree 6 (Cephes' coefficients).
#[inline(always)]
fn exp_f32(x: f32) -> f32 {
    let x = x.clamp(-87.3, 88.7);
    // Adding and subtracting 1.5 · 2^23 rounds to the nearest integer without a library call.
    const ROUND: f32 = 12_582_912.0;
    let k = (x * std::f32::consts::LOG2_E + ROUND) - ROUND;
    let r = (x - k * 0.693_359_4) + k * 2.121_944_4e-4;
    let p = 1.987_569_1e-4;
    let p = p * r + 1.398_199_9e-3;
    let p = p * r + 8.333_452e-3;
    let p = p * r + 4.166_579_6e-2;
    let p = p * r + 1.666_666_5e-1;
    let p = p * r + 0.5;
    let y = p * (r * r) + r + 1.0;
    // 2^k in two factors: k reaches 128, one past the largest exponent.
    let half = (k as i32) >> 1;
    let power = |k: i32| f32::from_bits(((k + 127) as u32) << 23);
    y * power(half) * power(k as i32 - half)
}

impl Real for f32 {
    const ZERO: f32 = 0.0;
    const ONE: f32 = 1.0;
    const NEG_INFINITY: f32 = f32::NEG_INFINITY;
    #[cfg(target_arch = "x86_64")]
    type V4 = x86::F32x16;
    #[cfg(target_arch = "x86_64")]
    type V3 = x86::F32x8;

    #[inline(always)]
    fn from_f64(x: f64) -> f32 {
        x as f32
    }
    #[inline(always)]
    fn to_f64(self) -> f64 {
        f64::from(self)
    }
    #[inline(always)]
    fn exp(self) -> f32 {
        exp_f32(self)
    }
    #[inline(always)]
    fn sqrt(self) -> f32 {
        f32::sqrt(self)
    }
}

impl Real for f64 {
    const ZERO: f64 = 0.0;
    const ONE: f64 = 1.0;
    const NEG_INFINITY: f64 = f64::NEG_INFINITY;
    #[cfg(target_arch = "x86_64")]
    type V4 = Plain<f64>;
    #[cfg(target_arch = "x86_64")]
    type V3 = Plain<f64>;

    #[inline(always)]
    fn from_f64(x: f64) -> f64 {
        x
    }
    #[inline(always)]
    fn to_f64(self) -> f64 {
        self
    }
    #[inline(always)]
    fn exp(self) -> f64 {
        f64::exp(self)
    }
    #[inline(always)]
    fn sqrt(self) -> f64 {
        f64::sqrt(self)
    }
}

/// Forwards the loads of an [`Element`] to functions of [`x86`].
macro_rules! x86_loads {
    ($v4:ident, $head4:ident, $v3:ident, $head3:ident) => {
        #[cfg(target_arch = "x86_64")]
        #[inline(always)]
        unsafe fn load_v4(p: *const Self) -> <Self::Acc as Real>::V4 {
            // SAFETY: guaranteed by the caller.
            unsafe { x86::$v4(p) }
        }
        #[cfg(target_arch = "x86_64")]
        #[inline(always)]
        unsafe fn load_head_v4(p: *const Self, n: usize) -> <Self::Acc as Real>::V4 {
            // SAFETY: as above.
            unsafe { x86::$head4(p, n) }
        }
        #[cfg(target_arch = "x86_64")]
        #[inline(always)]
        unsafe fn load_v3(p: *const Self) -> <Self::Acc as Real>::V3 {
            // SAFETY: as above.
            unsafe { x86::$v3(p) }
        }
        #[cfg(target_arch = "x86_64")]
        #[inline(always)]
        unsafe fn load_head_v3(p: *const Self, n: usize) -> <Self::Acc as Real>::V3 {
            // SAFETY: as above.
            unsafe { x86::$head3(p, n) }
        }
    };
}

impl Element for f32 {
    type Acc = f32;
    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }
    x86_loads!(f32_v4, f32_head_v4, f32_v3, f32_head_v3);
}

impl Element for f64 {
    type Acc = f64;
    #[inline(always)]
    fn widen(self) -> f64 {
        self
    }
    const VECTORS: bool = false;
    #[cfg(target_arch = "x86_64")]
    unsafe fn load_v4(p: *const f64) -> Plain<f64> {
        // SAFETY: guaranteed by the caller.
        unsafe { Self::load_head_v4(p, 8) }
    }
    #[cfg(target_arch = "x86_64")]
    unsafe fn load_head_v4(p: *const f64, n: usize) -> Plain<f64> {
        // SAFETY: the caller guarantees `n` readable numbers.
        Plain::new(|k| if k < n { unsafe { *p.add(k) } } else { 0.0 })
    }
    #[cfg(target_arch = "x86_64")]
    unsafe fn load_v3(p: *const f64) -> Plain<f64> {
        // SAFETY: as for `load_v4`.
        unsafe { Self::load_head_v4(p, 8) }
    }
    #[cfg(target_arch = "x86_64")]
    unsafe fn load_head_v3(p: *const f64, n: usize) -> Plain<f64> {
        // SAFETY: as for `load_head_v4`.
        unsafe { Self::load_head_v4(p, n) }
    }
}

impl Element for bf16 {
    type Acc = f32;
    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }
    x86_loads!(bf16_v4, bf16_head_v4, bf16_v3, bf16_head_v3);
}

impl Element for f16 {
    type Acc = f32;
    /// Moves the fields to their positions in an `f32` and multiplies by 2^112 to correct the exponent. This also
    /// normalizes subnormal halves. Infinities and NaN keep an exponent of all ones.
    #[inline(always)]
    fn widen(self) -> f32 {
        let half = u32::from(self.to_bits());
        let magnitude = (half & 0x7fff) << 13;
        let scaled = (f32::from_bits(magnitude) * f32::from_bits(0x7780_0000)).to_bits();
        let special = magnitude | 0x7f80_0000;
        let bits = if half & 0x7c00 == 0x7c00 { special } else { scaled };
        f32::from_bits(bits | ((half & 0x8000) << 16))
    }
    x86_loads!(f16_v4, f16_head_v4, f16_v3, f16_head_v3);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widen_is_exact_for_every_f16_and_bf16() {
        for bits in 0..=u16::MAX {
            let (h, b) = (f16::from_bits(bits), bf16::from_bits(bits));
            assert!(h.widen() == h.to_f32() || h.is_nan() && h.widen().is_nan(), "f16 {bits:#x}");
            assert!(b.widen() == b.to_f32() || b.is_nan() && b.widen().is_nan(), "bf16 {bits:#x}");
        }
    }

    #[test]
    fn exp_is_close_to_that_of_the_standard_library() {
        let mut worst = 0f64;
        for i in -87_000..=88_000 {
            let x = i as f32 * 1e-3;
            let exact = f64::from(x).exp();
            worst = worst.max((f64::from(Real::exp(x)) - exact).abs() / exact);
        }
        assert!(worst < 2.5e-7, "relative error {worst:e}");
        assert_eq!(Real::exp(0f32), 1.0);
        assert!(Real::exp(-200f32) < 1e-37);
        assert!(Real::exp(f32::NAN).is_nan());
    }
}
