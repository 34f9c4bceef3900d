//! The journal of a preparation. A killed preparation resumes after its last completed pass.
//!
//! The folder of the unfinished dataset holds a journal for each process: one small file per completed pass. The file is written under
//! another name and renamed after all files of the pass have been written. A journal is valid only for the same inputs, settings, number
//! of processes, and boot of the machine. Each file begins with its checksum; the pass of a damaged file is repeated. Files are synced only at the end, so after a power failure the preparation starts anew.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, Result};
use crate::group::ProcessGroup;

/// Beginning of the names of files with bytes of a partitioner.
const KEPT: &str = "kept-";

/// The completed passes of this process, and their results.
pub(super) struct Journal {
    dir: PathBuf,
    rank: usize,
    /// Passes that all processes had completed when this preparation started.
    completed: BTreeSet<String>,
}

impl Journal {
    /// Opens the journal in the existing folder `dir`. All processes find the same completed passes.
    pub(super) fn open<C: ProcessGroup>(processes: &C, dir: &Path) -> Result<Self> {
        let mut this = Self { dir: dir.to_path_buf(), rank: processes.rank(), completed: BTreeSet::new() };
        let prefix = format!("{}-", this.rank);
        let mut completed = BTreeSet::new();
        for entry in std::fs::read_dir(dir).map_err(Error::io(dir, "list"))? {
            let entry = entry.map_err(Error::io(dir, "list"))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let pass = name.strip_prefix(&prefix).and_then(|name| name.strip_suffix(".json"));
            if let Some(pass) = pass
                && read(&entry.path())?.is_some()
            {
                completed.insert(pass.to_owned());
            }
        }
        let text = completed.iter().map(String::as_str).collect::<Vec<_>>().join("\n");
        let mut all = processes.all_gather(text.into_bytes())?.into_iter();
        let names = |bytes: Vec<u8>| -> BTreeSet<String> {
            String::from_utf8_lossy(&bytes).lines().map(String::from).collect()
        };
        this.completed = all.next().map(names).unwrap_or_default();
        for other in all.map(names) {
            this.completed.retain(|name| other.contains(name));
        }
        Ok(this)
    }

    fn path(&self, pass: &str) -> PathBuf {
        self.dir.join(format!("{}-{pass}.json", self.rank))
    }

    /// Returns the result of pass `pass` if all processes had completed it when this preparation started.
    pub(super) fn completed<T: DeserializeOwned>(&self, pass: &str) -> Result<Option<T>> {
        if self.completed.contains(pass) { self.completed_here(pass) } else { Ok(None) }
    }

    /// Returns the result of pass `pass` if this process has completed it. For passes without communication.
    pub(super) fn completed_here<T: DeserializeOwned>(&self, pass: &str) -> Result<Option<T>> {
        // A result of another form was written by another version; the pass is repeated.
        Ok(read(&self.path(pass))?.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
    }

    /// Records the completion of pass `pass` and its result.
    pub(super) fn finish<T: Serialize>(&self, pass: &str, result: &T) -> Result<()> {
        let text = serde_json::to_vec(result).map_err(|e| Error::Bug(e.to_string()))?;
        self.replace(&self.path(pass), &text)
    }

    /// Stores bytes of a partitioner. Only one process may call this method.
    pub(super) fn store(&self, name: &str, bytes: &[u8]) -> Result<()> {
        self.replace(&self.stored_path(name), bytes)
    }

    /// Returns the bytes that [`Journal::store`] wrote; `None` if they are damaged.
    pub(super) fn stored(&self, name: &str) -> Result<Option<Vec<u8>>> {
        read(&self.stored_path(name))
    }

    fn stored_path(&self, name: &str) -> PathBuf {
        let name: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        self.dir.join(format!("{KEPT}{name}"))
    }

    fn replace(&self, path: &Path, bytes: &[u8]) -> Result<()> {
        let beside = path.with_extension(format!("new-{}", self.rank));
        let checksum = crc32fast::hash(bytes).to_le_bytes();
        std::fs::write(&beside, [&checksum, bytes].concat()).map_err(Error::io(&beside, "write"))?;
        std::fs::rename(&beside, path).map_err(Error::io(path, "rename a file to"))
    }
}

/// Reads a file without its checksum; `None` if there is none, or its checksum does not match.
fn read(path: &Path) -> Result<Option<Vec<u8>>> {
    let mut bytes = match std::fs::read(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        bytes => bytes.map_err(Error::io(path, "read"))?,
    };
    let Some((checksum, content)) = bytes.split_first_chunk() else { return Ok(None) };
    let is_whole = *checksum == crc32fast::hash(content).to_le_bytes();
    bytes.drain(..size_of::<u32>());
    Ok(is_whole.then_some(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::SingleProcess;

    #[test]
    fn reopened_journal_returns_completed_passes() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::open(&SingleProcess, dir.path()).unwrap();
        assert_eq!(journal.completed::<u32>("nodes").unwrap(), None);
        journal.finish("nodes", &7u32).unwrap();
        assert_eq!(journal.completed_here::<u32>("nodes").unwrap(), Some(7));
        assert_eq!(journal.completed::<u32>("nodes").unwrap(), None, "not before a new start");
        journal.store("round 1", b"abc").unwrap();
        let reopened = Journal::open(&SingleProcess, dir.path()).unwrap();
        assert_eq!(reopened.completed::<u32>("nodes").unwrap(), Some(7));
        assert_eq!(reopened.stored("round 1").unwrap().unwrap(), b"abc");
        assert_eq!(reopened.stored("round 2").unwrap(), None);
    }

    #[test]
    fn passes_with_damaged_files_are_not_completed() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::open(&SingleProcess, dir.path()).unwrap();
        journal.finish("nodes", &vec![7u32; 10]).unwrap();
        journal.store("round", b"abc").unwrap();
        for (path, bits) in [(journal.path("nodes"), 8 * 25), (journal.stored_path("round"), 8 * 7)] {
            let whole = std::fs::read(&path).unwrap();
            assert_eq!(8 * whole.len(), bits);
            for bit in 0..bits {
                let mut bytes = whole.clone();
                bytes[bit / 8] ^= 1 << (bit % 8);
                std::fs::write(&path, bytes).unwrap();
                let reopened = Journal::open(&SingleProcess, dir.path()).unwrap();
                let nodes = reopened.completed::<Vec<u32>>("nodes").unwrap();
                let round = reopened.stored("round").unwrap();
                assert_eq!([nodes.is_some(), round.is_some()].iter().filter(|found| **found).count(), 1, "bit {bit}");
            }
            std::fs::write(&path, &whole[..3]).unwrap();
            assert!(Journal::open(&SingleProcess, dir.path()).is_ok());
            std::fs::write(&path, whole).unwrap();
        }
    }
}
