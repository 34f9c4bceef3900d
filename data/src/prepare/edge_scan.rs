//! The pass over the edges: puts every edge into the bucket of its destination.
//!
//! Reading threads sort each chunk by bucket, so that the consuming thread only appends slices.

use super::buckets::{Bucket, Cuts, Spool};
use super::ends::FindEnds;
use super::pairs::{Pairs, SLICE};
use super::record::{Codes, Record};
use super::relabel::Relabel;
use super::types::{codes, label_codes};
use crate::dataset::{LabelInfo, TypeInfo};
use crate::dump::EdgeChunk;
use crate::error::{Error, Result};
use crate::group::{Destination, Message, ProcessGroup, put, take};
use crate::ids::UNKNOWN;
use crate::source::{GraphSource, SelfLoops};

/// The inputs of the pass.
pub(super) struct EdgeScan<'a> {
    pub(super) source: &'a GraphSource,
    pub(super) find: FindEnds<'a>,
    pub(super) relabel: &'a Relabel,
    pub(super) record: Record,
    /// Edge types, if there are any.
    pub(super) types: Option<&'a TypeInfo>,
    /// Edge labels, if there are any.
    pub(super) labels: Option<&'a LabelInfo>,
    /// The offset of the types of reverse edges, if reverse edges have their own types.
    pub(super) reverse: Option<u16>,
    /// The pairs of all edges, if they are on disk. Edges without other columns need not be read from the dump again.
    pub(super) pairs: Option<&'a Pairs>,
}

/// Number of slices of pairs per unit with one process.
const SLICES: usize = 4;
/// Number of pairs per message between processes: 128 KB if both directions count.
const MESSAGE: usize = 8 << 10;

/// Marks the reverse of an edge of a chunk. Chunks have fewer edges than this.
const REVERSE: u32 = 1 << 31;

/// Edges of a chunk, sorted by bucket.
struct Sorted {
    rows: u64,
    dropped: u64,
    /// Bucket, and end of its records in `records`.
    ends: Vec<(u32, u32)>,
    records: Vec<u8>,
}

impl Message for Sorted {
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
        let [rows, dropped] = counts[..] else { return Err(Error::Bug("a message of edges is broken".into())) };
        Ok(Self { rows, dropped, ends, records: take(&mut bytes)? })
    }
}

/// The result of the pass in this process.
pub(super) struct Bucketed {
    pub(super) buckets: Vec<Bucket>,
    /// Rows that name an unknown or dropped node, among those that were reported to this process.
    pub(super) unknown: u64,
}

impl EdgeScan<'_> {
    /// Reads all edges into the buckets of their owners. Process `part % size` owns the buckets of partition `part`.
    pub(super) fn run<C: ProcessGroup>(
        &self,
        processes: &C,
        mut spool: Spool,
        mut advance: impl FnMut(u64),
    ) -> Result<Bucketed> {
        let size = processes.size() as u32;
        // The reading threads need the cuts while this thread writes to the spool.
        let cuts = spool.cuts().clone();
        let owner = |bucket: usize| {
            let start = u64::from(cuts.range(bucket).start);
            self.relabel.book.owner(start).map_or(0, |part| part as u32 % size)
        };
        let owners: Vec<u32> = (0..cuts.len()).map(owner).collect();
        // The error for a self-loop contains its place in the dump.
        let bare = self.record.is_plain() && self.source.self_loops != SelfLoops::Fail;
        let pairs = self.pairs.filter(|_| bare);
        let slices = |unit: usize| pairs.map_or_else(Vec::new, |pairs| pairs.slices(unit).collect());
        // With one process, threads get small units; with several, units are row groups.
        let work: Vec<Vec<(u64, usize)>> = match pairs {
            Some(pairs) if size == 1 => {
                let all: Vec<_> = (0..pairs.units()).flat_map(slices).collect();
                all.chunks(SLICES).map(<[_]>::to_vec).collect()
            }
            Some(pairs) => (0..pairs.units()).map(slices).collect(),
            None => vec![Vec::new(); self.find.edges.units()],
        };
        let message = if size == 1 { SLICE } else { MESSAGE };
        let produce = |unit: usize, send: &mut dyn FnMut(Destination, Sorted) -> bool| {
            let mut send_each = |sorted: Sorted| match size {
                1 => send(Destination::Rank(0), sorted),
                _ => (0..).zip(self.split(&sorted, &owners, size)).all(|(to, part)| send(Destination::Rank(to), part)),
            };
            let Some(pairs) = pairs else {
                return self.find.edges.read_all(unit, |chunk| self.sort(&chunk, &cuts), &mut send_each);
            };
            let mut some = Vec::new();
            for &slice in &work[unit] {
                pairs.read(slice, &mut some)?;
                if !some.chunks(message).all(|some| send_each(self.sort_pairs(some, &cuts))) {
                    break;
                }
            }
            Ok(())
        };
        // Rows without a pair name an unknown node. The first process reports them.
        let mut unknown = match pairs {
            Some(pairs) if processes.rank() == 0 => self.find.edges.rows() - pairs.len(),
            _ => 0,
        };
        processes.exchange(work.len(), &produce, &mut |_, sorted: Sorted| {
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

    /// Splits a chunk by the processes that own its buckets. The first gets the counts of rows.
    fn split(&self, sorted: &Sorted, owners: &[u32], size: u32) -> Vec<Sorted> {
        let mut by_process: Vec<Sorted> = (0..size)
            .map(|to| Sorted {
                rows: if to == 0 { sorted.rows } else { 0 },
                dropped: if to == 0 { sorted.dropped } else { 0 },
                ends: Vec::new(),
                records: Vec::new(),
            })
            .collect();
        let mut start = 0;
        for &(bucket, end) in &sorted.ends {
            let part = &mut by_process[owners[bucket as usize] as usize];
            part.records.extend_from_slice(&sorted.records[start..end as usize]);
            part.ends.push((bucket, part.records.len() as u32));
            start = end as usize;
        }
        by_process
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
        let (ends, records) = self.group(&all, cuts, |record, i| {
            let (edge, reversed) = ((i & !REVERSE) as usize, i & REVERSE != 0);
            let more = self.reverse.filter(|_| reversed).unwrap_or(0);
            let kind = types.get(edge).copied().unwrap_or(0) + more;
            let label = labels.get(edge).copied().unwrap_or(-1);
            self.record.fill(record, chunk, Codes { kind, label }, edge);
        });
        Ok(Sorted { rows: src.len() as u64, dropped, ends, records })
    }

    /// Like [`EdgeScan::sort`], for edges without other columns.
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
        let (ends, records) = self.group(&all, cuts, |_, _| {});
        Sorted { rows: pairs.len() as u64, dropped: 0, ends, records }
    }

    /// Returns the records of edges `(destination, source, edge of the chunk)`, stably sorted by bucket. `fill` writes the other columns.
    fn group(&self, all: &[(u32, u32, u32)], cuts: &Cuts, fill: impl Fn(&mut [u8], u32)) -> (Vec<(u32, u32)>, Vec<u8>) {
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
