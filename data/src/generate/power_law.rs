//! Draws ranks in proportion to power-law weights, without a table.

/// A distribution over the ranks `0..n` in which rank `k` has weight `∫ x^-alpha dx` over `[k + shift, k + 1 + shift]`,
/// `alpha = 1 / (gamma - 1)`. The tail of the numbers of draws per rank falls with exponent `gamma`.
///
/// The inverse of the cumulative weight has a closed form, so a draw costs one power and no memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct PowerLaw {
    n: u64,
    shift: f64,
    beta: f64,
    low: f64,
    span: f64,
}

impl PowerLaw {
    /// Creates a distribution. `gamma` must be above 2, and `n` at least 1. No rank gets more than about `max_share` of
    /// all draws, unless equal shares are larger.
    pub(super) fn new(n: u64, gamma: f64, max_share: f64) -> Self {
        let beta = 1.0 - 1.0 / (gamma - 1.0);
        let at = |shift: f64| {
            let low = shift.powf(beta);
            Self { n, shift, beta, low, span: (shift + n as f64).powf(beta) - low }
        };
        // The first rank's share falls as the shift grows: bisection, in powers of two, between 1 and 1024 n.
        let (mut few, mut many) = (0.0, (1024.0 * n as f64).log2());
        if at(1.0).share(0) > max_share {
            for _ in 0..60 {
                let middle = 0.5 * (few + many);
                *(if at(middle.exp2()).share(0) > max_share { &mut few } else { &mut many }) = middle;
            }
            return at(many.exp2());
        }
        at(1.0)
    }

    /// Returns the probability of rank `k`.
    pub(super) fn share(&self, k: u64) -> f64 {
        let at = |x: f64| (x + self.shift).powf(self.beta);
        (at(k as f64 + 1.0) - at(k as f64)) / self.span
    }

    /// Returns the rank for `u`, which is uniform in `[0, 1)`.
    #[inline]
    pub(super) fn rank(&self, u: f64) -> u64 {
        let x = (self.low + u * self.span).powf(1.0 / self.beta) - self.shift;
        (x.max(0.0) as u64).min(self.n - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::{Key, Purpose};

    #[test]
    fn draws_follow_the_shares() {
        // 50 ranks, 49 degrees of freedom, 0.999 quantile 85.4.
        for (gamma, max_share) in [(2.2, 1.0), (2.5, 0.05), (3.0, 1.0), (50.0, 1.0)] {
            let law = PowerLaw::new(50, gamma, max_share);
            let key = Key::new(3, Purpose::GenerateEdges);
            let mut counts = [0f64; 50];
            (0..100_000).for_each(|i| counts[law.rank(key.unit(i)) as usize] += 1.0);
            let chi: f64 =
                (0..50).map(|k| (k, 1e5 * law.share(k))).map(|(k, e)| (counts[k as usize] - e).powi(2) / e).sum();
            assert!(chi < 85.4, "{gamma} {max_share}: {chi}");
            assert!((0..50).map(|k| law.share(k)).sum::<f64>() - 1.0 < 1e-9);
            assert!(law.share(0) <= max_share * 1.001);
        }
    }

    #[test]
    fn extreme_draws_are_in_range() {
        for n in [1, 2, 3, 1 << 32] {
            let law = PowerLaw::new(n, 2.1, 1.0);
            assert_eq!(law.rank(0.0), 0);
            assert!(law.rank(1.0 - f64::EPSILON) < n);
        }
    }
}
