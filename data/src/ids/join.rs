//! Looks up ids in a dictionary that is on disk: a grace hash join.
//!
//! ```text
//! ids, in chunks ──► by group of the dictionary, on disk ──► rows, group by group ──► rows by chunk, in order of positions
//! ```
//!
//! Every id has a *position*. The result is a file with the row of the id at position `p` at byte `4 p`. Reads and writes are long.
//! Memory holds one group of the dictionary, and buffers for every group.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rayon::prelude::*;

use super::map::{Id, UNKNOWN, id};
use super::spilled::{LoadedPartition, Spilled, partition};
use super::streams::{Block, Streams};
use crate::error::{Error, Result};
use crate::ids::Ids;

/// Maximum number of ids of a chunk. Their offsets in it take two bytes each.
const CHUNK: usize = 1 << 16;
/// Bytes of a record before the offsets: first position, number of ids, bytes of the ids.
const HEAD: usize = 16;

/// The groups of a dictionary. Sorts ids by them.
#[derive(Debug)]
pub(crate) struct Groups {
    ranges: Vec<Range<usize>>,
    /// The group of every partition.
    of: Vec<u16>,
    text: bool,
}

impl Groups {
    pub(super) fn new(ids: &Spilled) -> Self {
        let ranges = ids.groups();
        let of = (0..).zip(&ranges).flat_map(|(group, range)| range.clone().map(move |_| group)).collect();
        Self { ranges, of, text: ids.is_text() }
    }

    /// Whether ids are strings.
    pub(super) fn is_text(&self) -> bool {
        self.text
    }

    /// Sorts the ids of several columns of a chunk by group. Id `i` of column `c` has position `first + i * columns + c`.
    pub(crate) fn sort(&self, first: u64, columns: &[&Ids]) -> Vec<u8> {
        let width = columns.len();
        let rows = columns.first().map_or(0, |ids| ids.len());
        let per = (CHUNK / width.max(1)).max(1);
        let mut message = Vec::new();
        for start in (0..rows).step_by(per) {
            let end = rows.min(start + per);
            self.sort_some(first + (start * width) as u64, columns, start..end, &mut message);
        }
        message
    }

    fn sort_some(&self, first: u64, columns: &[&Ids], rows: Range<usize>, message: &mut Vec<u8>) {
        let (width, count) = (columns.len(), columns.len() * rows.len());
        let at = |position: usize| id(columns[position % width], rows.start + position / width);
        let length = |id: Id<'_>| if let Id::Text(id) = id { id.len() } else { 8 };
        let mut groups = Vec::with_capacity(count);
        // Of each group: number of ids, and their bytes.
        let mut sizes = vec![(0usize, 0usize); self.ranges.len()];
        for position in 0..count {
            let id = at(position);
            let group = self.of[partition(id.hash())];
            groups.push(group);
            let size = &mut sizes[group as usize];
            *size = (size.0 + 1, size.1 + length(id));
        }
        // Where the next offset, length and id of each group are written.
        let mut next = vec![[0; 3]; sizes.len()];
        for (group, &(count, bytes)) in sizes.iter().enumerate().filter(|(_, size)| size.0 > 0) {
            let record = HEAD + 2 * count + if self.text { 4 * count } else { 0 } + bytes;
            message.extend_from_slice(bytemuck::bytes_of(&[group as u32, record as u32]));
            message.extend_from_slice(&first.to_le_bytes());
            message.extend_from_slice(bytemuck::bytes_of(&[count as u32, bytes as u32]));
            let offsets = message.len();
            let lengths = offsets + 2 * count;
            next[group] = [offsets, lengths, if self.text { lengths + 4 * count } else { lengths }];
            message.resize(offsets + record - HEAD, 0);
        }
        let mut put = |at: &mut usize, bytes: &[u8]| {
            message[*at..*at + bytes.len()].copy_from_slice(bytes);
            *at += bytes.len();
        };
        for (position, &group) in groups.iter().enumerate() {
            let [offsets, lengths, ids] = &mut next[group as usize];
            put(offsets, &(position as u16).to_le_bytes());
            match at(position) {
                Id::Int(id) => put(ids, &id.to_le_bytes()),
                Id::Text(id) => {
                    put(lengths, &(id.len() as u32).to_le_bytes());
                    put(ids, id);
                }
            }
        }
    }
}

/// Ids to look up.
pub(crate) struct Join<'a> {
    ids: &'a Spilled,
    groups: &'a Groups,
    lookups: Streams,
}

impl<'a> Join<'a> {
    pub(super) fn new(ids: &'a Spilled, groups: &'a Groups) -> Result<Self> {
        let lookups = Streams::new(groups.ranges.len(), ids.limit() / 2, ids.dir())?;
        Ok(Self { ids, groups, lookups })
    }

    /// Adds the ids of a chunk, in the form that [`Groups::sort`] returns. Chunks must be added in the order of their positions.
    pub(crate) fn add(&mut self, mut message: &[u8]) -> Result<()> {
        while !message.is_empty() {
            let (head, rest) = message.split_first_chunk::<8>().ok_or_else(short)?;
            let [group, length] = bytemuck::pod_read_unaligned::<[u32; 2]>(head);
            let (record, rest) = rest.split_at_checked(length as usize).ok_or_else(short)?;
            self.lookups.append(group as usize, record)?;
            message = rest;
        }
        Ok(())
    }

    /// Writes the row of every id into `file`, [`UNKNOWN`] for ids that are not in the dictionary. Calls `visit` with the first position and
    /// the rows of every chunk, in order.
    pub(crate) fn write_rows(
        mut self,
        (file, path): (&File, &Path),
        mut visit: impl FnMut(u64, &[u32]) -> Result<()>,
    ) -> Result<()> {
        self.lookups.flush()?;
        let mut results = Streams::new(self.groups.ranges.len(), self.ids.limit() / 4, self.ids.dir())?;
        self.each_group(
            |lookups, partitions| {
                let mut result = Vec::new();
                lookups.head(&mut result);
                result.extend_from_slice(lookups.offsets);
                lookups.each(|id, hash| {
                    result.extend_from_slice(
                        &partitions[partition_in_group(hash, lookups.first_partition)].row_of(id, hash).to_le_bytes(),
                    );
                })?;
                Ok(result)
            },
            &mut |group, result| results.append(group, &result),
        )?;
        results.flush()?;
        // The ids are no longer needed.
        let groups = self.groups.ranges.len();
        drop(self);
        let mut readers: Vec<Reader<'_>> = (0..groups).map(|group| Reader::new(&results, group)).collect();
        let mut rows = Vec::new();
        loop {
            let mut next = None;
            for reader in &mut readers {
                next = next.into_iter().chain(reader.next()?).min();
            }
            let Some(first) = next else { return Ok(()) };
            rows.clear();
            for reader in &mut readers {
                reader.take(first, &mut rows)?;
            }
            file.write_all_at(bytemuck::cast_slice(&rows), 4 * first).map_err(Error::io(path, "write"))?;
            visit(first, &rows)?;
        }
    }

    /// Calls `consume` with every id that is not in the dictionary, once per chunk that contains it.
    pub(crate) fn for_each_unknown(mut self, consume: &mut dyn FnMut(Id<'_>) -> Result<()>) -> Result<()> {
        self.lookups.flush()?;
        let text = self.groups.text;
        self.each_group(
            |lookups, partitions| {
                let (mut ints, mut texts) = (Vec::new(), Vec::new());
                lookups.each(|id, hash| {
                    if partitions[partition_in_group(hash, lookups.first_partition)].row_of(id, hash) == UNKNOWN {
                        match id {
                            Id::Int(id) => ints.push(id),
                            Id::Text(id) => texts.push(id),
                        }
                    }
                })?;
                ints.sort_unstable();
                ints.dedup();
                texts.sort_unstable();
                texts.dedup();
                let mut unknown: Vec<u8> = bytemuck::cast_slice(&ints).to_vec();
                texts.into_iter().for_each(|id| {
                    unknown.extend_from_slice(&(id.len() as u32).to_le_bytes());
                    unknown.extend_from_slice(id);
                });
                Ok(unknown)
            },
            &mut |_, unknown| {
                let mut rest = &unknown[..];
                while !rest.is_empty() {
                    let length = match text {
                        true => {
                            let (length, after) = rest.split_first_chunk::<4>().ok_or_else(short)?;
                            rest = after;
                            u32::from_le_bytes(*length) as usize
                        }
                        false => 8,
                    };
                    let (id, after) = rest.split_at_checked(length).ok_or_else(short)?;
                    rest = after;
                    consume(if text { Id::Text(id) } else { Id::Int(bytemuck::pod_read_unaligned(id)) })?;
                }
                Ok(())
            },
        )
    }

    /// Loads one group after another. Calls `work` for all lookups in it, on several threads, and `consume` with the results, in order.
    fn each_group(
        &self,
        work: impl Fn(&Lookups<'_>, &[LoadedPartition]) -> Result<Vec<u8>> + Sync,
        consume: &mut dyn FnMut(usize, Vec<u8>) -> Result<()>,
    ) -> Result<()> {
        for (group, range) in self.groups.ranges.iter().enumerate() {
            let blocks = self.lookups.blocks(group);
            if blocks.is_empty() {
                continue;
            }
            let partitions = self.ids.load_all(range.clone())?;
            let read_block = |&block: &Block| -> Result<Vec<Vec<u8>>> {
                let bytes = self.lookups.read(block)?;
                let mut rest = &bytes[..];
                let mut all = Vec::new();
                while !rest.is_empty() {
                    all.push(work(&Lookups::take(&mut rest, self.groups.text, range.start)?, &partitions)?);
                }
                Ok(all)
            };
            for blocks in blocks.chunks(2 * rayon::current_num_threads()) {
                let all: Vec<Vec<Vec<u8>>> = blocks.par_iter().map(read_block).collect::<Result<_>>()?;
                all.into_iter().flatten().try_for_each(|one| consume(group, one))?;
            }
        }
        Ok(())
    }
}

/// Returns the number of a hash's partition within its group.
#[inline]
fn partition_in_group(hash: u64, first_partition: usize) -> usize {
    partition(hash) - first_partition
}

/// The lookups of one chunk in one group.
struct Lookups<'a> {
    first: u64,
    count: usize,
    offsets: &'a [u8],
    lengths: &'a [u8],
    ids: &'a [u8],
    text: bool,
    /// First partition of the group.
    first_partition: usize,
}

impl<'a> Lookups<'a> {
    fn take(rest: &mut &'a [u8], text: bool, first_partition: usize) -> Result<Self> {
        let (head, after) = rest.split_first_chunk::<HEAD>().ok_or_else(short)?;
        let [first, sizes] = bytemuck::pod_read_unaligned::<[u64; 2]>(head);
        let (count, bytes) = (sizes as u32 as usize, (sizes >> 32) as usize);
        let (offsets, after) = after.split_at_checked(2 * count).ok_or_else(short)?;
        let (lengths, after) = after.split_at_checked(if text { 4 * count } else { 0 }).ok_or_else(short)?;
        let (ids, after) = after.split_at_checked(bytes).ok_or_else(short)?;
        *rest = after;
        Ok(Self { first, count, offsets, lengths, ids, text, first_partition })
    }

    /// Writes the first position and the number of ids.
    fn head(&self, to: &mut Vec<u8>) {
        to.reserve_exact(HEAD + 6 * self.count);
        to.extend_from_slice(&self.first.to_le_bytes());
        to.extend_from_slice(&(self.count as u64).to_le_bytes());
    }

    /// Visits the ids and their hashes.
    fn each(&self, mut visit: impl FnMut(Id<'a>, u64)) -> Result<()> {
        if !self.text {
            for id in self.ids.chunks_exact(8) {
                let id = Id::Int(bytemuck::pod_read_unaligned(id));
                visit(id, id.hash());
            }
            return Ok(());
        }
        let mut rest = self.ids;
        for length in self.lengths.chunks_exact(4) {
            let length: u32 = bytemuck::pod_read_unaligned(length);
            let (id, after) = rest.split_at_checked(length as usize).ok_or_else(short)?;
            rest = after;
            let id = Id::Text(id);
            visit(id, id.hash());
        }
        Ok(())
    }
}

/// Reads the results of one group.
struct Reader<'a> {
    results: &'a Streams,
    blocks: std::slice::Iter<'a, Block>,
    block: Vec<u8>,
    at: usize,
}

impl<'a> Reader<'a> {
    fn new(results: &'a Streams, group: usize) -> Self {
        Self { results, blocks: results.blocks(group).iter(), block: Vec::new(), at: 0 }
    }

    /// Returns the first position of the next chunk with ids in this group.
    fn next(&mut self) -> Result<Option<u64>> {
        if self.at == self.block.len() {
            let Some(&block) = self.blocks.next() else { return Ok(None) };
            (self.block, self.at) = (Vec::new(), 0);
            self.block = self.results.read(block)?;
        }
        let head = self.block[self.at..].first_chunk::<8>().ok_or_else(short)?;
        Ok(Some(u64::from_le_bytes(*head)))
    }

    /// Copies the rows of the chunk with first position `first` into `rows`.
    fn take(&mut self, first: u64, rows: &mut Vec<u32>) -> Result<()> {
        if self.at == self.block.len() || self.next()? != Some(first) {
            return Ok(());
        }
        let (head, rest) = self.block[self.at..].split_first_chunk::<HEAD>().ok_or_else(short)?;
        let [_, count] = bytemuck::pod_read_unaligned::<[u64; 2]>(head);
        let (offsets, rest) = rest.split_at_checked(2 * count as usize).ok_or_else(short)?;
        let found = rest.get(..4 * count as usize).ok_or_else(short)?;
        for (offset, row) in offsets.chunks_exact(2).zip(found.chunks_exact(4)) {
            let offset = usize::from(bytemuck::pod_read_unaligned::<u16>(offset));
            if offset >= rows.len() {
                rows.resize(offset + 1, UNKNOWN);
            }
            rows[offset] = bytemuck::pod_read_unaligned(row);
        }
        self.at += HEAD + 6 * count as usize;
        Ok(())
    }
}

fn short() -> Error {
    Error::Bug("a record of a join is too short".into())
}
