//! Sorts and deduplicates more byte strings than fit into memory: sorted runs on disk, which are merged.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Seek, Write};
use std::path::{Path, PathBuf};

use rayon::prelude::*;

use crate::error::{Error, Result};

/// Buffer size for reading a run, in bytes.
const RUN_BUFFER: usize = 64 << 10;
/// Minimum size of a run in bytes.
const MIN_RUN: usize = 64 << 10;
/// Additional bytes of memory per key.
const KEY_OVERHEAD: usize = 16;

/// A set of keys that are added in any order, possibly several times.
pub(super) struct Distinct {
    dir: PathBuf,
    bytes: Vec<u8>,
    /// Starts and lengths of the keys.
    spans: Vec<(u64, u32)>,
    limit: usize,
    runs: Vec<File>,
}

impl Distinct {
    /// Creates an empty set that uses about `memory` bytes, and unnamed files in `dir` for more keys.
    pub(super) fn new(memory: u64, dir: &Path) -> Self {
        // Deduplication needs the same memory once more.
        let limit = ((memory / 2) as usize).max(MIN_RUN);
        Self { dir: dir.to_path_buf(), bytes: Vec::new(), spans: Vec::new(), limit, runs: Vec::new() }
    }

    /// Adds one key.
    pub(super) fn add(&mut self, key: &[u8]) -> Result<()> {
        if self.held() + key.len() + KEY_OVERHEAD > self.limit {
            self.deduplicate();
            if self.held() + key.len() + KEY_OVERHEAD > self.limit / 2 {
                self.spill()?;
            }
        }
        self.spans.push((self.bytes.len() as u64, key.len() as u32));
        self.bytes.extend_from_slice(key);
        Ok(())
    }

    fn held(&self) -> usize {
        self.bytes.len() + KEY_OVERHEAD * self.spans.len()
    }

    /// Sorts and deduplicates the keys in memory.
    fn deduplicate(&mut self) {
        let key = |&(start, length): &(u64, u32)| &self.bytes[start as usize..][..length as usize];
        self.spans.par_sort_unstable_by(|a, b| key(a).cmp(key(b)));
        self.spans.dedup_by(|a, b| key(a) == key(b));
        let length = self.spans.iter().map(|span| span.1 as usize).sum();
        let mut bytes = Vec::with_capacity(length);
        for (start, length) in &mut self.spans {
            let at = bytes.len() as u64;
            bytes.extend_from_slice(&self.bytes[*start as usize..][..*length as usize]);
            *start = at;
        }
        self.bytes = bytes;
    }

    /// Writes the keys in memory, which must be sorted, to a run.
    fn spill(&mut self) -> Result<()> {
        let fail = || Error::io(&self.dir, "write a temporary file in");
        let file = tempfile::tempfile_in(&self.dir).map_err(fail())?;
        let mut writer = BufWriter::with_capacity(1 << 20, file);
        for &(start, length) in &self.spans {
            write_key(&mut writer, &self.bytes[start as usize..][..length as usize]).map_err(fail())?;
        }
        let mut file = writer.into_inner().map_err(|error| fail()(error.into_error()))?;
        file.rewind().map_err(fail())?;
        self.runs.push(file);
        self.spans.clear();
        self.bytes.clear();
        Ok(())
    }

    /// Passes every key once to `consume`, in ascending order.
    pub(super) fn finish(mut self, mut consume: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        self.deduplicate();
        if self.runs.is_empty() {
            return self
                .spans
                .iter()
                .try_for_each(|&(start, length)| consume(&self.bytes[start as usize..][..length as usize]));
        }
        self.spill()?;
        let fail = |error: std::io::Error| Error::io(&self.dir, "read a temporary file in")(error);
        let mut runs: Vec<_> =
            std::mem::take(&mut self.runs).into_iter().map(|run| BufReader::with_capacity(RUN_BUFFER, run)).collect();
        let mut heap = BinaryHeap::new();
        for (run, reader) in runs.iter_mut().enumerate() {
            heap.extend(read_key(reader).map_err(fail)?.map(|key| Reverse((key, run))));
        }
        let mut last: Option<Vec<u8>> = None;
        while let Some(Reverse((key, run))) = heap.pop() {
            heap.extend(read_key(&mut runs[run]).map_err(fail)?.map(|key| Reverse((key, run))));
            if last.as_ref() != Some(&key) {
                consume(&key)?;
                last = Some(key);
            }
        }
        Ok(())
    }
}

/// Writes the length of a key and the key.
pub(super) fn write_key(writer: &mut impl Write, key: &[u8]) -> std::io::Result<()> {
    writer.write_all(&(key.len() as u32).to_le_bytes())?;
    writer.write_all(key)
}

/// Reads a key that [`write_key`] wrote; `None` at the end.
pub(super) fn read_key(reader: &mut impl Read) -> std::io::Result<Option<Vec<u8>>> {
    let mut length = [0; 4];
    match reader.read_exact(&mut length) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    let mut key = vec![0; u32::from_le_bytes(length) as usize];
    reader.read_exact(&mut key)?;
    Ok(Some(key))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::rng::{Key, Purpose};

    #[test]
    fn keys_equal_those_of_a_set_for_any_memory_limit() {
        let random = Key::new(3, Purpose::Partition);
        for (keys, distinct, memory) in
            [(0u64, 1, 0), (1, 1, 0), (30_000, 700, 0), (30_000, 20_000, 0), (9, 3, 1 << 20)]
        {
            let all: Vec<String> =
                (0..keys).map(|i| "x".repeat(i as usize % 3) + &random.below(i, distinct).to_string()).collect();
            let dir = tempfile::tempdir().unwrap();
            let mut found = Vec::new();
            let mut set = Distinct::new(memory, dir.path());
            all.iter().for_each(|key| set.add(key.as_bytes()).unwrap());
            set.finish(|key| {
                found.push(String::from_utf8(key.to_vec()).unwrap());
                Ok(())
            })
            .unwrap();
            let expected: BTreeSet<String> = all.into_iter().collect();
            assert_eq!(found, expected.into_iter().collect::<Vec<_>>(), "{keys} keys, {memory} bytes");
        }
    }
}
