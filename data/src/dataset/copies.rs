//! Copies of the files of a dataset that is elsewhere: in an object store, on a web server, or in a folder of a shared file system.
//!
//! Every process copies the files that it reads, before it first opens them. Processes of one machine share the folder of copies.
//!
//! ```text
//! origin.json                  the URL or folder of the dataset
//! manifest.json partition.json  copied at every start
//! part-00000/topology.arrow    copied when a process reads it
//!            .topology.arrow.lock .topology.arrow.part   while it is copied
//! ```

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::files::{FileKind, Identity, QUALITY_FILE, part_folder};
use super::manifest::{FileInfo, Manifest};
use crate::error::{Error, Fault, Result};
use crate::format::bytes;
use crate::fs::{hidden_beside, remove, write_atomic};
use crate::heartbeat::beat;
use crate::lock_file::LockFile;
use crate::progress::Progress;
use crate::source::is_url;
use crate::store::find_one;

/// The key of a pipeline that names the dataset.
const DATASET: &str = "graph.dataset";
/// The key of a pipeline that names the folder of copies.
const CACHE: &str = "graph.dataset_cache";
/// Name of the file with the place that the files are copied from.
const ORIGIN: &str = "origin.json";
/// Name of the lock of a process that replaces the manifest.
const LOCK: &str = ".gnnflow-manifest.lock";
/// Bytes of a file that are read at a time.
const PIECE: usize = 8 << 20;
/// Pause before the next attempt to take the lock of another process.
const PAUSE: Duration = Duration::from_millis(50);
/// Time without new data after which a process that copies a file counts as stopped, in addition to the time for retries.
const STOPPED: Duration = Duration::from_secs(60);

/// The dataset that files are copied from.
#[derive(Debug)]
pub(super) struct Copies {
    /// Its folder or URL.
    origin: PathBuf,
    /// How long failed requests are repeated.
    retry: Duration,
    /// Bytes that this process has copied.
    copied: AtomicU64,
}

/// The content of `origin.json`.
#[derive(serde::Serialize, serde::Deserialize)]
struct Origin {
    dataset: PathBuf,
}

/// Returns the folder or URL of the dataset whose files are copied to the folder `dir`; `None` if it has no copies.
pub(super) fn origin_of(dir: &Path) -> Option<PathBuf> {
    serde_json::from_slice::<Origin>(&std::fs::read(dir.join(ORIGIN)).ok()?).ok().map(|origin| origin.dataset)
}

impl Copies {
    /// Prepares `folder` for copies of the files of the dataset at `origin`: it then has the manifest, and no files of a former dataset.
    ///
    /// # Errors
    /// See [`Dataset::open_copies`](super::Dataset::open_copies).
    pub(super) fn open(origin: &Path, folder: &Path, retry: Duration) -> Result<Self> {
        let copies = Self { origin: origin.to_owned(), retry, copied: AtomicU64::new(0) };
        let text = copies.read(Manifest::FILE)?;
        let manifest = Manifest::parse(&text, origin)?;
        let quality = match copies.read(QUALITY_FILE) {
            Ok(text) => Some(text),
            // Older versions wrote none.
            Err(Error::Missing { .. } | Error::Remote { fault: Fault::Input, .. }) => None,
            Err(error) => return Err(error),
        };
        std::fs::create_dir_all(folder).map_err(Error::io(folder, "create"))?;
        let _lock = lock(&folder.join(LOCK), copies.limit(), || 0, || false)
            .map_err(|stopped| stopped.error(folder, "replaces the manifest"))?;
        copies.claim(folder)?;
        // Not a manifest: the copies are of no known dataset.
        let before = Manifest::read(folder).ok();
        if before.as_ref() != Some(&manifest) {
            remove_other_files(folder, before.as_ref(), &manifest)?;
            let write = |name: &str, text: &[u8]| {
                let path = folder.join(name);
                write_atomic(&path, text).map_err(Error::io(&path, "write"))
            };
            match quality {
                Some(text) => write(QUALITY_FILE, &text)?,
                None => {
                    let path = folder.join(QUALITY_FILE);
                    remove(&path).map_err(Error::io(&path, "remove"))?;
                }
            }
            write(Manifest::FILE, &text)?;
        }
        Ok(copies)
    }

    /// Returns how many bytes this process has copied.
    pub(super) fn bytes(&self) -> u64 {
        self.copied.load(Ordering::Relaxed)
    }

    /// Returns how long another process may hold a lock without new data.
    fn limit(&self) -> Duration {
        self.retry + STOPPED
    }

    /// Writes in an empty or new folder where its files come from.
    ///
    /// # Errors
    /// [`Error::Setting`] for a folder with other files.
    fn claim(&self, folder: &Path) -> Result<()> {
        let path = folder.join(ORIGIN);
        let former = origin_of(folder);
        let plain = |path: &Path| path.to_string_lossy().trim_end_matches('/').to_owned();
        if let Some(former) = former.as_ref().filter(|former| plain(former) != plain(&self.origin)) {
            let reason = format!(
                "{} has copies of the dataset {}; name another folder, or delete this one",
                folder.display(),
                former.display()
            );
            return Err(Error::Setting { key: CACHE, reason });
        }
        if former.is_none() {
            let entries = std::fs::read_dir(folder).map_err(Error::io(folder, "list"))?;
            let hidden = |name: &std::ffi::OsStr| name.to_string_lossy().starts_with('.');
            if entries.flatten().any(|entry| !hidden(&entry.file_name())) {
                let reason =
                    format!("{} has other files than copies of a dataset; name a new folder", folder.display());
                return Err(Error::Setting { key: CACHE, reason });
            }
        }
        let text =
            serde_json::to_string(&Origin { dataset: self.origin.clone() }).map_err(|e| Error::Bug(e.to_string()))?;
        write_atomic(&path, text.as_bytes()).map_err(Error::io(&path, "write"))
    }

    /// Reads a small file of the dataset.
    fn read(&self, name: &str) -> Result<Vec<u8>> {
        let mut content = Vec::new();
        self.for_each_piece(name, |piece| {
            content.extend_from_slice(piece);
            Ok(())
        })?;
        Ok(content)
    }

    /// Copies a file of a partition to `to`. Returns `None` if another process has copied it meanwhile.
    pub(super) fn copy(
        &self,
        (part, kind): (usize, FileKind),
        to: &Path,
        info: &FileInfo,
        progress: &dyn Progress,
    ) -> Result<Option<Identity>> {
        let name = format!("{}/{}", part_folder(part), kind.name());
        let folder = crate::fs::folder_of(to);
        std::fs::create_dir_all(folder).map_err(Error::io(folder, "create"))?;
        let new = hidden_beside(to, "part");
        let length = || std::fs::metadata(&new).map_or(0, |meta| meta.len());
        let lock = lock(&hidden_beside(to, "lock"), self.limit(), length, || is_whole(to, info))
            .map_err(|stopped| stopped.error(to, "copies this file"))?;
        let Some(_lock) = lock else {
            progress.advance(info.bytes);
            return Ok(None);
        };
        let copied = self.copy_verified(&name, &new, info, progress).and_then(|identity| {
            std::fs::rename(&new, to).map_err(Error::io(to, "write"))?;
            Ok(Some(identity))
        });
        if copied.is_err() {
            // The first error is reported.
            let _ = remove(&new);
        }
        copied
    }

    /// Removes the damaged copy `path`, so that it is copied again.
    pub(super) fn discard(&self, path: &Path, info: &FileInfo, progress: &dyn Progress) -> Result<()> {
        let _lock = lock(&hidden_beside(path, "lock"), self.limit(), || 0, || false)
            .map_err(|stopped| stopped.error(path, "uses this file"))?;
        // Another process may have replaced it.
        if !is_intact(path, info)? {
            progress.note(&format!("{} is damaged and is copied again", path.display()));
            remove(path).map_err(Error::io(path, "remove"))?;
        }
        Ok(())
    }

    /// Copies a file to `to`, and compares it with its checksum. It is not synced: the next process verifies it.
    fn copy_verified(&self, name: &str, to: &Path, info: &FileInfo, progress: &dyn Progress) -> Result<Identity> {
        let mut file = File::create(to).map_err(Error::io(to, "create"))?;
        let (mut crc, mut length) = (crc32fast::Hasher::new(), 0);
        self.for_each_piece(name, |piece| {
            file.write_all(piece).map_err(Error::io(to, "write"))?;
            crc.update(piece);
            length += piece.len() as u64;
            progress.advance(piece.len() as u64);
            Ok(())
        })?;
        self.copied.fetch_add(length, Ordering::Relaxed);
        let found = match (length == info.bytes, crc.finalize() == info.crc32) {
            (true, true) => return Ok(Identity::of(&file.metadata().map_err(Error::io(to, "read"))?)),
            (false, _) => format!("it has {}, but the manifest says {}", bytes(length), bytes(info.bytes)),
            (true, false) => "its checksum differs from the one in manifest.json".to_owned(),
        };
        let reason = format!("{found}; if the dataset was replaced after the start, start again");
        Err(Error::Damaged { path: self.origin.join(name), reason })
    }

    /// Calls `each` with the bytes of a file of the dataset, piece by piece.
    fn for_each_piece(&self, name: &str, each: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let path = self.origin.join(name);
        if is_url(&path) {
            return find_one(path, DATASET, self.retry)?.for_each_piece(each);
        }
        match read_pieces(&path, each) {
            Err(Error::Io { path: read, source, .. })
                if read == path && source.kind() == std::io::ErrorKind::NotFound =>
            {
                Err(Error::Missing { path, role: DATASET })
            }
            read => read,
        }
    }
}

/// Removes the copies that do not belong to the dataset with manifest `now`. `before` is the manifest of the copies, if it is known.
fn remove_other_files(folder: &Path, before: Option<&Manifest>, now: &Manifest) -> Result<()> {
    for entry in std::fs::read_dir(folder).map_err(Error::io(folder, "list"))? {
        let entry = entry.map_err(Error::io(folder, "list"))?;
        let name = entry.file_name();
        let Some(part) = name.to_str().and_then(|name| name.strip_prefix("part-")?.parse::<usize>().ok()) else {
            continue;
        };
        let [old, new] =
            [before, Some(now)].map(|manifest| manifest.and_then(|manifest| manifest.partitions.get(part)));
        for kind in FileKind::ALL {
            let [old, new] = [old, new].map(|info| info.and_then(|info| kind.info(info)));
            if old.is_none() || old != new {
                let path = entry.path().join(kind.name());
                remove(&path).map_err(Error::io(&path, "remove"))?;
                // What a killed process has left of it.
                let [part, lock] = ["part", "lock"].map(|suffix| hidden_beside(&path, suffix));
                if part.exists() && LockFile::try_take(&lock).map_err(Error::io(&lock, "lock"))?.is_some() {
                    remove(&part).map_err(Error::io(&part, "remove"))?;
                }
            }
        }
    }
    Ok(())
}

/// Whether a copy has its full length. Its content is verified when it is read.
pub(super) fn is_whole(path: &Path, info: &FileInfo) -> bool {
    std::fs::metadata(path).is_ok_and(|meta| meta.len() == info.bytes)
}

/// Whether the content of a copy is that of the dataset. A copy that is gone is not.
fn is_intact(path: &Path, info: &FileInfo) -> Result<bool> {
    let (mut crc, mut length) = (crc32fast::Hasher::new(), 0);
    let read = read_pieces(path, |piece| {
        crc.update(piece);
        length += piece.len() as u64;
        Ok(())
    });
    match read {
        Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Ok(false),
        read => read.map(|()| length == info.bytes && crc.finalize() == info.crc32),
    }
}

/// Calls `each` with the bytes of a local file, piece by piece.
fn read_pieces(path: &Path, mut each: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
    let mut file = File::open(path).map_err(Error::io(path, "open"))?;
    let mut buffer = vec![0; PIECE];
    loop {
        match file.read(&mut buffer).map_err(Error::io(path, "read"))? {
            0 => return Ok(()),
            length => each(&buffer[..length])?,
        }
    }
}

/// Why a lock was not taken.
enum NoLock {
    Failed(std::io::Error),
    /// Its owner has written nothing for this time.
    Stopped(Duration),
}

impl NoLock {
    fn error(self, path: &Path, action: &str) -> Error {
        match self {
            Self::Failed(error) => Error::io(path, "lock")(error),
            Self::Stopped(time) => {
                let seconds = time.as_secs();
                let reason = format!(
                    "{}: another process {action}, but has written nothing for {seconds} s; stop it, or name another folder",
                    path.display()
                );
                Error::Setting { key: CACHE, reason }
            }
        }
    }
}

/// Takes a lock. While another process has it, waits until `is_done` (then returns `None`), or until `written` has not changed for `limit`.
fn lock(
    path: &Path,
    limit: Duration,
    written: impl Fn() -> u64,
    is_done: impl Fn() -> bool,
) -> std::result::Result<Option<LockFile>, NoLock> {
    let (mut last, mut since) = (written(), Instant::now());
    loop {
        let lock = LockFile::try_take(path).map_err(NoLock::Failed)?;
        if is_done() {
            return Ok(None);
        }
        if lock.is_some() {
            return Ok(lock);
        }
        let now = written();
        if now != last {
            (last, since) = (now, Instant::now());
            beat();
        }
        if since.elapsed() > limit {
            return Err(NoLock::Stopped(limit));
        }
        std::thread::sleep(PAUSE);
    }
}
