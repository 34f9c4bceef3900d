//! The user's ids → indexes `0..n`, in the order of the dump.
//!
//! Bytes per node: none when ids are `0, 1, 2, …`; 14.4 for other integers (the id, and 1.6 slots of a hash table); for strings
//! 14.4 and the string itself. A lookup costs two cache misses, three for strings.

use crate::dump::Ids;
use crate::error::{Error, Result};

/// Marks a free slot; no node has this index.
const FREE: u32 = u32::MAX;

/// A finished map.
#[derive(Clone, Debug)]
pub struct IdMap {
    ids: Store,
    table: Slots,
    kept: Option<Kept>,
}

/// What is left after some rows were dropped: four bytes a row.
#[derive(Clone, Debug)]
struct Kept {
    /// The index of every row; [`FREE`] for those that were dropped.
    index: Vec<u32>,
    count: usize,
}

#[derive(Clone, Debug)]
enum Store {
    /// Id `i` is index `i`, below this.
    Dense(u32),
    Int(Vec<i64>),
    /// String `i` is `bytes[ends[i]..ends[i + 1]]`.
    Text {
        bytes: Vec<u8>,
        ends: Vec<u64>,
    },
}

/// Two nodes with one id: the indexes of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Twice {
    /// The earlier.
    pub first: u32,
    /// The later.
    pub second: u32,
}

impl IdMap {
    /// An empty map that will take about `nodes` ids.
    pub fn with_capacity(nodes: usize) -> Self {
        Self { ids: Store::Dense(0), table: Slots { slots: Vec::new(), nodes }, kept: None }
    }

    /// The map of ids `0, 1, 2, …`.
    pub fn dense(nodes: u32) -> Self {
        Self { ids: Store::Dense(nodes), table: Slots { slots: Vec::new(), nodes: nodes as usize }, kept: None }
    }

    /// Number of ids, without those that were dropped.
    pub fn len(&self) -> usize {
        self.kept.as_ref().map_or_else(|| self.rows(), |kept| kept.count)
    }

    /// Number of ids, dropped ones too: each is that of a row.
    pub fn rows(&self) -> usize {
        match &self.ids {
            Store::Dense(n) => *n as usize,
            Store::Int(ids) => ids.len(),
            Store::Text { ends, .. } => ends.len() - 1,
        }
    }

    /// Bytes of memory that it takes.
    pub fn bytes(&self) -> u64 {
        let ids = match &self.ids {
            Store::Dense(_) => 0,
            Store::Int(ids) => 8 * ids.capacity(),
            Store::Text { bytes, ends } => bytes.capacity() + 8 * ends.capacity(),
        };
        let kept = self.kept.as_ref().map_or(0, |kept| 4 * kept.index.capacity());
        (ids + 4 * self.table.slots.capacity() + kept) as u64
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Drops all rows but those that `keep` wants. The others' indexes close up, in their order.
    ///
    /// ```
    /// use gnnflow_data::id_map::IdMap;
    /// let mut ids = IdMap::dense(4);
    /// ids.keep(|row| row != 1);
    /// assert_eq!((ids.len(), ids.rows()), (3, 4));
    /// assert_eq!([0, 1, 2, 3].map(|id| ids.index_of_int(id)), [Some(0), None, Some(1), Some(2)]);
    /// ```
    pub fn keep(&mut self, keep: impl Fn(u32) -> bool) {
        let mut count = 0;
        let mut next = |row: u32| {
            if !self.index_of_row(row).is_some_and(|_| keep(row)) {
                return FREE;
            }
            count += 1;
            count - 1
        };
        let index = (0..self.rows() as u32).map(&mut next).collect();
        self.kept = Some(Kept { index, count: count as usize });
    }

    /// The index of a row; `None` when it was dropped.
    #[inline]
    pub fn index_of_row(&self, row: u32) -> Option<u32> {
        match &self.kept {
            None => Some(row),
            Some(kept) => Some(kept.index[row as usize]).filter(|&index| index != FREE),
        }
    }

    /// Whether rows were dropped.
    pub fn has_dropped(&self) -> bool {
        self.len() < self.rows()
    }

    /// Whether id `i` of `ids` is that of a row, dropped or not.
    pub fn has_row(&self, ids: &Ids, i: usize) -> bool {
        match ids {
            Ids::Int(ids) => self.row_of_int(ids[i]).is_some(),
            Ids::Text(ids) => self.row_of_text(ids.value(i)).is_some(),
        }
    }

    /// The ids of some rows.
    pub fn ids_of_rows(&self, rows: std::ops::Range<u32>) -> Result<Ids> {
        let text = |e: std::str::Utf8Error| Error::Bug(e.to_string());
        Ok(match &self.ids {
            Store::Dense(_) => Ids::Int(rows.map(i64::from).collect()),
            Store::Int(ids) => Ids::Int(ids[rows.start as usize..rows.end as usize].to_vec().into()),
            Store::Text { bytes, ends } => {
                let id = |row: u32| {
                    std::str::from_utf8(&bytes[ends[row as usize] as usize..ends[row as usize + 1] as usize])
                };
                let ids =
                    rows.map(|row| id(row).map(Some)).collect::<std::result::Result<Vec<_>, _>>().map_err(text)?;
                Ids::Text(ids.into_iter().collect())
            }
        })
    }

    /// Makes room for `more` ids than the map was made for.
    pub fn reserve(&mut self, more: usize) {
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

    /// Adds ids, all of one kind.
    ///
    /// # Errors
    /// The first id that is there already.
    ///
    /// # Panics
    /// When there are more than the map was made for.
    pub fn push(&mut self, more: &Ids) -> std::result::Result<(), Twice> {
        match more {
            Ids::Int(more) => more.iter().try_for_each(|&id| self.push_int(id)),
            Ids::Text(more) => more.iter().flatten().try_for_each(|id| self.push_text(id)),
        }
    }

    fn push_int(&mut self, id: i64) -> std::result::Result<(), Twice> {
        if let Store::Dense(n) = &mut self.ids {
            if id == i64::from(*n) {
                *n += 1;
                return Ok(());
            }
            // Dense no more: spell out what was implied.
            let mut ids = Vec::with_capacity(self.table.nodes);
            ids.extend(0..i64::from(*n));
            self.table.allocate();
            for index in 0..*n {
                self.table.insert(hash_int(i64::from(index)), index, |_| false);
            }
            self.ids = Store::Int(ids);
        }
        let Store::Int(ids) = &mut self.ids else { unreachable!("ids of one kind") };
        let second = ids.len() as u32;
        match self.table.insert(hash_int(id), second, |index| ids[index as usize] == id) {
            Some(first) => Err(Twice { first, second }),
            None => {
                ids.push(id);
                Ok(())
            }
        }
    }

    fn push_text(&mut self, id: &str) -> std::result::Result<(), Twice> {
        if matches!(self.ids, Store::Dense(0)) {
            self.table.allocate();
            let mut ends = Vec::with_capacity(self.table.nodes + 1);
            ends.push(0);
            self.ids = Store::Text { bytes: Vec::new(), ends };
        }
        let Store::Text { bytes, ends } = &mut self.ids else { unreachable!("ids of one kind") };
        let second = (ends.len() - 1) as u32;
        let same =
            |index: u32| bytes[ends[index as usize] as usize..ends[index as usize + 1] as usize] == *id.as_bytes();
        match self.table.insert(hash_text(id.as_bytes()), second, same) {
            Some(first) => Err(Twice { first, second }),
            None => {
                bytes.extend_from_slice(id.as_bytes());
                ends.push(bytes.len() as u64);
                Ok(())
            }
        }
    }

    /// The index of an integer.
    #[inline]
    pub fn index_of_int(&self, id: i64) -> Option<u32> {
        self.row_of_int(id).and_then(|row| self.index_of_row(row))
    }

    #[inline]
    fn row_of_int(&self, id: i64) -> Option<u32> {
        match &self.ids {
            Store::Dense(n) => u32::try_from(id).ok().filter(|id| id < n),
            Store::Int(ids) => self.table.find(hash_int(id), |index| ids[index as usize] == id),
            Store::Text { .. } => None,
        }
    }

    /// The index of a string.
    #[inline]
    pub fn index_of_text(&self, id: &str) -> Option<u32> {
        self.row_of_text(id).and_then(|row| self.index_of_row(row))
    }

    #[inline]
    fn row_of_text(&self, id: &str) -> Option<u32> {
        match &self.ids {
            Store::Text { bytes, ends } => self.table.find(hash_text(id.as_bytes()), |index| {
                bytes[ends[index as usize] as usize..ends[index as usize + 1] as usize] == *id.as_bytes()
            }),
            _ => None,
        }
    }

    /// The indexes of many ids; `other` for those that are no node's.
    pub fn indexes_or(&self, ids: &Ids, other: u32) -> Vec<u32> {
        match ids {
            Ids::Int(ids) => ids.iter().map(|&id| self.index_of_int(id).unwrap_or(other)).collect(),
            Ids::Text(ids) => ids.iter().map(|id| id.and_then(|id| self.index_of_text(id)).unwrap_or(other)).collect(),
        }
    }

    /// The indexes of many ids.
    ///
    /// # Errors
    /// The position of the first that is no node's.
    pub fn indexes(&self, ids: &Ids) -> std::result::Result<Vec<u32>, usize> {
        let mut indexes = Vec::with_capacity(ids.len());
        match ids {
            Ids::Int(ids) => {
                for (i, &id) in ids.iter().enumerate() {
                    indexes.push(self.index_of_int(id).ok_or(i)?);
                }
            }
            Ids::Text(ids) => {
                for (i, id) in ids.iter().enumerate() {
                    indexes.push(id.and_then(|id| self.index_of_text(id)).ok_or(i)?);
                }
            }
        }
        Ok(indexes)
    }

    /// The id of a node, for messages. O(rows) when some were dropped.
    pub(crate) fn show(&self, index: u32) -> Result<String> {
        let index = match &self.kept {
            None => index,
            Some(kept) => {
                let row = kept.index.iter().position(|&other| other == index);
                row.ok_or_else(|| Error::Bug(format!("no row has index {index}")))? as u32
            }
        };
        match &self.ids {
            Store::Dense(_) => Ok(index.to_string()),
            Store::Int(ids) => Ok(ids[index as usize].to_string()),
            Store::Text { bytes, ends } => {
                let id = &bytes[ends[index as usize] as usize..ends[index as usize + 1] as usize];
                std::str::from_utf8(id).map(|id| format!("{id:?}")).map_err(|e| Error::Bug(e.to_string()))
            }
        }
    }
}

/// Open addressing with linear probing; a slot holds an index.
#[derive(Clone, Debug)]
struct Slots {
    slots: Vec<u32>,
    nodes: usize,
}

impl Slots {
    fn allocate(&mut self) {
        self.slots = vec![FREE; self.nodes + self.nodes * 3 / 5 + 2];
    }

    /// The slot to look at first.
    #[inline]
    fn start(&self, hash: u64) -> usize {
        ((u128::from(hash) * self.slots.len() as u128) >> 64) as usize
    }

    #[inline]
    fn find(&self, hash: u64, same: impl Fn(u32) -> bool) -> Option<u32> {
        let mut slot = self.start(hash);
        loop {
            let index = self.slots[slot];
            if index == FREE {
                return None;
            }
            if same(index) {
                return Some(index);
            }
            slot = if slot + 1 == self.slots.len() { 0 } else { slot + 1 };
        }
    }

    /// Puts `index` in, or returns the one that is there already.
    #[inline]
    fn insert(&mut self, hash: u64, index: u32, same: impl Fn(u32) -> bool) -> Option<u32> {
        assert!((index as usize) < self.nodes, "more ids than the map was made for");
        let mut slot = self.start(hash);
        while self.slots[slot] != FREE {
            if same(self.slots[slot]) {
                return Some(self.slots[slot]);
            }
            slot = if slot + 1 == self.slots.len() { 0 } else { slot + 1 };
        }
        self.slots[slot] = index;
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
    use arrow::array::LargeStringArray;
    use std::collections::HashMap;

    use crate::rng::{Key, Purpose};

    fn ints(ids: &[i64]) -> Ids {
        Ids::Int(ids.to_vec().into())
    }

    #[test]
    fn every_id_finds_its_row_and_no_other() {
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
            let mut map = IdMap::with_capacity(ids.len());
            ids.chunks(300).for_each(|chunk| map.push(&ints(chunk)).unwrap());
            let mut text = IdMap::with_capacity(ids.len());
            text.push(&Ids::Text(ids.iter().map(|id| Some(format!("node/{id}"))).collect::<LargeStringArray>()))
                .unwrap();
            assert_eq!((map.len(), text.len()), (ids.len(), ids.len()));
            for id in ids.iter().flat_map(|&id| [id, id.wrapping_add(1), id.wrapping_sub(1), -id.wrapping_mul(3)]) {
                assert_eq!(map.index_of_int(id), expected.get(&id).copied(), "{id}");
                assert_eq!(text.index_of_text(&format!("node/{id}")), expected.get(&id).copied(), "{id}");
            }
        }
    }

    #[test]
    fn a_map_grows_and_closes_up() {
        for first in [vec![0, 1, 2], vec![5, -3, 9], vec![]] {
            let more = [100, 200, 77, -1];
            let all: Vec<i64> = first.iter().copied().chain(more).collect();
            let name = |ids: &[i64]| Ids::Text(ids.iter().map(|id| Some(format!("n{id}"))).collect());
            let (mut map, mut text) = (IdMap::with_capacity(first.len()), IdMap::with_capacity(first.len()));
            for (map, first, more) in [(&mut map, ints(&first), ints(&more)), (&mut text, name(&first), name(&more))] {
                map.push(&first).unwrap();
                map.reserve(4);
                map.push(&more).unwrap();
                assert!(matches!(map.ids_of_rows(0..all.len() as u32).unwrap(), ids if ids.len() == all.len()));
                map.keep(|row| row % 3 != 1);
            }
            let mut next = 0;
            for (row, &id) in all.iter().enumerate() {
                let expected = (row % 3 != 1).then(|| {
                    next += 1;
                    next - 1
                });
                assert_eq!((map.index_of_int(id), text.index_of_text(&format!("n{id}"))), (expected, expected));
                assert!(map.has_row(&ints(&[id]), 0) && text.has_row(&name(&[id]), 0));
                if let Some(index) = expected {
                    assert_eq!(map.show(index).unwrap(), id.to_string());
                }
            }
            assert_eq!((map.len(), map.rows(), map.has_dropped()), (next as usize, all.len(), true));
            assert!(!map.has_row(&ints(&[12345]), 0));
        }
    }

    #[test]
    fn the_second_of_two_is_refused() {
        for ids in [&[0, 1, 2, 1][..], &[5, 9, 9], &[0, 0], &[3, 4, 5, 6, 3]] {
            let second = (1..ids.len()).find(|&i| ids[..i].contains(&ids[i])).unwrap();
            let first = ids.iter().position(|&id| id == ids[second]).unwrap();
            let twice = Twice { first: first as u32, second: second as u32 };
            assert_eq!(IdMap::with_capacity(ids.len()).push(&ints(ids)), Err(twice));
            let texts = ids.iter().map(|id| Some(id.to_string())).collect::<LargeStringArray>();
            assert_eq!(IdMap::with_capacity(ids.len()).push(&Ids::Text(texts)), Err(twice));
        }
    }

    #[test]
    fn dense_ids_need_no_memory() {
        let mut map = IdMap::with_capacity(1 << 20);
        map.push(&ints(&(0..1 << 20).collect::<Vec<_>>())).unwrap();
        assert!(matches!(map.ids, Store::Dense(n) if n == 1 << 20) && map.table.slots.is_empty());
    }

    #[test]
    fn unknown_ids_are_told_by_position() {
        let mut map = IdMap::with_capacity(3);
        map.push(&ints(&[10, 20, 30])).unwrap();
        assert_eq!(map.indexes(&ints(&[30, 10])), Ok(vec![2, 0]));
        assert_eq!(map.indexes(&ints(&[30, 11, 12])), Err(1));
    }
}
