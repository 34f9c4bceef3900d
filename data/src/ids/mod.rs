//! The nodes of a graph: the user's ids, their rows in the dump, and the indexes of the rows that remain after filters.
//!
//! ```text
//! id ──► row of the dump, 0..rows ──► index, 0..len: the remaining rows, numbered consecutively
//! ```
//!
//! The dictionary maps ids to rows. It is in memory while it needs at most a given number of bytes; ids `0, 1, 2, …` need none. A larger
//! dictionary is on disk, and a join looks up many ids in one pass.

mod column;
mod join;
mod map;
mod spilled;
mod streams;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

pub use column::Ids;
pub(crate) use join::{Groups, Join};
use map::IdMap;
pub use map::UNKNOWN;
pub(crate) use map::{Duplicate, Id};
use spilled::Spilled;

use crate::error::{Error, Result};

/// The nodes of a graph and their ids.
#[derive(Debug)]
pub struct NodeIds {
    dictionary: Dictionary,
    /// Bytes that the dictionary may take in memory.
    limit: u64,
    /// Folder of the dictionary on disk.
    dir: PathBuf,
    remaining: Option<Remaining>,
}

#[derive(Debug)]
enum Dictionary {
    Memory(IdMap),
    Disk(Spilled),
}

/// The rows that remain after some were dropped. Takes four bytes per row.
#[derive(Clone, Debug)]
struct Remaining {
    /// The index of every row; [`UNKNOWN`] for dropped rows.
    index: Vec<u32>,
    count: usize,
}

impl NodeIds {
    /// Creates an empty set of nodes with capacity `nodes`. The dictionary takes at most about `limit` bytes of memory; a larger one is
    /// stored in unnamed files in `dir`.
    pub(crate) fn new(nodes: usize, limit: u64, dir: &Path) -> Self {
        let dictionary = Dictionary::Memory(IdMap::with_capacity(nodes));
        Self { dictionary, limit, dir: dir.to_path_buf(), remaining: None }
    }

    /// Creates nodes with ids `0, 1, 2, …`.
    pub fn dense(nodes: u32) -> Self {
        let dictionary = Dictionary::Memory(IdMap::dense(nodes));
        Self { dictionary, limit: u64::MAX, dir: PathBuf::new(), remaining: None }
    }

    /// Number of nodes, without dropped ones.
    pub fn len(&self) -> usize {
        self.remaining.as_ref().map_or_else(|| self.rows(), |remaining| remaining.count)
    }

    /// Whether there are no nodes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of rows, with dropped ones.
    pub fn rows(&self) -> usize {
        match &self.dictionary {
            Dictionary::Memory(map) => map.len(),
            Dictionary::Disk(spilled) => spilled.rows() as usize,
        }
    }

    /// Returns the bytes of memory of the dictionary.
    pub(crate) fn dictionary_bytes(&self) -> u64 {
        match &self.dictionary {
            Dictionary::Memory(map) => map.bytes(),
            Dictionary::Disk(spilled) => spilled.bytes(),
        }
    }

    /// Returns the bytes of memory of the rows' indexes.
    pub(crate) fn index_bytes(&self) -> u64 {
        self.remaining.as_ref().map_or(0, |remaining| 4 * remaining.index.capacity() as u64)
    }

    /// Drops all rows for which `keep` is false. The remaining rows get consecutive indexes in the same order.
    ///
    /// ```
    /// use gnnflow_data::ids::NodeIds;
    /// let mut ids = NodeIds::dense(4);
    /// ids.retain(|row| row != 1);
    /// assert_eq!((ids.len(), ids.rows()), (3, 4));
    /// assert_eq!([0, 1, 2, 3].map(|row| ids.index_of_row(row)), [Some(0), None, Some(1), Some(2)]);
    /// ```
    pub fn retain(&mut self, keep: impl Fn(u32) -> bool) {
        let mut count = 0;
        let mut next = |row: u32| {
            if !self.index_of_row(row).is_some_and(|_| keep(row)) {
                return UNKNOWN;
            }
            count += 1;
            count - 1
        };
        let index = (0..self.rows() as u32).map(&mut next).collect();
        self.remaining = Some(Remaining { index, count: count as usize });
    }

    /// Returns the index of a row; `None` if the row was dropped or is [`UNKNOWN`].
    #[inline]
    pub fn index_of_row(&self, row: u32) -> Option<u32> {
        match &self.remaining {
            None => Some(row),
            Some(remaining) => remaining.index.get(row as usize).copied(),
        }
        .filter(|&index| index != UNKNOWN)
    }

    /// Returns whether rows were dropped.
    pub(crate) fn has_dropped(&self) -> bool {
        self.len() < self.rows()
    }

    /// Adds ids of one kind. Returns a duplicate if the dictionary is in memory; [`NodeIds::check`] finds duplicates on disk.
    pub(crate) fn push(&mut self, more: &Ids) -> Result<Option<Duplicate>> {
        if let Dictionary::Memory(map) = &mut self.dictionary {
            if map.bytes_with(more) <= self.limit {
                return Ok(map.push(more).err());
            }
            self.spill(matches!(more, Ids::Text(_)))?;
        }
        match &mut self.dictionary {
            Dictionary::Disk(spilled) => spilled.push(more).map(|()| None),
            Dictionary::Memory(_) => Err(Error::Bug("the dictionary did not spill".into())),
        }
    }

    /// Moves the dictionary to disk.
    fn spill(&mut self, text: bool) -> Result<()> {
        if let Dictionary::Memory(map) = &self.dictionary {
            self.dictionary = Dictionary::Disk(Spilled::from_map(map, text, self.limit, &self.dir)?);
        }
        Ok(())
    }

    /// Ends a series of [`NodeIds::push`]. Returns a duplicate id, if there is one.
    pub(crate) fn check(&mut self) -> Result<Option<Duplicate>> {
        match &mut self.dictionary {
            Dictionary::Memory(_) => Ok(None),
            Dictionary::Disk(spilled) => {
                spilled.flush()?;
                spilled.first_duplicate()
            }
        }
    }

    /// Increases the capacity by `more` ids, and lets the dictionary take `limit` bytes of memory.
    pub(crate) fn reserve(&mut self, more: usize, limit: u64) -> Result<()> {
        self.limit = limit;
        match &mut self.dictionary {
            Dictionary::Memory(map) => match map.bytes_for(map.capacity() + more) > limit {
                true => {
                    let text = map.is_text();
                    self.spill(text)
                }
                false => {
                    map.reserve(more);
                    Ok(())
                }
            },
            Dictionary::Disk(spilled) => {
                spilled.set_limit(limit);
                Ok(())
            }
        }
    }

    /// Returns the groups of a dictionary on disk; `None` if it is in memory.
    pub(crate) fn groups(&self) -> Option<Groups> {
        match &self.dictionary {
            Dictionary::Memory(_) => None,
            Dictionary::Disk(spilled) => Some(Groups::new(spilled)),
        }
    }

    /// Starts a lookup of ids that `groups`, the result of [`NodeIds::groups`], sorts.
    pub(crate) fn join<'a>(&'a self, groups: &'a Groups) -> Result<Join<'a>> {
        match &self.dictionary {
            Dictionary::Memory(_) => Err(Error::Bug("a join with a dictionary in memory".into())),
            Dictionary::Disk(spilled) => Join::new(spilled, groups),
        }
    }

    /// Returns the rows of ids, with a dictionary in memory; [`UNKNOWN`] for ids that are not in it.
    pub(crate) fn rows_of(&self, ids: &Ids) -> Result<Vec<u32>> {
        match &self.dictionary {
            Dictionary::Memory(map) => Ok(map.rows_of(ids)),
            Dictionary::Disk(_) => Err(Error::Bug("one lookup in a dictionary on disk".into())),
        }
    }

    /// Returns a [`Finder`] for the ids of a table. If the dictionary is on disk, this method calls `read`. It must pass all ids of the table
    /// to its argument, at most 65,536 per call, together with the number of ids before them.
    ///
    /// ```
    /// use gnnflow_data::ids::Ids;
    /// use gnnflow_data::ids::{NodeIds, UNKNOWN};
    /// # fn main() -> gnnflow_data::Result<()> {
    /// let ids = NodeIds::dense(10);
    /// let table = Ids::Int(vec![7, 12, 3].into());
    /// let finder = ids.finder(&mut |add| add(0, &table))?;
    /// assert_eq!(finder.rows(0, &table)?, [7, UNKNOWN, 3]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// An error of `read`, or a temporary file that cannot be written or read.
    pub fn finder(&self, read: &mut ReadIds<'_>) -> Result<Finder<'_>> {
        let Some(groups) = self.groups() else { return Ok(Finder(Find::Map(self))) };
        let dir = self.dir.as_path();
        let file = tempfile::tempfile_in(dir).map_err(Error::io(dir, "create a temporary file in"))?;
        let mut join = self.join(&groups)?;
        let text = groups.is_text();
        read(&mut |first, ids| match matches!(ids, Ids::Text(_)) == text {
            true => join.add(&groups.sort(first, &[ids])),
            false => Ok(()),
        })?;
        join.write_rows((&file, dir), |_, _| Ok(()))?;
        Ok(Finder(Find::File { file, dir, text }))
    }

    /// Returns the id of a node for messages. Time: O(rows).
    ///
    /// # Errors
    /// If the dictionary is on disk and cannot be read.
    ///
    /// # Panics
    /// If the node does not exist.
    pub fn show(&self, index: u32) -> Result<String> {
        let row = match &self.remaining {
            None => index,
            Some(remaining) => {
                let row = remaining.index.iter().position(|&other| other == index);
                row.ok_or_else(|| Error::Bug(format!("no row has index {index}")))? as u32
            }
        };
        match &self.dictionary {
            Dictionary::Memory(map) => map.id_of(row).show(),
            Dictionary::Disk(spilled) => spilled.show(row),
        }
    }
}

/// A function that passes ids to its argument: the number of ids before them, and the ids.
pub(crate) type ReadIds<'a> = dyn FnMut(&mut dyn FnMut(u64, &Ids) -> Result<()>) -> Result<()> + 'a;

/// Looks up the ids of a table.
#[derive(Debug)]
pub struct Finder<'a>(Find<'a>);

#[derive(Debug)]
enum Find<'a> {
    Map(&'a NodeIds),
    File { file: File, dir: &'a Path, text: bool },
}

impl Finder<'_> {
    /// Returns the rows of `ids`, which come after `first` other ids of the table; [`UNKNOWN`] for ids that are not in the dictionary.
    ///
    /// # Errors
    /// If a temporary file cannot be read.
    pub fn rows(&self, first: u64, ids: &Ids) -> Result<Vec<u32>> {
        match &self.0 {
            Find::Map(nodes) => nodes.rows_of(ids),
            // The id of a node is never equal to an id of the other kind.
            Find::File { text, .. } if matches!(ids, Ids::Text(_)) != *text => Ok(vec![UNKNOWN; ids.len()]),
            Find::File { file, dir, .. } => read_rows((file, dir), first, ids.len()),
        }
    }
}

/// Reads the rows at `count` positions from `first` on, from a file that [`Join::write_rows`] wrote.
pub(crate) fn read_rows((file, path): (&File, &Path), first: u64, count: usize) -> Result<Vec<u32>> {
    let mut rows = vec![0; count];
    file.read_exact_at(bytemuck::cast_slice_mut(&mut rows), 4 * first).map_err(Error::io(path, "read"))?;
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::rng::{Key, Purpose};

    /// Ids of three kinds: sparse integers, negative integers, long strings.
    fn ids(style: usize, numbers: &[i64]) -> Ids {
        match style {
            0 => Ids::Int(numbers.iter().map(|id| id << 33).collect()),
            1 => Ids::Int(numbers.iter().map(|id| -id * 7919).collect()),
            _ => Ids::Text(numbers.iter().map(|id| Some(format!("{}/{id}", "x".repeat(40)))).collect()),
        }
    }

    /// Adds ids in chunks of 100.
    fn nodes(style: usize, numbers: &[i64], limit: u64, dir: &Path) -> (NodeIds, Option<Duplicate>) {
        let mut nodes = NodeIds::new(numbers.len(), limit, dir);
        for some in numbers.chunks(100) {
            if let Some(duplicate) = nodes.push(&ids(style, some)).unwrap() {
                return (nodes, Some(duplicate));
            }
        }
        let duplicate = nodes.check().unwrap();
        (nodes, duplicate)
    }

    #[test]
    fn dictionary_on_disk_equals_dictionary_in_memory() {
        let dir = tempfile::tempdir().unwrap();
        let random = Key::new(7, Purpose::GenerateNodes);
        for (count, limit) in [(1i64, 0), (300, 0), (5000, 20_000), (70_000, 200_000)] {
            for style in 0..3 {
                let known: Vec<i64> = (1..=count).map(|i| 3 * i).collect();
                let (mut on_disk, _) = nodes(style, &known, limit, dir.path());
                let (mut in_memory, _) = nodes(style, &known, u64::MAX, dir.path());
                let groups = on_disk.groups().unwrap();
                assert!(in_memory.groups().is_none());
                let lookups: Vec<i64> =
                    (0..2 * count as u64).map(|i| random.below(i, 3 * count as u64 + 9) as i64).collect();
                let tables: Vec<(u64, Ids)> =
                    (0..).step_by(70).zip(lookups.chunks(70)).map(|(first, some)| (first, ids(style, some))).collect();
                let check = |on_disk: &NodeIds, in_memory: &NodeIds| {
                    let finder =
                        on_disk.finder(&mut |add| tables.iter().try_for_each(|(first, ids)| add(*first, ids))).unwrap();
                    let other = in_memory.finder(&mut |_| panic!("in memory")).unwrap();
                    for (first, ids) in &tables {
                        assert_eq!(finder.rows(*first, ids).unwrap(), other.rows(*first, ids).unwrap());
                    }
                };
                check(&on_disk, &in_memory);
                // Two columns side by side, and the unknown ids.
                let (mut join, mut unknown) = (on_disk.join(&groups).unwrap(), Vec::new());
                for (first, ids) in &tables {
                    join.add(&groups.sort(2 * first, &[ids, ids])).unwrap();
                }
                join.for_each_unknown(&mut |id| {
                    unknown.push(id.show()?);
                    Ok(())
                })
                .unwrap();
                unknown.sort();
                unknown.dedup();
                let mut expected: Vec<String> = Vec::new();
                for (_, ids) in &tables {
                    let rows = in_memory.rows_of(ids).unwrap().into_iter().enumerate();
                    expected.extend(rows.filter(|(_, row)| *row == UNKNOWN).map(|(i, _)| ids.show(i)));
                }
                expected.sort();
                expected.dedup();
                assert_eq!(unknown, expected);
                // Adds ids, of which some were looked up before; then drops rows.
                let more: Vec<i64> = (0..count).map(|i| 3 * i + 1).collect();
                for nodes in [&mut on_disk, &mut in_memory] {
                    nodes.reserve(more.len(), nodes.limit).unwrap();
                    more.chunks(100).for_each(|some| assert_eq!(nodes.push(&ids(style, some)).unwrap(), None));
                    assert_eq!(nodes.check().unwrap(), None);
                    nodes.retain(|row| row % 3 != 1);
                }
                check(&on_disk, &in_memory);
                assert_eq!((on_disk.len(), on_disk.rows()), (in_memory.len(), in_memory.rows()));
                for index in [0, on_disk.len() as u32 / 2, on_disk.len() as u32 - 1] {
                    assert_eq!(on_disk.show(index).unwrap(), in_memory.show(index).unwrap());
                }
            }
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "no named files");
    }

    #[test]
    fn first_duplicate_on_disk_equals_the_one_in_memory() {
        let dir = tempfile::tempdir().unwrap();
        let random = Key::new(8, Purpose::GenerateNodes);
        for case in 0..20 {
            let numbers: Vec<i64> = (0..400).map(|i| random.below(1000 * case + i, 5000) as i64 + 1).collect();
            let mut seen = HashMap::new();
            let expected = (0..)
                .zip(&numbers)
                .find_map(|(second, id)| seen.insert(id, second).map(|first| Duplicate { first, second }));
            for style in 0..3 {
                for limit in [0, 5000, u64::MAX] {
                    assert_eq!(nodes(style, &numbers, limit, dir.path()).1, expected, "case {case}, limit {limit}");
                }
            }
        }
    }

    #[test]
    fn dictionary_of_long_strings_stays_within_the_limit() {
        let dir = tempfile::tempdir().unwrap();
        let limit = 4 << 20;
        let mut nodes = NodeIds::new(100_000, limit, dir.path());
        for first in (0..100_000i64).step_by(1000) {
            let some: Vec<i64> = (first..first + 1000).collect();
            assert_eq!(nodes.push(&ids(2, &some)).unwrap(), None);
            assert!(nodes.dictionary_bytes() <= limit, "{} bytes", nodes.dictionary_bytes());
        }
        nodes.check().unwrap();
        // Only the positions of blocks remain in memory.
        assert!(nodes.dictionary_bytes() < 64 << 10, "{} bytes", nodes.dictionary_bytes());
        let Dictionary::Disk(spilled) = &nodes.dictionary else { panic!("in memory") };
        for group in spilled.groups() {
            let parts = spilled.load_all(group).unwrap();
            let bytes: u64 = parts.iter().map(|part| part.bytes()).sum();
            assert!(bytes <= limit + (64 << 10), "{bytes} bytes");
        }
    }
}
