//! The known ends of ranked edges.

use std::collections::HashMap;

use gnnflow_data::dataset::split;
use gnnflow_kernels::pairs::Edge;

/// The bit, besides those of the splits, of a node that cannot have an edge to itself.
const ITSELF: u8 = 1 << 7;

/// All edges of the graph that share an end and the relation with a ranked edge.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    /// By head and relation.
    tails: HashMap<(u32, u16), KnownEnds>,
    /// By tail and relation.
    heads: HashMap<(u32, u16), KnownEnds>,
}

/// The nodes at the other ends, ascending, each with the splits of its edges as bits.
#[derive(Clone, Debug, Default)]
pub(crate) struct KnownEnds(Vec<(u32, u8)>);

impl Known {
    /// Prepares the ends of `ranked`, without known ends; unless there are `loops`, each node itself is known.
    pub(crate) fn of<'a>(ranked: impl Iterator<Item = &'a Edge>, loops: bool) -> Self {
        let mut this = Self::default();
        let itself = |node: u32| KnownEnds(if loops { Vec::new() } else { vec![(node, ITSELF)] });
        for edge in ranked {
            this.tails.entry((edge.head, edge.relation)).or_insert_with(|| itself(edge.head));
            this.heads.entry((edge.tail, edge.relation)).or_insert_with(|| itself(edge.tail));
        }
        this
    }

    /// Adds an edge of a split.
    pub(crate) fn add(&mut self, edge: Edge, split: u8) {
        let Edge { head, tail, relation } = edge;
        if let Some(tails) = self.tails.get_mut(&(head, relation)) {
            tails.0.push((tail, 1 << split));
        }
        if let Some(heads) = self.heads.get_mut(&(tail, relation)) {
            heads.0.push((head, 1 << split));
        }
    }

    /// Sorts the ends, after all edges have been added.
    pub(crate) fn sorted(mut self) -> Self {
        for ends in self.tails.values_mut().chain(self.heads.values_mut()) {
            ends.0.sort_unstable();
            ends.0.dedup_by(|next, first| {
                let same = next.0 == first.0;
                first.1 |= if same { next.1 } else { 0 };
                same
            });
            ends.0.shrink_to_fit();
        }
        self
    }

    /// Returns the tails of edges with the head and relation of a ranked edge.
    pub(crate) fn tails(&self, edge: &Edge) -> &KnownEnds {
        &self.tails[&(edge.head, edge.relation)]
    }

    /// Returns the heads of edges with the tail and relation of a ranked edge.
    pub(crate) fn heads(&self, edge: &Edge) -> &KnownEnds {
        &self.heads[&(edge.tail, edge.relation)]
    }
}

impl KnownEnds {
    /// Returns the ends known from other splits, and those known from the split `held_out` only: validation (0) or test (1). Validation edges are
    /// known in the test; test edges count as held out in the validation.
    pub(crate) fn divided(&self, held_out: usize) -> [Vec<u32>; 2] {
        let hidden: u8 = [1 << split::VAL | 1 << split::TEST, 1 << split::TEST][held_out];
        let (known, held_out): (Vec<_>, Vec<_>) = self.0.iter().partition(|end| end.1 & !hidden != 0);
        [known, held_out].map(|ends: Vec<(u32, u8)>| ends.into_iter().map(|end| end.0).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_ends_are_distinct_and_divided_by_split() {
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
            let heads = if loops { vec![6] } else { vec![6, 9] };
            assert_eq!(known.heads(&ranked[1]).divided(1), [heads, vec![5]]);
        }
    }
}
