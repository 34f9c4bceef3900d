//! Counts more keys than fit into memory: sorts runs on disk and merges them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{BufReader, BufWriter, Read, Seek, Write};
use std::path::{Path, PathBuf};

use rayon::prelude::*;

use crate::error::{Error, Result};

/// Buffer size for reading a run, in bytes.
const RUN_BUFFER: usize = 64 << 10;
/// Number of keys and counts per call of a consumer.
const BATCH: usize = 4096;
/// Minimum number of keys of a run.
const MIN_KEYS: usize = 1 << 12;

/// Counts keys that are added in any order. Returns them with their counts in ascending order.
pub(super) struct KeyCounts {
    dir: PathBuf,
    keys: Vec<u64>,
    limit: usize,
    runs: Vec<std::fs::File>,
}

impl KeyCounts {
    /// Creates an empty counter that uses about `memory` bytes, and unnamed files in `dir` for more keys.
    pub(super) fn new(memory: u64, dir: &Path) -> Self {
        let limit = ((memory / 8) as usize).max(MIN_KEYS);
        Self { dir: dir.to_path_buf(), keys: Vec::new(), limit, runs: Vec::new() }
    }

    /// Adds keys.
    pub(super) fn add(&mut self, keys: &[u64]) -> Result<()> {
        for piece in keys.chunks(self.limit) {
            if self.keys.len() + piece.len() > self.limit {
                self.spill()?;
            }
            // Reserves explicitly, because the doubling of a vector would exceed the limit.
            if self.keys.capacity() < self.keys.len() + piece.len() {
                let wanted = (2 * self.keys.capacity()).clamp(piece.len(), self.limit);
                self.keys.reserve_exact(wanted.max(self.keys.len() + piece.len()) - self.keys.len());
            }
            self.keys.extend_from_slice(piece);
        }
        Ok(())
    }

    /// Merges counters. Needs additional memory for the largest.
    pub(super) fn merge(all: Vec<Self>) -> Result<Option<Self>> {
        let spilled = all.iter().any(|counts| !counts.runs.is_empty());
        let mut all = all.into_iter();
        let Some(mut first) = all.next() else { return Ok(None) };
        for mut other in all {
            if spilled {
                other.spill()?;
                first.runs.append(&mut other.runs);
            } else {
                first.keys.reserve_exact(other.keys.len());
                first.keys.append(&mut other.keys);
            }
        }
        Ok(Some(first))
    }

    /// Sorts the keys in memory and writes them to a run.
    fn spill(&mut self) -> Result<()> {
        if self.keys.is_empty() {
            return Ok(());
        }
        self.keys.par_sort_unstable();
        let fail = || Error::io(&self.dir, "write a temporary file in");
        let file = tempfile::tempfile_in(&self.dir).map_err(fail())?;
        let mut writer = BufWriter::with_capacity(1 << 20, file);
        for (key, count) in counted(&self.keys) {
            writer.write_all(bytemuck::bytes_of(&[key, count])).map_err(fail())?;
        }
        let mut file = writer.into_inner().map_err(|error| fail()(error.into_error()))?;
        file.rewind().map_err(fail())?;
        self.runs.push(file);
        self.keys.clear();
        Ok(())
    }

    /// Passes every key and its count to `consume`, in ascending order.
    pub(super) fn finish(mut self, mut consume: impl FnMut(&[(u64, u64)]) -> Result<()>) -> Result<()> {
        if self.runs.is_empty() {
            self.keys.par_sort_unstable();
            let mut batch = Vec::with_capacity(BATCH);
            for counted in counted(&self.keys) {
                batch.push(counted);
                if batch.len() == BATCH {
                    consume(&batch)?;
                    batch.clear();
                }
            }
            return if batch.is_empty() { Ok(()) } else { consume(&batch) };
        }
        self.spill()?;
        self.keys = Vec::new();
        let fail = |error: std::io::Error| Error::io(&self.dir, "read a temporary file in")(error);
        let mut runs: Vec<_> =
            std::mem::take(&mut self.runs).into_iter().map(|run| BufReader::with_capacity(RUN_BUFFER, run)).collect();
        let mut heap = BinaryHeap::new();
        for (run, reader) in runs.iter_mut().enumerate() {
            heap.extend(next(reader).map_err(fail)?.map(|(key, count)| Reverse((key, run, count))));
        }
        let mut batch: Vec<(u64, u64)> = Vec::with_capacity(BATCH);
        while let Some(Reverse((key, run, count))) = heap.pop() {
            match batch.last_mut() {
                Some(last) if last.0 == key => last.1 += count,
                _ => {
                    if batch.len() == BATCH {
                        consume(&batch)?;
                        batch.clear();
                    }
                    batch.push((key, count));
                }
            }
            heap.extend(next(&mut runs[run]).map_err(fail)?.map(|(key, count)| Reverse((key, run, count))));
        }
        if batch.is_empty() { Ok(()) } else { consume(&batch) }
    }
}

/// Counts equal keys in a sorted slice.
fn counted(keys: &[u64]) -> impl Iterator<Item = (u64, u64)> {
    keys.chunk_by(|a, b| a == b).map(|same| (same[0], same.len() as u64))
}

fn next(reader: &mut impl Read) -> std::io::Result<Option<(u64, u64)>> {
    let mut pair = [0u64; 2];
    match reader.read_exact(bytemuck::bytes_of_mut(&mut pair)) {
        Ok(()) => Ok(Some((pair[0], pair[1]))),
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::rng::{Key, Purpose};

    #[test]
    fn counts_equal_those_of_a_map_for_any_memory_limit() {
        let random = Key::new(3, Purpose::Partition);
        for (keys, distinct, memory) in
            [(0u64, 1, 0), (1, 1, 0), (50_000, 700, 0), (50_000, 40_000, 100_000), (50_000, 9, 1 << 20)]
        {
            let all: Vec<u64> = (0..keys).map(|i| random.below(i, distinct)).collect();
            let mut expected = BTreeMap::new();
            all.iter().for_each(|&key| *expected.entry(key).or_insert(0) += 1);
            let dir = tempfile::tempdir().unwrap();
            let mut counts = KeyCounts::new(memory, dir.path());
            let mut other = KeyCounts::new(memory, dir.path());
            for (i, some) in all.chunks(999).enumerate() {
                if i % 3 == 0 { &mut other } else { &mut counts }.add(some).unwrap();
            }
            let counts = KeyCounts::merge(vec![other, counts]).unwrap().unwrap();
            let mut found = Vec::new();
            counts
                .finish(|some| {
                    found.extend_from_slice(some);
                    Ok(())
                })
                .unwrap();
            assert_eq!(found, expected.into_iter().collect::<Vec<_>>(), "{keys} keys, {memory} bytes");
        }
    }
}
