//! Metrics of ranks.

use bytemuck::{Pod, Zeroable};

use super::Ranked;
use crate::collectives::Value;
use crate::runtime::records::Scores;

/// Sums over the ranks of a partition's edges of a split.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct RankSums {
    edges: u64,
    ranks: u64,
    /// Number of ranks of at most 1, 3 and 10.
    hits: [u64; 3],
    /// The sum of the doubled ranks.
    doubled: u64,
    reciprocals: f64,
    losses: f64,
}

impl Value for RankSums {}

impl RankSums {
    pub(crate) fn new(ranked: &[Ranked]) -> Self {
        let ranks = || ranked.iter().flat_map(Ranked::doubled);
        let hits = |most: u64| ranks().filter(|&doubled| doubled <= 2 * most).count() as u64;
        // −log σ(score), without overflow.
        let loss = |score: f64| (-score).max(0.0) + (-score.abs()).exp().ln_1p();
        Self {
            edges: ranked.len() as u64,
            ranks: ranks().count() as u64,
            hits: [1, 3, 10].map(hits),
            doubled: ranks().sum(),
            reciprocals: ranks().map(|doubled| 2.0 / doubled as f64).sum(),
            losses: ranked.iter().map(|ranked| loss(f64::from(ranked.score))).sum(),
        }
    }
}

/// Returns the metrics of a split from the sums of all partitions. Floats are added in partition order.
pub(crate) fn finish(parts: &[RankSums]) -> Option<Scores> {
    let sum = |of: fn(&RankSums) -> u64| parts.iter().map(of).sum::<u64>() as f64;
    let float = |of: fn(&RankSums) -> f64| parts.iter().map(of).sum::<f64>();
    let (edges, ranks) = (sum(|part| part.edges), sum(|part| part.ranks));
    let metrics = [
        ("mrr", float(|part| part.reciprocals) / ranks),
        ("hits_at_1", sum(|part| part.hits[0]) / ranks),
        ("hits_at_3", sum(|part| part.hits[1]) / ranks),
        ("hits_at_10", sum(|part| part.hits[2]) / ranks),
        ("mean_rank", sum(|part| part.doubled) / 2.0 / ranks),
    ];
    let metrics = metrics.map(|(name, value)| (name.to_owned(), value)).into();
    (ranks > 0.0).then(|| Scores { nodes: edges as u64, loss: float(|part| part.losses) / edges, metrics })
}
