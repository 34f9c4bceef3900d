//! Rows of other workers' nodes, kept so that they need not be fetched again.
//!
//! A [`RowCache`] has room for a fixed number of rows and says of every remote node of a batch whether its row is here. Which
//! rows it keeps is its [`Policy`]; that decides bytes on the wire, never results: a cached row is the owner's row.
//!
//! Rows come in as answers come: a cache starts empty and fills itself, so nothing is fetched that no batch has asked for.
//! With a static policy it settles who may stay beforehand ([`Policy::Degree`]) or after the first epoch, by what that has asked for
//! ([`Policy::Frequency`]); [`Policy::Dynamic`] gives the place of a row that nobody has used lately to the newest (CLOCK).

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::graph::local_graph::LocalGraph;

/// Which rows a cache keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Those of the halo nodes with most edges into the worker's partitions.
    Degree,
    /// Those that the batches of the first epoch asked for most often.
    Frequency,
    /// The latest, but for those that were used again: CLOCK.
    Dynamic,
}

/// What a cache did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounts {
    /// Rows that were here.
    pub hits: u64,
    /// Rows that had to be fetched.
    pub misses: u64,
}

/// Rows by node. Memory: `rows × (row bytes + 9)`, and a hash table of 8 bytes for each row and a third more; while
/// [`Policy::Frequency`] is counting, 8 bytes more for every remote node seen.
#[derive(Debug)]
pub struct RowCache {
    policy: Policy,
    row_bytes: usize,
    capacity: usize,
    /// Where each node's row is. A static policy's members are here before their rows are.
    slots: HashMap<u32, u32, BuildHasherDefault<Mix>>,
    rows: Vec<u8>,
    degrees: Vec<u32>,
    /// The node of each slot.
    nodes: Vec<u32>,
    /// Bit 0: the row is here. Bit 1 (CLOCK): it was used since the hand came by.
    flags: Vec<u8>,
    hand: usize,
    /// Times that each remote node was asked for, while they are counted.
    seen: Option<HashMap<u32, u32, BuildHasherDefault<Mix>>>,
    counts: CacheCounts,
}

const HERE: u8 = 1;
const USED: u8 = 2;

/// A hash of one word: ids are dense, so the multiplication is enough.
#[derive(Debug, Default)]
pub struct Mix(u64);

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
    /// Bytes that a cache of `rows` rows takes.
    pub const fn bytes(rows: usize, row_bytes: usize) -> usize {
        rows * (row_bytes + 9 + 11)
    }

    /// A cache that takes at most `bytes` bytes, for rows of `row_bytes`; `graph` is whose halo [`Policy::Degree`] looks at.
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
    /// let mut cache = RowCache::new(Policy::Dynamic, 1 << 10, 4, &graph);
    /// assert!(cache.find(2).is_none());
    /// cache.insert(2, &[1, 2, 3, 4], 7);
    /// assert_eq!(cache.find(2), Some((&[1, 2, 3, 4][..], 7)));
    /// assert_eq!((cache.counts().hits, cache.counts().misses), (1, 1));
    /// ```
    pub fn new(policy: Policy, bytes: usize, row_bytes: usize, graph: &LocalGraph) -> Self {
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
            Policy::Degree => cache.settle(graph.halo_degrees().into_iter().collect()),
            Policy::Frequency => {}
            // Zeros cost nothing before they are written over.
            Policy::Dynamic => cache.rows = vec![0; capacity * row_bytes],
        }
        cache
    }

    /// Rows that there is room for.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Hits and misses so far.
    pub fn counts(&self) -> CacheCounts {
        self.counts
    }

    /// The row of a remote node, and its degree, if they are here. Counts.
    #[inline]
    pub fn find(&mut self, node: u32) -> Option<(&[u8], u32)> {
        if let Some(seen) = &mut self.seen {
            *seen.entry(node).or_default() += 1;
        }
        match self.slots.get(&node) {
            Some(&slot) if self.flags[slot as usize] & HERE != 0 => {
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

    /// Takes a fetched row in, if the policy wants it.
    pub fn insert(&mut self, node: u32, row: &[u8], degree: u32) {
        let slot = match (self.slots.get(&node), self.policy) {
            (Some(&slot), _) if self.flags[slot as usize] & HERE != 0 => return,
            (Some(&slot), _) => slot as usize,
            (None, Policy::Dynamic) if self.capacity > 0 => self.make_room(node),
            _ => return,
        };
        self.rows[slot * self.row_bytes..(slot + 1) * self.row_bytes].copy_from_slice(row);
        self.degrees[slot] = degree;
        self.flags[slot] = HERE;
    }

    /// Settles who stays when the first epoch is over, if that is the policy.
    pub fn end_of_epoch(&mut self) {
        if let Some(seen) = self.seen.take() {
            self.settle(seen.into_iter().collect());
        }
    }

    /// Makes those the members that count most; of equals, the smallest ids.
    fn settle(&mut self, mut counted: Vec<(u32, u32)>) {
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

    /// A slot that was not there before.
    fn grow(&mut self, node: u32) -> usize {
        let slot = self.nodes.len();
        self.slots.insert(node, slot as u32);
        self.nodes.push(node);
        self.degrees.push(0);
        self.flags.push(0);
        slot
    }

    /// A slot for `node`: a new one, or that of a row that was not used since the hand came by.
    fn make_room(&mut self, node: u32) -> usize {
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
    fn what_is_found_is_what_came_and_there_is_never_more_than_room() {
        let graph = random_graph(300, 8);
        let key = gnnflow_data::rng::Key::new(5, gnnflow_data::rng::Purpose::Shuffle);
        // The second partition is empty.
        let local = local(&graph, &book(300, 3), 3, 2, false);
        for policy in [Policy::Degree, Policy::Frequency, Policy::Dynamic] {
            for rows in [0, 1, 7, 1000] {
                let mut cache = RowCache::new(policy, RowCache::bytes(rows, 8), 8, &local);
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
    fn static_policies_keep_those_that_count_most() {
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
        let cache = RowCache::new(Policy::Degree, RowCache::bytes(5, 4), 4, &local);
        assert_eq!(cache.nodes, expected[..5].iter().map(|&(node, _)| node).collect::<Vec<_>>());

        let mut cache = RowCache::new(Policy::Frequency, RowCache::bytes(2, 4), 4, &local);
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
        let mut cache = RowCache::new(Policy::Dynamic, RowCache::bytes(3, 8), 8, &local);
        for node in [30, 31, 32] {
            cache.insert(node, &row(node), 0);
        }
        assert!(cache.find(30).is_some());
        cache.insert(33, &row(33), 0); // takes 31's place
        let here: Vec<bool> = [30, 31, 32, 33].map(|node| cache.find(node).is_some()).to_vec();
        assert_eq!(here, [true, false, true, true]);
    }
}
