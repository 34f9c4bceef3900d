//! The folder of a dataset appears whole or not at all.
//!
//! Work is done in a hidden folder beside it, which is renamed into place when everything in it, and the folder itself, have
//! reached the disk. A lock file beside it lets one process work while others on the same machine wait; the system drops
//! the lock of a process that dies, and whoever comes next removes what it left.

use std::ffi::OsString;
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::progress::Progress;

/// Name of the folder within it for what is needed only while it grows.
pub(crate) const SCRATCH: &str = "scratch";

/// How often a waiting process looks again.
const POLL: Duration = Duration::from_millis(100);

/// Holds the lock `<out>.lock` until it is dropped.
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// Waits until no other process prepares `out`.
    pub(crate) fn take(out: &Path, progress: &dyn Progress) -> Result<Self> {
        let parent = parent(out);
        std::fs::create_dir_all(&parent).map_err(Error::io(&parent, "create"))?;
        Self::wait(&sibling(out, "", ".lock")?, "waiting for another process that prepares this dataset", progress)
    }

    /// Waits until no other process holds the lock file `path`; shows `stage` while it waits.
    pub(crate) fn wait(path: &Path, stage: &str, progress: &dyn Progress) -> Result<Self> {
        let file =
            File::options().create(true).truncate(false).write(true).open(path).map_err(Error::io(path, "open"))?;
        let mut told = false;
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) => {
                    if !told {
                        progress.stage(stage, None, "");
                        told = true;
                    }
                    std::thread::sleep(POLL);
                }
                Err(TryLockError::Error(error)) => return Err(Error::io(path, "lock")(error)),
            }
        }
        if told {
            progress.done();
        }
        Ok(Self { _file: file })
    }
}

/// The hidden folder where a dataset grows. Removed when dropped, unless published: only what kills the process leaves it, for
/// the next preparation of the same to go on with.
pub(crate) struct Growing {
    path: PathBuf,
    out: PathBuf,
    published: bool,
}

/// Name of the file that says what grows in a folder.
const KEY: &str = "key";

impl Growing {
    /// Takes up the folder that a killed preparation of the same `key` left, or creates one, and removes whatever else was
    /// left. The lock must be held.
    pub(crate) fn create(out: &Path, key: &str) -> Result<Self> {
        let path = sibling(out, ".", ".tmp")?;
        let old = sibling(out, ".", ".old")?;
        let scratch = path.join(SCRATCH);
        if old.exists() {
            std::fs::remove_dir_all(&old).map_err(Error::io(&old, "remove"))?;
        }
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

    /// The folder of other processes' work on the same dataset: removed by the first of them.
    pub(super) fn path_for(out: &Path) -> Result<PathBuf> {
        sibling(out, ".", ".tmp")
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Moves the folder into place. Whatever dataset was there is removed; processes that have it open keep what they see.
    pub(crate) fn publish(mut self) -> Result<()> {
        for entry in std::fs::read_dir(&self.path).map_err(Error::io(&self.path, "list"))? {
            let path = entry.map_err(Error::io(&self.path, "list"))?.path();
            if path.is_dir() {
                sync(&path)?;
            }
        }
        sync(&self.path)?;
        let old = sibling(&self.out, ".", ".old")?;
        let replaced = self.out.exists();
        if replaced {
            std::fs::rename(&self.out, &old).map_err(Error::io(&self.out, "move away"))?;
        }
        std::fs::rename(&self.path, &self.out).map_err(Error::io(&self.out, "rename the prepared dataset to"))?;
        self.published = true;
        sync(&parent(&self.out))?;
        if replaced {
            std::fs::remove_dir_all(&old).map_err(Error::io(&old, "remove"))?;
        }
        Ok(())
    }
}

impl Drop for Growing {
    fn drop(&mut self) {
        if !self.published {
            // Nothing better can be done about a failure here: the next run tries again.
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

/// Writes a small file and flushes it to the disk.
pub(crate) fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    use std::io::Write;
    let mut file = File::create(path).map_err(Error::io(path, "create"))?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(Error::io(path, "write"))
}

fn sync(dir: &Path) -> Result<()> {
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(Error::io(dir, "flush"))
}

fn parent(out: &Path) -> PathBuf {
    match out.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
        _ => PathBuf::from("."),
    }
}

fn sibling(out: &Path, before: &str, after: &str) -> Result<PathBuf> {
    let name = out.file_name().ok_or_else(|| Error::Setting {
        key: "partition.out",
        reason: format!("{:?} has no name that a folder could have", out.display()),
    })?;
    let mut sibling = OsString::from(before);
    sibling.push(name);
    sibling.push(after);
    Ok(parent(out).join(sibling))
}
