//! Many streams of records in one nameless file: appended side by side, each read back on its own.
//!
//! A stream is a list of blocks. A block is what has come for the stream since its last one: whole records, some tens or
//! hundreds of kilobytes of them, so that both directions are long reads and writes whatever the number of streams.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// Bytes of a block: where there is little memory, and where there is much.
const BLOCK: (u64, u64) = (4 << 10, 1 << 20);

/// Where a block lies, and its length.
pub(super) type Block = (u64, usize);

/// The streams.
#[derive(Debug)]
pub(super) struct Streams {
    dir: PathBuf,
    file: File,
    end: u64,
    block: usize,
    streams: Vec<Stream>,
}

#[derive(Debug, Default)]
struct Stream {
    blocks: Vec<Block>,
    /// What is in no block yet.
    rest: Vec<u8>,
}

impl Streams {
    /// So many, in a file in `dir` that is gone when they are dropped. Holds about `memory` bytes, not less than 4 KiB for each.
    pub(super) fn new(count: usize, memory: u64, dir: &Path) -> Result<Self> {
        let file = tempfile::tempfile_in(dir).map_err(Error::io(dir, "create a temporary file in"))?;
        let block = (memory / count.max(1) as u64).clamp(BLOCK.0, BLOCK.1) as usize;
        let streams = std::iter::repeat_with(Stream::default).take(count).collect();
        Ok(Self { dir: dir.to_path_buf(), file, end: 0, block, streams })
    }

    /// Appends one record, or several whole ones.
    pub(super) fn append(&mut self, stream: usize, record: &[u8]) -> Result<()> {
        let rest = &mut self.streams[stream].rest;
        if !rest.is_empty() && rest.len() + record.len() > self.block {
            self.write(stream)?;
        }
        let rest = &mut self.streams[stream].rest;
        rest.reserve_exact(if rest.capacity() == 0 { self.block.max(record.len()) } else { record.len() });
        rest.extend_from_slice(record);
        Ok(())
    }

    /// The rest of a stream as a block.
    fn write(&mut self, stream: usize) -> Result<()> {
        let Stream { blocks, rest } = &mut self.streams[stream];
        if !rest.is_empty() {
            let fail = Error::io(&self.dir, "write a temporary file in");
            self.file.write_all_at(rest, self.end).map_err(fail)?;
            blocks.push((self.end, rest.len()));
            self.end += rest.len() as u64;
            rest.clear();
            // Of a longer record than usual nothing is kept.
            rest.shrink_to(self.block);
        }
        Ok(())
    }

    /// Writes all rests; gives their memory back. More can be appended afterwards.
    pub(super) fn flush(&mut self) -> Result<()> {
        for stream in 0..self.streams.len() {
            self.write(stream)?;
            self.streams[stream].rest = Vec::new();
        }
        Ok(())
    }

    /// The blocks of a stream, in order, but for what is to be flushed.
    pub(super) fn blocks(&self, stream: usize) -> &[Block] {
        debug_assert!(self.streams[stream].rest.is_empty(), "not flushed");
        &self.streams[stream].blocks
    }

    /// Reads a block.
    pub(super) fn read(&self, (start, length): Block) -> Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.file.read_exact_at(&mut bytes, start).map_err(Error::io(&self.dir, "read a temporary file in"))?;
        Ok(bytes)
    }

    /// Bytes of memory.
    pub(super) fn bytes(&self) -> u64 {
        let bytes = |stream: &Stream| (size_of::<Block>() * stream.blocks.capacity() + stream.rest.capacity()) as u64;
        self.streams.iter().map(bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::{Key, Purpose};

    #[test]
    fn every_stream_comes_back_as_it_went() {
        let random = Key::new(5, Purpose::Partition);
        for (count, memory) in [(1, 0), (7, 0), (7, 1 << 20), (3, 100_000)] {
            let dir = tempfile::tempdir().unwrap();
            let mut streams = Streams::new(count, memory, dir.path()).unwrap();
            let mut expected = vec![Vec::new(); count];
            for i in 0..3000 {
                let stream = random.below(2 * i, count as u64) as usize;
                let length = if i % 1000 == 7 { 9000 } else { random.below(2 * i + 1, 100) };
                let record = vec![i as u8; length as usize];
                streams.append(stream, &record).unwrap();
                expected[stream].extend(record);
                if i % 1500 == 1499 {
                    streams.flush().unwrap();
                }
                let most = count as u64 * (memory / count as u64).clamp(BLOCK.0, BLOCK.1) + 9000;
                let held: usize = streams.streams.iter().map(|stream| stream.rest.capacity()).sum();
                assert!(held as u64 <= most, "{held} bytes for {count} streams and {memory} bytes");
            }
            for (stream, expected) in expected.iter().enumerate() {
                let found: Vec<u8> =
                    streams.blocks(stream).iter().flat_map(|&block| streams.read(block).unwrap()).collect();
                assert!(found == *expected);
            }
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        }
    }
}
