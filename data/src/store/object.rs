//! An object, read in parts.

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
use super::answer::Trouble;
use super::patience::Patience;
use super::{AT_ONCE, wait};
use crate::error::{Error, Fault, Result};

/// What is read of an object's end at first: the footer of most Parquet files.
const TAIL: u64 = 64 << 10;

/// One object, as it was when it was opened.
pub(crate) struct Object {
    /// Its URL as the user wrote it, or made from the prefix that the user wrote.
    url: PathBuf,
    kind: Kind,
    store: Arc<dyn ObjectStore>,
    meta: ObjectMeta,
    retry: Duration,
}

impl Object {
    /// What `meta` says is at `url`.
    pub(super) fn new(
        url: PathBuf,
        kind: Kind,
        store: Arc<dyn ObjectStore>,
        meta: ObjectMeta,
        retry: Duration,
    ) -> Self {
        Self { url, kind, store, meta, retry }
    }

    /// Its URL.
    pub(crate) fn url(&self) -> &Path {
        &self.url
    }

    /// Length in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.meta.size
    }

    /// Its ETag or, where the server knows of none, its time of modification.
    pub(crate) fn version(&self) -> String {
        tag(&self.meta).map_or_else(|| self.meta.last_modified.to_rfc3339(), str::to_owned)
    }

    /// Reads some bytes.
    ///
    /// # Errors
    /// [`Error::Remote`] when the object has changed, or the server cannot be reached for as long as is allowed.
    pub(super) async fn read(self: Arc<Self>, range: Range<u64>) -> Result<Bytes> {
        let mut patience = Patience::new(self.retry);
        let mut bytes = BytesMut::with_capacity(usize::try_from(range.end - range.start).unwrap_or(0));
        loop {
            let before = bytes.len();
            let end = self.attempt(&range, &mut bytes).await;
            if bytes.len() > before {
                patience.progress();
            }
            match end {
                Ok(()) => return Ok(bytes.freeze()),
                Err(trouble) => patience.bear(trouble).await.map_err(|trouble| self.error(trouble))?,
            }
        }
    }

    /// Reads several ranges; those at most `gap` bytes apart with one request.
    pub(super) async fn read_all(self: Arc<Self>, ranges: Vec<Range<u64>>, gap: u64) -> Result<Vec<Bytes>> {
        coalesce_ranges(&ranges, |range| Arc::clone(&self).read(range), gap).await
    }

    /// One request for what is still missing of a range.
    async fn attempt(&self, range: &Range<u64>, bytes: &mut BytesMut) -> Result<(), Trouble> {
        let missing = range.start + bytes.len() as u64..range.end;
        if missing.is_empty() {
            return Ok(());
        }
        let fail = |error: object_store::Error| Trouble::new(&error, self.kind);
        // A weak ETag never matches (RFC 9110, 13.1.1); it is compared below.
        let if_match = tag(&self.meta).filter(|tag| !tag.starts_with("W/")).map(|tag| format!("\"{tag}\""));
        let options = GetOptions { range: Some(GetRange::Bounded(missing.clone())), if_match, ..GetOptions::default() };
        let answer = self.store.get_opts(&self.meta.location, options).await.map_err(fail)?;
        if !same(&self.meta, &answer.meta) {
            return Err(Trouble::Changed);
        }
        let mut stream = answer.into_stream();
        while let Some(some) = stream.next().await {
            bytes.extend_from_slice(&some.map_err(fail)?);
        }
        let (came, wanted) = (bytes.len() as u64, range.end - range.start);
        match came.cmp(&wanted) {
            std::cmp::Ordering::Equal => Ok(()),
            std::cmp::Ordering::Less => {
                Err(Trouble::Passing(format!("the server sent {came} bytes instead of {wanted}")))
            }
            std::cmp::Ordering::Greater => Err(Trouble::Final {
                problem: format!("the server sent {came} bytes instead of {wanted}"),
                fault: Fault::Cluster,
            }),
        }
    }

    fn error(&self, trouble: Trouble) -> Error {
        error(&self.url, trouble)
    }
}

/// An ETag without its quotes, which listings of some stores leave out.
fn tag(meta: &ObjectMeta) -> Option<&str> {
    meta.e_tag.as_deref().map(|tag| tag.trim_matches('"'))
}

/// Whether two answers speak of the same content.
fn same(then: &ObjectMeta, now: &ObjectMeta) -> bool {
    let version = match (tag(then), tag(now)) {
        (Some(then), Some(now)) => then == now,
        // To the second: that is what headers know.
        _ => then.last_modified.timestamp() == now.last_modified.timestamp(),
    };
    version && then.size == now.size
}

/// A trouble with `url`, told to the user.
pub(super) fn error(url: &Path, trouble: Trouble) -> Error {
    let (problem, fault) = match trouble {
        Trouble::Passing(problem) => (problem, Fault::Cluster),
        Trouble::Missing(problem) | Trouble::Refused(problem) => (problem, Fault::Input),
        Trouble::Changed => {
            ("it changed while it was read; start again when it is no longer written".to_owned(), Fault::Input)
        }
        Trouble::Final { problem, fault } => (problem, fault),
    };
    Error::Remote { url: url.to_path_buf(), problem, fault }
}

/// The last bytes of objects, read together.
pub(crate) fn tails<'a>(objects: impl Iterator<Item = &'a Arc<Object>>) -> Result<Vec<Tail>> {
    let objects: Vec<_> = objects.cloned().collect();
    wait(async move {
        let tails = objects.into_iter().map(|object| async move {
            let start = object.meta.size.saturating_sub(TAIL);
            let bytes = Arc::clone(&object).read(start..object.meta.size).await?;
            Ok(Tail { object, start, bytes })
        });
        stream::iter(tails).buffered(AT_ONCE).try_collect().await
    })
}

/// The end of an object, from which its Parquet footer is read; a longer footer is fetched.
pub(crate) struct Tail {
    object: Arc<Object>,
    start: u64,
    bytes: Bytes,
}

impl Tail {
    /// The bytes.
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
        let mut held = self.bytes.clone();
        held.advance(start.saturating_sub(self.start) as usize);
        held.truncate(length - bytes.len());
        if bytes.is_empty() {
            return Ok(held);
        }
        bytes.extend_from_slice(&held);
        Ok(bytes.freeze())
    }
}
