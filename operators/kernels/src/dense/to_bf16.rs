//! Rounding to `bf16`, for rows that are read more often than written.

use half::bf16;

use crate::simd::dispatch::multiversion;

/// Rounds to nearest even like [`bf16::from_f32`], without a branch.
#[inline(always)]
fn nearest(x: f32) -> bf16 {
    let bits = x.to_bits();
    let rounded = (bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16) as u16;
    // Setting this mantissa bit keeps NaN a NaN.
    let nan = (bits >> 16) as u16 | 0x40;
    bf16::from_bits(if x.is_nan() { nan } else { rounded })
}

multiversion! {
    /// `out = scale · x`, each number rounded to the nearest `bf16`.
    ///
    /// ```
    /// use gnnflow_kernels::dense::to_bf16::to_bf16;
    /// use half::bf16;
    ///
    /// let mut out = [bf16::ZERO; 3];
    /// to_bf16(&[1.0, -3.0, 1.002], 0.5, &mut out);
    /// assert_eq!(out, [0.5, -1.5, 0.5].map(bf16::from_f32));
    /// ```
    ///
    /// # Panics
    /// If lengths differ.
    pub fn to_bf16(x: &[f32], scale: f32, out: &mut [bf16]) {
        assert_eq!(x.len(), out.len(), "x and out have one length");
        for (out, x) in out.iter_mut().zip(x) {
            *out = nearest(scale * x);
        }
    }
}

#[cfg(test)]
mod tests {
    use gnnflow_data::rng::{Key, Purpose};

    use super::*;

    #[test]
    fn to_bf16_rounds_like_the_half_crate() {
        let key = Key::new(11, Purpose::GenerateNodes);
        let mut x: Vec<f32> = (0..20_000).map(|i| f32::from_bits(key.below(i, 1 << 32) as u32)).collect();
        // Ties between two neighbors, and special values.
        let halves = [0x3f80_8000, 0x3f81_8000, 0x3f80_7fff, 0x3f80_8001];
        x.extend((0..1000u32).flat_map(|i| halves.map(|bits| f32::from_bits(bits + (i << 16)))));
        x.extend([0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX, f32::MIN, f32::MIN_POSITIVE, 1e-45]);
        x.extend([0x7f80_0001, 0xffff_ffff].map(f32::from_bits));
        for scale in [1.0, 0.3] {
            let mut out = vec![bf16::ONE; x.len()];
            to_bf16(&x, scale, &mut out);
            for (&x, out) in x.iter().zip(&out) {
                assert_eq!(out.to_bits(), bf16::from_f32(scale * x).to_bits(), "{scale} · {x}");
            }
        }
    }
}
