//! The nodes that an update removes, and how many of them precede a node.

use std::ops::Range;

/// Removed nodes of a dataset.
#[derive(Debug, Default)]
pub(super) struct RemovedNodes {
    /// Ascending.
    nodes: Vec<u32>,
    /// A bit for each node of the dataset; empty if no node is removed.
    bits: Vec<u64>,
    /// The number of removed nodes before each word of `bits`.
    before: Vec<u32>,
}

impl RemovedNodes {
    /// The removed `nodes`, ascending, of a dataset of `total` nodes.
    pub(super) fn new(nodes: Vec<u32>, total: u64) -> Self {
        if nodes.is_empty() {
            return Self::default();
        }
        let mut bits = vec![0u64; total as usize / 64 + 1];
        nodes.iter().for_each(|&node| bits[node as usize / 64] |= 1 << (node % 64));
        let mut count = 0;
        let mut add = |word: &u64| {
            count += word.count_ones();
            count - word.count_ones()
        };
        let before = bits.iter().map(&mut add).collect();
        Self { nodes, bits, before }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Returns whether a node of the dataset is removed.
    #[inline]
    pub(super) fn contains(&self, node: u32) -> bool {
        self.bits.get(node as usize / 64).is_some_and(|word| word & (1 << (node % 64)) != 0)
    }

    /// Returns the number of removed nodes before a node of the dataset.
    #[inline]
    pub(super) fn before(&self, node: u32) -> u32 {
        match self.bits.get(node as usize / 64) {
            None => 0,
            Some(word) => self.before[node as usize / 64] + (word & ((1 << (node % 64)) - 1)).count_ones(),
        }
    }

    /// Returns the removed nodes in a range, ascending.
    pub(super) fn of(&self, range: Range<u64>) -> &[u32] {
        let at = |end: u64| self.nodes.partition_point(|&node| u64::from(node) < end);
        &self.nodes[at(range.start)..at(range.end)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_found_and_counted() {
        let nodes = vec![0, 3, 63, 64, 128, 199];
        let removed = RemovedNodes::new(nodes.clone(), 200);
        for node in 0..200 {
            assert_eq!(removed.contains(node), nodes.contains(&node));
            assert_eq!(removed.before(node) as usize, nodes.iter().filter(|other| **other < node).count());
        }
        assert_eq!((removed.of(3..128), removed.of(129..199)), (&[3, 63, 64][..], &[][..]));
        let none = RemovedNodes::new(Vec::new(), 200);
        assert!(none.is_empty() && !none.contains(5) && none.before(199) == 0 && none.of(0..200).is_empty());
    }
}
