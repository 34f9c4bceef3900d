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

/// How often a waiting process looks again.
const POLL: Duration = Duration::from_millis(100);

/// Holds the lock `<out>.lock` until it is dropped.
pub(super) struct Lock {
    _file: File,
}

impl Lock {
    /// Waits until no other process prepares `out`.
    pub(super) fn take(out: &Path, progress: &dyn Progress) -> Result<Self> {
        let parent = parent(out);
        std::fs::create_dir_all(&parent).map_err(Error::io(&parent, "create"))?;
        let path = sibling(out, "", ".lock")?;
        let file =
            File::options().create(true).truncate(false).write(true).open(&path).map_err(Error::io(&path, "open"))?;
        let mut told = false;
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) => {
                    if !told {
                        progress.stage("waiting for another process that prepares this dataset", None, "");
                        told = true;
                    }
                    std::thread::sleep(POLL);
                }
                Err(TryLockError::Error(error)) => return Err(Error::io(&path, "lock")(error)),
            }
        }
        if told {
            progress.done();
        }
        Ok(Self { _file: file })
    }
}

/// The hidden folder where a dataset grows. Removed when dropped, unless published.
pub(super) struct Growing {
    path: PathBuf,
    out: PathBuf,
    published: bool,
}

impl Growing {
    /// Creates it, and removes those that killed processes left. The lock must be held.
    pub(super) fn create(out: &Path) -> Result<Self> {
        let (prefixes, parent) = ([sibling_name(out, ".", ".tmp-")?, sibling_name(out, ".", ".old-")?], parent(out));
        for entry in std::fs::read_dir(&parent).map_err(Error::io(&parent, "list"))? {
            let entry = entry.map_err(Error::io(&parent, "list"))?;
            let name = entry.file_name();
            if prefixes.iter().any(|prefix| name.as_encoded_bytes().starts_with(prefix.as_encoded_bytes())) {
                std::fs::remove_dir_all(entry.path()).map_err(Error::io(entry.path(), "remove"))?;
            }
        }
        let path = sibling(out, ".", &format!(".tmp-{}", std::process::id()))?;
        std::fs::create_dir(&path).map_err(Error::io(&path, "create"))?;
        Ok(Self { path, out: out.to_path_buf(), published: false })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Moves the folder into place. Whatever dataset was there is removed; processes that have it open keep what they see.
    pub(super) fn publish(mut self) -> Result<()> {
        for entry in std::fs::read_dir(&self.path).map_err(Error::io(&self.path, "list"))? {
            let path = entry.map_err(Error::io(&self.path, "list"))?.path();
            if path.is_dir() {
                sync(&path)?;
            }
        }
        sync(&self.path)?;
        let old = sibling(&self.out, ".", &format!(".old-{}", std::process::id()))?;
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
pub(super) fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
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

fn sibling_name(out: &Path, before: &str, after: &str) -> Result<OsString> {
    let name = out.file_name().ok_or_else(|| Error::Setting {
        key: "partition.out",
        reason: format!("{:?} has no name that a folder could have", out.display()),
    })?;
    let mut sibling = OsString::from(before);
    sibling.push(name);
    sibling.push(after);
    Ok(sibling)
}

fn sibling(out: &Path, before: &str, after: &str) -> Result<PathBuf> {
    Ok(parent(out).join(sibling_name(out, before, after)?))
}
