//! The lock on a run folder. Two runs that write to one folder at the same time would mix their results.

use std::path::{Path, PathBuf};

use gnnflow_data::fs::remove_temporary_files;
use gnnflow_data::lock_file::LockFile;
use gnnflow_pipelines::{Error, last_checkpoint, scratch_folder};

/// A lock that the process that writes the run folder, or its parent, holds during a run. A run that wrote nothing leaves no new folder, and
/// no run leaves temporary files: its own are removed when it ends, and those of a killed one when the next one begins.
#[derive(Debug)]
pub(crate) struct RunLock {
    _file: LockFile,
    run_dir: PathBuf,
}

impl RunLock {
    /// Name of the lock file in the run folder.
    const FILE: &str = ".lock";

    /// Locks `run_dir`. Creates the folder if it does not exist.
    ///
    /// # Errors
    /// If there is a file instead of the folder, another run has locked it, or the lock file cannot be created.
    pub(crate) fn take(run_dir: &Path) -> Result<Self, Error> {
        if let Some(file) = run_dir.ancestors().find(|path| path.is_file()) {
            let message = "this is a file, but results need a folder; choose another one with --run-dir or --out";
            return Err(Error::Usage(format!("{}: {message}", file.display())));
        }
        let path = run_dir.join(Self::FILE);
        let Some(mut file) = LockFile::try_take(&path).map_err(Error::io("lock", &path))? else {
            // The process id is optional in the message.
            let owner = std::fs::read_to_string(&path).unwrap_or_default();
            let owner = if owner.is_empty() { String::new() } else { format!(" (process {})", owner.trim()) };
            return Err(Error::Usage(format!(
                "the folder {} is in use by another run{owner}; choose another folder with --run-dir or --out, or wait until that run has ended",
                run_dir.display()
            )));
        };
        file.write(&format!("{}\n", std::process::id())).map_err(Error::io("write", &path))?;
        let lock = Self { _file: file, run_dir: run_dir.to_owned() };
        lock.remove_temporary_files()?;
        Ok(lock)
    }

    fn remove_temporary_files(&self) -> Result<(), Error> {
        let checkpoint = last_checkpoint(&self.run_dir);
        for folder in [Some(self.run_dir.as_path()), checkpoint.parent()].into_iter().flatten() {
            remove_temporary_files(folder).map_err(Error::io("remove temporary files in", folder))?;
        }
        Ok(())
    }
}

impl Drop for RunLock {
    fn drop(&mut self) {
        // A failed run leaves this folder. It is empty, because scratch files have no names.
        let _ = std::fs::remove_dir(scratch_folder(&self.run_dir));
        // What cannot be removed now is removed by the next run.
        let _ = self.remove_temporary_files();
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
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        for path in [&file, &file.join("run")] {
            let error = RunLock::take(path).unwrap_err();
            assert!(error.exit_code() == 2 && error.to_string().contains("file: this is a file"), "{error}");
        }
    }
}
