//! A row group's columns, fetched before they are needed.
//!
//! The wanted column chunks are cut into segments of about the same rows: together [`SHARE`] bytes (all of the row group, if it is
//! smaller). Segments that lie close together are fetched with one request. While one is decoded, the next is
//! under way; pages that cross from one to the other are put together. What has been decoded is let go.

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

/// Bytes that one reading thread holds of objects, at most: a fifth each in the segments that are decoded, those under way,
/// those whose last page is still in use, the first ones of its next row group, and what lies between columns. Besides, a page
/// that is longer than its column's segment, and 4 KiB per column.
pub(crate) const READ_AHEAD: u64 = 32 << 20;
/// Bytes of the segments that are fetched together.
pub(crate) const SHARE: u64 = READ_AHEAD / 5;

/// Shortest segment.
const SHORTEST: u64 = 4 << 10;
/// Columns at most this far apart are fetched with one request.
const GAP: u64 = 64 << 10;

/// Some columns of a row group, as Parquet's reader wants them. Clones are the same.
#[derive(Clone)]
pub(crate) struct RowGroup(Arc<Group>);

struct Group {
    object: Arc<Object>,
    /// The wanted column chunks in file order, none empty, none overlapping.
    columns: Vec<Mutex<Column>>,
    /// First bytes of the columns.
    ranges: Vec<Range<u64>>,
    /// The columns' first segments, until somebody needs them.
    first: Mutex<Option<Pending<Result<Vec<Bytes>>>>>,
    /// Whether the next segment is fetched before it is needed.
    ahead: bool,
    /// The first error: Parquet's reader makes a text of what it is given.
    failed: Mutex<Option<Error>>,
}

/// One column chunk.
struct Column {
    /// Its end in the file.
    end: u64,
    /// Length of a segment.
    step: u64,
    /// Segments that are here, one after the other, and where each begins.
    held: VecDeque<(u64, Bytes)>,
    /// Where the segments that are here end.
    held_end: u64,
    /// The one after them.
    next: Option<Pending<Result<Bytes>>>,
}

impl RowGroup {
    /// Starts to fetch the column chunks `ranges` of `object`: first segments of `share` bytes together. Those that follow are
    /// fetched ahead of need when `ahead` is set.
    pub(crate) fn begin(object: &Arc<Object>, mut ranges: Vec<Range<u64>>, share: u64, ahead: bool) -> Result<Self> {
        ranges.iter_mut().for_each(|range| range.end = range.end.min(object.bytes()));
        ranges.retain(|range| range.start < range.end);
        ranges.sort_by_key(|range| range.start);
        let mut from = 0;
        ranges.retain(|range| {
            let apart = range.start >= from;
            from = from.max(range.end);
            apart
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
            let (held, held_end) = (VecDeque::new(), range.start);
            Mutex::new(Column { end: range.end, step, held, held_end, next: None })
        });
        let columns = columns.collect();
        // What lies between columns counts too.
        let gap = GAP.min(share / (ranges.len() as u64).max(1));
        let first = match first.is_empty() {
            true => None,
            false => Some(Pending::start(Arc::clone(object).read_all(first, gap))?),
        };
        let (object, first, failed) = (Arc::clone(object), Mutex::new(first), Mutex::new(None));
        Ok(Self(Arc::new(Group { object, columns, ranges, first, ahead, failed })))
    }

    /// What went wrong while fetching, if anything did.
    pub(crate) fn failure(&self) -> Option<Error> {
        lock(&self.0.failed).take()
    }

    /// The bytes from `start` to the end of the segment; none outside of the columns.
    fn some(&self, start: u64) -> Result<Bytes> {
        let Some((mut column, range)) = self.0.column(start)? else { return Ok(Bytes::new()) };
        if column.is_past(start) {
            drop(column);
            return wait(Arc::clone(&self.0.object).read(start..range.end.min(start + SHORTEST)));
        }
        column.reach(&self.0, start, start + 1)?;
        let (from, bytes) = column.held.front().ok_or_else(|| Error::Bug("a segment went missing".into()))?;
        Ok(bytes.slice((start - from) as usize..))
    }

    fn exactly(&self, start: u64, length: usize) -> Result<Bytes> {
        let end = start + length as u64;
        let Some((mut column, range)) = self.0.column(start)? else {
            return wait(Arc::clone(&self.0.object).read(start..end));
        };
        // More than the footer speaks of, or a page that was let go: nothing that Parquet's reader asks for today.
        if end > range.end || column.is_past(start) {
            drop(column);
            return wait(Arc::clone(&self.0.object).read(start..end));
        }
        if length == 0 {
            return Ok(Bytes::new());
        }
        column.reach(&self.0, start, end)?;
        let (from, bytes) = column.held.front().ok_or_else(|| Error::Bug("a segment went missing".into()))?;
        let at = (start - from) as usize;
        if at + length <= bytes.len() {
            return Ok(bytes.slice(at..at + length));
        }
        let mut whole = BytesMut::with_capacity(length);
        whole.extend_from_slice(&bytes[at..]);
        for (_, bytes) in column.held.iter().skip(1) {
            let missing = length - whole.len();
            whole.extend_from_slice(&bytes[..missing.min(bytes.len())]);
        }
        Ok(whole.freeze())
    }

    /// Keeps the error, and gives Parquet's reader a text.
    fn kept<T>(&self, result: Result<T>) -> parquet::errors::Result<T> {
        result.map_err(|error| {
            let text = error.to_string();
            lock(&self.0.failed).get_or_insert(error);
            ParquetError::General(text)
        })
    }
}

impl Group {
    /// The column that holds the byte at `start`.
    fn column(&self, start: u64) -> Result<Option<(MutexGuard<'_, Column>, Range<u64>)>> {
        if let Some(first) = lock(&self.first).take() {
            for (column, bytes) in self.columns.iter().zip(first.wait()??) {
                let mut column = lock(column);
                let from = column.held_end;
                column.held_end += bytes.len() as u64;
                column.held.push_back((from, bytes));
            }
        }
        let at = self.ranges.partition_point(|range| range.start <= start);
        let found = at.checked_sub(1).filter(|&at| start < self.ranges[at].end);
        Ok(found.map(|at| (lock(&self.columns[at]), self.ranges[at].clone())))
    }
}

impl Column {
    /// Whether the byte at `start` has been let go.
    fn is_past(&self, start: u64) -> bool {
        start < self.held.front().map_or(self.held_end, |(from, _)| *from)
    }

    /// Makes the bytes `start..end` be here, and lets go of those before.
    fn reach(&mut self, group: &Group, start: u64, end: u64) -> Result<()> {
        if start > self.held_end && (self.next.is_none() || start >= self.held_end + self.step) {
            // Pages were left out.
            (self.next, self.held_end) = (None, start);
        }
        loop {
            while self.held.front().is_some_and(|(from, bytes)| from + bytes.len() as u64 <= start) {
                self.held.pop_front();
            }
            if end <= self.held_end {
                break;
            }
            let from = self.held_end;
            let bytes = match self.next.take() {
                Some(next) => next.wait()??,
                None => wait(Arc::clone(&group.object).read(from..end.max(from + self.step).min(self.end)))?,
            };
            self.held_end += bytes.len() as u64;
            self.held.push_back((from, bytes));
        }
        if group.ahead && self.next.is_none() && self.held_end < self.end {
            let next = self.held_end..(self.held_end + self.step).min(self.end);
            self.next = Some(Pending::start(Arc::clone(&group.object).read(next))?);
        }
        Ok(())
    }
}

/// A panic elsewhere leaves nothing half done here.
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
        self.kept(self.exactly(start, length))
    }
}

/// Reads a column chunk from some byte on: headers of pages.
pub(crate) struct Reader {
    group: RowGroup,
    at: u64,
    bytes: Bytes,
}

impl Read for Reader {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.bytes.is_empty() {
            self.bytes = self.group.kept(self.group.some(self.at)).map_err(std::io::Error::other)?;
        }
        let length = buffer.len().min(self.bytes.len());
        self.bytes.copy_to_slice(&mut buffer[..length]);
        self.at += length as u64;
        Ok(length)
    }
}
