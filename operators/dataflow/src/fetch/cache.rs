//! A cache of other workers' rows, so that they are not fetched again.
//!
//! A [`RowCache`] has a fixed capacity in rows. Its [`Policy`] chooses the rows that it keeps. The policy changes the bytes sent,
//! never results: a cached row equals the owner's row.
//!
//! A cache starts empty and is filled from replies, so it fetches nothing that no batch has requested.
//! A static policy chooses nodes in advance ([`Policy::Degree`]) or after the first epoch, by the requests of that epoch
//! ([`Policy::Frequency`]). [`Policy::Dynamic`] replaces a row that has not been used recently (CLOCK).

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::graph::local_graph::LocalGraph;

/// The choice of the rows that a cache keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// The halo nodes with most edges into the worker's partitions.
    Degree,
    /// The nodes that batches of the first epoch requested most often.
    Frequency,
    /// The most recent rows; rows that were used again stay longer (CLOCK).
    Dynamic,
}

/// Hits and misses of a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounts {
    /// Rows found in the cache.
    pub hits: u64,
    /// Rows not found in the cache.
    pub misses: u64,
}

/// A cache of rows by node. It takes `rows × (row bytes + 9)` bytes, and about 11 bytes per row for a hash table. While
/// [`Policy::Frequency`] counts, it takes 8 more bytes for every remote node seen.
#[derive(Debug)]
pub struct RowCache {
    policy: Policy,
    row_bytes: usize,
    capacity: usize,
    /// The slot of each node. With a static policy, a node may have a slot before its row has arrived.
    slots: HashMap<u32, u32, BuildHasherDefault<Mix>>,
    rows: Vec<u8>,
    degrees: Vec<u32>,
    /// The node of each slot.
    nodes: Vec<u32>,
    /// Bit 0: the slot holds a row. Bit 1 (CLOCK): the row was used since the hand last passed it.
    flags: Vec<u8>,
    hand: usize,
    /// The number of requests of each remote node, while they are counted.
    seen: Option<HashMap<u32, u32, BuildHasherDefault<Mix>>>,
    counts: CacheCounts,
}

const PRESENT: u8 = 1;
const USED: u8 = 2;

/// A hash of one word. Ids are dense, so a multiplication is enough.
#[derive(Debug, Default)]
pub(crate) struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u32(u32::from(byte)));
    }
    fn write_u32(&mut self, word: u32) {
        let mixed = (self.0 ^ u64::from(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }
}

impl RowCache {
    /// Returns the number of bytes that a cache of `rows` rows takes.
    pub const fn bytes(rows: usize, row_bytes: usize) -> usize {
        rows * (row_bytes + 9 + 11)
    }

    /// Creates a cache of at most `bytes` bytes for rows of `row_bytes` bytes. [`Policy::Degree`] chooses among those halo nodes of
    /// `graph` for which `fetches` returns true: their rows are fetched.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use gnnflow_data::PartitionBook;
    /// # use gnnflow_dataflow::graph::local_graph::{InEdges, LocalGraph, OwnedInEdges};
    /// # use gnnflow_dataflow::graph::placement::Placement;
    /// use gnnflow_dataflow::fetch::cache::{Policy, RowCache};
    /// # let book = PartitionBook::new(vec![0, 1, 3]).unwrap();
    /// # let edges = || OwnedInEdges { indptr: vec![0, 1], indices: vec![2], ..OwnedInEdges::default() };
    /// # let load = |_| Ok::<_, ()>(Arc::new(edges()) as Arc<dyn InEdges>);
    /// # let graph = LocalGraph::load(&book, Placement::new(2, 2), 0, false, load).unwrap();
    /// let mut cache = RowCache::new(Policy::Dynamic, 1 << 10, 4, &graph, |_| true);
    /// assert!(cache.find(2).is_none());
    /// cache.insert(2, &[1, 2, 3, 4], 7);
    /// assert_eq!(cache.find(2), Some((&[1, 2, 3, 4][..], 7)));
    /// assert_eq!((cache.counts().hits, cache.counts().misses), (1, 1));
    /// ```
    pub fn new(
        policy: Policy,
        bytes: usize,
        row_bytes: usize,
        graph: &LocalGraph,
        fetches: impl Fn(u32) -> bool,
    ) -> Self {
        let capacity = (bytes / Self::bytes(1, row_bytes)).min(graph.num_nodes() as usize);
        let mut cache = Self {
            policy,
            row_bytes,
            capacity,
            slots: HashMap::default(),
            rows: Vec::new(),
            degrees: Vec::new(),
            nodes: Vec::new(),
            flags: Vec::new(),
            hand: 0,
            seen: (policy == Policy::Frequency).then(HashMap::default),
            counts: CacheCounts::default(),
        };
        match policy {
            Policy::Degree => {
                cache.choose(graph.halo_degrees().into_iter().filter(|&(node, _)| fetches(node)).collect())
            }
            Policy::Frequency => {}
            // Zeroed pages take no memory before they are written.
            Policy::Dynamic => cache.rows = vec![0; capacity * row_bytes],
        }
        cache
    }

    /// Returns the capacity in rows.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns the hits and misses so far.
    pub fn counts(&self) -> CacheCounts {
        self.counts
    }

    /// Returns the row and degree of a remote node, if they are cached. Counts a hit or a miss.
    #[inline]
    pub fn find(&mut self, node: u32) -> Option<(&[u8], u32)> {
        if let Some(seen) = &mut self.seen {
            *seen.entry(node).or_default() += 1;
        }
        match self.slots.get(&node) {
            Some(&slot) if self.flags[slot as usize] & PRESENT != 0 => {
                let slot = slot as usize;
                self.flags[slot] |= USED;
                self.counts.hits += 1;
                Some((&self.rows[slot * self.row_bytes..(slot + 1) * self.row_bytes], self.degrees[slot]))
            }
            _ => {
                self.counts.misses += 1;
                None
            }
        }
    }

    /// Adds a fetched row, if the policy keeps it.
    pub fn insert(&mut self, node: u32, row: &[u8], degree: u32) {
        let slot = match (self.slots.get(&node), self.policy) {
            (Some(&slot), _) if self.flags[slot as usize] & PRESENT != 0 => return,
            (Some(&slot), _) => slot as usize,
            (None, Policy::Dynamic) if self.capacity > 0 => self.evict_for(node),
            _ => return,
        };
        self.rows[slot * self.row_bytes..(slot + 1) * self.row_bytes].copy_from_slice(row);
        self.degrees[slot] = degree;
        self.flags[slot] = PRESENT;
    }

    /// Ends an epoch. After the first one, [`Policy::Frequency`] chooses the nodes to keep.
    pub fn end_of_epoch(&mut self) {
        if let Some(seen) = self.seen.take() {
            self.choose(seen.into_iter().collect());
        }
    }

    /// Gives slots to the nodes with the highest counts; smaller ids win ties.
    fn choose(&mut self, mut counted: Vec<(u32, u32)>) {
        let order = |&(node, count): &(u32, u32)| (std::cmp::Reverse(count), node);
        if counted.len() > self.capacity {
            if self.capacity > 0 {
                counted.select_nth_unstable_by_key(self.capacity - 1, order);
            }
            counted.truncate(self.capacity);
        }
        counted.sort_unstable_by_key(order);
        self.rows = vec![0; counted.len() * self.row_bytes];
        self.slots.reserve(counted.len());
        for (node, _) in counted {
            let slot = self.grow(node);
            self.flags[slot] = 0;
        }
    }

    /// Adds a slot.
    fn grow(&mut self, node: u32) -> usize {
        let slot = self.nodes.len();
        self.slots.insert(node, slot as u32);
        self.nodes.push(node);
        self.degrees.push(0);
        self.flags.push(0);
        slot
    }

    /// Returns a slot for `node`: a new one, or that of a row that was not used since the hand last passed it.
    fn evict_for(&mut self, node: u32) -> usize {
        if self.nodes.len() < self.capacity {
            return self.grow(node);
        }
        while self.flags[self.hand] & USED != 0 {
            self.flags[self.hand] &= !USED;
            self.hand = (self.hand + 1) % self.capacity;
        }
        let slot = self.hand;
        self.hand = (self.hand + 1) % self.capacity;
        self.slots.remove(&self.nodes[slot]);
        self.slots.insert(node, slot as u32);
        self.nodes[slot] = node;
        slot
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{book, local, random_graph};
    use std::collections::BTreeMap;

    fn row(node: u32) -> [u8; 8] {
        u64::from(node).to_le_bytes()
    }

    #[test]
    fn found_rows_equal_inserted_rows_and_capacity_is_kept() {
        let graph = random_graph(300, 8);
        let key = gnnflow_data::rng::Key::new(5, gnnflow_data::rng::Purpose::Shuffle);
        // The second partition is empty.
        let local = local(&graph, &book(300, 3), 3, 2, false);
        for policy in [Policy::Degree, Policy::Frequency, Policy::Dynamic] {
            for rows in [0, 1, 7, 1000] {
                let mut cache = RowCache::new(policy, RowCache::bytes(rows, 8), 8, &local, |_| true);
                assert_eq!(cache.capacity(), rows.min(300));
                for step in 0..2000u32 {
                    if step == 500 {
                        cache.end_of_epoch();
                    }
                    let node = key.below(u64::from(step), 300) as u32;
                    if local.hosts(node) {
                        continue;
                    }
                    let found = cache.find(node).map(|(bytes, degree)| (bytes.to_vec(), degree));
                    match found {
                        Some(found) => assert_eq!(found, (row(node).to_vec(), node + 1), "{policy:?}"),
                        None => cache.insert(node, &row(node), node + 1),
                    }
                    assert!(cache.nodes.len() <= rows && cache.slots.len() == cache.nodes.len());
                }
                let CacheCounts { hits, misses } = cache.counts();
                assert!(hits + misses > 500 && (rows < 7 || hits > 0), "{policy:?} of {rows}: {hits} hits");
            }
        }
    }

    #[test]
    fn static_policies_keep_the_highest_counts() {
        let graph = random_graph(100, 6);
        let local = local(&graph, &book(100, 2), 2, 0, false);
        // Edges into the worker's partition from each node of the other.
        let mut edges = BTreeMap::new();
        for node in 0..100u32 {
            if local.hosts(node) {
                graph[node as usize]
                    .iter()
                    .filter(|&&n| !local.hosts(n))
                    .for_each(|&n| *edges.entry(n).or_insert(0) += 1);
            }
        }
        let mut expected: Vec<(u32, u32)> = edges.into_iter().collect();
        expected.sort_by_key(|&(node, count)| (std::cmp::Reverse(count), node));
        let cache = RowCache::new(Policy::Degree, RowCache::bytes(5, 4), 4, &local, |_| true);
        assert_eq!(cache.nodes, expected[..5].iter().map(|&(node, _)| node).collect::<Vec<_>>());
        let fetches = |node| node != expected[0].0;
        let cache = RowCache::new(Policy::Degree, RowCache::bytes(5, 4), 4, &local, fetches);
        assert_eq!(cache.nodes, expected[1..6].iter().map(|&(node, _)| node).collect::<Vec<_>>());

        let mut cache = RowCache::new(Policy::Frequency, RowCache::bytes(2, 4), 4, &local, |_| true);
        for (node, times) in [(70, 1), (60, 3), (80, 3), (90, 2)] {
            (0..times).for_each(|_| assert!(cache.find(node).is_none()));
        }
        cache.end_of_epoch();
        assert_eq!(cache.nodes, [60, 80]);
    }

    #[test]
    fn clock_gives_a_used_row_a_second_chance() {
        let graph = random_graph(50, 3);
        let local = local(&graph, &book(50, 2), 2, 0, false);
        let mut cache = RowCache::new(Policy::Dynamic, RowCache::bytes(3, 8), 8, &local, |_| true);
        for node in [30, 31, 32] {
            cache.insert(node, &row(node), 0);
        }
        assert!(cache.find(30).is_some());
        cache.insert(33, &row(33), 0); // takes 31's place
        let here: Vec<bool> = [30, 31, 32, 33].map(|node| cache.find(node).is_some()).to_vec();
        assert_eq!(here, [true, false, true, true]);
    }
}
