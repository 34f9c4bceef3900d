//! Several streams of records in one unnamed file. Records are appended to any stream; each stream is read back separately.
//!
//! A stream is a list of blocks. A block holds whole records, some tens or hundreds of kilobytes, so that reads and writes are long for any
//! number of streams.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// Minimum and maximum size of a block in bytes.
const BLOCK: (u64, u64) = (4 << 10, 1 << 20);

/// Position and length of a block.
pub(super) type Block = (u64, usize);

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
    /// Records that are in no block yet.
    buffer: Vec<u8>,
}

impl Streams {
    /// Creates `count` streams in a file in `dir` that is removed when they are dropped. Buffers take about `memory` bytes, and at least 4 KiB
    /// per stream.
    pub(super) fn new(count: usize, memory: u64, dir: &Path) -> Result<Self> {
        let file = tempfile::tempfile_in(dir).map_err(Error::io(dir, "create a temporary file in"))?;
        let block = (memory / count.max(1) as u64).clamp(BLOCK.0, BLOCK.1) as usize;
        let streams = std::iter::repeat_with(Stream::default).take(count).collect();
        Ok(Self { dir: dir.to_path_buf(), file, end: 0, block, streams })
    }

    /// Appends one or more whole records.
    pub(super) fn append(&mut self, stream: usize, record: &[u8]) -> Result<()> {
        let buffer = &mut self.streams[stream].buffer;
        if !buffer.is_empty() && buffer.len() + record.len() > self.block {
            self.write(stream)?;
        }
        let buffer = &mut self.streams[stream].buffer;
        buffer.reserve_exact(if buffer.capacity() == 0 { self.block.max(record.len()) } else { record.len() });
        buffer.extend_from_slice(record);
        Ok(())
    }

    /// Writes the buffer of a stream as a block.
    fn write(&mut self, stream: usize) -> Result<()> {
        let Stream { blocks, buffer } = &mut self.streams[stream];
        if !buffer.is_empty() {
            let fail = Error::io(&self.dir, "write a temporary file in");
            self.file.write_all_at(buffer, self.end).map_err(fail)?;
            blocks.push((self.end, buffer.len()));
            self.end += buffer.len() as u64;
            buffer.clear();
            // Frees the additional capacity of an unusually long record.
            buffer.shrink_to(self.block);
        }
        Ok(())
    }

    /// Writes all buffers and frees their memory. More records can be appended afterwards.
    pub(super) fn flush(&mut self) -> Result<()> {
        for stream in 0..self.streams.len() {
            self.write(stream)?;
            self.streams[stream].buffer = Vec::new();
        }
        Ok(())
    }

    /// Returns the blocks of a stream, in order. The stream must have been flushed.
    pub(super) fn blocks(&self, stream: usize) -> &[Block] {
        debug_assert!(self.streams[stream].buffer.is_empty(), "not flushed");
        &self.streams[stream].blocks
    }

    pub(super) fn read(&self, (start, length): Block) -> Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.file.read_exact_at(&mut bytes, start).map_err(Error::io(&self.dir, "read a temporary file in"))?;
        Ok(bytes)
    }

    /// Returns the bytes of memory of the buffers and lists of blocks.
    pub(super) fn bytes(&self) -> u64 {
        let bytes = |stream: &Stream| (size_of::<Block>() * stream.blocks.capacity() + stream.buffer.capacity()) as u64;
        self.streams.iter().map(bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::{Key, Purpose};

    #[test]
    fn read_streams_equal_appended_records() {
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
                let held: usize = streams.streams.iter().map(|stream| stream.buffer.capacity()).sum();
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
