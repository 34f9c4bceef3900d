//! Recall and NDCG, as papers on recommendation define them.
//!
//! What is recommended to a source is the list of the K tails that score highest among all but those that it is known to have from
//! other splits: to validate, those of the training edges (and of edges in no split); to test, those of the validation edges too.
//! Recall is the share of its held-out tails that are on the list; NDCG weighs each by 1 / log2(1 + rank), and is divided by what a list of held-out tails alone would have. Both are means over the sources that have held-out edges.

use bytemuck::{Pod, Zeroable};
use gnnflow_kernels::pairs::Edge;

use super::ranking::Ranked;
use crate::collectives::Value;
use crate::task::link_prediction::recommended::Recommended;

/// An edge that is on its source's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Listed {
    source: u32,
    relation: u16,
    /// Twice its rank.
    doubled: u16,
}

impl Value for Listed {}

/// The edges of a partition that are on their source's list.
pub(crate) fn found(edges: &[Edge], ranked: &[Ranked], length: usize) -> Vec<Listed> {
    let listed = edges.iter().zip(ranked).map(|(edge, ranked)| (edge, ranked.fresh_doubled()));
    let listed = listed.filter(|&(_, doubled)| doubled <= 2 * length as u64);
    let listed =
        listed.map(|(edge, doubled)| Listed { source: edge.head, relation: edge.relation, doubled: doubled as u16 });
    listed.collect()
}

/// `recall_at_K` and `ndcg_at_K` of a split, from the listed edges of all partitions.
pub(crate) fn metrics(mut found: Vec<Listed>, wanted: &Recommended, split: usize) -> Vec<(String, f64)> {
    // By source, then by rank: sums do not depend on how the graph is cut.
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
    fn recall_and_gain_are_means_over_sources() {
        let mut wanted = Recommended::new(3);
        let edge = |head, tail| Edge { head, tail, relation: 0 };
        // Source 1 has four, of which two are found, ranked 1 and 3; source 2 one, not found; source 9 one to validate with.
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
