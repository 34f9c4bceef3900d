//! Instruction sets: AVX-512, AVX2, and any machine.
//!
//! Row loops are generic over an instruction set and compiled for each; the dispatcher selects one at run time. Lanes
//! are columns and are never summed with each other, so every instruction set gives the same bits.

use super::element::{Element, Real};
use super::lanes::{Lanes, Plain};

/// An instruction set: its [`Lanes`] per number type, and its loads.
///
/// # Safety
/// As [`Lanes`]; pointers must be readable for the loaded numbers.
pub(crate) trait Isa {
    /// Lanes of sums of `A`.
    type Of<A: Real>: Lanes<Scalar = A>;
    /// Loads all lanes from `p`.
    unsafe fn load<T: Element>(p: *const T) -> Self::Of<T::Acc>;
    /// Loads the first `n` lanes from `p`; the others are 0.
    unsafe fn load_head<T: Element>(p: *const T, n: usize) -> Self::Of<T::Acc>;
}

/// Loads by [`Element::widen`], for machines without AVX2.
#[inline(always)]
fn load_plain<T: Element>(p: *const T, n: usize) -> Plain<T::Acc> {
    // SAFETY: callers (the row loops) pass `n` readable numbers.
    Plain::new(|k| if k < n { unsafe { *p.add(k) }.widen() } else { T::Acc::ZERO })
}

/// Any machine.
pub(crate) struct Generic;

impl Isa for Generic {
    type Of<A: Real> = Plain<A>;
    #[inline(always)]
    unsafe fn load<T: Element>(p: *const T) -> Plain<T::Acc> {
        load_plain(p, 8)
    }
    #[inline(always)]
    unsafe fn load_head<T: Element>(p: *const T, n: usize) -> Plain<T::Acc> {
        load_plain(p, n)
    }
}

/// AVX-512 F, BW, VL, DQ.
#[cfg(target_arch = "x86_64")]
pub(crate) struct V4;

#[cfg(target_arch = "x86_64")]
impl Isa for V4 {
    type Of<A: Real> = A::V4;
    #[inline(always)]
    unsafe fn load<T: Element>(p: *const T) -> <T::Acc as Real>::V4 {
        // SAFETY: guaranteed by the caller.
        unsafe { T::load_v4(p) }
    }
    #[inline(always)]
    unsafe fn load_head<T: Element>(p: *const T, n: usize) -> <T::Acc as Real>::V4 {
        // SAFETY: guaranteed by the caller.
        unsafe { T::load_head_v4(p, n) }
    }
}

/// AVX2 and F16C.
#[cfg(target_arch = "x86_64")]
pub(crate) struct V3;

#[cfg(target_arch = "x86_64")]
impl Isa for V3 {
    type Of<A: Real> = A::V3;
    #[inline(always)]
    unsafe fn load<T: Element>(p: *const T) -> <T::Acc as Real>::V3 {
        // SAFETY: guaranteed by the caller.
        unsafe { T::load_v3(p) }
    }
    #[inline(always)]
    unsafe fn load_head<T: Element>(p: *const T, n: usize) -> <T::Acc as Real>::V3 {
        // SAFETY: guaranteed by the caller.
        unsafe { T::load_head_v3(p, n) }
    }
}
