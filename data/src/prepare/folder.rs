//! The folder of a dataset, which appears atomically.
//!
//! The dataset is written to a hidden sibling folder. That folder is renamed after it and its files have been synced to the disk. A
//! [`Lock`] next to it lets one process work while others wait.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};

use super::lock::Lock;
use crate::error::{Error, Result};
use crate::fs;
use crate::progress::Progress;

/// Name of the subfolder for temporary files.
pub(crate) const SCRATCH: &str = "scratch";

/// The hidden folder of an unfinished dataset. It is removed when dropped, unless published. A killed process leaves it; the next
/// preparation of the same dataset resumes from it.
pub(crate) struct StagingFolder {
    path: PathBuf,
    out: PathBuf,
    published: bool,
}

/// Name of the file that identifies the unfinished dataset.
const KEY: &str = "key";

impl StagingFolder {
    /// Reuses the folder that a killed preparation with the same `key` left, or creates one. Removes folders of other preparations. The lock
    /// must be held.
    pub(crate) fn create(out: &Path, key: &str) -> Result<Self> {
        let path = sibling(out, ".", ".tmp")?;
        let scratch = path.join(SCRATCH);
        restore_locked(out)?;
        if path.exists() {
            if std::fs::read_to_string(scratch.join(KEY)).is_ok_and(|found| found == key) {
                return Ok(Self { path, out: out.to_path_buf(), published: false });
            }
            std::fs::remove_dir_all(&path).map_err(Error::io(&path, "remove"))?;
        }
        std::fs::create_dir_all(&scratch).map_err(Error::io(&scratch, "create"))?;
        let this = Self { path, out: out.to_path_buf(), published: false };
        let file = scratch.join(KEY);
        std::fs::write(&file, key).map_err(Error::io(&file, "write"))?;
        Ok(this)
    }

    /// Returns the path of the hidden folder of `out`, for processes other than the first. The first process removes the folder.
    pub(super) fn path_for(out: &Path) -> Result<PathBuf> {
        sibling(out, ".", ".tmp")
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Moves the folder into place and removes the old dataset. Processes that have its files open can still read them.
    pub(crate) fn publish(mut self) -> Result<()> {
        for entry in std::fs::read_dir(&self.path).map_err(Error::io(&self.path, "list"))? {
            let path = entry.map_err(Error::io(&self.path, "list"))?.path();
            if path.is_dir() {
                sync(&path)?;
            }
        }
        sync(&self.path)?;
        fs::move_over(&self.path, &self.out).map_err(Error::io(&self.out, "put the prepared dataset at"))?;
        self.published = true;
        Ok(())
    }
}

impl Drop for StagingFolder {
    fn drop(&mut self) {
        if !self.published {
            // A failure is ignored, because the next preparation tries to remove the folder again.
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

/// Writes a small file and syncs it to the disk.
pub(crate) fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    use std::io::Write;
    let mut file = File::create(path).map_err(Error::io(path, "create"))?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(Error::io(path, "write"))
}

/// Moves the dataset of folder `out` back if a process was killed while [`StagingFolder::publish`] replaced it.
pub(crate) fn restore(out: &Path, progress: &dyn Progress) -> Result<()> {
    if out.exists() || !fs::hidden_beside(out, "old").exists() {
        return Ok(());
    }
    let _lock = lock(out, progress)?;
    restore_locked(out)
}

/// Waits until no other process prepares `out`, then locks it.
pub(crate) fn lock(out: &Path, progress: &dyn Progress) -> Result<Lock> {
    Lock::take(&sibling(out, "", ".lock")?, "waiting for another process that prepares this dataset", progress)
}

/// As [`restore`], for a process that holds the lock.
pub(crate) fn restore_locked(out: &Path) -> Result<()> {
    fs::restore(out).map_err(Error::io(out, "restore"))
}

fn sync(dir: &Path) -> Result<()> {
    fs::sync_folder(dir).map_err(Error::io(dir, "flush"))
}

fn sibling(out: &Path, before: &str, after: &str) -> Result<PathBuf> {
    let name = out.file_name().ok_or_else(|| Error::Setting {
        key: "partition.out",
        reason: format!("{:?} does not end with a folder name; choose another folder", out.display()),
    })?;
    let mut sibling = OsString::from(before);
    sibling.push(name);
    sibling.push(after);
    Ok(fs::folder_of(out).join(sibling))
}
