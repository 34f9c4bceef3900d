//! Durable and atomic writing of files.

use std::fs::{File, Permissions};
use std::io::{Result, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

/// Creates a temporary file in `folder`. It is removed when it is dropped, unless it has been persisted.
///
/// Its permissions are those of a new file under the user's umask.
///
/// # Errors
/// When the file cannot be created.
pub fn temporary_file(folder: &Path) -> Result<NamedTempFile> {
    tempfile::Builder::new().permissions(Permissions::from_mode(0o666)).tempfile_in(folder)
}

/// Syncs a temporary file, renames it to `path`, and syncs the folder. A file of that name is replaced.
///
/// # Errors
/// When the file or the folder cannot be synced, or the file cannot be renamed.
pub fn persist(file: NamedTempFile, path: &Path) -> Result<()> {
    file.as_file().sync_all()?;
    file.persist(path)?;
    sync_folder(folder_of(path))
}

/// Writes a file so that a crash leaves the old content or the new one, never a part of it.
///
/// A process that is killed may also leave the hidden file `.<name>.new` beside it, which the next call overwrites.
///
/// # Errors
/// When the file or its folder cannot be written or synced.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> Result<()> {
    let new = hidden_beside(path);
    let mut file = File::create(&new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&new, path)?;
    sync_folder(folder_of(path))
}

/// Like [`write_atomic`], without a sync: for reports that can be written again.
///
/// # Errors
/// When the file cannot be written or renamed.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    let new = hidden_beside(path);
    std::fs::write(&new, bytes)?;
    std::fs::rename(&new, path)
}

/// Gives a file a second name by a hard link. Where the file system has none, copies it and syncs the copy.
///
/// # Errors
/// When `to` exists, or cannot be written.
pub fn link_or_copy(from: &Path, to: &Path) -> Result<()> {
    match std::fs::hard_link(from, to) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => return Err(error),
        Err(_) => {}
        Ok(()) => return Ok(()),
    }
    std::fs::copy(from, to)?;
    File::open(to)?.sync_all()
}

fn hidden_beside(path: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".new");
    path.with_file_name(name)
}

/// Syncs the entries of a folder.
///
/// # Errors
/// When the folder cannot be opened or synced.
pub fn sync_folder(folder: &Path) -> Result<()> {
    File::open(folder)?.sync_all()
}

/// Returns the folder of a file or folder.
pub(crate) fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writing_replaces_a_file_and_leaves_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        write_atomic(&path, b"first").unwrap();
        write_atomic(&path, b"second").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"second");
        replace(&path, b"third").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"third");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        assert!(write_atomic(&folder.path().join("missing/a.json"), b"").is_err());
    }
}
