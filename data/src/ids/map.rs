//! The dictionary in memory: maps the user's ids to rows.
//!
//! Bytes per node: 0 if ids are `0, 1, 2, …`; 14.4 for other integers (the id, and 1.6 slots of a hash table); for strings 14.4 and the
//! length. A lookup costs two cache misses, three for strings.

use arrow::array::{Array, LargeStringArray};

use crate::error::{Error, Result};
use crate::ids::Ids;

/// Marks a free slot or an id that is not the id of a node. No row has this number.
pub const UNKNOWN: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Id<'a> {
    Int(i64),
    Text(&'a [u8]),
}

impl Id<'_> {
    #[inline]
    pub(super) fn hash(self) -> u64 {
        match self {
            Self::Int(id) => hash_int(id),
            Self::Text(id) => hash_text(id),
        }
    }

    /// Formats the id for messages.
    pub(super) fn show(self) -> Result<String> {
        match self {
            Self::Int(id) => Ok(id.to_string()),
            Self::Text(id) => {
                std::str::from_utf8(id).map(|id| format!("{id:?}")).map_err(|e| Error::Bug(e.to_string()))
            }
        }
    }
}

/// Returns id `i` of `ids`.
#[inline]
pub(super) fn id(ids: &Ids, i: usize) -> Id<'_> {
    match ids {
        Ids::Int(ids) => Id::Int(ids[i]),
        Ids::Text(ids) => Id::Text(ids.value(i).as_bytes()),
    }
}

/// A map from ids to rows. Ids can be added, but not removed.
#[derive(Clone, Debug)]
pub(crate) struct IdMap {
    ids: Store,
    table: Slots,
}

#[derive(Clone, Debug)]
enum Store {
    /// Id `i` is in row `i`; the number of ids.
    Dense(u32),
    Int(Vec<i64>),
    /// String `i` is `bytes[ends[i]..ends[i + 1]]`.
    Text {
        bytes: Vec<u8>,
        ends: Vec<u64>,
    },
}

/// Two nodes with the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Duplicate {
    /// The row of the first.
    pub(crate) first: u32,
    /// The row of the second.
    pub(crate) second: u32,
}

impl IdMap {
    /// Creates an empty map for at most `nodes` ids.
    pub(crate) fn with_capacity(nodes: usize) -> Self {
        Self { ids: Store::Dense(0), table: Slots { slots: Vec::new(), nodes } }
    }

    /// Creates the map of ids `0, 1, 2, …`.
    pub(crate) fn dense(nodes: u32) -> Self {
        Self { ids: Store::Dense(nodes), table: Slots { slots: Vec::new(), nodes: nodes as usize } }
    }

    /// Number of ids.
    pub(crate) fn len(&self) -> usize {
        match &self.ids {
            Store::Dense(n) => *n as usize,
            Store::Int(ids) => ids.len(),
            Store::Text { ends, .. } => ends.len() - 1,
        }
    }

    /// The number of ids that the map was created for.
    pub(super) fn capacity(&self) -> usize {
        self.table.nodes
    }

    /// Whether all ids so far are `0, 1, 2, …`.
    pub(super) fn is_dense(&self) -> bool {
        matches!(self.ids, Store::Dense(_))
    }

    /// Whether ids are strings.
    pub(super) fn is_text(&self) -> bool {
        matches!(self.ids, Store::Text { .. })
    }

    /// Returns the bytes of memory for `nodes` ids like those in the map.
    pub(super) fn bytes_for(&self, nodes: usize) -> u64 {
        match &self.ids {
            Store::Dense(_) => 0,
            Store::Int(_) => (14.4 * nodes as f64) as u64,
            Store::Text { bytes, .. } => ((14.4 + bytes.len() as f64 / self.len().max(1) as f64) * nodes as f64) as u64,
        }
    }

    /// Returns the bytes of memory that the map takes.
    pub(crate) fn bytes(&self) -> u64 {
        let ids = match &self.ids {
            Store::Dense(_) => 0,
            Store::Int(ids) => 8 * ids.capacity(),
            Store::Text { bytes, ends } => bytes.capacity() + 8 * ends.capacity(),
        };
        (ids + 4 * self.table.slots.capacity()) as u64
    }

    /// Returns the bytes of memory after adding `more` ids and filling the map. Assumes strings with the mean length so far.
    pub(super) fn bytes_with(&self, more: &Ids) -> u64 {
        let full = 14.4 * self.table.nodes as f64;
        match (&self.ids, more) {
            (Store::Dense(n), Ids::Int(more)) => {
                let dense = more.iter().zip(i64::from(*n)..).all(|(&id, row)| id == row);
                if dense { 0 } else { full as u64 }
            }
            (Store::Int(_), _) => full as u64,
            (_, Ids::Text(more)) => full as u64 + self.text_bytes(more) as u64,
            (Store::Text { bytes, .. }, _) => full as u64 + bytes.capacity() as u64,
        }
    }

    /// Returns the bytes to reserve for strings, those of `more` included.
    fn text_bytes(&self, more: &LargeStringArray) -> usize {
        let (have, capacity) = match &self.ids {
            Store::Text { bytes, .. } => (bytes.len(), bytes.capacity()),
            _ => (0, 0),
        };
        let offsets = more.value_offsets();
        let length = offsets.first().zip(offsets.last()).map_or(0, |(first, last)| (last - first) as usize);
        if have + length <= capacity {
            return capacity;
        }
        let mean = (have + length) as f64 / (self.len() + more.len()).max(1) as f64;
        ((mean * self.table.nodes as f64 * 1.02) as usize).max(have + length)
    }

    /// Increases the capacity by `more` ids.
    pub(super) fn reserve(&mut self, more: usize) {
        self.table.nodes += more;
        if self.table.slots.is_empty() {
            return;
        }
        self.table.allocate();
        match &mut self.ids {
            Store::Dense(_) => {}
            Store::Int(ids) => {
                ids.reserve_exact(more);
                for (&id, row) in ids.iter().zip(0..) {
                    self.table.insert(hash_int(id), row, |_| false);
                }
            }
            Store::Text { bytes, ends } => {
                ends.reserve_exact(more);
                for (ends, row) in ends.windows(2).zip(0..) {
                    self.table.insert(hash_text(&bytes[ends[0] as usize..ends[1] as usize]), row, |_| false);
                }
            }
        }
    }

    /// Adds ids of one kind.
    ///
    /// # Errors
    /// The first id that is already in the map.
    ///
    /// # Panics
    /// If the map's capacity is exceeded.
    pub(crate) fn push(&mut self, more: &Ids) -> std::result::Result<(), Duplicate> {
        if let Ids::Text(more) = more {
            let capacity = self.text_bytes(more);
            self.reserve_text(capacity);
        }
        (0..more.len()).try_for_each(|i| self.push_one(id(more, i)))
    }

    /// Reserves `capacity` bytes for strings.
    pub(super) fn reserve_text(&mut self, capacity: usize) {
        if matches!(self.ids, Store::Dense(0)) {
            self.table.allocate();
            let mut ends = Vec::with_capacity(self.table.nodes + 1);
            ends.push(0);
            self.ids = Store::Text { bytes: Vec::new(), ends };
        }
        if let Store::Text { bytes, .. } = &mut self.ids {
            bytes.reserve_exact(capacity.saturating_sub(bytes.len()));
        }
    }

    pub(super) fn push_one(&mut self, id: Id<'_>) -> std::result::Result<(), Duplicate> {
        match id {
            Id::Int(id) => self.push_int(id),
            Id::Text(id) => self.push_text(id),
        }
    }

    fn push_int(&mut self, id: i64) -> std::result::Result<(), Duplicate> {
        if let Store::Dense(n) = &mut self.ids {
            if id == i64::from(*n) {
                *n += 1;
                return Ok(());
            }
            // No longer dense: store the ids and their slots.
            let mut ids = Vec::with_capacity(self.table.nodes);
            ids.extend(0..i64::from(*n));
            self.table.allocate();
            for row in 0..*n {
                self.table.insert(hash_int(i64::from(row)), row, |_| false);
            }
            self.ids = Store::Int(ids);
        }
        let Store::Int(ids) = &mut self.ids else { unreachable!("ids of one kind") };
        let second = ids.len() as u32;
        match self.table.insert(hash_int(id), second, |row| ids[row as usize] == id) {
            Some(first) => Err(Duplicate { first, second }),
            None => {
                ids.push(id);
                Ok(())
            }
        }
    }

    fn push_text(&mut self, id: &[u8]) -> std::result::Result<(), Duplicate> {
        if self.is_dense() {
            self.reserve_text(id.len());
        }
        let Store::Text { bytes, ends } = &mut self.ids else { unreachable!("ids of one kind") };
        let second = (ends.len() - 1) as u32;
        let same = |row: u32| bytes[ends[row as usize] as usize..ends[row as usize + 1] as usize] == *id;
        match self.table.insert(hash_text(id), second, same) {
            Some(first) => Err(Duplicate { first, second }),
            None => {
                bytes.extend_from_slice(id);
                ends.push(bytes.len() as u64);
                Ok(())
            }
        }
    }

    /// Returns the id of a row.
    pub(super) fn id_of(&self, row: u32) -> Id<'_> {
        match &self.ids {
            Store::Dense(_) => Id::Int(i64::from(row)),
            Store::Int(ids) => Id::Int(ids[row as usize]),
            Store::Text { bytes, ends } => {
                Id::Text(&bytes[ends[row as usize] as usize..ends[row as usize + 1] as usize])
            }
        }
    }

    /// Returns the row of an id; [`UNKNOWN`] if the id is not in the map.
    #[inline]
    pub(super) fn row_of(&self, id: Id<'_>, hash: u64) -> u32 {
        match (&self.ids, id) {
            (Store::Dense(n), Id::Int(id)) => u32::try_from(id).ok().filter(|id| id < n).unwrap_or(UNKNOWN),
            (Store::Int(ids), Id::Int(id)) => self.table.find(hash, |row| ids[row as usize] == id),
            (Store::Text { bytes, ends }, Id::Text(id)) => {
                self.table.find(hash, |row| bytes[ends[row as usize] as usize..ends[row as usize + 1] as usize] == *id)
            }
            _ => UNKNOWN,
        }
    }

    /// Returns the rows of many ids; [`UNKNOWN`] for those that are not in the map.
    pub(crate) fn rows_of(&self, ids: &Ids) -> Vec<u32> {
        match ids {
            Ids::Int(ids) => ids.iter().map(|&id| self.row_of(Id::Int(id), hash_int(id))).collect(),
            Ids::Text(ids) => {
                let row = |id: &[u8]| self.row_of(Id::Text(id), hash_text(id));
                (0..ids.len()).map(|i| row(ids.value(i).as_bytes())).collect()
            }
        }
    }
}

/// A hash table with open addressing and linear probing. A slot holds a row.
#[derive(Clone, Debug)]
struct Slots {
    slots: Vec<u32>,
    nodes: usize,
}

impl Slots {
    fn allocate(&mut self) {
        // Frees the old slots first: both together may take too much memory.
        self.slots = Vec::new();
        self.slots = vec![UNKNOWN; self.nodes + self.nodes * 3 / 5 + 2];
    }

    /// Returns the first slot to examine.
    #[inline]
    fn start(&self, hash: u64) -> usize {
        ((u128::from(hash) * self.slots.len() as u128) >> 64) as usize
    }

    #[inline]
    fn find(&self, hash: u64, same: impl Fn(u32) -> bool) -> u32 {
        let mut slot = self.start(hash);
        loop {
            let row = self.slots[slot];
            if row == UNKNOWN || same(row) {
                return row;
            }
            slot = if slot + 1 == self.slots.len() { 0 } else { slot + 1 };
        }
    }

    /// Inserts `row`, or returns the row that already has this id.
    #[inline]
    fn insert(&mut self, hash: u64, row: u32, same: impl Fn(u32) -> bool) -> Option<u32> {
        assert!((row as usize) < self.nodes, "more ids than the map was made for");
        let mut slot = self.start(hash);
        while self.slots[slot] != UNKNOWN {
            if same(self.slots[slot]) {
                return Some(self.slots[slot]);
            }
            slot = if slot + 1 == self.slots.len() { 0 } else { slot + 1 };
        }
        self.slots[slot] = row;
        None
    }
}

const MULTIPLIER: u64 = 0x9fb2_1c65_1e98_df25;

#[inline]
fn hash_int(id: i64) -> u64 {
    let x = (id as u64 ^ ((id as u64) >> 32)).wrapping_mul(MULTIPLIER);
    (x ^ (x >> 29)).wrapping_mul(MULTIPLIER)
}

#[inline]
fn hash_text(id: &[u8]) -> u64 {
    let mut words = id.chunks_exact(8);
    let mut hash = id.len() as u64;
    for word in &mut words {
        let word = u64::from_le_bytes([word[0], word[1], word[2], word[3], word[4], word[5], word[6], word[7]]);
        hash = (hash.rotate_left(23) ^ word).wrapping_mul(MULTIPLIER);
        hash ^= hash >> 32;
    }
    let rest = words.remainder().iter().fold(0u64, |rest, &byte| (rest << 8) | u64::from(byte));
    hash_int((hash.rotate_left(23) ^ rest) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    use crate::rng::{Key, Purpose};

    fn ints(ids: &[i64]) -> Ids {
        Ids::Int(ids.to_vec().into())
    }

    fn texts(ids: impl Iterator<Item = String>) -> Ids {
        Ids::Text(ids.map(Some).collect::<LargeStringArray>())
    }

    #[test]
    fn lookup_finds_rows_of_known_ids_only() {
        let key = Key::new(3, Purpose::GenerateNodes);
        let cases: Vec<Vec<i64>> = vec![
            vec![],
            vec![0],
            vec![7],
            (0..1000).collect(),
            (0..1000).rev().collect(),
            (0..500).chain(700..900).collect(),
            (0..5000).map(|i| key.draw(i) as i64).collect(),
            (0..5000).map(|i| i << 32).collect(),
            vec![i64::MIN, i64::MAX, -1, 0],
        ];
        for ids in cases {
            let expected: HashMap<i64, u32> = ids.iter().zip(0..).map(|(&id, i)| (id, i)).collect();
            let (mut map, mut text) = (IdMap::with_capacity(ids.len()), IdMap::with_capacity(ids.len()));
            for chunk in ids.chunks(300) {
                for (map, more) in
                    [(&mut map, ints(chunk)), (&mut text, texts(chunk.iter().map(|id| format!("node/{id}"))))]
                {
                    let capacity = map.bytes_with(&more);
                    map.push(&more).unwrap();
                    assert!(map.bytes() <= capacity + 64, "{} bytes instead of {capacity}", map.bytes());
                }
            }
            assert_eq!((map.len(), text.len()), (ids.len(), ids.len()));
            let lookups: Vec<i64> =
                ids.iter().flat_map(|&id| [id, id.wrapping_add(1), id.wrapping_sub(1), -id.wrapping_mul(3)]).collect();
            let expected: Vec<u32> = lookups.iter().map(|id| expected.get(id).copied().unwrap_or(UNKNOWN)).collect();
            assert_eq!(map.rows_of(&ints(&lookups)), expected);
            assert_eq!(text.rows_of(&texts(lookups.iter().map(|id| format!("node/{id}")))), expected);
        }
    }

    #[test]
    fn reserve_increases_the_capacity() {
        for first in [vec![0, 1, 2], vec![5, -3, 9], vec![]] {
            let more = [100, 200, 77, -1];
            let all: Vec<i64> = first.iter().copied().chain(more).collect();
            let name = |ids: &[i64]| texts(ids.iter().map(|id| format!("n{id}")));
            for (first, more, all) in [(ints(&first), ints(&more), ints(&all)), (name(&first), name(&more), name(&all))]
            {
                let mut map = IdMap::with_capacity(first.len());
                map.push(&first).unwrap();
                map.reserve(4);
                map.push(&more).unwrap();
                assert_eq!(map.rows_of(&all), (0..all.len() as u32).collect::<Vec<_>>());
                assert!((0..all.len()).all(|i| map.id_of(i as u32) == id(&all, i)));
            }
        }
    }

    #[test]
    fn duplicate_id_is_refused_with_both_rows() {
        for ids in [&[0, 1, 2, 1][..], &[5, 9, 9], &[0, 0], &[3, 4, 5, 6, 3]] {
            let second = (1..ids.len()).find(|&i| ids[..i].contains(&ids[i])).unwrap();
            let first = ids.iter().position(|&id| id == ids[second]).unwrap();
            let duplicate = Duplicate { first: first as u32, second: second as u32 };
            assert_eq!(IdMap::with_capacity(ids.len()).push(&ints(ids)), Err(duplicate));
            let texts = texts(ids.iter().map(|id| id.to_string()));
            assert_eq!(IdMap::with_capacity(ids.len()).push(&texts), Err(duplicate));
        }
    }

    #[test]
    fn dense_ids_need_no_memory() {
        let mut map = IdMap::with_capacity(1 << 20);
        map.push(&ints(&(0..1 << 20).collect::<Vec<_>>())).unwrap();
        assert!(matches!(map.ids, Store::Dense(n) if n == 1 << 20) && map.table.slots.is_empty());
    }
}
