//! The tables in a folder.

use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::source::is_url;

/// Returns the files of table `name` (`nodes` or `edges`) in a folder: `nodes.parquet`, or the folder `nodes`, or else all
/// `nodes*.parquet`, in order of their names.
///
/// # Errors
/// No such files.
pub(super) fn find(folder: &Path, name: &str) -> Result<Vec<PathBuf>> {
    if is_url(folder) {
        let reason =
            format!("{} is a URL, which is not searched; name the tables with --nodes and --edges", folder.display());
        return Err(Error::Setting { key: "DIR", reason });
    }
    if !folder.exists() {
        return Err(Error::Missing { path: folder.into(), role: "DIR" });
    }
    if folder.is_file() {
        let file = folder.display();
        let reason = match folder.extension().is_some_and(|extension| extension == "parquet") {
            true => "is one table, and init reads two; name them with --nodes and --edges".into(),
            false => format!(
                "is a file, and init reads a folder of Parquet files; convert it first with `gnnflow import {file} --out DIR`"
            ),
        };
        return Err(Error::File { path: folder.into(), reason });
    }
    for candidate in [format!("{name}.parquet"), name.to_owned()] {
        let path = folder.join(candidate);
        if path.exists() {
            return Ok(vec![path]);
        }
    }
    let found = with_prefix(folder, name)?;
    if found.is_empty() {
        let reason = format!(
            "no {name}.parquet, {name}/ or {name}*.parquet in it; name the tables with --nodes and --edges, or convert other \
             formats with `gnnflow import`"
        );
        return Err(Error::File { path: folder.into(), reason });
    }
    Ok(found)
}

fn with_prefix(folder: &Path, prefix: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(Error::io(folder, "list"))? {
        let path = entry.map_err(Error::io(folder, "list"))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with(prefix) && name.ends_with(".parquet") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Returns `path` relative to `folder` if they share a folder below the root, or else its absolute path. URLs do not change.
///
/// # Errors
/// A path that does not exist.
pub(super) fn relative(path: &Path, folder: &Path) -> Result<PathBuf> {
    if is_url(path) {
        return Ok(path.into());
    }
    let absolute = |path: &Path| std::path::absolute(path).map_err(Error::io(path, "find"));
    let (target, base) = (absolute(path)?, absolute(folder)?);
    if let Ok(below) = target.strip_prefix(&base) {
        return Ok(below.into());
    }
    let canonical = |path: &Path| path.canonicalize().map_err(Error::io(path, "find"));
    let (target, base) = (canonical(path)?, canonical(folder)?);
    let shared = target.components().zip(base.components()).take_while(|(one, other)| one == other).count();
    // The root is the first component.
    if shared < 2 {
        return Ok(target);
    }
    let up = base.components().skip(shared).map(|_| PathBuf::from(".."));
    Ok(up.chain([target.components().skip(shared).collect()]).collect())
}
