//! Arranges the edges of one bucket as in the topology: by destination, with ascending neighbors, after applying policies.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use super::record::Record;
use crate::source::Duplicates;

/// The policies for the edges of a bucket, and the layout of their records.
pub(super) struct Rules<'a> {
    pub(super) record: Record,
    pub(super) duplicates: Duplicates,
    /// Whether to add a self-loop to every node without one.
    pub(super) add_loops: bool,
    /// Edge type of added self-loops.
    pub(super) loop_type: u16,
    /// Core nodes of the partition.
    pub(super) core: Range<u64>,
    /// One bit per node: sources outside the core.
    pub(super) halo: &'a [AtomicU64],
}

impl Rules<'_> {
    /// Returns the type of the edge at `position`; 0 if edges have no types.
    #[inline]
    fn kind(&self, records: &[u8], position: usize) -> u16 {
        if self.record.is_plain() {
            return 0;
        }
        let stride = self.record.stride;
        self.record.edge_type(&records[position * stride..(position + 1) * stride]).unwrap_or(0)
    }
}

/// In-edges of a range of destinations.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Arranged {
    /// One per destination.
    pub(super) degrees: Vec<u32>,
    pub(super) indices: Vec<u32>,
    pub(super) weights: Vec<f32>,
    pub(super) types: Vec<u16>,
    pub(super) times: Vec<i64>,
    pub(super) splits: Vec<u8>,
    pub(super) labels: Vec<i32>,
    /// Bytes of the edge features.
    pub(super) features: Vec<u8>,
    /// Number of dropped duplicates.
    pub(super) dropped: u64,
    /// Number of edges from a node to itself.
    pub(super) loops: u64,
    /// Number of edges from outside the core.
    pub(super) cross: u64,
    /// The first duplicate in the order of the dump.
    pub(super) first_duplicate: Option<Duplicate>,
}

/// A duplicate edge: `(second row, first row, destination, source)`.
pub(super) type Duplicate = (u64, u64, u32, u32);

/// A sort key: the source and, if it matters, the position of the record.
trait Entry: Copy + Ord {
    fn new(src: u32, position: usize) -> Self;
    fn src(self) -> u32;
    fn position(self) -> usize;
}

impl Entry for u32 {
    fn new(src: u32, _: usize) -> Self {
        src
    }
    fn src(self) -> u32 {
        self
    }
    fn position(self) -> usize {
        0
    }
}

impl Entry for u64 {
    fn new(src: u32, position: usize) -> Self {
        (src as Self) << 32 | position as Self
    }
    fn src(self) -> u32 {
        (self >> 32) as u32
    }
    fn position(self) -> usize {
        self as u32 as usize
    }
}

/// Arranges `records`, which are in the order of the dump. Their destinations are in `range`.
pub(super) fn arrange(records: &[u8], range: Range<u32>, rules: &Rules<'_>) -> Arranged {
    if rules.record.is_plain() {
        arrange_as::<u32>(records, range, rules)
    } else {
        arrange_as::<u64>(records, range, rules)
    }
}

fn arrange_as<E: Entry>(records: &[u8], range: Range<u32>, rules: &Rules<'_>) -> Arranged {
    let stride = rules.record.stride;
    let (count, nodes) = (records.len() / stride, (range.end - range.start) as usize);
    // Counting sort by destination. `ends[d]` is first the start and finally the end of the list of `d`.
    let mut ends = vec![0usize; nodes + 1];
    for record in records.chunks_exact(stride) {
        ends[(Record::ends(record).0 - range.start) as usize + 1] += 1;
    }
    for i in 0..nodes {
        ends[i + 1] += ends[i];
    }
    let mut entries = vec![E::new(0, 0); count];
    for (position, record) in records.chunks_exact(stride).enumerate() {
        let (dst, src) = Record::ends(record);
        let end = &mut ends[(dst - range.start) as usize];
        entries[*end] = E::new(src, position);
        *end += 1;
    }

    let capacity = count + if rules.add_loops { nodes } else { 0 };
    let mut out =
        Arranged { degrees: Vec::with_capacity(nodes), indices: Vec::with_capacity(capacity), ..Arranged::default() };
    // The edges so far from the current source, one of each type.
    let mut same: Vec<(E, u16)> = Vec::new();
    let mut start = 0;
    for (dst, &end) in range.clone().zip(&ends) {
        let list = &mut entries[start..end];
        start = end;
        list.sort_unstable();
        let before = out.indices.len();
        let mut needs_loop = rules.add_loops;
        same.clear();
        for &entry in &*list {
            let src = entry.src();
            let kind = rules.kind(records, entry.position());
            if same.first().is_some_and(|(first, _)| first.src() != src) {
                same.clear();
            }
            let first = same.iter().find(|(_, other)| *other == kind).map(|(first, _)| *first);
            if let Some(first) = first
                && rules.duplicates != Duplicates::Keep
            {
                out.dropped += 1;
                if rules.duplicates == Duplicates::Fail {
                    let row = |entry: E| rules.record.row(&records[entry.position() * stride..][..stride]);
                    let duplicate = (row(entry), row(first), dst, src);
                    out.first_duplicate = Some(out.first_duplicate.map_or(duplicate, |known| known.min(duplicate)));
                }
                continue;
            }
            if first.is_none() {
                same.push((entry, kind));
            }
            if needs_loop && src >= dst {
                if src > dst {
                    out.push_loop(dst, rules);
                }
                needs_loop = false;
            }
            out.push(src, dst, rules);
            if !rules.record.is_plain() {
                out.push_columns(&records[entry.position() * stride..][..stride], kind, rules);
            }
        }
        if needs_loop {
            out.push_loop(dst, rules);
        }
        out.degrees.push((out.indices.len() - before) as u32);
    }
    out
}

impl Arranged {
    #[inline]
    fn push(&mut self, src: u32, dst: u32, rules: &Rules<'_>) {
        self.indices.push(src);
        self.loops += u64::from(src == dst);
        if !rules.core.contains(&u64::from(src)) {
            self.cross += 1;
            let (word, bit) = (&rules.halo[src as usize / 64], 1 << (src % 64));
            if word.load(Ordering::Relaxed) & bit == 0 {
                word.fetch_or(bit, Ordering::Relaxed);
            }
        }
    }

    fn push_columns(&mut self, record: &[u8], kind: u16, rules: &Rules<'_>) {
        self.weights.extend(rules.record.weight(record));
        self.types.extend(rules.record.edge_type(record).map(|_| kind));
        self.times.extend(rules.record.time(record));
        self.splits.extend(rules.record.split(record));
        self.labels.extend(rules.record.label(record));
        self.features.extend_from_slice(rules.record.features(record).unwrap_or_default());
    }

    /// Adds an edge from `node` to itself, with the default values of all columns.
    fn push_loop(&mut self, node: u32, rules: &Rules<'_>) {
        self.push(node, node, rules);
        let blank = vec![0; rules.record.stride];
        self.weights.extend(rules.record.weight(&blank).map(|_| 1.0));
        self.types.extend(rules.record.edge_type(&blank).map(|_| rules.loop_type));
        self.times.extend(rules.record.time(&blank));
        self.splits.extend(rules.record.split(&blank));
        self.labels.extend(rules.record.label(&blank).map(|_| -1));
        self.features.extend_from_slice(rules.record.features(&blank).unwrap_or_default());
    }
}
