//! A file that one process on this machine has locked.

use std::fs::{File, TryLockError};
use std::io::{ErrorKind, Result, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A locked file. When it is dropped, it is removed, and so are the folders that were created for it and are empty. If the process is
/// killed, the file remains, but the system releases the lock.
#[derive(Debug)]
pub struct LockFile {
    file: File,
    path: PathBuf,
    /// The created folders, the innermost first.
    created: Vec<PathBuf>,
}

impl LockFile {
    /// Locks the file, and creates it and its folders if they do not exist. `None`: another process has locked it.
    ///
    /// # Errors
    /// When a folder or the file cannot be created, or the system supports no locks there.
    pub fn try_take(path: &Path) -> Result<Option<Self>> {
        let missing = |folder: &&Path| !folder.as_os_str().is_empty() && !folder.exists();
        let created = path.ancestors().skip(1).take_while(missing).map(Path::to_owned).collect();
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        loop {
            let file = File::options().create(true).truncate(false).write(true).open(path)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(error)) => return Err(error),
            }
            // The process that had the lock may have removed the file after it was opened here.
            if is_at(&file, path)? {
                return Ok(Some(Self { file, path: path.to_owned(), created }));
            }
        }
    }

    /// Replaces the content of the file.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&mut self, text: &str) -> Result<()> {
        self.file.set_len(0)?;
        self.file.rewind()?;
        self.file.write_all(text.as_bytes())
    }

    /// Writes the content to the disk or the server, where other hosts can read it.
    ///
    /// # Errors
    /// When it cannot be written, or the file system does not support this.
    pub fn sync(&self) -> Result<()> {
        self.file.sync_data()
    }
}

impl Drop for LockFile {
    fn drop(&mut self) {
        // A failure is ignored, because a file without a lock does no harm.
        let _ = std::fs::remove_file(&self.path);
        for folder in &self.created {
            // This removes only an empty folder.
            let _ = std::fs::remove_dir(folder);
        }
    }
}

/// Whether `path` is the path of `file`.
fn is_at(file: &File, path: &Path) -> Result<bool> {
    let own = file.metadata()?;
    match std::fs::metadata(path) {
        Ok(other) => Ok((own.dev(), own.ino()) == (other.dev(), other.ino())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn second_lock_is_refused_until_the_first_is_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("runs/one/.lock");
        let mut lock = LockFile::try_take(&path).unwrap().unwrap();
        lock.write("first\n").unwrap();
        lock.write("2\n").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "2\n");
        assert!(LockFile::try_take(&path).unwrap().is_none());
        drop(lock);
        assert!(!dir.path().join("runs").exists());
        // Folders with files remain.
        let lock = LockFile::try_take(&path).unwrap().unwrap();
        std::fs::write(dir.path().join("runs/notes"), "").unwrap();
        drop(lock);
        assert!(!dir.path().join("runs/one").exists() && dir.path().join("runs/notes").exists());
    }

    #[test]
    fn one_thread_at_a_time_has_the_lock_although_the_file_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let (inside, taken) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while taken.load(Ordering::Relaxed) < 2000 {
                        if let Some(lock) = LockFile::try_take(&path).unwrap() {
                            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                            taken.fetch_add(1, Ordering::Relaxed);
                            inside.fetch_sub(1, Ordering::SeqCst);
                            drop(lock);
                        }
                    }
                });
            }
        });
    }
}
