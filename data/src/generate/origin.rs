//! The origin of Parquet files: an entry in the footer of every file of a dump that gnnflow writes.

use std::fs::File;
use std::path::{Path, PathBuf};

use parquet::arrow::arrow_reader::ArrowReaderMetadata;
use parquet::file::metadata::KeyValue;

use crate::error::{Error, Result};

/// The keys of gnnflow's entries begin with this.
const MARK: &str = "gnnflow.";

/// Returns the entries in the footer of a file; none if it is not a Parquet file.
pub(super) fn entries(path: &Path) -> Vec<KeyValue> {
    let footer = File::open(path).ok().and_then(|file| ArrowReaderMetadata::load(&file, Default::default()).ok());
    let entries = footer.and_then(|footer| footer.metadata().file_metadata().key_value_metadata().cloned());
    entries.unwrap_or_default()
}

/// Fails if a file of `table`, which is a file or a folder, exists and was not written by gnnflow.
pub(super) fn refuse_foreign(table: &Path) -> Result<()> {
    let ours = |path: &PathBuf| entries(path).iter().any(|entry| entry.key.starts_with(MARK));
    match files(table)?.into_iter().find(|path| !ours(path)) {
        None => Ok(()),
        Some(path) => {
            let reason =
                "would be replaced, but gnnflow did not write it; use another folder (--out), or remove the file";
            Err(Error::File { path, reason: reason.into() })
        }
    }
}

/// Returns the existing files of a table.
fn files(table: &Path) -> Result<Vec<PathBuf>> {
    if !table.is_dir() {
        return Ok(table.symlink_metadata().map(|_| table.to_owned()).into_iter().collect());
    }
    let mut files = Vec::new();
    for entry in std::fs::read_dir(table).map_err(Error::io(table, "list"))? {
        files.push(entry.map_err(Error::io(table, "list"))?.path());
    }
    files.sort();
    Ok(files)
}
