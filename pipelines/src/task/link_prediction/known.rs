//! What is known of the ends of edges that are ranked.

use std::collections::HashMap;

use gnnflow_data::dataset::split;
use gnnflow_kernels::pairs::Edge;

/// Stands beside the splits for a node that cannot be its own partner.
const ITSELF: u8 = 1 << 7;

/// All edges of the graph that share an end and the relation with one that is ranked.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    /// By head and relation.
    tails: HashMap<(u32, u16), KnownEnds>,
    /// By tail and relation.
    heads: HashMap<(u32, u16), KnownEnds>,
}

/// Nodes at the other ends: ascending, with the splits that have such an edge, as bits.
#[derive(Clone, Debug, Default)]
pub(crate) struct KnownEnds(Vec<(u32, u8)>);

impl Known {
    /// Nothing known yet of the ends of `ranked`, but, unless there are `loops`, that no node is its own partner.
    pub(crate) fn of<'a>(ranked: impl Iterator<Item = &'a Edge>, loops: bool) -> Self {
        let mut this = Self::default();
        let itself = |node: u32| KnownEnds(if loops { Vec::new() } else { vec![(node, ITSELF)] });
        for edge in ranked {
            this.tails.entry((edge.head, edge.relation)).or_insert_with(|| itself(edge.head));
            this.heads.entry((edge.tail, edge.relation)).or_insert_with(|| itself(edge.tail));
        }
        this
    }

    /// There is such an edge in this split.
    pub(crate) fn add(&mut self, edge: Edge, split: u8) {
        let Edge { head, tail, relation } = edge;
        if let Some(tails) = self.tails.get_mut(&(head, relation)) {
            tails.0.push((tail, 1 << split));
        }
        if let Some(heads) = self.heads.get_mut(&(tail, relation)) {
            heads.0.push((head, 1 << split));
        }
    }

    /// To be called when all edges have been added.
    pub(crate) fn sorted(mut self) -> Self {
        for ends in self.tails.values_mut().chain(self.heads.values_mut()) {
            ends.0.sort_unstable();
            ends.0.dedup_by(|next, kept| {
                let same = next.0 == kept.0;
                kept.1 |= if same { next.1 } else { 0 };
                same
            });
            ends.0.shrink_to_fit();
        }
        self
    }

    /// Tails of edges that have the head and relation of `edge`, which is ranked.
    pub(crate) fn tails(&self, edge: &Edge) -> &KnownEnds {
        &self.tails[&(edge.head, edge.relation)]
    }

    /// Heads of edges that have its tail and relation.
    pub(crate) fn heads(&self, edge: &Edge) -> &KnownEnds {
        &self.heads[&(edge.tail, edge.relation)]
    }
}

impl KnownEnds {
    /// Whether `node` is one of them.
    pub(crate) fn has(&self, node: u32) -> bool {
        self.0.binary_search_by_key(&node, |end| end.0).is_ok()
    }

    /// Those that are known to who looks for edges to validate (0) or to test with (1), and those that only these edges have. Who
    /// tests knows the edges to validate with.
    pub(crate) fn divided(&self, held_out: usize) -> [Vec<u32>; 2] {
        let hidden: u8 = [1 << split::VAL | 1 << split::TEST, 1 << split::TEST][held_out];
        let (seen, held): (Vec<_>, Vec<_>) = self.0.iter().partition(|end| end.1 & !hidden != 0);
        [seen, held].map(|ends: Vec<(u32, u8)>| ends.into_iter().map(|end| end.0).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_known_once_and_divided_by_who_may_know_them() {
        let edge = |head, tail| Edge { head, tail, relation: 3 };
        let ranked = [edge(5, 1), edge(5, 9)];
        for (loops, first) in [(true, vec![]), (false, vec![5])] {
            let mut known = Known::of(ranked.iter(), loops);
            for (tail, split) in [(9, 3), (1, 2), (7, 0), (4, 1), (9, 3), (8, 2), (8, 1)] {
                known.add(edge(5, tail), split);
            }
            known.add(Edge { relation: 2, ..edge(5, 2) }, 1);
            known.add(edge(6, 9), 1);
            let known = known.sorted();
            let with = |nodes: &[u32]| {
                let mut all: Vec<u32> = first.iter().chain(nodes).copied().collect();
                all.sort_unstable();
                all
            };
            assert_eq!(known.tails(&ranked[0]).divided(0), [with(&[4, 7, 8]), vec![1, 9]]);
            assert_eq!(known.tails(&ranked[0]).divided(1), [with(&[1, 4, 7, 8]), vec![9]]);
            assert!([1, 4, 7, 8, 9].iter().all(|&node| known.tails(&ranked[1]).has(node)));
            assert!(!known.tails(&ranked[1]).has(2) && known.tails(&ranked[1]).has(5) != loops);
            assert!(known.heads(&ranked[1]).has(6) && !known.heads(&ranked[0]).has(6));
        }
    }
}
