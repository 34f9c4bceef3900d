//! Which instruction set this machine has, asked once a call and answered from a cache.
//!
//! Loops that the compiler vectorises by itself are wrapped in [`multiversion!`]; loops that need explicit lanes are
//! generic over [`super::lanes::Isa`]. Both are compiled for AVX-512, AVX2 and the build's own baseline. No kernel fuses
//! multiply and add, so that all of them give the same bits.

/// An instruction set that a loop was compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    /// AVX-512 F, BW, VL, DQ with F16C.
    V4,
    /// AVX2 with F16C.
    V3,
    /// What the build was compiled for.
    Baseline,
}

/// The best level of this machine.
#[inline]
pub(crate) fn level() -> Level {
    #[cfg(target_arch = "x86_64")]
    {
        use std::is_x86_feature_detected as has;
        if has!("avx2") && has!("f16c") {
            if has!("avx512f") && has!("avx512bw") && has!("avx512vl") && has!("avx512dq") {
                return Level::V4;
            }
            return Level::V3;
        }
    }
    Level::Baseline
}

/// Compiles a function for every [`Level`] and calls the best at run time. Generic parameters go in brackets after
/// the name: `fn f [T: Real] (x: &[T]) { … }`.
macro_rules! multiversion {
    ($(#[$meta:meta])* $vis:vis fn $name:ident $([$($generics:tt)*])? ($($arg:ident : $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block) => {
        $(#[$meta])*
        #[allow(clippy::too_many_arguments)]
        $vis fn $name $(<$($generics)*>)? ($($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            fn body $(<$($generics)*>)? ($($arg: $ty),*) $(-> $ret)? $body
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,f16c")]
            fn v4 $(<$($generics)*>)? ($($arg: $ty),*) $(-> $ret)? { body($($arg),*) }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,f16c")]
            fn v3 $(<$($generics)*>)? ($($arg: $ty),*) $(-> $ret)? { body($($arg),*) }
            match $crate::kernel::dispatch::level() {
                #[cfg(target_arch = "x86_64")]
                // SAFETY: `level` found these features on this machine.
                $crate::kernel::dispatch::Level::V4 => unsafe { v4($($arg),*) },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: as above.
                $crate::kernel::dispatch::Level::V3 => unsafe { v3($($arg),*) },
                _ => body($($arg),*),
            }
        }
    };
}
pub(crate) use multiversion;
