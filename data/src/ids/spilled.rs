//! The dictionary of a graph whose ids would take too much memory: rows and ids on disk, dealt out by the ids' hashes.
//!
//! There are enough partitions that some of them together, a *group*, fit into memory. What needs the dictionary goes through
//! it group by group: the search for ids that stand twice, and the [join](super::join).

use std::ops::Range;
use std::path::{Path, PathBuf};

use rayon::prelude::*;

use super::map::{Id, IdMap, Twice, UNKNOWN, id};
use super::streams::Streams;
use crate::dump::Ids;
use crate::error::{Error, Result};

/// Number of partitions.
const PARTITIONS: usize = 512;
/// Least bytes of a group.
const SMALLEST: u64 = 1 << 10;
/// Bytes that an id takes when it is looked up, beside a string's own: row, id or end of the string, 1.6 slots.
const LOADED: f64 = 18.4;

/// Ids on disk.
#[derive(Debug)]
pub(crate) struct Spilled {
    dir: PathBuf,
    /// Records: the row, of strings the length, the id.
    streams: Streams,
    /// Ids of each partition, and bytes of strings.
    counts: Vec<u32>,
    lengths: Vec<u64>,
    text: bool,
    rows: u32,
    limit: u64,
}

/// One partition in memory.
pub(super) struct Part {
    map: IdMap,
    /// The row of the map's every id.
    rows: Vec<u32>,
}

impl Part {
    /// The row of an id; [`UNKNOWN`] when it is not here.
    #[inline]
    pub(super) fn row_of(&self, id: Id<'_>, hash: u64) -> u32 {
        match self.map.row_of(id, hash) {
            UNKNOWN => UNKNOWN,
            local => self.rows[local as usize],
        }
    }

    /// Bytes of memory that it takes.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> u64 {
        self.map.bytes() + 4 * self.rows.capacity() as u64
    }
}

/// The partition of a hash. The map within it looks at the upper bits.
#[inline]
pub(super) fn partition(hash: u64) -> usize {
    hash as usize % PARTITIONS
}

impl Spilled {
    /// No ids yet, in a nameless file in `dir`. A group takes about `limit` bytes of memory.
    pub(super) fn new(text: bool, limit: u64, dir: &Path) -> Result<Self> {
        let streams = Streams::new(PARTITIONS, limit / 2, dir)?;
        let (counts, lengths) = (vec![0; PARTITIONS], vec![0; PARTITIONS]);
        Ok(Self { dir: dir.to_path_buf(), streams, counts, lengths, text, rows: 0, limit })
    }

    /// The ids of `map`, row by row.
    pub(super) fn from_map(map: &IdMap, text: bool, limit: u64, dir: &Path) -> Result<Self> {
        let mut this = Self::new(text, limit, dir)?;
        (0..map.len() as u32).try_for_each(|row| this.push_one(map.id_of(row)))?;
        Ok(this)
    }

    /// Number of ids.
    pub(super) fn rows(&self) -> u32 {
        self.rows
    }

    /// Whether ids are strings.
    pub(super) fn is_text(&self) -> bool {
        self.text
    }

    /// Where temporary files may lie.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Bytes of memory that a group may take.
    pub(super) fn limit(&self) -> u64 {
        self.limit
    }

    /// From here on a group takes so many bytes.
    pub(super) fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
    }

    /// Bytes of memory that it takes.
    pub(super) fn bytes(&self) -> u64 {
        self.streams.bytes() + 12 * PARTITIONS as u64
    }

    /// Adds ids. Whether one stands twice is found later.
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

    /// Makes what has been added readable.
    pub(super) fn flush(&mut self) -> Result<()> {
        self.streams.flush()
    }

    /// Calls `visit` with the rows and ids of a partition, rows ascending, until it returns something.
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

    /// A partition for lookups, or the first id of it that stands twice.
    fn load(&self, partition: usize) -> Result<std::result::Result<Part, Twice>> {
        let count = self.counts[partition] as usize;
        let mut part = Part { map: IdMap::with_capacity(count), rows: Vec::with_capacity(count) };
        if self.text {
            part.map.reserve_text(self.lengths[partition] as usize);
        }
        let twice = self.find_in(partition, |row, id| match part.map.push_one(id) {
            Ok(()) => {
                part.rows.push(row);
                None
            }
            Err(twice) => Some(Twice { first: part.rows[twice.first as usize], second: row }),
        })?;
        Ok(twice.map_or(Ok(part), Err))
    }

    /// The partitions in groups that fit into memory.
    pub(super) fn groups(&self) -> Vec<Range<usize>> {
        let limit = self.limit.max(SMALLEST);
        let (mut groups, mut start, mut held) = (Vec::new(), 0, 0);
        for partition in 0..PARTITIONS {
            let bytes = (LOADED * f64::from(self.counts[partition])) as u64 + self.lengths[partition];
            if held + bytes > limit && start < partition {
                groups.push(start..partition);
                (start, held) = (partition, 0);
            }
            held += bytes;
        }
        groups.push(start..PARTITIONS);
        groups
    }

    /// Some partitions for lookups.
    pub(super) fn load_all(&self, partitions: Range<usize>) -> Result<Vec<Part>> {
        let twice = |_| Error::Bug("an id stands twice in the dictionary".into());
        partitions.into_par_iter().map(|partition| self.load(partition)?.map_err(twice)).collect()
    }

    /// The first row in the order of the dump whose id stands in another before it.
    pub(super) fn twice(&self) -> Result<Option<Twice>> {
        let mut first: Option<Twice> = None;
        for group in self.groups() {
            let found = group.into_par_iter().map(|partition| Ok(self.load(partition)?.err()));
            for twice in found.collect::<Result<Vec<_>>>()?.into_iter().flatten() {
                first = Some(first.filter(|first| first.second < twice.second).unwrap_or(twice));
            }
        }
        Ok(first)
    }

    /// The id of a row, for messages. Reads everything.
    pub(super) fn show(&self, row: u32) -> Result<String> {
        for partition in 0..PARTITIONS {
            if let Some(shown) = self.find_in(partition, |other, id| (other == row).then(|| id.show()))? {
                return shown;
            }
        }
        Err(Error::Bug(format!("row {row} is not in the dictionary")))
    }
}
