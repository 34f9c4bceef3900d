//! What a preparation has done so far, so that one that was killed goes on at its last whole pass.
//!
//! The folder where the dataset grows holds a journal for each process: one small file per finished pass, written beside and
//! renamed when everything that the pass wrote is in its files. A journal counts only for the same inputs and settings, the
//! same number of processes, and the same run of the machine: files are flushed once, at the end, so after a power failure
//! everything begins anew.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, Result};
use crate::group::ProcessGroup;

/// The finished passes of this process, and what they came to.
pub(super) struct Journal {
    dir: PathBuf,
    rank: usize,
    /// Passes that all processes had finished when this one began.
    agreed: BTreeSet<String>,
}

impl Journal {
    /// Opens the journal in `dir`, which exists; everybody comes to the same agreement.
    pub(super) fn open<C: ProcessGroup>(processes: &C, dir: &Path) -> Result<Self> {
        let mut this = Self { dir: dir.to_path_buf(), rank: processes.rank(), agreed: BTreeSet::new() };
        let prefix = format!("{}-", this.rank);
        let mut own = BTreeSet::new();
        for entry in std::fs::read_dir(dir).map_err(Error::io(dir, "list"))? {
            let name = entry.map_err(Error::io(dir, "list"))?.file_name().to_string_lossy().into_owned();
            own.extend(name.strip_prefix(&prefix).and_then(|name| name.strip_suffix(".json")).map(String::from));
        }
        let text = own.iter().map(String::as_str).collect::<Vec<_>>().join("\n");
        let mut all = processes.all_gather(text.into_bytes())?.into_iter();
        let names = |bytes: Vec<u8>| -> BTreeSet<String> {
            String::from_utf8_lossy(&bytes).lines().map(String::from).collect()
        };
        this.agreed = all.next().map(names).unwrap_or_default();
        for other in all.map(names) {
            this.agreed.retain(|name| other.contains(name));
        }
        Ok(this)
    }

    fn path(&self, pass: &str) -> PathBuf {
        self.dir.join(format!("{}-{pass}.json", self.rank))
    }

    /// What pass `pass` came to, if all processes had finished it before this preparation began.
    pub(super) fn agreed<T: DeserializeOwned>(&self, pass: &str) -> Result<Option<T>> {
        if self.agreed.contains(pass) { self.own(pass) } else { Ok(None) }
    }

    /// What pass `pass` came to, if this process has finished it. For work that nobody else waits for.
    pub(super) fn own<T: DeserializeOwned>(&self, pass: &str) -> Result<Option<T>> {
        let path = self.path(pass);
        match std::fs::read(&path) {
            // What does not parse was not written by this build: the pass is done again.
            Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::io(path, "read")(error)),
        }
    }

    /// Notes that pass `pass` is finished.
    pub(super) fn finish<T: Serialize>(&self, pass: &str, came_to: &T) -> Result<()> {
        let text = serde_json::to_vec(came_to).map_err(|e| Error::Bug(e.to_string()))?;
        self.replace(&self.path(pass), &text)
    }

    /// Keeps bytes of a partitioner. Only one process does.
    pub(super) fn keep(&self, name: &str, bytes: &[u8]) -> Result<()> {
        self.replace(&self.kept_path(name), bytes)
    }

    /// The bytes that were kept.
    pub(super) fn kept(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let path = self.kept_path(name);
        match std::fs::read(&path) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::io(path, "read")(error)),
        }
    }

    fn kept_path(&self, name: &str) -> PathBuf {
        let name: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        self.dir.join(format!("kept-{name}"))
    }

    fn replace(&self, path: &Path, bytes: &[u8]) -> Result<()> {
        let beside = path.with_extension(format!("new-{}", self.rank));
        std::fs::write(&beside, bytes).map_err(Error::io(&beside, "write"))?;
        std::fs::rename(&beside, path).map_err(Error::io(path, "rename a file to"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::SingleProcess;

    #[test]
    fn finished_passes_are_found_again() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::open(&SingleProcess, dir.path()).unwrap();
        assert_eq!(journal.agreed::<u32>("nodes").unwrap(), None);
        journal.finish("nodes", &7u32).unwrap();
        assert_eq!(journal.own::<u32>("nodes").unwrap(), Some(7));
        assert_eq!(journal.agreed::<u32>("nodes").unwrap(), None, "agreements are made once, at the beginning");
        journal.keep("round 1", b"abc").unwrap();
        let again = Journal::open(&SingleProcess, dir.path()).unwrap();
        assert_eq!(again.agreed::<u32>("nodes").unwrap(), Some(7));
        assert_eq!(again.kept("round 1").unwrap().unwrap(), b"abc");
        assert_eq!(again.kept("round 2").unwrap(), None);
    }
}
