//! The dump as a stream for partitioners: pairs of indexes, which are on disk after the first pass.

use std::cell::{Cell, OnceCell};
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use rayon::prelude::*;

use super::ends::FindEnds;
use super::journal::Journal;
use super::key_counts::KeyCounts;
use super::pairs::{PairRange, Pairs, SLICE};
use crate::error::{Error, Result};
use crate::group::{Destination, ProcessGroup};
use crate::ids::NodeIds;
use crate::partitioner::{AddEdges, ConsumeKeys, EdgeKey, GraphStream, VisitEdges};
use crate::progress::Progress;

/// Name of the pass that writes all pairs, in the journal and of the file.
const PAIRS: &str = "pairs";
/// Name of the pass that writes the pairs of nodes that were not dropped.
const FILTERED_PAIRS: &str = "kept-pairs";
/// Approximate number of keys that each process samples to estimate their distribution.
const SAMPLES: usize = 1024;

/// The edges as pairs of node indexes.
pub(super) struct DumpStream<'a, C> {
    pub(super) processes: &'a C,
    pub(super) find: FindEnds<'a>,
    pub(super) splits: &'a [u8],
    pub(super) types: &'a [u16],
    pub(super) undirected: bool,
    pub(super) scratch: &'a Path,
    pub(super) journal: &'a Journal,
    pub(super) progress: &'a dyn Progress,
    pub(super) pairs: OnceCell<Pairs>,
    /// Pairs of all nodes, written before some nodes were dropped.
    pub(super) written: Cell<Option<Pairs>>,
}

impl<C: ProcessGroup> DumpStream<'_, C> {
    /// Returns the pairs. The first call writes them.
    pub(super) fn pairs(&self) -> Result<&Pairs> {
        if let Some(pairs) = self.pairs.get() {
            return Ok(pairs);
        }
        let rank = self.processes.rank();
        let open = |name| -> Result<Option<Pairs>> {
            let ranges = self.journal.completed::<Vec<PairRange>>(name)?;
            ranges.map(|ranges| Pairs::open((self.scratch, name), rank, ranges)).transpose()
        };
        let filtered = if self.find.ids.has_dropped() { open(FILTERED_PAIRS)? } else { None };
        let pairs = match (filtered, self.written.take()) {
            (Some(filtered), _) => filtered,
            (None, Some(all)) => self.drop_pairs(all)?,
            (None, None) => match open(PAIRS)? {
                Some(all) => self.drop_pairs(all)?,
                None => {
                    let name = if self.find.ids.has_dropped() { FILTERED_PAIRS } else { PAIRS };
                    let to = (self.scratch, name);
                    let all = Pairs::write(self.processes, &self.find, to, self.progress)?;
                    if let Some(ranges) = all.ranges() {
                        self.journal.finish(name, &ranges)?;
                    }
                    all
                }
            },
        };
        Ok(self.pairs.get_or_init(|| pairs))
    }

    /// Returns the pairs of the nodes that were not dropped.
    fn drop_pairs(&self, all: Pairs) -> Result<Pairs> {
        if !self.find.ids.has_dropped() {
            return Ok(all);
        }
        let filtered = all.filter(self.processes, self.find.ids, (self.scratch, FILTERED_PAIRS), self.progress)?;
        self.journal.finish(FILTERED_PAIRS, &filtered.ranges())?;
        // Removes the input only after all processes have recorded the pass, so that a killed preparation can repeat it.
        self.processes.barrier()?;
        all.remove()?;
        Ok(filtered)
    }

    /// Returns the number of rows of the dump without a pair, because they name an unknown node. Nodes must not have been dropped yet.
    pub(super) fn unknown_rows(&self) -> Result<u64> {
        Ok(self.find.edges.rows() - self.pairs()?.len())
    }

    /// Visits the edges of this process in any order, concurrently from several threads.
    pub(super) fn for_each_own(&self, pass: &str, visit: &AddEdges<'_>) -> Result<()> {
        let pairs = self.pairs()?;
        let slices = self.own_slices(pairs);
        self.progress.stage(pass, Some(slices.iter().map(|slice| slice.1 as u64).sum()), "edges");
        slices.par_iter().try_for_each_init(Vec::new, |buffer, &slice| {
            pairs.read(slice, buffer)?;
            visit(buffer);
            self.progress.advance(buffer.len() as u64);
            Ok(())
        })?;
        self.progress.done();
        Ok(())
    }

    /// The slices of this process.
    fn own_slices(&self, pairs: &Pairs) -> Vec<(u64, usize)> {
        (0..pairs.units()).filter(|&unit| self.processes.owns(unit)).flat_map(|unit| pairs.slices(unit)).collect()
    }

    /// Counts the keys of this process's edges, on several threads.
    fn count_own_keys(&self, pairs: &Pairs, memory: u64, keys_of: &EdgeKeys<'_>) -> Result<Option<KeyCounts>> {
        let (slices, next) = (self.own_slices(pairs), AtomicUsize::new(0));
        let threads = rayon::current_num_threads();
        // The merge needs additional memory for the largest share.
        let share = memory / (threads as u64 + 1);
        let count = |_| {
            let (mut counts, mut buffer, mut keys) = (KeyCounts::new(share, self.scratch), Vec::new(), Vec::new());
            while let Some(&slice) = slices.get(next.fetch_add(1, Ordering::Relaxed)) {
                pairs.read(slice, &mut buffer)?;
                keys.clear();
                buffer.iter().for_each(|&(src, dst)| keys_of(src, dst, &mut |key| keys.push(key)));
                counts.add(&keys)?;
                self.progress.advance(buffer.len() as u64);
            }
            Ok(counts)
        };
        KeyCounts::merge((0..threads).into_par_iter().map(count).collect::<Result<_>>()?)
    }

    /// Returns the first key of each range but the first. There are as many ranges as processes, with similar numbers of keys. The
    /// quality of the estimate affects the running time, but not the result.
    fn splitters(&self, pairs: &Pairs, keys: &EdgeKeys<'_>) -> Result<Vec<u64>> {
        let slices = self.own_slices(pairs);
        let mut own = Vec::new();
        let mut buffer = Vec::new();
        for &slice in slices.iter().step_by(slices.len().div_ceil(16).max(1)) {
            pairs.read(slice, &mut buffer)?;
            let step = buffer.len().div_ceil(SAMPLES / 16).max(1);
            buffer.iter().step_by(step).for_each(|&(src, dst)| keys(src, dst, &mut |key| own.push(key)));
        }
        let mut all = self.processes.all_gather(own)?.concat();
        all.sort_unstable();
        let size = self.processes.size();
        Ok((1..size).map(|range| all.get(range * all.len() / size).copied().unwrap_or(u64::MAX)).collect())
    }

    /// Like [`GraphStream::count_keys`], with several keys per edge.
    pub(super) fn sorted_keys(
        &self,
        pass: &str,
        memory: u64,
        keys: &EdgeKeys<'_>,
        consume: &mut ConsumeKeys<'_>,
    ) -> Result<()> {
        let pairs = self.pairs()?;
        self.progress.stage(pass, Some(pairs.len()), "edges");
        if self.processes.size() == 1 {
            if let Some(counts) = self.count_own_keys(pairs, memory, keys)? {
                counts.finish(consume)?;
            }
            self.progress.done();
            return Ok(());
        }
        let splitters = self.splitters(pairs, keys)?;
        let produce = |unit: usize, send: &mut dyn FnMut(Destination, Vec<u64>) -> bool| {
            let mut buffer = Vec::new();
            for slice in pairs.slices(unit) {
                pairs.read(slice, &mut buffer)?;
                let mut by_owner = vec![Vec::new(); splitters.len() + 1];
                for &(src, dst) in &buffer {
                    keys(src, dst, &mut |key| by_owner[splitters.partition_point(|&first| first <= key)].push(key));
                }
                let mut full = (0..).zip(by_owner).filter(|(_, keys)| !keys.is_empty());
                if !full.all(|(owner, keys)| send(Destination::Rank(owner), keys)) {
                    break;
                }
                self.progress.advance(buffer.len() as u64);
            }
            Ok(())
        };
        let mut counts = KeyCounts::new(memory, self.scratch);
        self.processes.exchange(pairs.units(), &produce, &mut |_, keys: Vec<u64>| counts.add(&keys))?;
        // Each process has a range of the keys. All send their ranges in order of ranks, so keys arrive in ascending order. Keys are merged
        // on this thread and sent from another, through a file.
        let mut own = tempfile::tempfile_in(self.scratch).map_err(Error::io(self.scratch, "create a file in"))?;
        write_counts(counts, &mut own, self.scratch)?;
        let produce =
            |_: usize, send: &mut dyn FnMut(Destination, Vec<(u64, u64)>) -> bool| forward(&own, self.scratch, send);
        self.processes.exchange(self.processes.size(), &produce, &mut |_, some: Vec<(u64, u64)>| consume(&some))?;
        self.progress.done();
        Ok(())
    }
}

/// Passes the keys of an edge `(source, destination)` to its third argument.
pub(super) type EdgeKeys<'a> = dyn Fn(u32, u32, &mut dyn FnMut(u64)) + Sync + 'a;

impl<C: ProcessGroup> GraphStream for DumpStream<'_, C> {
    fn num_nodes(&self) -> u64 {
        self.find.ids.len() as u64
    }

    fn num_edges(&self) -> u64 {
        // If nodes were dropped, the pairs exist before a partitioner runs.
        let pairs = self.pairs.get().filter(|_| self.find.ids.has_dropped());
        pairs.map_or_else(|| self.find.edges.rows(), Pairs::len)
    }

    fn undirected(&self) -> bool {
        self.undirected
    }

    fn splits(&self) -> &[u8] {
        self.splits
    }

    fn node_types(&self) -> &[u16] {
        self.types
    }

    fn node_ids(&self) -> &NodeIds {
        self.find.ids
    }

    fn for_each_edges(&self, pass: &str, visit: &mut VisitEdges<'_>) -> Result<()> {
        let pairs = self.pairs()?;
        self.progress.stage(pass, Some(pairs.len()), "edges");
        let produce = |unit: usize, send: &mut dyn FnMut(Destination, Vec<(u32, u32)>) -> bool| {
            for slice in pairs.slices(unit) {
                let mut some = Vec::with_capacity(SLICE);
                pairs.read(slice, &mut some)?;
                if !send(Destination::All, some) {
                    break;
                }
            }
            Ok(())
        };
        self.processes.exchange(pairs.units(), &produce, &mut |_, some: Vec<(u32, u32)>| {
            visit(&some)?;
            self.progress.advance(some.len() as u64);
            Ok(())
        })?;
        self.progress.done();
        Ok(())
    }

    fn accumulate(&self, pass: &str, cells: &[AtomicU32], visit: &AddEdges<'_>) -> Result<()> {
        // Writes the pairs first, because that pass may not be part of the reduction.
        self.pairs()?;
        self.processes.all_reduce_counts(cells, &mut || self.for_each_own(pass, visit))
    }

    fn count_keys(&self, pass: &str, memory: u64, key: &EdgeKey<'_>, consume: &mut ConsumeKeys<'_>) -> Result<()> {
        let one = |src: u32, dst: u32, put: &mut dyn FnMut(u64)| {
            if let Some(key) = key(src, dst) {
                put(key);
            }
        };
        self.sorted_keys(pass, memory, &one, consume)
    }

    fn once(&self, pass: &str, work: &mut dyn FnMut() -> Result<Vec<u8>>) -> Result<Vec<u8>> {
        self.progress.stage(pass, None, "");
        let own = if self.processes.rank() == 0 { Some(work()?) } else { None };
        let result = self.processes.broadcast(own);
        self.progress.done();
        result
    }

    fn load(&self, name: &str) -> Result<Option<Vec<u8>>> {
        // The first byte is 1 if bytes are stored under `name`.
        let own = match self.processes.rank() {
            0 => Some(self.journal.stored(name)?.map_or(vec![0], |bytes| [&[1], &bytes[..]].concat())),
            _ => None,
        };
        let mut message = self.processes.broadcast(own)?;
        Ok((message.first() == Some(&1)).then(|| message.split_off(1)))
    }

    fn save(&self, name: &str, bytes: &[u8]) -> Result<()> {
        if self.processes.rank() == 0 { self.journal.store(name, bytes) } else { Ok(()) }
    }
}

/// Writes sorted keys and counts to `file`.
fn write_counts(counts: KeyCounts, file: &mut std::fs::File, dir: &Path) -> Result<()> {
    use std::io::Write;
    let mut writer = std::io::BufWriter::with_capacity(1 << 20, file);
    let fail = |error| Error::io(dir, "write a temporary file in")(error);
    counts.finish(|some| {
        some.iter().try_for_each(|&(key, count)| writer.write_all(bytemuck::bytes_of(&[key, count]))).map_err(fail)
    })?;
    writer.flush().map_err(fail)
}

/// Sends the keys and counts that [`write_counts`] wrote.
fn forward(file: &std::fs::File, dir: &Path, send: &mut dyn FnMut(Destination, Vec<(u64, u64)>) -> bool) -> Result<()> {
    use std::os::unix::fs::FileExt;
    let fail = |error| Error::io(dir, "read a temporary file in")(error);
    let length = file.metadata().map_err(fail)?.len();
    for at in (0..length).step_by(128 << 10) {
        let mut words = vec![0u64; ((length - at).min(128 << 10) / 8) as usize];
        file.read_exact_at(bytemuck::cast_slice_mut(&mut words), at).map_err(fail)?;
        if !send(Destination::All, words.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect()) {
            break;
        }
    }
    Ok(())
}
