//! The pass over the edges: every edge into the bucket of its destination, on disk when memory runs short.
//!
//! A bucket holds the edges of a range of destinations within one partition, in the order of the dump. Reading threads sort
//! each chunk by bucket, so that the thread in the middle only appends slices. Buckets lie in memory until they fill
//! their share of the budget; then all of them are appended to their files, some megabytes at a time.

use std::fs::File;
use std::io::{Read, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::crew::{Crew, Parcel, To, put, take};
use super::ends::FindEnds;
use super::pairs::{Pairs, SLICE};
use super::record::{Codes, Record};
use super::relabel::Relabel;
use super::types::{codes, label_codes};
use crate::dataset::{LabelInfo, TypeInfo};
use crate::dump::EdgeChunk;
use crate::error::{Error, Result};
use crate::ids::UNKNOWN;
use crate::partition_book::PartitionBook;
use crate::source::{GraphSource, SelfLoops};

/// Most buckets, beyond one per partition.
const MAX_BUCKETS: u64 = 4096;

/// Which destinations share a bucket.
#[derive(Debug)]
pub(super) struct Cuts {
    /// Bucket `b` holds the destinations `starts[b]..starts[b + 1]`.
    starts: Vec<u32>,
    /// `cells[dst >> shift]` is the first bucket of the cell: the search begins there.
    cells: Vec<u32>,
    shift: u32,
}

impl Cuts {
    /// About `wanted` buckets, none across partitions, of about as many nodes each.
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

    /// Number of buckets.
    pub(super) fn len(&self) -> usize {
        self.starts.len() - 1
    }

    fn range(&self, bucket: usize) -> Range<u32> {
        self.starts[bucket]..self.starts[bucket + 1]
    }

    /// The bucket of a destination.
    #[inline]
    pub(super) fn bucket(&self, dst: u32) -> usize {
        let mut bucket = self.cells[((dst - self.starts[0]) >> self.shift) as usize] as usize;
        while dst >= self.starts[bucket + 1] {
            bucket += 1;
        }
        bucket
    }
}

/// Edges of a range of destinations, in the order of the dump: first those in the file, then the rest.
pub(super) struct Bucket {
    pub(super) range: Range<u32>,
    file: Option<PathBuf>,
    spilled: u64,
    rest: Vec<u8>,
}

impl Bucket {
    pub(super) fn bytes(&self) -> u64 {
        self.spilled + self.rest.len() as u64
    }

    /// A bucket that an earlier preparation left in `dir`.
    pub(super) fn left((start, end, bytes): (u32, u32, u64), dir: &Path) -> Self {
        let file = (bytes > 0).then(|| dir.join(name(&(start..end))));
        Self { range: start..end, file, spilled: bytes, rest: Vec::new() }
    }

    /// What [`Bucket::left`] needs to know; `None` while some of it is in memory only.
    pub(super) fn on_disk(&self) -> Option<(u32, u32, u64)> {
        self.rest.is_empty().then_some((self.range.start, self.range.end, self.spilled))
    }

    /// Its file, to be removed when nobody needs it any more.
    pub(super) fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// All records.
    pub(super) fn load(self) -> Result<Vec<u8>> {
        let Some(path) = &self.file else { return Ok(self.rest) };
        let mut records = Vec::with_capacity(self.bytes() as usize);
        let mut file = File::open(path).map_err(Error::io(path, "open"))?;
        file.read_to_end(&mut records).map_err(Error::io(path, "read"))?;
        records.extend_from_slice(&self.rest);
        if records.len() as u64 != self.bytes() {
            let reason = format!("has {} bytes of edges instead of {}", records.len(), self.bytes());
            return Err(Error::Damaged { path: path.clone(), reason });
        }
        Ok(records)
    }

    /// The same edges in buckets of at most about `target` bytes, as far as single destinations allow.
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
            let mut left = self.spilled;
            while left > 0 {
                let length = left.min(block.len() as u64) as usize;
                file.read_exact(&mut block[..length]).map_err(Error::io(path, "read"))?;
                append(&block[..length])?;
                left -= length as u64;
            }
        }
        append(&self.rest)?;
        spool.finish()
    }
}

/// The name of a bucket's file: its destinations, which no two buckets share at a time.
fn name(Range { start, end }: &Range<u32>) -> String {
    format!("edges-{start}-{end}")
}

/// Takes records into buckets.
pub(super) struct Spool {
    cuts: Cuts,
    dir: PathBuf,
    buffers: Vec<Vec<u8>>,
    spilled: Vec<u64>,
    /// Bytes in the buffers, and how many there may be.
    held: u64,
    limit: u64,
}

impl Spool {
    pub(super) fn new(cuts: Cuts, limit: u64, dir: &Path) -> Self {
        let buckets = cuts.len();
        let (buffers, spilled) = (vec![Vec::new(); buckets], vec![0; buckets]);
        Self { cuts, dir: dir.to_path_buf(), buffers, spilled, held: 0, limit }
    }

    fn append(&mut self, bucket: usize, records: &[u8]) -> Result<()> {
        self.buffers[bucket].extend_from_slice(records);
        self.held += records.len() as u64;
        if self.held > self.limit {
            self.spill()?;
        }
        Ok(())
    }

    /// The file of a bucket.
    fn path(&self, bucket: usize) -> PathBuf {
        self.dir.join(name(&self.cuts.range(bucket)))
    }

    fn spill(&mut self) -> Result<()> {
        for bucket in 0..self.buffers.len() {
            if self.buffers[bucket].is_empty() {
                continue;
            }
            let path = self.path(bucket);
            // A buffer that is given back: every bucket's would otherwise keep its largest size.
            let records = std::mem::take(&mut self.buffers[bucket]);
            // The first stretch replaces what a killed preparation may have left.
            let fresh = self.spilled[bucket] == 0;
            let file = File::options().create(true).write(true).truncate(fresh).append(!fresh).open(&path);
            file.and_then(|mut file| file.write_all(&records)).map_err(Error::io(&path, "write"))?;
            self.spilled[bucket] += records.len() as u64;
        }
        self.held = 0;
        Ok(())
    }

    /// The buckets: all of them in memory, or none.
    fn finish(mut self) -> Result<Vec<Bucket>> {
        if self.spilled.iter().any(|&bytes| bytes > 0) {
            self.spill()?;
        }
        let buffers = std::mem::take(&mut self.buffers);
        let bucket = |(bucket, rest): (usize, Vec<u8>)| Bucket {
            range: self.cuts.range(bucket),
            file: (self.spilled[bucket] > 0).then(|| self.path(bucket)),
            spilled: self.spilled[bucket],
            rest,
        };
        Ok(buffers.into_iter().enumerate().map(bucket).collect())
    }
}

/// What the pass needs to know.
pub(super) struct EdgePass<'a> {
    pub(super) source: &'a GraphSource,
    pub(super) find: FindEnds<'a>,
    pub(super) relabel: &'a Relabel,
    pub(super) record: Record,
    /// Edge types, if there are any.
    pub(super) types: Option<&'a TypeInfo>,
    /// Edge labels, if there are any.
    pub(super) labels: Option<&'a LabelInfo>,
    /// What the type of an edge's reverse has more than the edge's, when reverses have types of their own.
    pub(super) reverse: Option<u16>,
    /// The ends of all edges, where they have been written: edges that are nothing else need not be read from the dump again.
    pub(super) pairs: Option<&'a Pairs>,
}

/// Slices of pairs that one process reads at a time.
const SLICES: usize = 4;
/// Pairs that several processes send each other at a time: 128 KB when they count both ways.
const PARCEL: usize = 8 << 10;

/// Marks the reverse of an edge of a chunk, of which there are fewer.
const REVERSE: u32 = 1 << 31;

/// Some edges of a chunk, sorted by bucket.
struct Sorted {
    rows: u64,
    dropped: u64,
    /// Bucket and end of its records in `records`.
    ends: Vec<(u32, u32)>,
    records: Vec<u8>,
}

impl Parcel for Sorted {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.records.len() + 8 * self.ends.len() + 64);
        put(&mut bytes, &[self.rows, self.dropped]);
        put(&mut bytes, &self.ends.iter().flat_map(|&(bucket, end)| [bucket, end]).collect::<Vec<u32>>());
        put(&mut bytes, &self.records);
        bytes
    }

    fn decode(mut bytes: &[u8]) -> Result<Self> {
        let counts: Vec<u64> = take(&mut bytes)?;
        let ends: Vec<u32> = take(&mut bytes)?;
        let ends = ends.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
        let [rows, dropped] = counts[..] else { return Err(Error::Bug("a parcel of edges is broken".into())) };
        Ok(Self { rows, dropped, ends, records: take(&mut bytes)? })
    }
}

/// What the pass over the edges came to in this process.
pub(super) struct Bucketed {
    pub(super) buckets: Vec<Bucket>,
    /// Rows that name an unknown node, or one that was dropped, among those that this process has heard of.
    pub(super) unknown: u64,
}

impl EdgePass<'_> {
    /// Reads all edges into the buckets of their owners: process `part % size` has the buckets of partition `part`.
    pub(super) fn run<C: Crew>(&self, crew: &C, mut spool: Spool, mut advance: impl FnMut(u64)) -> Result<Bucketed> {
        let size = crew.size() as u32;
        // The reading threads need the cuts while the spool is written to.
        let cuts = Cuts::from_starts(spool.cuts.starts.clone());
        let owner = |bucket: usize| {
            let start = u64::from(cuts.starts[bucket]);
            self.relabel.book.owner(start).map_or(0, |part| part as u32 % size)
        };
        let owners: Vec<u32> = (0..cuts.len()).map(owner).collect();
        // An error for a self-loop names its place in the dump.
        let bare = self.record.is_plain() && self.source.self_loops != SelfLoops::Fail;
        let pairs = self.pairs.filter(|_| bare);
        let slices = |unit: usize| pairs.map_or_else(Vec::new, |pairs| pairs.slices(unit).collect());
        // One process deals its threads small units; several deal each other row groups.
        let work: Vec<Vec<(u64, usize)>> = match pairs {
            Some(pairs) if size == 1 => {
                let all: Vec<_> = (0..pairs.units()).flat_map(slices).collect();
                all.chunks(SLICES).map(<[_]>::to_vec).collect()
            }
            Some(pairs) => (0..pairs.units()).map(slices).collect(),
            None => vec![Vec::new(); self.find.edges.units()],
        };
        let parcel = if size == 1 { SLICE } else { PARCEL };
        let produce = |unit: usize, send: &mut dyn FnMut(To, Sorted) -> bool| {
            let mut deal = |sorted: Sorted| match size {
                1 => send(To::One(0), sorted),
                _ => (0..).zip(self.deal(&sorted, &owners, size)).all(|(to, part)| send(To::One(to), part)),
            };
            let Some(pairs) = pairs else {
                return self.find.edges.read_all(unit, |chunk| self.sort(&chunk, &cuts), &mut deal);
            };
            let mut some = Vec::new();
            for &slice in &work[unit] {
                pairs.read(slice, &mut some)?;
                if !some.chunks(parcel).all(|some| deal(self.sort_pairs(some, &cuts))) {
                    break;
                }
            }
            Ok(())
        };
        // Rows without a pair name an unknown node: the first process has heard of them all.
        let mut unknown = match pairs {
            Some(pairs) if crew.rank() == 0 => self.find.edges.rows() - pairs.len(),
            _ => 0,
        };
        crew.pass(work.len(), &produce, &mut |_, sorted: Sorted| {
            let mut start = 0;
            for (bucket, end) in sorted.ends {
                spool.append(bucket as usize, &sorted.records[start..end as usize])?;
                start = end as usize;
            }
            unknown += sorted.dropped;
            advance(sorted.rows);
            Ok(())
        })?;
        Ok(Bucketed { buckets: spool.finish()?, unknown })
    }

    /// Splits a chunk by the processes that own its buckets. The first hears how many rows there were.
    fn deal(&self, sorted: &Sorted, owners: &[u32], size: u32) -> Vec<Sorted> {
        let mut dealt: Vec<Sorted> = (0..size)
            .map(|to| Sorted {
                rows: if to == 0 { sorted.rows } else { 0 },
                dropped: if to == 0 { sorted.dropped } else { 0 },
                ends: Vec::new(),
                records: Vec::new(),
            })
            .collect();
        let mut start = 0;
        for &(bucket, end) in &sorted.ends {
            let part = &mut dealt[owners[bucket as usize] as usize];
            part.records.extend_from_slice(&sorted.records[start..end as usize]);
            part.ends.push((bucket, part.records.len() as u32));
            start = end as usize;
        }
        dealt
    }

    fn sort(&self, chunk: &EdgeChunk, cuts: &Cuts) -> Result<Sorted> {
        let [src, dst] = self.find.indexes(chunk)?;
        let types = codes(chunk.types.as_ref(), self.types)?;
        let labels = label_codes(chunk.labels.as_ref(), self.labels)?;
        // (destination, source, edge of the chunk), in the order of the dump.
        let mut all: Vec<(u32, u32, u32)> = Vec::with_capacity(src.len() << u8::from(self.source.both_ways()));
        let mut dropped = 0;
        for (i, (&src, &dst)) in src.iter().zip(&dst).enumerate() {
            if src == UNKNOWN || dst == UNKNOWN {
                dropped += 1;
                continue;
            }
            if src == dst {
                match self.source.self_loops {
                    SelfLoops::Keep | SelfLoops::Add => {}
                    SelfLoops::Drop => continue,
                    SelfLoops::Fail => {
                        let place = chunk.origin.place(i, self.find.edges.end_names()[0]);
                        return Err(Error::SelfLoop { place, id: chunk.src.show(i) });
                    }
                }
            }
            let (from, to) = (self.relabel.global(src), self.relabel.global(dst));
            all.push((to, from, i as u32));
            if self.source.undirected && src != dst {
                all.push((from, to, i as u32));
            }
            if self.reverse.is_some() {
                all.push((from, to, i as u32 | REVERSE));
            }
        }
        let (ends, records) = self.place(&all, cuts, |record, i| {
            let (edge, reversed) = ((i & !REVERSE) as usize, i & REVERSE != 0);
            let more = self.reverse.filter(|_| reversed).unwrap_or(0);
            let kind = types.get(edge).copied().unwrap_or(0) + more;
            let label = labels.get(edge).copied().unwrap_or(-1);
            self.record.fill(record, chunk, Codes { kind, label }, edge);
        });
        Ok(Sorted { rows: src.len() as u64, dropped, ends, records })
    }

    /// As [`EdgePass::sort`], of edges that are nothing but their ends.
    fn sort_pairs(&self, pairs: &[(u32, u32)], cuts: &Cuts) -> Sorted {
        let mut all: Vec<(u32, u32, u32)> = Vec::with_capacity(pairs.len() << u8::from(self.source.undirected));
        for &(src, dst) in pairs {
            if src == dst && self.source.self_loops == SelfLoops::Drop {
                continue;
            }
            let (from, to) = (self.relabel.global(src), self.relabel.global(dst));
            all.push((to, from, 0));
            if self.source.undirected && src != dst {
                all.push((from, to, 0));
            }
        }
        let (ends, records) = self.place(&all, cuts, |_, _| {});
        Sorted { rows: pairs.len() as u64, dropped: 0, ends, records }
    }

    /// Records of edges `(destination, source, edge of the chunk)` by bucket, in order; `fill` writes what else they carry.
    fn place(&self, all: &[(u32, u32, u32)], cuts: &Cuts, fill: impl Fn(&mut [u8], u32)) -> (Vec<(u32, u32)>, Vec<u8>) {
        let mut counts = vec![0usize; cuts.len()];
        let buckets: Vec<u32> = all.iter().map(|&(dst, ..)| cuts.bucket(dst) as u32).collect();
        buckets.iter().for_each(|&bucket| counts[bucket as usize] += 1);
        let stride = self.record.stride;
        let mut ends = Vec::new();
        let mut end = 0;
        for (bucket, count) in counts.iter_mut().enumerate().filter(|(_, count)| **count > 0) {
            let start = end;
            end += *count * stride;
            ends.push((bucket as u32, end as u32));
            *count = start;
        }
        let mut records = vec![0; end];
        for (&(dst, src, i), &bucket) in all.iter().zip(&buckets) {
            let at = &mut counts[bucket as usize];
            let record = &mut records[*at..*at + stride];
            record[..8].copy_from_slice(&(u64::from(dst) << 32 | u64::from(src)).to_le_bytes());
            if !self.record.is_plain() {
                fill(record, i);
            }
            *at += stride;
        }
        (ends, records)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::{Key, Purpose};

    #[test]
    fn cuts_never_cross_partitions_and_every_node_finds_its_bucket() {
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
    fn buckets_keep_the_order_of_the_dump_in_memory_on_disk_and_when_split() {
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
            let mut seen = 0;
            for bucket in spool.finish().unwrap() {
                for bucket in bucket.split(&record, 2000, dir.path()).unwrap() {
                    let range = bucket.range.clone();
                    let found: Vec<u8> = bucket.load().unwrap();
                    let inside = |edge: &&u64| range.contains(&((**edge >> 32) as u32));
                    let expected: Vec<u8> = edges.iter().filter(inside).flat_map(|edge| edge.to_le_bytes()).collect();
                    assert_eq!(found, expected, "limit {limit}, range {range:?}");
                    seen += found.len() / 8;
                }
            }
            assert_eq!(seen, edges.len());
        }
    }
}
