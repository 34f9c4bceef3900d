//! Reads the columns of a row group ahead.
//!
//! The requested column chunks are divided into segments of about the same rows: together [`SHARE`] bytes, or the whole
//! row group if it is smaller. Adjacent segments share a request. While one segment is decoded, the next one is fetched.
//! Pages that cross a segment boundary are concatenated. Decoded segments are released.

use std::collections::VecDeque;
use std::io::Read;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::{Buf, Bytes, BytesMut};
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, Length};

use super::object::Object;
use super::{Pending, wait};
use crate::error::{Error, Result};

/// Largest number of bytes of objects in memory per reading thread. A fifth each is for segments being decoded, segments
/// in flight, segments whose last page is in use, first segments of the next row group, and gaps between columns. A page
/// longer than its column's segment, and 4 KiB per column, are extra.
pub(crate) const READ_AHEAD: u64 = 32 << 20;
/// Total bytes of segments that are fetched together.
pub(crate) const SHARE: u64 = READ_AHEAD / 5;

/// Minimal length of a segment.
const SHORTEST: u64 = 4 << 10;
/// Columns at most this many bytes apart share a request.
const GAP: u64 = 64 << 10;

/// Some columns of a row group, as a source for the Parquet reader. Clones share all data.
#[derive(Clone)]
pub(crate) struct RowGroup(Arc<Group>);

struct Group {
    object: Arc<Object>,
    /// The requested column chunks in file order; none is empty, and none overlap.
    columns: Vec<Mutex<Column>>,
    /// Byte ranges of the columns.
    ranges: Vec<Range<u64>>,
    /// The first segments of all columns, until they are needed.
    first: Mutex<Option<Pending<Result<Vec<Bytes>>>>>,
    /// Whether the next segment is fetched ahead.
    ahead: bool,
    /// The first error. The Parquet reader converts errors to texts.
    failed: Mutex<Option<Error>>,
}

/// One column chunk.
struct Column {
    /// End position in the file.
    end: u64,
    /// Length of a segment.
    step: u64,
    /// Consecutive segments in memory, each with its start.
    segments: VecDeque<(u64, Bytes)>,
    /// End of the segments in memory.
    segments_end: u64,
    /// The next segment, in flight.
    next: Option<Pending<Result<Bytes>>>,
}

impl RowGroup {
    /// Starts to fetch the column chunks `ranges` of `object`: first segments of `share` bytes in total. With `ahead`,
    /// each following segment is fetched before it is needed.
    pub(crate) fn begin(object: &Arc<Object>, mut ranges: Vec<Range<u64>>, share: u64, ahead: bool) -> Result<Self> {
        ranges.iter_mut().for_each(|range| range.end = range.end.min(object.bytes()));
        ranges.retain(|range| range.start < range.end);
        ranges.sort_by_key(|range| range.start);
        let mut from = 0;
        ranges.retain(|range| {
            let disjoint = range.start >= from;
            from = from.max(range.end);
            disjoint
        });
        let total: u64 = ranges.iter().map(|range| range.end - range.start).sum();
        let step = |length: u64| match total <= share {
            true => length,
            false => ((u128::from(length) * u128::from(share) / u128::from(total)) as u64).max(SHORTEST),
        };
        let mut first = Vec::with_capacity(ranges.len());
        let columns = ranges.iter().map(|range| {
            let step = step(range.end - range.start);
            first.push(range.start..(range.start + step).min(range.end));
            let (segments, segments_end) = (VecDeque::new(), range.start);
            Mutex::new(Column { end: range.end, step, segments, segments_end, next: None })
        });
        let columns = columns.collect();
        // Gaps between columns count, too.
        let gap = GAP.min(share / (ranges.len() as u64).max(1));
        let first = match first.is_empty() {
            true => None,
            false => Some(Pending::start(Arc::clone(object).read_all(first, gap))?),
        };
        let (object, first, failed) = (Arc::clone(object), Mutex::new(first), Mutex::new(None));
        Ok(Self(Arc::new(Group { object, columns, ranges, first, ahead, failed })))
    }

    /// Takes the first error of a fetch.
    pub(crate) fn failure(&self) -> Option<Error> {
        lock(&self.0.failed).take()
    }

    /// Returns the bytes from `start` to the end of the segment; none outside of the columns.
    fn rest_of_segment(&self, start: u64) -> Result<Bytes> {
        let Some((mut column, range)) = self.0.column(start)? else { return Ok(Bytes::new()) };
        if column.is_released(start) {
            drop(column);
            return wait(Arc::clone(&self.0.object).read(start..range.end.min(start + SHORTEST)));
        }
        column.fetch(&self.0, start, start + 1)?;
        let (from, bytes) = column.segments.front().ok_or_else(|| Error::Bug("a segment is missing".into()))?;
        Ok(bytes.slice((start - from) as usize..))
    }

    fn exactly(&self, start: u64, length: usize) -> Result<Bytes> {
        let end = start + length as u64;
        let Some((mut column, range)) = self.0.column(start)? else {
            return wait(Arc::clone(&self.0.object).read(start..end));
        };
        // The Parquet reader never requests bytes beyond the footer's ranges or a released page today.
        if end > range.end || column.is_released(start) {
            drop(column);
            return wait(Arc::clone(&self.0.object).read(start..end));
        }
        if length == 0 {
            return Ok(Bytes::new());
        }
        column.fetch(&self.0, start, end)?;
        let (from, bytes) = column.segments.front().ok_or_else(|| Error::Bug("a segment is missing".into()))?;
        let at = (start - from) as usize;
        if at + length <= bytes.len() {
            return Ok(bytes.slice(at..at + length));
        }
        let mut whole = BytesMut::with_capacity(length);
        whole.extend_from_slice(&bytes[at..]);
        for (_, bytes) in column.segments.iter().skip(1) {
            let missing = length - whole.len();
            whole.extend_from_slice(&bytes[..missing.min(bytes.len())]);
        }
        Ok(whole.freeze())
    }

    /// Stores the error, and returns its text for the Parquet reader.
    fn to_parquet<T>(&self, result: Result<T>) -> parquet::errors::Result<T> {
        result.map_err(|error| {
            let text = error.to_string();
            lock(&self.0.failed).get_or_insert(error);
            ParquetError::General(text)
        })
    }
}

impl Group {
    /// Returns the column with the byte at `start`.
    fn column(&self, start: u64) -> Result<Option<(MutexGuard<'_, Column>, Range<u64>)>> {
        if let Some(first) = lock(&self.first).take() {
            for (column, bytes) in self.columns.iter().zip(first.wait()??) {
                let mut column = lock(column);
                let from = column.segments_end;
                column.segments_end += bytes.len() as u64;
                column.segments.push_back((from, bytes));
            }
        }
        let at = self.ranges.partition_point(|range| range.start <= start);
        let found = at.checked_sub(1).filter(|&at| start < self.ranges[at].end);
        Ok(found.map(|at| (lock(&self.columns[at]), self.ranges[at].clone())))
    }
}

impl Column {
    /// Returns whether the byte at `start` has been released.
    fn is_released(&self, start: u64) -> bool {
        start < self.segments.front().map_or(self.segments_end, |(from, _)| *from)
    }

    /// Fetches the bytes `start..end` unless they are in memory, and releases the segments before them.
    fn fetch(&mut self, group: &Group, start: u64, end: u64) -> Result<()> {
        if start > self.segments_end && (self.next.is_none() || start >= self.segments_end + self.step) {
            // The reader skipped pages.
            (self.next, self.segments_end) = (None, start);
        }
        loop {
            while self.segments.front().is_some_and(|(from, bytes)| from + bytes.len() as u64 <= start) {
                self.segments.pop_front();
            }
            if end <= self.segments_end {
                break;
            }
            let from = self.segments_end;
            let bytes = match self.next.take() {
                Some(next) => next.wait()??,
                None => wait(Arc::clone(&group.object).read(from..end.max(from + self.step).min(self.end)))?,
            };
            self.segments_end += bytes.len() as u64;
            self.segments.push_back((from, bytes));
        }
        if group.ahead && self.next.is_none() && self.segments_end < self.end {
            let next = self.segments_end..(self.segments_end + self.step).min(self.end);
            self.next = Some(Pending::start(Arc::clone(&group.object).read(next))?);
        }
        Ok(())
    }
}

/// Locks a mutex. A panic elsewhere leaves the data consistent.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Length for RowGroup {
    fn len(&self) -> u64 {
        self.0.object.bytes()
    }
}

impl ChunkReader for RowGroup {
    type T = Reader;

    fn get_read(&self, start: u64) -> parquet::errors::Result<Reader> {
        Ok(Reader { group: self.clone(), at: start, bytes: Bytes::new() })
    }

    fn get_bytes(&self, start: u64, length: usize) -> parquet::errors::Result<Bytes> {
        if start + length as u64 > self.len() {
            return Err(ParquetError::EOF(format!("{length} bytes at {start} of {}", self.len())));
        }
        self.to_parquet(self.exactly(start, length))
    }
}

/// Reads a column chunk from a position; for page headers.
pub(crate) struct Reader {
    group: RowGroup,
    at: u64,
    bytes: Bytes,
}

impl Read for Reader {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.bytes.is_empty() {
            self.bytes = self.group.to_parquet(self.group.rest_of_segment(self.at)).map_err(std::io::Error::other)?;
        }
        let length = buffer.len().min(self.bytes.len());
        self.bytes.copy_to_slice(&mut buffer[..length]);
        self.at += length as u64;
        Ok(length)
    }
}
