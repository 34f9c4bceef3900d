//! Recall and NDCG, as papers on recommendation define them.
//!
//! The recommendations of a source are the K tails with the highest scores, without its tails known from other splits: for validation, those of
//! training edges (and of edges in no split); for test, also those of validation edges. Recall is the share of the source's held-out tails on
//! the list. NDCG weighs each by 1 / log2(1 + rank), divided by the value of a list of held-out tails only. Both are means over the sources
//! with held-out edges.

use bytemuck::{Pod, Zeroable};
use gnnflow_kernels::pairs::Edge;

use crate::collectives::Value;
use crate::task::link_prediction::recommended::Recommended;

/// A held-out edge on the list of its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Listed {
    source: u32,
    relation: u16,
    /// Twice its rank.
    doubled: u16,
}

impl Value for Listed {}

/// Returns the edges of a partition that are on the lists of their sources. `doubled` is twice the rank of each.
pub(crate) fn found(edges: &[Edge], doubled: impl Iterator<Item = u64>, length: usize) -> Vec<Listed> {
    let listed = edges.iter().zip(doubled).filter(|&(_, doubled)| doubled <= 2 * length as u64);
    let listed =
        listed.map(|(edge, doubled)| Listed { source: edge.head, relation: edge.relation, doubled: doubled as u16 });
    listed.collect()
}

/// Returns `recall_at_K` and `ndcg_at_K` of a split, from the listed edges of all partitions.
pub(crate) fn metrics(mut found: Vec<Listed>, wanted: &Recommended, split: usize) -> Vec<(String, f64)> {
    // Sorted by source, then by rank, so sums do not depend on the partitions.
    found.sort_unstable();
    let gain = |rank: f64| 1.0 / libm::log2(1.0 + rank);
    let ideal: Vec<f64> = (0..=wanted.length).map(|most| (1..=most).map(|rank| gain(rank as f64)).sum()).collect();
    let (mut sources, mut recall, mut ndcg, mut rest) = (0u64, 0.0, 0.0, &found[..]);
    for (&(head, relation), &held_out) in &wanted.sources {
        let held_out = held_out[split] as usize;
        if held_out == 0 {
            continue;
        }
        sources += 1;
        let of = |edge: &&Listed| (edge.source, edge.relation) == (head, relation);
        let own = rest.iter().take_while(of).count();
        let (here, behind) = rest.split_at(own);
        rest = behind;
        recall += own as f64 / held_out as f64;
        let gains: f64 = here.iter().map(|edge| gain(f64::from(edge.doubled) / 2.0)).sum();
        ndcg += gains / ideal[held_out.min(wanted.length)];
    }
    let mean = |sum: f64| sum / sources.max(1) as f64;
    [("recall", recall), ("ndcg", ndcg)].map(|(name, sum)| (format!("{name}_at_{}", wanted.length), mean(sum))).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn recall_and_ndcg_are_means_over_sources() {
        let mut wanted = Recommended::new(3);
        let edge = |head, tail| Edge { head, tail, relation: 0 };
        // Source 1 has four test edges, two of them at ranks 1 and 3; source 2 has one, not on the list; source 9 has a validation edge.
        (0..4).for_each(|tail| wanted.add(edge(1, tail), 1));
        wanted.add(edge(2, 5), 1);
        wanted.add(edge(9, 5), 0);
        let listed = |source, doubled| Listed { source, relation: 0, doubled };
        let found: BTreeMap<String, f64> = metrics(vec![listed(1, 6), listed(1, 2)], &wanted, 1).into_iter().collect();
        assert!((found["recall_at_3"] - (0.5 + 0.0) / 2.0).abs() < 1e-12);
        let ideal = 1.0 + 1.0 / 3f64.log2() + 0.5;
        assert!((found["ndcg_at_3"] - 1.5 / ideal / 2.0).abs() < 1e-12);
        let found: BTreeMap<String, f64> = metrics(vec![listed(9, 4)], &wanted, 0).into_iter().collect();
        assert!((found["recall_at_3"] - 1.0).abs() < 1e-12 && (found["ndcg_at_3"] - 1.0 / 3f64.log2()).abs() < 1e-12);
    }
}
