//! Counts of parts per node. Vertex cuts derive core nodes from them, and refinement derives moves.
//!
//! Exact counts take 4 bytes per node and part. If the budget is smaller, each node has a *Misra–Gries sketch* of `k`
//! (part, count) slots. For a node with `m` votes it holds every part with more than `m / (k + 1)` votes. Each count is
//! too low by at most `m / (k + 1)`. J. Misra, D. Gries: Finding repeated elements. Science of Computer Programming,
//! 1982.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use gnnflow_data::{GraphSize, GraphStream, Result};

/// Smallest number of slots of a sketch: 24 bytes per node.
const MIN_SLOTS: usize = 4;
/// Largest number of slots of a sketch. Every vote reads all of them.
const MAX_SLOTS: usize = 16;

/// For every node, the number of votes for each part.
#[derive(Debug)]
pub(super) struct Counters {
    parts: usize,
    store: Store,
}

#[derive(Debug)]
enum Store {
    /// One count for every node and part.
    Exact(Vec<AtomicU32>),
    /// `slots` parts per node with their counts. A count of 0 marks a free slot.
    Sketch { slots: usize, part: Vec<u16>, count: Vec<u32> },
}

impl Counters {
    /// Creates counters of at most `memory` bytes: exact ones if they fit, else sketches of 4 to 16 slots per node.
    ///
    /// `parts` is at most [`MAX_PARTS`](gnnflow_data::partitioner::MAX_PARTS).
    pub(super) fn new(nodes: u64, parts: u32, memory: u64) -> Self {
        let (nodes, parts) = (nodes as usize, parts.max(1) as usize);
        let store = if Self::exact_bytes(nodes as u64, parts as u32) <= u128::from(memory) {
            Store::Exact(std::iter::repeat_with(AtomicU32::default).take(nodes * parts).collect())
        } else {
            let slots = Self::slots(nodes as u64, parts as u32, memory) as usize;
            Store::Sketch { slots, part: vec![0; nodes * slots], count: vec![0; nodes * slots] }
        };
        Self { parts, store }
    }

    /// Slots of a node's sketch.
    fn slots(nodes: u64, parts: u32, memory: u64) -> u64 {
        let fit = memory / (6 * nodes.max(1));
        fit.clamp(MIN_SLOTS as u64, MAX_SLOTS as u64).min(u64::from(parts))
    }

    /// Bytes that the counters of [`Counters::new`] and [`Counters::count`] take.
    pub(super) fn needed_bytes(size: GraphSize, parts: u32, memory: u64) -> u64 {
        match Self::exact_bytes(size.nodes, parts) <= u128::from(memory) {
            true => size.cell_bytes(size.nodes * u64::from(parts)),
            false => 6 * Self::slots(size.nodes, parts, memory) * size.nodes,
        }
    }

    /// Bytes of exact counters.
    fn exact_bytes(nodes: u64, parts: u32) -> u128 {
        4 * u128::from(nodes) * u128::from(parts)
    }

    /// Whether every count is exact.
    pub(super) fn is_exact(&self) -> bool {
        matches!(self.store, Store::Exact(_))
    }

    /// Size in bytes.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> u64 {
        match &self.store {
            Store::Exact(cells) => 4 * cells.len() as u64,
            Store::Sketch { part, .. } => 6 * part.len() as u64,
        }
    }

    /// Sets every count to zero.
    pub(super) fn clear(&mut self) {
        match &mut self.store {
            Store::Exact(cells) => cells.iter_mut().for_each(|cell| *cell.get_mut() = 0),
            Store::Sketch { count, .. } => count.fill(0),
        }
    }

    /// Adds one vote of `node` for `part`. A sketch depends on the order of the votes.
    #[inline]
    pub(super) fn add(&mut self, node: u32, part: u32) {
        match &mut self.store {
            Store::Exact(cells) => {
                let cell = cells[node as usize * self.parts..][..self.parts][part as usize].get_mut();
                *cell = cell.saturating_add(1);
            }
            Store::Sketch { slots, part: of, count } => {
                let at = node as usize * *slots;
                vote(&mut of[at..at + *slots], &mut count[at..at + *slots], part as u16);
            }
        }
    }

    /// Counts the votes of all edges in one pass. `votes(source, destination)` returns the part that each of the two
    /// votes for, or `None` to skip the edge. Exact counters use all threads in any order; sketches follow the dump
    /// order.
    pub(super) fn count(
        &mut self,
        graph: &dyn GraphStream,
        pass: &str,
        votes: impl Fn(u32, u32) -> Option<[u32; 2]> + Sync,
    ) -> Result<()> {
        if let Store::Exact(cells) = &self.store {
            let parts = self.parts;
            return graph.accumulate(pass, cells, &|edges| {
                for &(src, dst) in edges {
                    let Some([a, b]) = votes(src, dst) else { continue };
                    cells[src as usize * parts..][..parts][a as usize].fetch_add(1, Relaxed);
                    cells[dst as usize * parts..][..parts][b as usize].fetch_add(1, Relaxed);
                }
            });
        }
        graph.for_each_edges(pass, &mut |edges| {
            for &(src, dst) in edges {
                let Some([a, b]) = votes(src, dst) else { continue };
                self.add(src, a);
                self.add(dst, b);
            }
            Ok(())
        })
    }

    /// Counts the neighbors of every node in every part, without self loops. `before` is the assignment of the last
    /// count; exact counters then update only the neighbors of moved nodes.
    pub(super) fn recount(
        &mut self,
        graph: &dyn GraphStream,
        pass: &str,
        before: Option<&[u16]>,
        now: &[u16],
    ) -> Result<()> {
        let (Store::Exact(cells), Some(before)) = (&self.store, before) else {
            self.clear();
            let votes = |src: u32, dst: u32| (src != dst).then(|| [now[dst as usize].into(), now[src as usize].into()]);
            return self.count(graph, pass, votes);
        };
        // One bit per node, so that the lookup for most edges stays in the processor's cache.
        let bits = |(before, now): (&[u16], &[u16])| {
            before.iter().zip(now).rev().fold(0u64, |bits, (before, now)| bits << 1 | u64::from(before != now))
        };
        let moved: Vec<u64> = before.chunks(64).zip(now.chunks(64)).map(bits).collect();
        let has_moved = |node: u32| moved[node as usize / 64] >> (node % 64) & 1 == 1;
        let parts = self.parts;
        graph.accumulate(pass, cells, &|edges| {
            for &(src, dst) in edges {
                for (one, other) in [(src, dst), (dst, src)] {
                    if has_moved(other) && src != dst {
                        let cells = &cells[one as usize * parts..][..parts];
                        // Partial sums of processes may wrap around; the total does not.
                        cells[before[other as usize] as usize].fetch_sub(1, Relaxed);
                        cells[now[other as usize] as usize].fetch_add(1, Relaxed);
                    }
                }
            }
        })
    }

    /// The part with the most votes of `node` (the lowest on a tie) and their number. `None` without votes.
    #[inline]
    pub(super) fn best(&self, node: u32) -> Option<(u32, u32)> {
        let mut best = None;
        self.each(node, |part, count| {
            if best.is_none_or(|(other, most)| count > most || count == most && part < other) {
                best = Some((part, count));
            }
        });
        best
    }

    /// Votes of `node` for `part`. A sketch may return less, never more.
    #[inline]
    pub(super) fn get(&self, node: u32, part: u32) -> u32 {
        match &self.store {
            Store::Exact(cells) => cells[node as usize * self.parts..][..self.parts][part as usize].load(Relaxed),
            Store::Sketch { .. } => {
                let mut found = 0;
                self.each(node, |other, count| found += if other == part { count } else { 0 });
                found
            }
        }
    }

    /// Visits every part with votes of `node` and their number, in any order.
    #[inline]
    pub(super) fn each(&self, node: u32, mut visit: impl FnMut(u32, u32)) {
        match &self.store {
            Store::Exact(cells) => {
                let row = &cells[node as usize * self.parts..][..self.parts];
                for (part, count) in row.iter().enumerate() {
                    let count = count.load(Relaxed);
                    if count > 0 {
                        visit(part as u32, count);
                    }
                }
            }
            Store::Sketch { slots, part, count } => {
                let at = node as usize * slots;
                for (&part, &count) in part[at..at + slots].iter().zip(&count[at..at + slots]) {
                    if count > 0 {
                        visit(u32::from(part), count);
                    }
                }
            }
        }
    }
}

/// One Misra–Gries step: increments the part's slot, or takes a free slot, or decrements every slot.
#[inline]
fn vote(parts: &mut [u16], counts: &mut [u32], part: u16) {
    let mut free = None;
    for (slot, (&other, count)) in parts.iter().zip(counts.iter_mut()).enumerate() {
        if *count == 0 {
            free = Some(slot);
        } else if other == part {
            *count = count.saturating_add(1);
            return;
        }
    }
    match free {
        Some(slot) => (parts[slot], counts[slot]) = (part, 1),
        None => counts.iter_mut().for_each(|count| *count -= 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gnnflow_data::rng::{Key, Purpose};
    use gnnflow_data::testing::{TestGraph, graphs};
    use std::collections::HashMap;

    const KEY: Key = Key::new(5, Purpose::Partition);

    fn part(node: u32, parts: u32) -> u32 {
        KEY.below(u64::from(node), u64::from(parts)) as u32
    }

    #[test]
    fn neighbors_of_a_path_are_counted_by_part() {
        let graph = TestGraph { name: "path", nodes: 4, edges: vec![(0, 1), (1, 2), (2, 3)] };
        let part = [0, 0, 1, 1];
        let mut counters = Counters::new(4, 2, 1 << 20);
        let votes = |u, v| Some([part[v as usize], part[u as usize]]);
        counters.count(&graph.stream(), "counting neighbors", votes).unwrap();
        assert!(counters.is_exact());
        assert_eq!(counters.best(0), Some((0, 1)));
        assert_eq!(counters.best(2), Some((0, 1)), "one neighbor in each part: the lower part");
    }

    #[test]
    fn exact_counts_equal_a_hash_map() {
        for graph in graphs() {
            for parts in [1, 3, 16, 100] {
                let mut expected: HashMap<(u32, u32), u32> = HashMap::new();
                for &(u, v) in graph.edges.iter().filter(|(u, v)| u != v) {
                    *expected.entry((u, part(v, parts))).or_default() += 1;
                    *expected.entry((v, part(u, parts))).or_default() += 1;
                }
                let votes = |u, v| (u != v).then(|| [part(v, parts), part(u, parts)]);
                let mut at_once = Counters::new(graph.nodes.into(), parts, 1 << 20);
                at_once.count(&graph.stream(), "counting", votes).unwrap();
                let mut one_by_one = Counters::new(graph.nodes.into(), parts, 1 << 20);
                for &(u, v) in &graph.edges {
                    if let Some([a, b]) = votes(u, v) {
                        one_by_one.add(u, a);
                        one_by_one.add(v, b);
                    }
                }
                for counters in [&at_once, &one_by_one] {
                    assert!(counters.is_exact());
                    for node in 0..graph.nodes {
                        let of = |q| expected.get(&(node, q)).copied().unwrap_or(0);
                        (0..parts).for_each(|q| assert_eq!(counters.get(node, q), of(q), "{} {node} {q}", graph.name));
                        let best =
                            (0..parts).rev().max_by_key(|&q| of(q)).map(|q| (q, of(q))).filter(|best| best.1 > 0);
                        assert_eq!(counters.best(node), best, "{} {node}", graph.name);
                    }
                }
                at_once.clear();
                assert!((0..graph.nodes).all(|node| at_once.best(node).is_none()));
            }
        }
    }

    #[test]
    fn recount_after_moves_equals_a_new_count() {
        for graph in graphs() {
            let assignment = |fold: u32| -> Vec<u16> {
                (0..graph.nodes).map(|v| part(v + if v % 5 < fold { 1000 * fold } else { 0 }, 7) as u16).collect()
            };
            for memory in [1 << 20, 0] {
                let mut counters = Counters::new(graph.nodes.into(), 7, memory);
                let mut before: Option<Vec<u16>> = None;
                for fold in [0, 1, 1, 4, 2] {
                    let now = assignment(fold);
                    counters.recount(&graph.stream(), "", before.as_deref(), &now).unwrap();
                    let mut anew = Counters::new(graph.nodes.into(), 7, memory);
                    let votes = |u, v| (u != v).then(|| [now[v as usize].into(), now[u as usize].into()]);
                    anew.count(&graph.stream(), "", votes).unwrap();
                    for node in 0..graph.nodes {
                        (0..7).for_each(|q| assert_eq!(counters.get(node, q), anew.get(node, q), "{}", graph.name));
                    }
                    before = Some(now);
                }
            }
        }
    }

    #[test]
    fn sketch_count_is_too_low_by_at_most_its_error_bound() {
        const PARTS: u32 = 50;
        let mut sketch = Counters::new(3, PARTS, 0);
        assert!(!sketch.is_exact() && sketch.bytes() == 3 * 6 * MIN_SLOTS as u64);
        let mut exact: HashMap<(u32, u32), u32> = HashMap::new();
        // The shares of the parts differ widely, so that a sketch holds some parts and drops others.
        for i in 0..3000 {
            let (node, part) = (i as u32 % 3, (f64::from(PARTS) * KEY.unit(i).powi(4)) as u32);
            sketch.add(node, part);
            *exact.entry((node, part)).or_default() += 1;
        }
        for node in 0..3 {
            for part in 0..PARTS {
                let (count, truth) = (sketch.get(node, part), exact.get(&(node, part)).copied().unwrap_or(0));
                assert!(count <= truth && truth - count <= 1000 / (MIN_SLOTS as u32 + 1), "{part}: {count} of {truth}");
            }
            assert_eq!(sketch.best(node).unwrap().0, 0);
        }
    }

    #[test]
    fn sketch_is_equal_for_any_chunk_size_and_uses_the_allowed_memory() {
        for graph in graphs() {
            let votes = |u, v| Some([part(v, 40), part(u, 40)]);
            let mut small = graph.stream();
            small.chunk = 1;
            let counters: Vec<Counters> = [graph.stream(), small]
                .iter()
                .map(|stream| {
                    let mut counters = Counters::new(graph.nodes.into(), 40, 6 * 9 * u64::from(graph.nodes));
                    counters.count(stream, "counting", votes).unwrap();
                    counters
                })
                .collect();
            for node in 0..graph.nodes {
                assert_eq!(counters[0].best(node), counters[1].best(node), "{}", graph.name);
            }
            assert_eq!(counters[0].bytes(), 6 * 9 * u64::from(graph.nodes));
        }
    }
}
