//! Writes files to object stores.

use std::collections::{BTreeSet, VecDeque};
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

use object_store::{MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt, PutPayload};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::connect::Use;
use super::failure::Failure;
use super::prefix::Prefix;
use super::{Pending, wait};
use crate::error::{Error, Result};
use crate::format::hex;
use crate::group::{Json, ProcessGroup};
use crate::progress::Progress;

/// The object that is written last.
const SUCCESS: &str = "_SUCCESS";
/// Bytes of a part of an object. Stores need at least 5 MiB.
const PART: u64 = 8 << 20;
/// Stores accept 10,000 parts per object; larger objects have larger parts.
const MAX_PARTS: u64 = 9_000;
/// Parts of an object that are sent at the same time.
const CONCURRENT: usize = 4;
/// Time limit for removing the parts of uploads that have failed.
const ABORT: Duration = Duration::from_secs(5);

/// A file in `_SUCCESS`.
#[derive(Clone, Serialize, Deserialize)]
struct Uploaded {
    name: String,
    bytes: u64,
    sha256: String,
}

/// Checks the form of a URL below which files can be uploaded, without a request.
///
/// ```
/// use gnnflow_data::upload::check_target;
/// use std::path::Path;
///
/// assert!(check_target(Path::new("s3://lake/scores")).is_ok());
/// assert!(check_target(Path::new("https://host/scores")).is_err());
/// assert!(check_target(Path::new("scores")).is_err());
/// ```
///
/// # Errors
/// The reason why files cannot be uploaded there.
pub fn check_target(url: &Path) -> std::result::Result<(), String> {
    Prefix::address(url, Use::Write).map(drop)
}

/// Uploads files of `folder` below `url`, under the same `names`, and then `_SUCCESS` with their names, bytes and SHA-256. Several processes may upload
/// one set together: each gives the names of its own files, and all call this function.
///
/// Objects of the same names are replaced. Of a table `NAME.parquet`, which may have parts `NAME.parquet/….parquet`, objects that are not among
/// the names are removed before `_SUCCESS` is written, if the store lists them. Readers see the former ones until all processes have transferred their files: the
/// parts of an object become visible when its upload is completed. Memory: 4 parts of 8 MiB, or of a 9,000th of the file if that is more.
///
/// # Errors
/// [`Error::Remote`] if the store refuses the files, or cannot be reached for `retry`; [`Error::Io`] if a file cannot be read. The
/// former objects then remain, unless the store fails while the uploads are completed: `_SUCCESS` has checksums of complete sets.
pub fn upload<C: ProcessGroup>(
    processes: &C,
    folder: &Path,
    names: &[String],
    url: &Path,
    retry: Duration,
    progress: &dyn Progress,
) -> Result<()> {
    let target = Prefix::connect(url, ("--upload", Use::Write), retry)?;
    let mut files = Vec::with_capacity(names.len());
    for name in names {
        let file = folder.join(name);
        let bytes = std::fs::metadata(&file).map_err(Error::io(&file, "read"))?.len();
        files.push((name, file, bytes));
    }
    progress.stage("upload", Some(files.iter().map(|(_, _, bytes)| bytes).sum()), "bytes");
    let (mut begun, mut own) = (Begun::default(), Vec::new());
    for (name, file, bytes) in files {
        let sha256 = begun.send(&target, (&file, bytes), name, progress)?;
        own.push(Uploaded { name: name.clone(), bytes, sha256 });
    }
    // When a process has the names of all, all have transferred their files.
    let all = by_table(processes.all_gather(Json(own))?.into_iter().flat_map(|Json(files)| files).collect());
    begun.complete(&target)?;
    processes.barrier()?;
    if processes.rank() == 0 {
        target.remove_others(&all)?;
        let text = serde_json::json!({ "files": all }).to_string() + "\n";
        target.request(SUCCESS, move |store, key| {
            let text = text.clone();
            async move { store.put(&key, PutPayload::from(text)).await.map(drop) }
        })?;
    }
    processes.barrier()?;
    progress.done();
    Ok(())
}

/// Returns the files with the parts of each table together.
fn by_table(files: Vec<Uploaded>) -> Vec<Uploaded> {
    let table = |file: &Uploaded| file.name.split('/').next().unwrap_or_default().to_owned();
    let mut tables: Vec<(String, Vec<Uploaded>)> = Vec::new();
    for file in files {
        let name = table(&file);
        match tables.iter_mut().find(|(table, _)| *table == name) {
            Some((_, parts)) => parts.push(file),
            None => tables.push((name, vec![file])),
        }
    }
    tables.into_iter().flat_map(|(_, parts)| parts).collect()
}

impl Prefix {
    /// Removes what earlier uploads have left of the tables of `files`: other parts, and the table as one file if it has parts now.
    fn remove_others(&self, files: &[Uploaded]) -> Result<()> {
        let names: BTreeSet<&str> = files.iter().map(|file| file.name.as_str()).collect();
        let tables: BTreeSet<&str> = names.iter().filter_map(|name| name.split('/').next()).collect();
        for table in tables.into_iter().filter(|table| table.ends_with(".parquet")) {
            let mut found = self.parts(table)?;
            found.extend(self.stored(table)?.map(|_| table.to_owned()));
            for name in found.iter().filter(|name| !names.contains(name.as_str())) {
                self.request(name, |store, key| async move {
                    match store.delete(&key).await {
                        Err(object_store::Error::NotFound { .. }) => Ok(()),
                        result => result,
                    }
                })?;
            }
        }
        Ok(())
    }

    /// Returns the names of the stored parts of a table.
    fn parts(&self, table: &str) -> Result<Vec<String>> {
        match self.attempt(table, |store, key| async move { store.list_with_delimiter(Some(&key)).await })? {
            Ok(found) => {
                let files = found.objects.iter().filter_map(|object| object.location.filename());
                Ok(files.filter(|file| file.ends_with(".parquet")).map(|file| format!("{table}/{file}")).collect())
            }
            // A store may refuse to list objects to a user who may only write.
            Err(Failure::Missing(_) | Failure::Refused(_)) => Ok(Vec::new()),
            Err(failure) => Err(self.failed(table, failure)),
        }
    }
}

/// An upload whose parts have been sent, and that is not visible yet.
struct Sent {
    name: String,
    bytes: u64,
    /// The object before.
    before: Option<ObjectMeta>,
    upload: Box<dyn MultipartUpload>,
}

/// Uploads that have begun. Those that are not completed are aborted, so that the store does not keep their parts.
#[derive(Default)]
struct Begun(VecDeque<Sent>);

impl Begun {
    /// Sends the parts of a file, and returns its SHA-256.
    fn send(
        &mut self,
        target: &Prefix,
        (file, bytes): (&Path, u64),
        name: &str,
        progress: &dyn Progress,
    ) -> Result<String> {
        let before = target.stored(name)?;
        let upload = target.request(name, |store, key| async move { store.put_multipart(&key).await })?;
        self.0.push_back(Sent { name: name.to_owned(), bytes, before, upload });
        let upload = &mut self.0.back_mut().expect("one was added").upload;
        let part = PART.max(bytes.div_ceil(MAX_PARTS)) as usize;
        let mut reader = File::open(file).map_err(Error::io(file, "read"))?;
        let (mut hash, mut sent, mut first) = (Sha256::new(), VecDeque::new(), true);
        loop {
            let mut content = Vec::with_capacity(part);
            reader.by_ref().take(part as u64).read_to_end(&mut content).map_err(Error::io(file, "read"))?;
            // An object has at least one part.
            if content.is_empty() && !first {
                break;
            }
            first = false;
            hash.update(&content);
            let length = content.len() as u64;
            sent.push_back((Pending::start(upload.put_part(PutPayload::from(content)))?, length));
            if sent.len() >= CONCURRENT {
                receive(&mut sent, target, name, progress)?;
            }
        }
        while !sent.is_empty() {
            receive(&mut sent, target, name, progress)?;
        }
        Ok(hex(&hash.finalize()))
    }

    /// Makes all objects visible.
    fn complete(&mut self, target: &Prefix) -> Result<()> {
        while let Some(mut sent) = self.0.pop_front() {
            let (sent, result) = wait(async move {
                let result = sent.upload.complete().await;
                Ok((sent, result))
            })?;
            let Err(cause) = result else { continue };
            // If only the answer is lost, the object is there, and a store may no longer know the upload.
            let now = target.stored(&sent.name);
            let replaced = |now: &ObjectMeta| {
                let before = sent.before.as_ref().map(|before| (&before.e_tag, before.last_modified));
                now.size == sent.bytes && before != Some((&now.e_tag, now.last_modified))
            };
            if !matches!(&now, Ok(Some(now)) if replaced(now)) {
                let failure = target.failure(&cause);
                let error = target.failed(&sent.name, failure);
                self.0.push_front(sent);
                return Err(error);
            }
        }
        Ok(())
    }
}

/// Waits for the first part in flight.
fn receive(
    sent: &mut VecDeque<(Pending<object_store::Result<()>>, u64)>,
    target: &Prefix,
    name: &str,
    progress: &dyn Progress,
) -> Result<()> {
    let Some((part, length)) = sent.pop_front() else { return Ok(()) };
    let failed = |cause| target.failed(name, target.failure(&cause));
    part.wait()?.map_err(failed)?;
    progress.advance(length);
    Ok(())
}

impl Drop for Begun {
    fn drop(&mut self) {
        // If this fails, the store's rule for incomplete uploads removes the parts.
        let abort = |mut sent: Sent| {
            Pending::start(async move {
                let _ = tokio::time::timeout(ABORT, sent.upload.abort()).await;
            })
        };
        let aborts: Vec<_> = self.0.drain(..).map(abort).collect();
        for abort in aborts.into_iter().flatten() {
            let _ = abort.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_object_stores_are_targets() {
        for url in ["s3://lake/a", "S3a://lake", "gs://lake/a/", "az://c/a", "abfss://c@a.dfs.core.windows.net/x"] {
            assert_eq!(check_target(Path::new(url)), Ok(()), "{url}");
        }
        for (url, words) in [
            ("scores", "not a URL of an object store"),
            ("https://host/scores", "cannot upload to this kind of URL; use s3://, gs:// or az://"),
            ("http://host/", "cannot upload to this kind of URL"),
            ("ftp://host/a", "cannot upload to this kind of URL"),
            ("s3:///a", "the URL has no bucket"),
        ] {
            let reason = check_target(Path::new(url)).unwrap_err();
            assert!(reason.contains(words), "{url}: {reason}");
        }
    }
}
