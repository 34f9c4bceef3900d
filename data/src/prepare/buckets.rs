//! Edges by destination, on disk if memory is short.
//!
//! A bucket holds the edges to a range of destinations within one partition, in the order of the dump. Buckets are in memory until they
//! fill their share of the budget. Then all of them are appended to their files, several megabytes at a time.

use std::fs::File;
use std::io::{Read, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::record::Record;
use crate::error::{Error, Result};
use crate::partition_book::PartitionBook;

/// Maximum number of buckets, in addition to one per partition.
const MAX_BUCKETS: u64 = 4096;

/// Maps destinations to buckets.
#[derive(Clone, Debug)]
pub(super) struct Cuts {
    /// Bucket `b` holds the destinations `starts[b]..starts[b + 1]`.
    starts: Vec<u32>,
    /// `cells[dst >> shift]` is the first bucket of the cell, where the search starts.
    cells: Vec<u32>,
    shift: u32,
}

impl Cuts {
    /// Creates about `wanted` buckets with similar numbers of nodes. No bucket spans two partitions.
    pub(super) fn new(book: &PartitionBook, wanted: u64) -> Self {
        let nodes = book.nodes();
        let mut starts = Vec::new();
        for part in 0..book.parts() {
            let range = book.range(part);
            let length = range.end - range.start;
            let pieces = (wanted.min(MAX_BUCKETS) * length).div_ceil(nodes.max(1)).min(length);
            starts.extend((0..pieces).map(|piece| (range.start + piece * length / pieces) as u32));
        }
        starts.push(nodes as u32);
        Self::from_starts(starts)
    }

    fn from_starts(starts: Vec<u32>) -> Self {
        let (first, last) = (starts[0], starts[starts.len() - 1]);
        let span = u64::from(last - first);
        let cells = (4 * starts.len() as u64).next_power_of_two();
        let shift = (u64::BITS - span.leading_zeros()).saturating_sub(cells.trailing_zeros());
        let bucket = |cell: u64| {
            let dst = u64::from(first) + (cell << shift);
            (starts.partition_point(|&start| u64::from(start) <= dst) as u32).saturating_sub(1)
        };
        let cells = (0..=span >> shift).map(bucket).collect();
        Self { starts, cells, shift }
    }

    pub(super) fn len(&self) -> usize {
        self.starts.len() - 1
    }

    /// Returns the destinations of a bucket.
    pub(super) fn range(&self, bucket: usize) -> Range<u32> {
        self.starts[bucket]..self.starts[bucket + 1]
    }

    /// Returns the bucket of a destination.
    #[inline]
    pub(super) fn bucket(&self, dst: u32) -> usize {
        let mut bucket = self.cells[((dst - self.starts[0]) >> self.shift) as usize] as usize;
        while dst >= self.starts[bucket + 1] {
            bucket += 1;
        }
        bucket
    }
}

/// Edges to a range of destinations, in the order of the dump: first those in the file, then those in memory.
pub(super) struct Bucket {
    pub(super) range: Range<u32>,
    file: Option<PathBuf>,
    spilled: u64,
    in_memory: Vec<u8>,
}

impl Bucket {
    pub(super) fn bytes(&self) -> u64 {
        self.spilled + self.in_memory.len() as u64
    }

    /// Opens a bucket that an earlier preparation wrote to `dir`.
    pub(super) fn from_disk((start, end, bytes): (u32, u32, u64), dir: &Path) -> Self {
        let file = (bytes > 0).then(|| dir.join(name(&(start..end))));
        Self { range: start..end, file, spilled: bytes, in_memory: Vec::new() }
    }

    /// Returns the argument for [`Bucket::from_disk`]; `None` while some records are only in memory.
    pub(super) fn on_disk(&self) -> Option<(u32, u32, u64)> {
        self.in_memory.is_empty().then_some((self.range.start, self.range.end, self.spilled))
    }

    /// Returns its file, which must be removed after use.
    pub(super) fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Reads all records.
    pub(super) fn load(self) -> Result<Vec<u8>> {
        let Some(path) = &self.file else { return Ok(self.in_memory) };
        let mut records = Vec::with_capacity(self.bytes() as usize);
        let mut file = File::open(path).map_err(Error::io(path, "open"))?;
        file.read_to_end(&mut records).map_err(Error::io(path, "read"))?;
        records.extend_from_slice(&self.in_memory);
        if records.len() as u64 != self.bytes() {
            let reason = format!("has {} bytes of edges instead of {}", records.len(), self.bytes());
            return Err(Error::Damaged { path: path.clone(), reason });
        }
        Ok(records)
    }

    /// Splits the bucket into buckets of at most about `target` bytes. The edges to one destination are never split.
    pub(super) fn split(self, record: &Record, target: u64, dir: &Path) -> Result<Vec<Self>> {
        let nodes = u64::from(self.range.end - self.range.start);
        let pieces = (2 * self.bytes()).div_ceil(target.max(1)).clamp(2, 256).min(nodes);
        let start = u64::from(self.range.start);
        let starts = (0..=pieces).map(|piece| (start + piece * nodes / pieces) as u32).collect();
        let mut spool = Spool::new(Cuts::from_starts(starts), target, dir);
        let mut append = |records: &[u8]| -> Result<()> {
            for one in records.chunks_exact(record.stride) {
                let bucket = spool.cuts.bucket(Record::ends(one).0);
                spool.append(bucket, one)?;
            }
            Ok(())
        };
        if let Some(path) = &self.file {
            let mut file = File::open(path).map_err(Error::io(path, "open"))?;
            let mut block = vec![0; record.stride * 8192];
            let mut unread = self.spilled;
            while unread > 0 {
                let length = unread.min(block.len() as u64) as usize;
                file.read_exact(&mut block[..length]).map_err(Error::io(path, "read"))?;
                append(&block[..length])?;
                unread -= length as u64;
            }
        }
        append(&self.in_memory)?;
        spool.finish()
    }
}

/// Returns the name of a bucket's file. It contains the range of destinations, which is unique.
fn name(Range { start, end }: &Range<u32>) -> String {
    format!("edges-{start}-{end}")
}

/// Distributes records to buckets.
pub(super) struct Spool {
    cuts: Cuts,
    dir: PathBuf,
    buffers: Vec<Vec<u8>>,
    spilled: Vec<u64>,
    /// Bytes in the buffers, and their maximum.
    held: u64,
    limit: u64,
}

impl Spool {
    pub(super) fn new(cuts: Cuts, limit: u64, dir: &Path) -> Self {
        let buckets = cuts.len();
        let (buffers, spilled) = (vec![Vec::new(); buckets], vec![0; buckets]);
        Self { cuts, dir: dir.to_path_buf(), buffers, spilled, held: 0, limit }
    }

    /// Returns the map from destinations to buckets.
    pub(super) fn cuts(&self) -> &Cuts {
        &self.cuts
    }

    /// Appends records to one bucket.
    pub(super) fn append(&mut self, bucket: usize, records: &[u8]) -> Result<()> {
        self.buffers[bucket].extend_from_slice(records);
        self.held += records.len() as u64;
        if self.held > self.limit {
            self.spill()?;
        }
        Ok(())
    }

    /// Returns the path of a bucket's file.
    fn path(&self, bucket: usize) -> PathBuf {
        self.dir.join(name(&self.cuts.range(bucket)))
    }

    fn spill(&mut self) -> Result<()> {
        for bucket in 0..self.buffers.len() {
            if self.buffers[bucket].is_empty() {
                continue;
            }
            let path = self.path(bucket);
            // Frees the buffer. Otherwise, every buffer would keep its largest capacity.
            let records = std::mem::take(&mut self.buffers[bucket]);
            // The first write replaces a file that a killed preparation may have left.
            let fresh = self.spilled[bucket] == 0;
            let file = File::options().create(true).write(true).truncate(fresh).append(!fresh).open(&path);
            file.and_then(|mut file| file.write_all(&records)).map_err(Error::io(&path, "write"))?;
            self.spilled[bucket] += records.len() as u64;
        }
        self.held = 0;
        Ok(())
    }

    /// Returns the buckets: all of them are in memory, or none.
    pub(super) fn finish(mut self) -> Result<Vec<Bucket>> {
        if self.spilled.iter().any(|&bytes| bytes > 0) {
            self.spill()?;
        }
        let buffers = std::mem::take(&mut self.buffers);
        let bucket = |(bucket, in_memory): (usize, Vec<u8>)| Bucket {
            range: self.cuts.range(bucket),
            file: (self.spilled[bucket] > 0).then(|| self.path(bucket)),
            spilled: self.spilled[bucket],
            in_memory,
        };
        Ok(buffers.into_iter().enumerate().map(bucket).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::{Key, Purpose};
    use crate::source::GraphSource;

    #[test]
    fn buckets_contain_their_nodes_and_never_span_partitions() {
        for offsets in [vec![0, 1], vec![0, 0, 5], vec![0, 7, 7, 100], vec![0, 1000, 1001, 5000], vec![0, 0]] {
            let book = PartitionBook::new(offsets.clone()).unwrap();
            for wanted in [1, 2, 3, 10, 1000] {
                let cuts = Cuts::new(&book, wanted);
                for node in 0..book.nodes() as u32 {
                    let bucket = cuts.bucket(node);
                    assert!(cuts.range(bucket).contains(&node), "{offsets:?} {wanted} {node}");
                    let range = book.range(book.owner(u64::from(node)).unwrap());
                    let Range { start, end } = cuts.range(bucket);
                    assert!(range.start <= u64::from(start) && u64::from(end) <= range.end);
                }
            }
        }
    }

    #[test]
    fn buckets_keep_the_order_of_the_dump_for_any_memory_limit() {
        let record = Record::new(&GraphSource::new("n", "e"), 0);
        let key = Key::new(1, Purpose::GenerateEdges);
        let edges: Vec<u64> = (0..5000).map(|i| key.below(i, 100) << 32 | i).collect();
        for limit in [0, 100, 10_000, 1 << 20] {
            let dir = tempfile::tempdir().unwrap();
            let cuts = Cuts::new(&PartitionBook::new(vec![0, 30, 100]).unwrap(), 7);
            let mut spool = Spool::new(cuts, limit, dir.path());
            for edge in &edges {
                spool.append(spool.cuts.bucket((edge >> 32) as u32), &edge.to_le_bytes()).unwrap();
            }
            let mut total = 0;
            for bucket in spool.finish().unwrap() {
                for bucket in bucket.split(&record, 2000, dir.path()).unwrap() {
                    let range = bucket.range.clone();
                    let found: Vec<u8> = bucket.load().unwrap();
                    let inside = |edge: &&u64| range.contains(&((**edge >> 32) as u32));
                    let expected: Vec<u8> = edges.iter().filter(inside).flat_map(|edge| edge.to_le_bytes()).collect();
                    assert_eq!(found, expected, "limit {limit}, range {range:?}");
                    total += found.len() / 8;
                }
            }
            assert_eq!(total, edges.len());
        }
    }
}
