//! Distinct ids of an edge stream, in ascending order.
//!
//! Memory: integers in `0..2^29` take one bit each, up to the largest (64 MiB at most). Each distinct other integer
//! takes 12 to 16 bytes. Each distinct string takes its own bytes and about 40 more.

use std::collections::HashSet;

use rayon::slice::ParallelSliceMut;

/// Integers from 0 to below this bound are kept in a bit set.
const BITS: i64 = 1 << 29;

/// Minimal number of integers in a sort.
const SORT: usize = 1 << 20;

#[derive(Default)]
pub(super) struct DistinctInts {
    bits: Vec<u64>,
    /// Ascending.
    sorted: Vec<i64>,
    fresh: Vec<i64>,
}

impl DistinctInts {
    #[inline]
    pub(super) fn insert(&mut self, id: i64) {
        if (0..BITS).contains(&id) {
            let word = (id >> 6) as usize;
            if word >= self.bits.len() {
                self.bits.resize((word + 1).next_power_of_two(), 0);
            }
            self.bits[word] |= 1 << (id & 63);
            return;
        }
        self.fresh.push(id);
        if self.fresh.len() >= SORT.max(self.sorted.len() / 2) {
            self.merge();
        }
    }

    fn merge(&mut self) {
        self.fresh.par_sort_unstable();
        self.fresh.dedup();
        let sorted = std::mem::take(&mut self.sorted);
        let mut merged = Vec::with_capacity(sorted.len() + self.fresh.len());
        let mut fresh = self.fresh.drain(..).peekable();
        for id in sorted {
            while let Some(before) = fresh.next_if(|&other| other < id) {
                merged.push(before);
            }
            fresh.next_if_eq(&id);
            merged.push(id);
        }
        merged.extend(fresh);
        self.sorted = merged;
    }

    /// Returns all integers in ascending order.
    pub(super) fn finish(mut self) -> impl Iterator<Item = i64> {
        self.merge();
        let below = self.sorted.partition_point(|&id| id < 0);
        let high = self.sorted.split_off(below);
        let bits = self.bits.into_iter().enumerate().flat_map(|(word, bits)| {
            let first = (word as i64) << 6;
            (0..64).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| first + bit)
        });
        self.sorted.into_iter().chain(bits).chain(high)
    }
}

#[derive(Default)]
pub(super) struct DistinctTexts {
    seen: HashSet<Box<str>>,
}

impl DistinctTexts {
    pub(super) fn insert(&mut self, id: &str) {
        if !self.seen.contains(id) {
            self.seen.insert(id.into());
        }
    }

    /// Returns all strings in ascending order.
    pub(super) fn finish(self) -> Vec<Box<str>> {
        let mut all: Vec<_> = self.seen.into_iter().collect();
        all.par_sort_unstable();
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::{Key, Purpose};
    use std::collections::BTreeSet;

    #[test]
    fn distinct_ids_equal_a_sorted_set() {
        let key = Key::new(5, Purpose::GenerateEdges);
        for spread in [0, 3, 20, 34, 63] {
            let ids: Vec<i64> = (0..30_000).map(|i| key.draw(i) as i64 >> (63 - spread)).collect();
            let (mut distinct, mut texts) = (DistinctInts::default(), DistinctTexts::default());
            ids.iter().for_each(|&id| distinct.insert(id));
            ids.iter().for_each(|id| texts.insert(&id.to_string()));
            let wanted: BTreeSet<i64> = ids.iter().copied().collect();
            assert!(distinct.finish().eq(wanted.iter().copied()), "{spread}");
            let wanted: BTreeSet<String> = ids.iter().map(i64::to_string).collect();
            assert!(texts.finish().iter().map(|id| &**id).eq(wanted.iter().map(String::as_str)));
        }
        let mut many = DistinctInts::default();
        (0..3 * SORT as i64).for_each(|i| many.insert(-(i % (SORT as i64 + 7)) - 1));
        assert_eq!(many.finish().count(), SORT + 7);
    }
}
