//! From ranks to metrics.

use super::Ranked;
use crate::runtime::records::Scores;

/// What one partition's ranks of a split come to: how many edges and ranks there are, how many are at most 1, 3 and 10, the sum of
/// their doubles; the sums of their reciprocals and of the losses, as bits.
pub(crate) fn summed(ranked: &[Ranked]) -> Vec<u64> {
    let ranks = || ranked.iter().flat_map(Ranked::doubled);
    let hits = |most: u64| ranks().filter(|&doubled| doubled <= 2 * most).count() as u64;
    let reciprocals: f64 = ranks().map(|doubled| 2.0 / doubled as f64).sum();
    // −log σ(score), without overflow.
    let loss = |score: f64| (-score).max(0.0) + (-score.abs()).exp().ln_1p();
    let losses: f64 = ranked.iter().map(|ranked| loss(f64::from(ranked.score))).sum();
    let counts = [ranked.len() as u64, ranks().count() as u64, hits(1), hits(3), hits(10), ranks().sum()];
    counts.into_iter().chain([reciprocals.to_bits(), losses.to_bits()]).collect()
}

/// The metrics of a split, from what every partition's ranks come to: sums of integers, and of floats in partition order.
pub(crate) fn finish(parts: &[Vec<u64>]) -> Option<Scores> {
    let sum = |i: usize| parts.iter().map(|words| words[i]).sum::<u64>() as f64;
    let float = |i: usize| parts.iter().map(|words| f64::from_bits(words[i])).sum::<f64>();
    let (edges, ranks) = (sum(0), sum(1));
    let metrics = [
        ("mrr", float(6) / ranks),
        ("hits_at_1", sum(2) / ranks),
        ("hits_at_3", sum(3) / ranks),
        ("hits_at_10", sum(4) / ranks),
        ("mean_rank", sum(5) / 2.0 / ranks),
    ];
    let metrics = metrics.map(|(name, value)| (name.to_owned(), value)).into();
    (ranks > 0.0).then(|| Scores { nodes: edges as u64, loss: float(7) / edges, metrics })
}
