//! Compaction: maps global ids to positions in a batch's node list.
//!
//! The list of a batch starts with its seeds and grows by the new nodes of each hop. The [`Compactor`] stores the
//! position of every listed node across all hops of the batch, so no hop inserts the earlier ones again.
//!
//! Two implementations give the same results. A graph whose nodes fit a byte budget gets a direct array of 4 bytes per
//! node: one cache line per edge. A larger graph gets an open-addressing table in proportion to the batch. Both mark an
//! entry with `base + position`. Between batches, `base` rises by the length of the list; entries of earlier batches
//! are below it, so one addition clears them all.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::prefetch::prefetch;

/// Prefetch distance of entries, in ids.
const AHEAD: usize = 32;
/// Ids between two capacity checks of the list and the table.
const PIECE: usize = 1024;
/// Largest number of nodes per batch: below half the range of marks, so that marks are reset between batches only.
const MAX_LISTED: u32 = (1 << 31) - 1;

/// The positions of a batch's nodes in its node list.
///
/// ```
/// use gnnflow_kernels::compact::Compactor;
///
/// let mut compactor = Compactor::new(100);
/// let mut list = vec![42, 7]; // the seeds
/// compactor.start(&list);
/// let mut ids = [7, 99, 42, 99];
/// compactor.compact(&mut ids, &mut list);
/// assert_eq!(ids, [1, 2, 0, 2]);
/// assert_eq!(list, [42, 7, 99]);
/// ```
#[derive(Clone, Debug)]
pub struct Compactor {
    memory: Memory,
    /// Marks below this one belong to earlier batches. At least 1: a fresh entry is 0.
    base: u32,
    /// Nodes listed in this batch.
    listed: u32,
}

/// The positions of a batch's nodes per tree, for batches whose seeds have separate trees.
///
/// ```
/// use gnnflow_kernels::compact::TreeCompactor;
///
/// let (mut list, mut trees) = (vec![42, 7], vec![0, 1]); // two seeds
/// let mut compactor = TreeCompactor::new(&list);
/// assert_eq!(compactor.position(1, 42, &mut list, &mut trees), 2);
/// assert_eq!(compactor.position(0, 42, &mut list, &mut trees), 0);
/// assert_eq!((list, trees), (vec![42, 7, 42], vec![0, 1, 1]));
/// ```
#[derive(Clone, Debug)]
pub struct TreeCompactor {
    /// Position by `tree << 32 | node`.
    positions: HashMap<u64, u32, BuildHasherDefault<IdHasher>>,
}

impl TreeCompactor {
    /// Creates the compactor of a batch with the list `seeds`, the roots of trees 0, 1, …
    pub fn new(seeds: &[u32]) -> Self {
        let key = |(tree, &node): (u64, &u32)| (tree << 32 | u64::from(node), tree as u32);
        Self { positions: (0..).zip(seeds).map(key).collect() }
    }

    /// Returns the position of `node` in tree `tree`. Appends it to `list` and `trees` if the tree does not contain it.
    ///
    /// # Panics
    /// For more than 2³² − 1 nodes in one batch.
    pub fn position(&mut self, tree: u32, node: u32, list: &mut Vec<u32>, trees: &mut Vec<u32>) -> u32 {
        *self.positions.entry(u64::from(tree) << 32 | u64::from(node)).or_insert_with(|| {
            list.push(node);
            trees.push(tree);
            u32::try_from(list.len() - 1).expect("a batch lists at most 2^32 - 1 nodes")
        })
    }
}

/// A hash for integer keys.
#[derive(Clone, Copy, Debug, Default)]
pub struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(u64::from(byte)));
    }
    fn write_u32(&mut self, word: u32) {
        self.write_u64(u64::from(word));
    }
    fn write_u64(&mut self, word: u64) {
        let mixed = (self.0 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }
}

#[derive(Clone, Debug)]
enum Memory {
    /// Entry `id` is the mark of node `id`.
    Direct(Vec<u32>),
    /// Linear probing. An entry is `mark << 32 | id`; it is free if its mark is below the base.
    Table { entries: Vec<u64>, shift: u32 },
}

impl Compactor {
    /// Largest size of a direct array: 16 million nodes.
    const DIRECT_BYTES: usize = 64 << 20;

    /// Creates an empty compactor for a graph of `nodes` nodes.
    pub fn new(nodes: u64) -> Self {
        Self::with_budget(nodes, Self::DIRECT_BYTES)
    }

    /// Creates an empty compactor for a graph of `nodes` nodes, with a direct array up to `bytes`, else with a table.
    pub fn with_budget(nodes: u64, bytes: usize) -> Self {
        let memory = match usize::try_from(nodes) {
            Ok(nodes) if nodes <= bytes / size_of::<u32>() => Memory::Direct(vec![0; nodes]),
            _ => Memory::Table { entries: vec![0; 2 * PIECE], shift: shift_for(2 * PIECE) },
        };
        Self { memory, base: 1, listed: 0 }
    }

    /// Returns the number of nodes listed in this batch.
    pub fn len(&self) -> usize {
        self.listed as usize
    }

    /// Returns whether no node is listed.
    pub fn is_empty(&self) -> bool {
        self.listed == 0
    }

    /// Returns the size of the array or table in bytes.
    pub fn bytes(&self) -> usize {
        match &self.memory {
            Memory::Direct(marks) => size_of_val(marks.as_slice()),
            Memory::Table { entries, .. } => size_of_val(entries.as_slice()),
        }
    }

    /// Starts a batch with the list `seeds`; clears the previous batch.
    ///
    /// # Panics
    /// If a seed is not a node of the graph or occurs twice; seeds are distinct, as slices of a permutation.
    pub fn start(&mut self, seeds: &[u32]) {
        self.base += self.listed;
        self.listed = 0;
        if self.base > MAX_LISTED {
            match &mut self.memory {
                Memory::Direct(marks) => marks.fill(0),
                Memory::Table { entries, .. } => entries.fill(0),
            }
            self.base = 1;
        }
        let mut list = Vec::with_capacity(seeds.len());
        let mut scratch = seeds.to_vec();
        self.compact(&mut scratch, &mut list);
        assert_eq!(list.len(), seeds.len(), "a seed occurs twice");
    }

    /// Replaces each id by its position in `list`. Appends new ids to `list` in order of appearance.
    ///
    /// # Panics
    /// If `list` is not the batch's list (its length differs) or an id is not a node of the graph. For more than 2³¹ −
    /// 1 nodes in one batch.
    pub fn compact(&mut self, ids: &mut [u32], list: &mut Vec<u32>) {
        assert_eq!(list.len(), self.len(), "the compactor belongs to another list");
        for piece in ids.chunks_mut(PIECE) {
            assert!(list.len() + piece.len() <= MAX_LISTED as usize, "a batch lists at most 2^31 - 1 nodes");
            let before = list.len();
            // Every id is written behind the list; the length grows only if the id is new.
            list.resize(before + piece.len(), 0);
            let after = match &mut self.memory {
                Memory::Direct(marks) => compact_direct(marks, self.base, piece, list, before),
                Memory::Table { entries, shift } => {
                    if entries.len() < 2 * list.len() {
                        (*entries, *shift) = grown_table(list.len(), self.base, &list[..before]);
                    }
                    compact_table(entries, *shift, self.base, piece, list, before)
                }
            };
            list.truncate(after);
            self.listed = after as u32;
        }
    }

    /// Returns the position of `id` in the list, if it is listed.
    ///
    /// ```
    /// use gnnflow_kernels::compact::Compactor;
    ///
    /// let mut compactor = Compactor::new(100);
    /// compactor.start(&[42, 7]);
    /// assert_eq!((compactor.find(7), compactor.find(8)), (Some(1), None));
    /// ```
    ///
    /// # Panics
    /// Possibly, if `id` is not a node of the graph.
    #[inline]
    pub fn find(&self, id: u32) -> Option<u32> {
        let mark = match &self.memory {
            Memory::Direct(marks) => marks[id as usize],
            Memory::Table { entries, shift } => {
                let mut at = slot(id, *shift);
                while (entries[at] >> 32) as u32 >= self.base && entries[at] as u32 != id {
                    at = (at + 1) & (entries.len() - 1);
                }
                (entries[at] >> 32) as u32
            }
        };
        mark.checked_sub(self.base)
    }

    /// Prefetches the entry of `id`.
    #[inline(always)]
    pub(crate) fn prefetch(&self, id: u32) {
        match &self.memory {
            Memory::Direct(marks) => prefetch(marks.as_ptr().wrapping_add(id as usize)),
            Memory::Table { entries, shift } => prefetch(entries.as_ptr().wrapping_add(slot(id, *shift))),
        }
    }
}

/// Returns the length of the list after `piece`. Has no branch on whether an id is new, which is unpredictable.
fn compact_direct(marks: &mut [u32], base: u32, piece: &mut [u32], list: &mut [u32], before: usize) -> usize {
    let mut len = before;
    for i in 0..piece.len() {
        if let Some(&id) = piece.get(i + AHEAD) {
            prefetch(marks.as_ptr().wrapping_add(id as usize));
        }
        let id = piece[i];
        let mark = &mut marks[id as usize];
        let new = *mark < base;
        *mark = if new { base + len as u32 } else { *mark };
        piece[i] = *mark - base;
        list[len] = id;
        len += usize::from(new);
    }
    len
}

/// Like [`compact_direct`], with a table that has capacity for all of `piece`.
fn compact_table(
    entries: &mut [u64],
    shift: u32,
    base: u32,
    piece: &mut [u32],
    list: &mut [u32],
    before: usize,
) -> usize {
    let mask = entries.len() - 1;
    let mut len = before;
    for i in 0..piece.len() {
        if let Some(&id) = piece.get(i + AHEAD) {
            prefetch(entries.as_ptr().wrapping_add(slot(id, shift)));
        }
        let id = piece[i];
        let mut at = slot(id, shift);
        let position = loop {
            let mark = (entries[at] >> 32) as u32;
            if mark < base {
                entries[at] = u64::from(base + len as u32) << 32 | u64::from(id);
                list[len] = id;
                len += 1;
                break len as u32 - 1;
            }
            if entries[at] as u32 == id {
                break mark - base;
            }
            at = (at + 1) & mask;
        };
        piece[i] = position;
    }
    len
}

/// Returns the first probe of `id`: the top bits of a multiplicative hash.
#[inline(always)]
fn slot(id: u32, shift: u32) -> usize {
    (u64::from(id).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> shift) as usize
}

fn shift_for(capacity: usize) -> u32 {
    u64::BITS - capacity.trailing_zeros()
}

/// Returns a table with `list` that is at most a quarter full with `nodes` nodes.
fn grown_table(nodes: usize, base: u32, list: &[u32]) -> (Vec<u64>, u32) {
    let capacity = (4 * nodes).next_power_of_two();
    let (mut entries, shift) = (vec![0u64; capacity], shift_for(capacity));
    for (position, &id) in list.iter().enumerate() {
        let mut at = slot(id, shift);
        while entries[at] != 0 {
            at = (at + 1) & (capacity - 1);
        }
        entries[at] = u64::from(base + position as u32) << 32 | u64::from(id);
    }
    (entries, shift)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gnnflow_data::rng::{Key, Purpose};

    /// Compacts with a hash map.
    fn naive(ids: &mut [u32], list: &mut Vec<u32>) {
        let mut position: HashMap<u32, u32> = list.iter().copied().zip(0..).collect();
        for id in ids {
            *id = *position.entry(*id).or_insert_with(|| {
                list.push(*id);
                list.len() as u32 - 1
            });
        }
    }

    #[test]
    fn direct_array_and_table_equal_a_hash_map_over_many_batches() {
        let nodes = 20_000;
        let mut direct = Compactor::new(nodes);
        let mut table = Compactor::with_budget(nodes, 0);
        assert!(matches!(direct.memory, Memory::Direct(_)) && matches!(table.memory, Memory::Table { .. }));
        for batch in 0..20 {
            let key = Key::new(batch, Purpose::Sample);
            let seeds: Vec<u32> = (0..batch as u32 * 7).map(|i| i * 13 + batch as u32).collect();
            let mut expected = seeds.clone();
            let (mut a, mut b) = (seeds.clone(), seeds.clone());
            direct.start(&seeds);
            table.start(&seeds);
            for hop in 0..3 {
                let count = key.below(hop, 5_000);
                let ids: Vec<u32> = (0..count).map(|i| key.fold(hop).below(i, nodes) as u32).collect();
                let (mut x, mut y, mut z) = (ids.clone(), ids.clone(), ids);
                naive(&mut x, &mut expected);
                direct.compact(&mut y, &mut a);
                table.compact(&mut z, &mut b);
                assert!(x == y && x == z && expected == a && expected == b, "batch {batch} hop {hop}");
            }
            assert_eq!(direct.len(), expected.len());
            for id in 0..nodes as u32 {
                let place = expected.iter().position(|&listed| listed == id).map(|at| at as u32);
                assert!(id % 37 > 0 || (direct.find(id), table.find(id)) == (place, place), "batch {batch}, node {id}");
            }
        }
    }

    #[test]
    fn marks_are_reset_before_they_overflow() {
        for mut compactor in [Compactor::new(10), Compactor::with_budget(10, 0)] {
            compactor.start(&[3, 4]);
            compactor.base = MAX_LISTED - 1; // as after 700 million batches; this clears [3, 4]
            compactor.listed = 2;
            compactor.start(&[4]);
            assert_eq!(compactor.base, 1);
            let (mut ids, mut list) = ([3, 4, 9], vec![4]);
            compactor.compact(&mut ids, &mut list);
            assert_eq!((ids, list), ([1, 0, 2], vec![4, 3, 9]));
        }
    }

    #[test]
    fn table_holds_the_largest_id() {
        let mut compactor = Compactor::new(u64::from(u32::MAX));
        assert!(compactor.bytes() < 1 << 20);
        let (mut ids, mut list) = ([u32::MAX - 1, 0, u32::MAX - 1], vec![]);
        compactor.start(&[]);
        compactor.compact(&mut ids, &mut list);
        assert_eq!((ids, list), ([0, 1, 0], vec![u32::MAX - 1, 0]));
    }

    #[test]
    #[should_panic(expected = "a seed occurs twice")]
    fn start_with_duplicate_seeds_panics() {
        Compactor::new(10).start(&[1, 2, 1]);
    }

    #[test]
    #[should_panic(expected = "belongs to another list")]
    fn compact_with_the_list_of_another_batch_panics() {
        let mut compactor = Compactor::new(10);
        compactor.start(&[1, 2]);
        compactor.compact(&mut [3], &mut vec![1]);
    }
}
