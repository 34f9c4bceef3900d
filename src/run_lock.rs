//! The lock on a run folder. Two runs that write to one folder at the same time would mix their results.

use std::fs::{File, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::Path;

use gnnflow_pipelines::Error;

/// A lock that the process that writes the run folder holds during a run. The system releases it when the process ends.
#[derive(Debug)]
pub(crate) struct RunLock {
    _file: File,
}

impl RunLock {
    /// Name of the lock file in the run folder. The file remains after the run.
    const FILE: &str = ".lock";

    /// Locks `run_dir`. Creates the folder if it does not exist.
    ///
    /// # Errors
    /// If another run has locked the folder, or the file cannot be created.
    pub(crate) fn take(run_dir: &Path) -> Result<Self, Error> {
        std::fs::create_dir_all(run_dir).map_err(Error::io("create", run_dir))?;
        let path = run_dir.join(Self::FILE);
        let open = File::options().create(true).truncate(false).read(true).write(true).open(&path);
        let mut file = open.map_err(Error::io("open", &path))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut owner = String::new();
                // The process id is optional in the message.
                let _ = file.read_to_string(&mut owner);
                let owner = if owner.is_empty() { String::new() } else { format!(" (process {})", owner.trim()) };
                return Err(Error::Usage(format!(
                    "the run folder {} is in use by another run{owner}; choose another --run-dir, or wait until that run has ended",
                    run_dir.display()
                )));
            }
            Err(TryLockError::Error(error)) => return Err(Error::io("lock", &path)(error)),
        }
        let number = format!("{}\n", std::process::id());
        let written = file.set_len(0).and_then(|()| file.rewind()).and_then(|()| file.write_all(number.as_bytes()));
        written.map_err(Error::io("write", &path))?;
        Ok(Self { _file: file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_lock_is_refused_until_the_first_is_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let run_dir = dir.path().join("run");
        let lock = RunLock::take(&run_dir).unwrap();
        let error = RunLock::take(&run_dir).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains(&format!("(process {})", std::process::id())), "{error}");
        drop(lock);
        RunLock::take(&run_dir).unwrap();
    }
}
