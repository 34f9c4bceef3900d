//! Finds and opens the text files of an OGB download.

use std::path::{Path, PathBuf};

use super::matrix::Matrix;
use super::records::{Delimiter, Records, int};
use super::{Import, OgbPart};
use crate::error::{Error, Result};

/// Finds file `name` in folder `dir`, compressed or not.
pub(super) fn find(dir: &Path, name: &str) -> Option<PathBuf> {
    let files = [".csv.gz", ".csv", ".csv.zst"].map(|extension| dir.join(format!("{name}{extension}")));
    files.into_iter().find(|path| path.is_file())
}

/// Returns an error about a missing file. `without` is the value of `--without` that makes it optional.
pub(super) fn missing(dir: &Path, name: &str, what: &str, without: Option<&str>) -> Error {
    let or = without.map(|part| format!(", or ignore this part (--without {part})")).unwrap_or_default();
    let reason = format!("{name} is missing ({what}), so the OGB download is not complete; fetch it again{or}");
    Error::File { path: dir.into(), reason }
}

pub(super) fn required(dir: &Path, name: &str, what: &str) -> Result<PathBuf> {
    find(dir, name).ok_or_else(|| missing(dir, &format!("{name}.csv.gz"), what, None))
}

pub(super) fn open(path: &Path) -> Result<Records<'static>> {
    Records::open(path, Delimiter::Char(b','), None)
}

/// Returns the only number of a list with one number per graph.
pub(super) fn one_number(path: &Path, what: &str) -> Result<u64> {
    let mut records = open(path)?;
    if !records.advance()? {
        return Err(Error::File { path: path.into(), reason: format!("is empty; it must have the {what}") });
    }
    let number = records.int(0, what)?;
    let number = u64::try_from(number).map_err(|_| records.wrong(format!("{number} is not a valid {what}")))?;
    match records.advance()? {
        true => Err(records.wrong("a second graph; only datasets of one graph (ogbn-…) can be imported")),
        false => Ok(number),
    }
}

pub(super) fn check_nodes(nodes: u64) -> Result<u64> {
    let limit = u64::from(u32::MAX) - 1;
    match nodes <= limit {
        true => Ok(nodes),
        false => Err(Error::TooLarge { what: "number of nodes".into(), found: nodes, limit }),
    }
}

/// Returns the folder of names; `None` with `--without mapping`.
pub(super) fn mapping(import: &Import, dir: &Path) -> Result<Option<PathBuf>> {
    let folder = dir.join("mapping");
    if import.without.contains(&OgbPart::Mapping) {
        return Ok(None);
    }
    match folder.is_dir() {
        true => Ok(Some(folder)),
        false => Err(missing(dir, "mapping/", "the folder with the original names of nodes", Some("mapping"))),
    }
}

/// Returns the first file of a folder whose name starts with `begin`.
pub(super) fn in_mapping(folder: &Path, begin: &str) -> Option<PathBuf> {
    let mut found: Vec<PathBuf> =
        std::fs::read_dir(folder).ok()?.filter_map(|entry| Some(entry.ok()?.path())).collect();
    found.retain(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with(begin) && name.contains(".csv")
    });
    found.sort();
    found.into_iter().next()
}

/// Opens a table of numbers and names, and skips its header if it has one.
pub(super) fn after_header(path: &Path) -> Result<Records<'static>> {
    let mut records = open(path)?;
    let named = records.advance()? && records.get(0).and_then(int).is_none();
    if named { Ok(records) } else { open(path) }
}

pub(super) fn text_matrix(column: &'static str, dir: &Path, name: &str, rows: u64, by: &str) -> Result<Option<Matrix>> {
    let Some(path) = find(dir, name) else { return Ok(None) };
    Matrix::text(column, open(&path)?, open(&path)?, rows, by).map(Some)
}
