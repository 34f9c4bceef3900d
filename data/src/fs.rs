//! Durable and atomic writing of files.

use std::fs::{File, Permissions};
use std::io::{Result, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

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
/// # Errors
/// When the file cannot be written.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = temporary_file(folder_of(path))?;
    file.write_all(bytes)?;
    persist(file, path)
}

/// Replaces a file by way of a hidden file `.<name>.new` beside it, without a sync: for reports that can be written again.
///
/// A process that is killed leaves either content, and perhaps the hidden file, which the next call overwrites.
///
/// # Errors
/// When the file cannot be written or renamed.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".new");
    let new = path.with_file_name(name);
    std::fs::write(&new, bytes)?;
    std::fs::rename(&new, path)
}

/// Syncs the entries of a folder.
pub(crate) fn sync_folder(folder: &Path) -> Result<()> {
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
