//! A table whose rows arrive as a stream of row groups. Row groups are encoded on all threads and written by a separate
//! thread, while the caller continues to read.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use arrow::array::ArrayRef;
use arrow::datatypes::SchemaRef;
use rayon::prelude::*;

use super::row_groups::{GroupFile, Note, window};
use crate::error::{Error, Result};

/// Capacity of the queue of row groups to the writer.
const QUEUE: usize = 4;

/// A table that is being written. Its files have the same bytes for any number of threads.
pub(crate) struct TableStream {
    name: &'static str,
    groups: Option<SyncSender<Vec<ArrayRef>>>,
    writer: Option<JoinHandle<Result<(u64, u64)>>>,
    canceled: Arc<AtomicBool>,
}

impl TableStream {
    pub(super) fn begin(
        name: &'static str,
        target: PathBuf,
        schema: SchemaRef,
        file_rows: Option<u64>,
        note: Note,
    ) -> Result<Self> {
        if file_rows.is_some() {
            fs::create_dir(&target).map_err(Error::io(&target, "create"))?;
        }
        let (groups, receiver) = sync_channel(QUEUE);
        let canceled = Arc::new(AtomicBool::new(false));
        let files = Files { target, schema, file_rows, note, canceled: canceled.clone() };
        let builder = std::thread::Builder::new().name(format!("write {name}"));
        let writer = builder.spawn(move || files.write(&receiver)).map_err(Error::io(name, "start a thread for"))?;
        Ok(Self { name, groups: Some(groups), writer: Some(writer), canceled })
    }

    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    /// Appends a row group: columns in the schema's order, all of one length.
    ///
    /// # Errors
    /// An error of the writer on an earlier row group.
    pub(crate) fn push(&mut self, columns: Vec<ArrayRef>) -> Result<()> {
        let sent = self.groups.as_ref().map(|groups| groups.send(columns));
        match sent {
            Some(Ok(())) => Ok(()),
            _ => Err(self.join().err().unwrap_or_else(|| Error::Bug(format!("{} ended early", self.name)))),
        }
    }

    /// Waits until all row groups are on disk, and returns the numbers of rows and bytes.
    pub(super) fn finish(mut self) -> Result<(u64, u64)> {
        self.join()
    }

    fn join(&mut self) -> Result<(u64, u64)> {
        self.groups = None;
        match self.writer.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            _ => Err(Error::Bug(format!("the thread that writes {} panicked", self.name))),
        }
    }
}

impl Drop for TableStream {
    /// Cancels the writer of a table that is not finished.
    fn drop(&mut self) {
        if self.writer.is_some() {
            self.canceled.store(true, Ordering::Relaxed);
            let _ = self.join();
        }
    }
}

/// The destination of the row groups.
struct Files {
    target: PathBuf,
    schema: SchemaRef,
    file_rows: Option<u64>,
    note: Note,
    canceled: Arc<AtomicBool>,
}

impl Files {
    fn write(&self, groups: &Receiver<Vec<ArrayRef>>) -> Result<(u64, u64)> {
        let (mut rows, mut bytes, mut files) = (0, 0, 0);
        let mut next = groups.recv().ok();
        while next.is_some() || files == 0 {
            let path = match self.file_rows {
                Some(_) => self.target.join(format!("part-{files:05}.parquet")),
                None => self.target.clone(),
            };
            let (in_file, size, overflow) = self.write_file(&path, next, groups)?;
            rows += in_file;
            bytes += size;
            files += 1;
            next = overflow.or_else(|| groups.recv().ok());
        }
        Ok((rows, bytes))
    }

    /// Writes row groups until the file is full or the stream ends. Returns rows, bytes, and the row group that did not
    /// fit.
    fn write_file(
        &self,
        path: &Path,
        mut next: Option<Vec<ArrayRef>>,
        groups: &Receiver<Vec<ArrayRef>>,
    ) -> Result<(u64, u64, Option<Vec<ArrayRef>>)> {
        let mut file = GroupFile::create(path, &self.schema, &self.note)?;
        let (encoder, mut appender) = file.split();
        let (mut rows, mut written, mut accepted) = (0, 0, 0);
        let length = |columns: &Vec<ArrayRef>| columns.first().map_or(0, |column| column.len() as u64);
        let full = |accepted: u64| self.file_rows.is_some_and(|limit| accepted >= limit);
        while let Some(first) = next.take() {
            if full(accepted) {
                next = Some(first);
                break;
            }
            accepted += length(&first);
            let mut ready = vec![first];
            while ready.len() < window() && !full(accepted) {
                let Ok(columns) = groups.try_recv() else { break };
                accepted += length(&columns);
                ready.push(columns);
            }
            if self.canceled.load(Ordering::Relaxed) {
                break;
            }
            let numbered = ready.into_par_iter().enumerate();
            let encoded: Vec<_> =
                numbered.map(|(i, columns)| encoder.encode(written + i, &columns)).collect::<Result<_>>()?;
            for columns in encoded {
                rows += appender.append(columns)?;
                written += 1;
            }
            next = groups.recv().ok();
        }
        Ok((rows, file.close()?, next))
    }
}
