//! The set of parts of each node, as one bit per node and part.

/// One set of parts per node. For up to 64 parts, the bits of a node are in one word.
#[derive(Debug)]
pub(super) struct Replicas {
    words: Vec<u64>,
    /// Bits per node: a power of two up to 64, or a multiple of 64.
    bits: usize,
}

impl Replicas {
    pub(super) fn bytes(nodes: u64, parts: u32) -> u64 {
        (nodes * Self::bits(parts)).div_ceil(64) * 8
    }

    fn bits(parts: u32) -> u64 {
        let parts = u64::from(parts);
        if parts <= 64 { parts.next_power_of_two() } else { parts.next_multiple_of(64) }
    }

    /// Creates empty sets.
    pub(super) fn new(nodes: u64, parts: u32) -> Self {
        Self { words: vec![0; Self::bytes(nodes, parts) as usize / 8], bits: Self::bits(parts) as usize }
    }

    /// Number of words of a set.
    #[inline]
    pub(super) fn width(&self) -> usize {
        self.bits.div_ceil(64)
    }

    /// Word `word` of a node's set: parts from `64 word`, the lowest part in the lowest bit.
    #[inline]
    pub(super) fn word(&self, node: u32, word: usize) -> u64 {
        if self.bits <= 64 {
            let at = node as usize * self.bits;
            // The shift of a set of 64 bits is 0, and its mask all ones.
            self.words[at / 64] >> (at % 64) & u64::MAX >> (64 - self.bits)
        } else {
            self.words[node as usize * (self.bits / 64) + word]
        }
    }

    #[inline]
    pub(super) fn has(&self, node: u32, part: u32) -> bool {
        let at = node as usize * self.bits + part as usize;
        self.words[at / 64] >> (at % 64) & 1 == 1
    }

    #[inline]
    pub(super) fn set(&mut self, node: u32, part: u32) {
        let at = node as usize * self.bits + part as usize;
        self.words[at / 64] |= 1 << (at % 64);
    }
}

/// Visits the parts in a word of a set, in ascending order.
#[inline]
pub(super) fn parts_in(word: usize, mut set: u64, mut visit: impl FnMut(u32)) {
    while set != 0 {
        visit(64 * word as u32 + set.trailing_zeros());
        set &= set - 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gnnflow_data::rng::{Key, Purpose};
    use std::collections::BTreeSet;

    #[test]
    fn replicas_equal_btree_sets_for_any_number_of_parts() {
        let key = Key::new(1, Purpose::Partition);
        for parts in [1, 2, 3, 4, 7, 16, 33, 63, 64, 65, 128, 200, 65_536] {
            let nodes = 37;
            let mut sets = vec![BTreeSet::new(); nodes as usize];
            let mut replicas = Replicas::new(nodes, parts);
            for i in 0..300 {
                let (node, part) = (key.below(2 * i, nodes) as u32, key.below(2 * i + 1, parts.into()) as u32);
                sets[node as usize].insert(part);
                replicas.set(node, part);
            }
            for (node, set) in (0..).zip(&sets) {
                let mut found = Vec::new();
                (0..replicas.width())
                    .for_each(|word| parts_in(word, replicas.word(node, word), |part| found.push(part)));
                assert!(found.iter().eq(set), "{parts} parts: {found:?} {set:?}");
                assert!((0..parts).all(|part| replicas.has(node, part) == set.contains(&part)));
            }
        }
    }

    #[test]
    fn replicas_of_many_parts_take_one_bit_each() {
        assert_eq!(Replicas::bytes(1 << 20, 1 << 16), 8_589_934_592);
    }
}
