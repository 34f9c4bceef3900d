//! One step of a second-order random walk with node2vec's p and q.

use gnnflow_data::rng::Key;

use super::sum_tree::SumTree;

/// The bias of a walk by its previous node (node2vec, Grover and Leskovec 2016, §3.2.2).
///
/// For a walk from node `t` to `v`, an in-edge of `v` with weight `w` (1 without weights) gets the probability
/// proportional to
/// - `w / p` if its source is `t`,
/// - `w` if its source is among the in-neighbors of `t`,
/// - `w / q` otherwise.
///
/// A large `p` makes an immediate return unlikely. A `q` above 1 keeps the walk close to its previous nodes. With `p =
/// q = 1` the step has the distribution of a first-order walk.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bias {
    /// The return parameter, above 0.
    pub p: f64,
    /// The in-out parameter, above 0.
    pub q: f64,
}

impl Bias {
    fn factor(self, source: u32, before: Before<'_>) -> f64 {
        match source {
            source if source == before.node => 1.0 / self.p,
            // With q = 1, neighbors of the previous node need no lookup.
            source if self.q == 1.0 || before.neighbors.contains(&source) => 1.0,
            _ => 1.0 / self.q,
        }
    }
}

/// The previous node of a walk.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Before<'a> {
    /// The node.
    pub node: u32,
    /// Its in-neighbors, in any order.
    pub neighbors: &'a [u32],
}

/// Number of proposals before the row's probabilities are computed explicitly.
const PROPOSALS: u64 = 24;

/// Takes one step of a walk at a node with in-neighbors `row`. Returns the position of the in-edge, or `None` if the
/// row is empty or all weights are 0. Without a previous node `before`, the step is of first order.
///
/// Uses rejection sampling, which is exact. Proposal `a` is a first-order step under `key.fold(a)`; it is accepted if
/// `unit 2` is below its factor over the largest factor. 24 rejections are rare unless p and q are far from 1. After
/// them, the row's probabilities are summed, and `unit 2` of `key`, which no proposal uses, decides.
///
/// ```
/// use gnnflow_data::rng::{Key, Purpose};
/// use gnnflow_kernels::sample::{Before, Bias, biased_step};
///
/// // Large p and q: of 4, 5 and 6, only 5 is an in-neighbor of 4, the previous node.
/// let (before, bias) = (Before { node: 4, neighbors: &[9, 5] }, Bias { p: 1e12, q: 1e12 });
/// let key = Key::new(1, Purpose::Sample);
/// assert_eq!(biased_step(&[4, 5, 6], None, Some(before), bias, key), Some(1));
/// ```
///
/// # Panics
/// If `weights` and `row` differ in length.
pub fn biased_step(
    row: &[u32],
    weights: Option<&[f32]>,
    before: Option<Before<'_>>,
    bias: Bias,
    key: Key,
) -> Option<usize> {
    assert!(weights.is_none_or(|weights| weights.len() == row.len()), "one weight per edge");
    if row.is_empty() {
        return None;
    }
    let mut tree = SumTree::<f64>::default();
    if let Some(weights) = weights {
        tree.fill(weights.iter().map(|&weight| f64::from(weight)));
        if tree.positive() == 0 {
            return None;
        }
    }
    let propose = |key: Key| match weights {
        None => key.below(1, row.len() as u64) as usize,
        Some(_) => tree.find(key.unit(1)),
    };
    let Some(before) = before else { return Some(propose(key)) };
    let max_factor = (1.0 / bias.p).max(1.0).max(1.0 / bias.q);
    let accepted = (0..PROPOSALS).map(|a| key.fold(a)).find_map(|key| {
        let edge = propose(key);
        (key.unit(2) * max_factor < bias.factor(row[edge], before)).then_some(edge)
    });
    Some(accepted.unwrap_or_else(|| {
        let mut near = before.neighbors.to_vec();
        near.sort_unstable();
        let factor = |source: u32| match source {
            source if source == before.node => 1.0 / bias.p,
            source if near.binary_search(&source).is_ok() => 1.0,
            _ => 1.0 / bias.q,
        };
        let weight = |i: usize| weights.map_or(1.0, |weights| f64::from(weights[i]));
        tree.fill(row.iter().enumerate().map(|(i, &source)| weight(i) * factor(source)));
        tree.find(key.unit(2))
    }))
}

#[cfg(test)]
mod tests {
    use gnnflow_data::rng::Purpose;

    use super::*;
    use gnnflow_data::testing::chi_square_limit;

    /// Compares the frequencies of steps with the paper's probabilities by a chi-square test.
    #[test]
    fn biased_steps_have_the_frequencies_of_node2vec() {
        // From 7, whose in-neighbors are 2 and 3, to a node with in-neighbors 1, 2, 3, 3, 7 and 8.
        let row = [1, 2, 3, 3, 7, 8];
        let before = Before { node: 7, neighbors: &[3, 2, 40] };
        let weights = [0.5f32, 2.0, 0.0, 1.0, 3.0, 0.25];
        for (p, q) in [(1.0, 1.0), (0.25, 4.0), (4.0, 0.25), (1e-4, 1.0), (1e5, 1e5), (2.0, 1.0)] {
            for weights in [None, Some(&weights[..])] {
                let factors = [1.0 / q, 1.0, 1.0, 1.0, 1.0 / p, 1.0 / q];
                let shares: Vec<f64> =
                    factors.iter().enumerate().map(|(i, f)| f * weights.map_or(1.0, |w| f64::from(w[i]))).collect();
                let total: f64 = shares.iter().sum();
                let trials = 60_000;
                let mut counts = [0.0; 6];
                for trial in 0..trials {
                    let key = Key::new(11, Purpose::Sample).fold(trial);
                    counts[biased_step(&row, weights, Some(before), Bias { p, q }, key).unwrap()] += 1.0;
                }
                let cells = shares.iter().map(|share| share / total * trials as f64).zip(counts);
                // Cells with a tiny expectation have tiny counts.
                let (rare, often): (Vec<_>, Vec<_>) = cells.partition(|(expected, _)| *expected < 5.0);
                assert!(
                    rare.iter().all(|(expected, count)| *count <= 6.0 * expected + 6.0 * expected.signum()),
                    "{rare:?}"
                );
                let chi: f64 = often.iter().map(|(expected, count)| (count - expected).powi(2) / expected).sum();
                let limit = chi_square_limit((often.len() as f64 - 1.0).max(1.0));
                assert!(chi < limit, "p {p}, q {q}, {weights:?}: {chi} exceeds {limit}");
            }
        }
    }

    #[test]
    fn biased_step_without_positive_weights_returns_none() {
        let (bias, key) = (Bias { p: 2.0, q: 2.0 }, Key::new(1, Purpose::Sample));
        let before = Some(Before { node: 1, neighbors: &[] });
        assert_eq!(biased_step(&[], None, before, bias, key), None);
        assert_eq!(biased_step(&[4, 5], Some(&[0.0, 0.0]), before, bias, key), None);
        assert_eq!(biased_step(&[4, 5], Some(&[0.0, 1.0]), None, bias, key), Some(1));
    }
}
