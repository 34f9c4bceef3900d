//! Exact weighted draws with removal.

/// Children per sum.
const WIDTH: usize = 16;

/// A tree of sums over weights, with 16 children per sum: O(n) to build, O(16 log₁₆ n) per draw or removal.
///
/// All sums are in `f64`, from left to right. A removal recomputes the sums above it, so that no error accumulates.
/// Memory is reused between rows.
#[derive(Clone, Debug, Default)]
pub(super) struct SumTree<W> {
    weights: Vec<W>,
    /// The levels, sums of weights first; the last level is the total.
    levels: Vec<Vec<f64>>,
    /// Number of `levels` in use.
    height: usize,
    positive: usize,
}

impl<W: Copy + Default + Into<f64>> SumTree<W> {
    /// Replaces the weights; they must be finite and not negative.
    pub(super) fn fill(&mut self, weights: impl Iterator<Item = W>) {
        self.weights.clear();
        self.weights.extend(weights);
        self.positive = self.weights.iter().filter(|&&weight| weight.into() > 0.0).count();
        self.height = 0;
        let mut children = self.weights.len();
        while self.height == 0 || children > 1 {
            if self.levels.len() == self.height {
                self.levels.push(Vec::new());
            }
            let (below, level) = self.levels.split_at_mut(self.height);
            level[0].clear();
            match below.last() {
                None => level[0].extend(self.weights.chunks(WIDTH).map(|c| c.iter().map(|&w| w.into()).sum::<f64>())),
                Some(below) => level[0].extend(below.chunks(WIDTH).map(|c| c.iter().sum::<f64>())),
            }
            children = level[0].len();
            self.height += 1;
        }
    }

    /// Returns the number of positive weights.
    pub(super) fn positive(&self) -> usize {
        self.positive
    }

    /// Returns whether weight `i` is positive.
    pub(super) fn is_positive(&self, i: usize) -> bool {
        self.weights[i].into() > 0.0
    }

    /// Returns the index at the fraction `unit`, in `[0, 1)`, of the cumulative weights.
    ///
    /// # Panics
    /// If no weight is positive.
    pub(super) fn find(&self, unit: f64) -> usize {
        assert!(self.positive > 0, "some weight is positive");
        let top = &self.levels[self.height - 1];
        let (mut x, mut at) = (unit * top[0], 0);
        for level in self.levels[..self.height - 1].iter().rev() {
            let first = at * WIDTH;
            at = first + descend(level[first..].iter().take(WIDTH).copied(), &mut x);
        }
        let first = at * WIDTH;
        first + descend(self.weights[first..].iter().take(WIDTH).map(|&weight| weight.into()), &mut x)
    }

    /// Sets weight `i` to 0.
    pub(super) fn remove(&mut self, i: usize) {
        self.positive -= usize::from(self.is_positive(i));
        self.weights[i] = W::default();
        let mut at = i / WIDTH;
        let children = &self.weights[at * WIDTH..];
        self.levels[0][at] = children.iter().take(WIDTH).map(|&weight| weight.into()).sum();
        for level in 1..self.height {
            at /= WIDTH;
            let sum = self.levels[level - 1][at * WIDTH..].iter().take(WIDTH).sum();
            self.levels[level][at] = sum;
        }
    }
}

/// Returns the index of the share that contains `x`, and sets `x` to the offset within it. If rounding leads past the
/// end, returns the last positive share; a share of 0 is never returned.
#[inline]
fn descend(shares: impl Iterator<Item = f64>, x: &mut f64) -> usize {
    let (mut found, mut rest) = (0, *x);
    for (i, share) in shares.enumerate() {
        if share > 0.0 {
            (found, *x) = (i, rest);
            if rest < share {
                break;
            }
            rest -= share;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use gnnflow_data::rng::{Key, Purpose};

    #[test]
    fn find_equals_a_linear_search() {
        let mut tree = SumTree::<f32>::default();
        for n in [1usize, 2, 15, 16, 17, 255, 256, 257, 5000] {
            let key = Key::new(n as u64, Purpose::Sample);
            // Small integers: sums are exact in any order.
            let mut weights: Vec<f32> = (0..n as u64).map(|i| key.below(i, 4) as f32).collect();
            weights[n - 1] = 1.0;
            tree.fill(weights.iter().copied());
            for draw in 0..n.min(300) as u64 {
                let total: f64 = weights.iter().map(|&weight| f64::from(weight)).sum();
                assert_eq!(tree.positive(), weights.iter().filter(|&&weight| weight > 0.0).count());
                if total == 0.0 {
                    break;
                }
                let mut x = key.fold(1).unit(draw) * total;
                let expected = weights.iter().position(|&weight| {
                    x -= f64::from(weight);
                    x < 0.0
                });
                let found = tree.find(key.fold(1).unit(draw));
                assert_eq!(Some(found), expected, "{n} weights, draw {draw}");
                if draw % 2 == 0 {
                    tree.remove(found);
                    weights[found] = 0.0;
                }
            }
        }
    }

    #[test]
    fn find_never_returns_a_weight_of_0_despite_rounding() {
        let mut tree = SumTree::<f32>::default();
        let weights = [0.0, 1e-30, 0.0, 3e38, 1e-45, 0.0, 3e38, 0.0];
        for unit in [0.0, 1e-300, 0.5, 1.0 - f64::EPSILON / 2.0] {
            tree.fill(weights.into_iter());
            while tree.positive() > 0 {
                let found = tree.find(unit);
                assert!(tree.is_positive(found), "{found} at {unit}");
                tree.remove(found);
            }
        }
    }
}
