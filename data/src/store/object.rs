//! Reads parts of an object.

use std::io::{Cursor, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::{GetOptions, GetRange, ObjectMeta, ObjectStore, coalesce_ranges};
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, Length};

use super::address::Kind;
use super::failure::Failure;
use super::retry::Retries;
use super::{MAX_CONCURRENT, wait};
use crate::error::{Error, Fault, Result};

/// Bytes that are read first, from the end of an object. Most Parquet footers are shorter.
const TAIL: u64 = 64 << 10;

/// An object with the version that was opened.
pub(crate) struct Object {
    /// The URL from the user, or the user's prefix and the name of the object.
    url: PathBuf,
    kind: Kind,
    store: Arc<dyn ObjectStore>,
    meta: ObjectMeta,
    retry: Duration,
}

impl Object {
    /// Creates an object from its metadata.
    pub(super) fn new(
        url: PathBuf,
        kind: Kind,
        store: Arc<dyn ObjectStore>,
        meta: ObjectMeta,
        retry: Duration,
    ) -> Self {
        Self { url, kind, store, meta, retry }
    }

    pub(crate) fn url(&self) -> &Path {
        &self.url
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.meta.size
    }

    /// Returns the ETag, or the time of modification if the server has no ETags.
    pub(crate) fn version(&self) -> String {
        tag(&self.meta).map_or_else(|| self.meta.last_modified.to_rfc3339(), str::to_owned)
    }

    /// Reads a range of bytes, with retries.
    ///
    /// # Errors
    /// [`Error::Remote`] when the object has changed or the server cannot be reached within the time limit.
    pub(super) async fn read(self: Arc<Self>, range: Range<u64>) -> Result<Bytes> {
        let mut retries = Retries::new(self.retry);
        let mut bytes = BytesMut::with_capacity(usize::try_from(range.end - range.start).unwrap_or(0));
        loop {
            let before = bytes.len();
            let end = self.attempt(&range, &mut bytes).await;
            if bytes.len() > before {
                retries.progress();
            }
            match end {
                Ok(()) => return Ok(bytes.freeze()),
                Err(failure) => retries.pause(failure).await.map_err(|failure| self.error(failure))?,
            }
        }
    }

    /// Reads several ranges. Ranges at most `gap` bytes apart share a request.
    pub(super) async fn read_all(self: Arc<Self>, ranges: Vec<Range<u64>>, gap: u64) -> Result<Vec<Bytes>> {
        coalesce_ranges(&ranges, |range| Arc::clone(&self).read(range), gap).await
    }

    /// Requests the missing bytes of a range once.
    async fn attempt(&self, range: &Range<u64>, bytes: &mut BytesMut) -> Result<(), Failure> {
        let missing = range.start + bytes.len() as u64..range.end;
        if missing.is_empty() {
            return Ok(());
        }
        let fail = |error: object_store::Error| Failure::new(&error, self.kind);
        // A weak ETag never matches (RFC 9110, 13.1.1); it is compared below.
        let if_match = tag(&self.meta).filter(|tag| !tag.starts_with("W/")).map(|tag| format!("\"{tag}\""));
        let options = GetOptions { range: Some(GetRange::Bounded(missing.clone())), if_match, ..GetOptions::default() };
        let response = self.store.get_opts(&self.meta.location, options).await.map_err(fail)?;
        if !same(&self.meta, &response.meta) {
            return Err(Failure::Changed);
        }
        let mut stream = response.into_stream();
        while let Some(chunk) = stream.next().await {
            bytes.extend_from_slice(&chunk.map_err(fail)?);
        }
        let (received, expected) = (bytes.len() as u64, range.end - range.start);
        match received.cmp(&expected) {
            std::cmp::Ordering::Equal => Ok(()),
            std::cmp::Ordering::Less => {
                Err(Failure::Temporary(format!("the server sent {received} bytes instead of {expected}")))
            }
            std::cmp::Ordering::Greater => Err(Failure::Permanent {
                problem: format!("the server sent {received} bytes instead of {expected}"),
                fault: Fault::Cluster,
            }),
        }
    }

    fn error(&self, failure: Failure) -> Error {
        error(&self.url, failure)
    }
}

/// Returns the ETag without quotes, because listings of some stores omit them.
fn tag(meta: &ObjectMeta) -> Option<&str> {
    meta.e_tag.as_deref().map(|tag| tag.trim_matches('"'))
}

/// Returns whether two responses describe the same content.
fn same(then: &ObjectMeta, now: &ObjectMeta) -> bool {
    let version = match (tag(then), tag(now)) {
        (Some(then), Some(now)) => then == now,
        // Headers have times in whole seconds.
        _ => then.last_modified.timestamp() == now.last_modified.timestamp(),
    };
    version && then.size == now.size
}

/// Returns the error for a failed request to `url`.
pub(super) fn error(url: &Path, failure: Failure) -> Error {
    let (problem, fault) = match failure {
        Failure::Temporary(problem) => (problem, Fault::Cluster),
        Failure::Missing(problem) | Failure::Refused(problem) => (problem, Fault::Input),
        Failure::Changed => {
            ("it changed while it was read; start again when it is no longer written".to_owned(), Fault::Input)
        }
        Failure::Permanent { problem, fault } => (problem, fault),
    };
    Error::Remote { url: url.to_path_buf(), problem, fault }
}

/// Reads the last bytes of objects concurrently.
pub(crate) fn tails<'a>(objects: impl Iterator<Item = &'a Arc<Object>>) -> Result<Vec<Tail>> {
    let objects: Vec<_> = objects.cloned().collect();
    wait(async move {
        let tails = objects.into_iter().map(|object| async move {
            let start = object.meta.size.saturating_sub(TAIL);
            let bytes = Arc::clone(&object).read(start..object.meta.size).await?;
            Ok(Tail { object, start, bytes })
        });
        stream::iter(tails).buffered(MAX_CONCURRENT).try_collect().await
    })
}

/// The end of an object, to read its Parquet footer. The rest of a longer footer is fetched.
pub(crate) struct Tail {
    object: Arc<Object>,
    start: u64,
    bytes: Bytes,
}

impl Tail {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl Length for Tail {
    fn len(&self) -> u64 {
        self.object.meta.size
    }
}

impl ChunkReader for Tail {
    type T = Box<dyn Read>;

    fn get_read(&self, start: u64) -> parquet::errors::Result<Self::T> {
        let rest = usize::try_from(self.len().saturating_sub(start)).unwrap_or(usize::MAX);
        Ok(Box::new(Cursor::new(self.get_bytes(start, rest)?)))
    }

    fn get_bytes(&self, start: u64, length: usize) -> parquet::errors::Result<Bytes> {
        let end = start + length as u64;
        if end > self.len() {
            return Err(ParquetError::EOF(format!("{length} bytes at {start} of {}", self.len())));
        }
        let mut bytes = BytesMut::with_capacity(length);
        if start < self.start {
            let before = start..end.min(self.start);
            let before =
                wait(Arc::clone(&self.object).read(before)).map_err(|error| ParquetError::External(error.into()))?;
            bytes.extend_from_slice(&before);
        }
        let mut tail = self.bytes.clone();
        tail.advance(start.saturating_sub(self.start) as usize);
        tail.truncate(length - bytes.len());
        if bytes.is_empty() {
            return Ok(tail);
        }
        bytes.extend_from_slice(&tail);
        Ok(bytes.freeze())
    }
}
