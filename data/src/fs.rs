//! Durable and atomic writing of files.

use std::fs::{File, Permissions};
use std::io::{Result, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

/// Beginning and end of the names of temporary files.
const TEMPORARY: [&str; 2] = [".gnnflow-", ".tmp"];

/// Creates a temporary file in `folder`. It is removed when it is dropped, unless it has been persisted.
///
/// Its permissions are those of a new file under the user's umask. A process that is killed leaves it; [`remove_temporary_files`] removes
/// it later.
///
/// # Errors
/// When the file cannot be created.
pub fn temporary_file(folder: &Path) -> Result<NamedTempFile> {
    let [prefix, suffix] = TEMPORARY;
    let mut builder = tempfile::Builder::new();
    builder.prefix(prefix).suffix(suffix).permissions(Permissions::from_mode(0o666)).tempfile_in(folder)
}

/// Removes the temporary files of processes that have ended. No other process may write files in `folder`, which may be missing.
///
/// # Errors
/// When the folder cannot be read, or a file cannot be removed.
pub fn remove_temporary_files(folder: &Path) -> Result<()> {
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    let [prefix, suffix] = TEMPORARY;
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        if name.to_str().is_some_and(|name| name.starts_with(prefix) && name.ends_with(suffix)) {
            remove(&entry.path())?;
        }
    }
    Ok(())
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
    let new = hidden_beside(path, "new");
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
    let new = hidden_beside(path, "new");
    std::fs::write(&new, bytes)?;
    std::fs::rename(&new, path)
}

/// Renames `new` to `path` and syncs the folder of `path`. What was there, a file or a folder, is removed.
///
/// Readers find the old content or the new one. Only if one of them is a folder and the file system cannot exchange names, the old one has
/// the name `.<name>.old` for a moment; [`restore`] moves it back if the process is killed then.
///
/// # Errors
/// When `new` cannot be renamed, what was at `path` cannot be moved or removed, or the folder cannot be synced.
pub fn move_over(new: &Path, path: &Path) -> Result<()> {
    if !path.exists() || !(new.is_dir() || path.is_dir()) {
        std::fs::rename(new, path)?;
    } else if exchange(new, path) {
        sync_folder(folder_of(path))?;
        return remove(new);
    } else {
        new.symlink_metadata()?;
        let old = hidden_beside(path, "old");
        remove(&old)?;
        std::fs::rename(path, &old)?;
        if let Err(error) = std::fs::rename(new, path) {
            std::fs::rename(&old, path)?;
            return Err(error);
        }
        sync_folder(folder_of(path))?;
        return remove(&old);
    }
    sync_folder(folder_of(path))
}

/// Moves back what a killed [`move_over`] has moved away from `path`, and removes what it has replaced.
///
/// # Errors
/// When it cannot be moved or removed.
pub fn restore(path: &Path) -> Result<()> {
    let old = hidden_beside(path, "old");
    if path.exists() || !old.exists() {
        return remove(&old);
    }
    // Another process may have moved it back.
    std::fs::rename(&old, path).or_else(|error| if path.exists() { Ok(()) } else { Err(error) })
}

/// Exchanges the names of two files or folders at once. Returns false where the file system cannot.
fn exchange(a: &Path, b: &Path) -> bool {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE).is_ok()
}

/// Removes a file or a folder, if there is one.
///
/// # Errors
/// When it cannot be removed.
pub fn remove(path: &Path) -> Result<()> {
    let is_folder = path.symlink_metadata().is_ok_and(|meta| meta.is_dir());
    let removed = if is_folder { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
    removed.or_else(|error| if error.kind() == std::io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

/// Gives a file a second name by a hard link. Where the file system has none, writes a copy under a hidden name, syncs and
/// renames it.
///
/// # Errors
/// When `to` exists, or cannot be written.
pub fn link_or_copy(from: &Path, to: &Path) -> Result<()> {
    match std::fs::hard_link(from, to) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => return Err(error),
        Err(_) => {}
        Ok(()) => return Ok(()),
    }
    if to.try_exists()? {
        return Err(std::io::ErrorKind::AlreadyExists.into());
    }
    let new = hidden_beside(to, "new");
    std::fs::copy(from, &new)?;
    File::open(&new)?.sync_all()?;
    std::fs::rename(&new, to)
}

/// Returns `.<name>.<suffix>` beside `path`.
pub fn hidden_beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".");
    name.push(suffix);
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
    fn files_and_folders_replace_each_other() {
        let folder = tempfile::tempdir().unwrap();
        let [new, path] = ["new", "table"].map(|name| folder.path().join(name));
        let folder_with = |path: &Path, text: &str| {
            std::fs::create_dir(path).unwrap();
            std::fs::write(path.join("a"), text).unwrap();
        };
        for is_folder in [true, false, false, true, true] {
            if is_folder {
                folder_with(&new, "x")
            } else {
                std::fs::write(&new, "x").unwrap()
            }
            move_over(&new, &path).unwrap();
            assert_eq!(path.is_dir(), is_folder);
            assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        }
        assert!(move_over(&new, &path).is_err());
        assert!(path.is_dir(), "a failure leaves the old one");
        // A process was killed between two renames.
        std::fs::rename(&path, folder.path().join(".table.old")).unwrap();
        restore(&path).unwrap();
        restore(&path).unwrap();
        assert_eq!(std::fs::read_to_string(path.join("a")).unwrap(), "x");
        remove(&path).unwrap();
        remove(&path).unwrap();
    }

    #[test]
    fn temporary_files_of_others_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let left = temporary_file(folder.path()).unwrap().keep().unwrap().1;
        assert!(left.exists());
        for name in [".gnnflow-notes", "a.tmp", ".a.json.new"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        remove_temporary_files(folder.path()).unwrap();
        assert!(!left.exists());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 3);
        remove_temporary_files(&folder.path().join("missing")).unwrap();
    }

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
