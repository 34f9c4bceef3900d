//! The dictionary on disk, for graphs whose ids would take too much memory: rows and ids, partitioned by the ids' hashes.
//!
//! A *group* of partitions fits into memory. The search for duplicate ids and the [join](super::join) process one group after another.

use std::ops::Range;
use std::path::{Path, PathBuf};

use rayon::prelude::*;

use super::map::{Duplicate, Id, IdMap, UNKNOWN, id};
use super::streams::Streams;
use crate::error::{Error, Result};
use crate::ids::Ids;

/// Number of partitions.
const PARTITIONS: usize = 512;
/// Minimum size of a group in bytes.
const MIN_GROUP: u64 = 1 << 10;
/// Bytes per loaded id, in addition to those of a string: row, id or end of the string, 1.6 slots.
const BYTES_PER_ID: f64 = 18.4;

/// Ids on disk.
#[derive(Debug)]
pub(crate) struct Spilled {
    dir: PathBuf,
    /// Records: the row, the length (of strings only), the id.
    streams: Streams,
    /// Number of ids of each partition, and bytes of strings.
    counts: Vec<u32>,
    lengths: Vec<u64>,
    text: bool,
    rows: u32,
    limit: u64,
}

/// A partition in memory.
pub(super) struct LoadedPartition {
    map: IdMap,
    /// The row of each id of the map.
    rows: Vec<u32>,
}

impl LoadedPartition {
    /// Returns the row of an id; [`UNKNOWN`] if the id is not in this partition.
    #[inline]
    pub(super) fn row_of(&self, id: Id<'_>, hash: u64) -> u32 {
        match self.map.row_of(id, hash) {
            UNKNOWN => UNKNOWN,
            local => self.rows[local as usize],
        }
    }

    /// Returns the bytes of memory that the partition takes.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> u64 {
        self.map.bytes() + 4 * self.rows.capacity() as u64
    }
}

/// Returns the partition of a hash. The map within a partition uses the upper bits.
#[inline]
pub(super) fn partition(hash: u64) -> usize {
    hash as usize % PARTITIONS
}

impl Spilled {
    /// Creates an empty dictionary in an unnamed file in `dir`. A group takes about `limit` bytes of memory.
    pub(super) fn new(text: bool, limit: u64, dir: &Path) -> Result<Self> {
        let streams = Streams::new(PARTITIONS, limit / 2, dir)?;
        let (counts, lengths) = (vec![0; PARTITIONS], vec![0; PARTITIONS]);
        Ok(Self { dir: dir.to_path_buf(), streams, counts, lengths, text, rows: 0, limit })
    }

    /// Copies the ids of `map`, row by row.
    pub(super) fn from_map(map: &IdMap, text: bool, limit: u64, dir: &Path) -> Result<Self> {
        let mut this = Self::new(text, limit, dir)?;
        (0..map.len() as u32).try_for_each(|row| this.push_one(map.id_of(row)))?;
        Ok(this)
    }

    pub(super) fn rows(&self) -> u32 {
        self.rows
    }

    /// Whether ids are strings.
    pub(super) fn is_text(&self) -> bool {
        self.text
    }

    /// Folder of temporary files.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Maximum bytes of memory of a group.
    pub(super) fn limit(&self) -> u64 {
        self.limit
    }

    /// Sets the maximum bytes of memory of a group.
    pub(super) fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
    }

    /// Returns the bytes of memory that the dictionary takes.
    pub(super) fn bytes(&self) -> u64 {
        self.streams.bytes() + 12 * PARTITIONS as u64
    }

    /// Adds ids. [`Spilled::first_duplicate`] finds duplicates later.
    pub(super) fn push(&mut self, more: &Ids) -> Result<()> {
        (0..more.len()).try_for_each(|i| self.push_one(id(more, i)))
    }

    fn push_one(&mut self, id: Id<'_>) -> Result<()> {
        let partition = partition(id.hash());
        self.counts[partition] += 1;
        let row = self.rows.to_le_bytes();
        self.rows += 1;
        match id {
            Id::Int(id) => {
                let mut record = [0; 12];
                record[..4].copy_from_slice(&row);
                record[4..].copy_from_slice(&id.to_le_bytes());
                self.streams.append(partition, &record)
            }
            Id::Text(id) => {
                self.lengths[partition] += id.len() as u64;
                let length = (id.len() as u32).to_le_bytes();
                self.streams.append(partition, &[&row[..], &length, id].concat())
            }
        }
    }

    /// Makes added ids readable.
    pub(super) fn flush(&mut self) -> Result<()> {
        self.streams.flush()
    }

    /// Calls `visit` with the rows and ids of a partition, in ascending order of rows, until it returns a value.
    fn find_in<T>(&self, partition: usize, mut visit: impl FnMut(u32, Id<'_>) -> Option<T>) -> Result<Option<T>> {
        let short = || Error::Bug("a record of the dictionary is too short".into());
        for &block in self.streams.blocks(partition) {
            let bytes = self.streams.read(block)?;
            let mut rest = &bytes[..];
            while let Some((row, after)) = rest.split_first_chunk::<4>() {
                let found;
                if self.text {
                    let (length, after) = after.split_first_chunk::<4>().ok_or_else(short)?;
                    let (id, after) = after.split_at_checked(u32::from_le_bytes(*length) as usize).ok_or_else(short)?;
                    (found, rest) = (visit(u32::from_le_bytes(*row), Id::Text(id)), after);
                } else {
                    let (id, after) = after.split_first_chunk::<8>().ok_or_else(short)?;
                    (found, rest) = (visit(u32::from_le_bytes(*row), Id::Int(i64::from_le_bytes(*id))), after);
                }
                if found.is_some() {
                    return Ok(found);
                }
            }
        }
        Ok(None)
    }

    /// Loads a partition for lookups, or returns its first duplicate id.
    fn load(&self, partition: usize) -> Result<std::result::Result<LoadedPartition, Duplicate>> {
        let count = self.counts[partition] as usize;
        let mut loaded = LoadedPartition { map: IdMap::with_capacity(count), rows: Vec::with_capacity(count) };
        if self.text {
            loaded.map.reserve_text(self.lengths[partition] as usize);
        }
        let duplicate = self.find_in(partition, |row, id| match loaded.map.push_one(id) {
            Ok(()) => {
                loaded.rows.push(row);
                None
            }
            Err(duplicate) => Some(Duplicate { first: loaded.rows[duplicate.first as usize], second: row }),
        })?;
        Ok(duplicate.map_or(Ok(loaded), Err))
    }

    /// Returns groups of partitions that fit into memory.
    pub(super) fn groups(&self) -> Vec<Range<usize>> {
        let limit = self.limit.max(MIN_GROUP);
        let (mut groups, mut start, mut held) = (Vec::new(), 0, 0);
        for partition in 0..PARTITIONS {
            let bytes = (BYTES_PER_ID * f64::from(self.counts[partition])) as u64 + self.lengths[partition];
            if held + bytes > limit && start < partition {
                groups.push(start..partition);
                (start, held) = (partition, 0);
            }
            held += bytes;
        }
        groups.push(start..PARTITIONS);
        groups
    }

    /// Loads several partitions for lookups.
    pub(super) fn load_all(&self, partitions: Range<usize>) -> Result<Vec<LoadedPartition>> {
        let duplicate = |_| Error::Bug("an id occurs twice in the dictionary".into());
        partitions.into_par_iter().map(|partition| self.load(partition)?.map_err(duplicate)).collect()
    }

    /// Returns the first row of the dump with the id of an earlier row.
    pub(super) fn first_duplicate(&self) -> Result<Option<Duplicate>> {
        let mut first: Option<Duplicate> = None;
        for group in self.groups() {
            let found = group.into_par_iter().map(|partition| Ok(self.load(partition)?.err()));
            for duplicate in found.collect::<Result<Vec<_>>>()?.into_iter().flatten() {
                first = Some(first.filter(|first| first.second < duplicate.second).unwrap_or(duplicate));
            }
        }
        Ok(first)
    }

    /// Returns the id of a row for messages. Reads the whole dictionary.
    pub(super) fn show(&self, row: u32) -> Result<String> {
        for partition in 0..PARTITIONS {
            if let Some(shown) = self.find_in(partition, |other, id| (other == row).then(|| id.show()))? {
                return shown;
            }
        }
        Err(Error::Bug(format!("row {row} is not in the dictionary")))
    }
}
