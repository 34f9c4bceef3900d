//! What is in a dump or in a prepared dataset.
//!
//! Everything that footers and manifests tell is taken from there; degrees, classes and splits need one streaming
//! pass over their columns alone. Memory: eight bytes a node for degrees (about forty when ids are text or far apart).

mod dataset;
mod degrees;
mod labels;
mod table;
mod text;

pub use dataset::{InDegrees, Prepared};
pub use degrees::{Bin, Degrees};
pub use labels::{Labels, Splits};
pub use table::{Column, Table};

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::error::{Error, Result};
use crate::progress::Progress;

/// What was found at a path. Prints as text; serialises as JSON with a `kind`.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Inspection {
    /// Parquet files.
    Dump(Box<Dump>),
    /// A dataset that `gnnflow prepare` wrote.
    Dataset(Box<Prepared>),
}

/// One table, or a node and an edge table.
#[derive(Clone, Debug, Serialize)]
pub struct Dump {
    /// What was asked for.
    pub path: PathBuf,
    /// The tables: nodes before edges.
    pub tables: Vec<Table>,
    /// From the column `label`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub labels: Option<Labels>,
    /// From the column `split`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub splits: Option<Splits>,
    /// From the columns `src` and `dst`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub degrees: Option<Degrees>,
    /// What is odd, or could not be counted and why.
    pub notes: Vec<String>,
}

/// What a path seems to be, by its looks alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A Parquet file, or a folder with such files.
    Dump,
    /// A folder with `manifest.json`.
    Dataset,
    /// A folder with `summary.json` or `metrics.jsonl`: a run, which the program itself knows how to read.
    Run,
}

/// Tells dumps, datasets and runs apart.
///
/// # Errors
/// When there is nothing, or nothing of these.
pub fn kind(path: &Path) -> Result<Kind> {
    if !path.exists() {
        return Err(Error::Missing { path: path.to_owned(), role: "inspect" });
    }
    let holds = |name: &str| path.join(name).is_file();
    match () {
        () if path.is_file() => Ok(Kind::Dump),
        () if holds("manifest.json") => Ok(Kind::Dataset),
        () if holds("summary.json") || holds("metrics.jsonl") => Ok(Kind::Run),
        () if !dump_tables(path)?.is_empty() => Ok(Kind::Dump),
        () => Err(Error::NoFiles { path: path.to_owned(), role: "inspect" }),
    }
}

/// Looks into a dump or a prepared dataset.
///
/// # Errors
/// Nothing there, files that are not whole Parquet files, a damaged dataset; [`Error::Setting`] for a run folder.
pub fn inspect(path: &Path, progress: &dyn Progress) -> Result<Inspection> {
    match kind(path)? {
        Kind::Dump => inspect_dump(path, progress).map(Box::new).map(Inspection::Dump),
        Kind::Dataset => dataset::inspect(path, progress).map(Box::new).map(Inspection::Dataset),
        Kind::Run => {
            let reason = format!("{} is a run folder, neither dump nor dataset", path.display());
            Err(Error::Setting { key: "path", reason })
        }
    }
}

fn inspect_dump(path: &Path, progress: &dyn Progress) -> Result<Dump> {
    let mut dump = Dump {
        path: path.to_owned(),
        tables: Vec::new(),
        labels: None,
        splits: None,
        degrees: None,
        notes: Vec::new(),
    };
    for (name, files) in dump_tables(path)? {
        dump.tables.push(Table::read(name, files, &mut dump.notes)?);
    }
    let with = |columns: &[&str]| dump.tables.iter().find(|t| columns.iter().all(|c| t.column(c).is_some()));
    dump.labels = with(&["label"]).map(|t| labels::count_labels(t, progress, &mut dump.notes)).transpose()?.flatten();
    dump.splits = with(&["split"]).map(|t| labels::count_splits(t, progress, &mut dump.notes)).transpose()?.flatten();
    let nodes = with(&["node_id"]).map(|t| t.rows);
    if let Some(edges) = with(&["src", "dst"]) {
        dump.degrees = degrees::count(edges, nodes, progress, &mut dump.notes)?;
    }
    Ok(dump)
}

/// The tables of a dump by name, each with its files.
fn dump_tables(path: &Path) -> Result<Vec<(String, Vec<PathBuf>)>> {
    let name =
        |path: &Path| path.file_name().map_or_else(|| path.display().to_string(), |n| n.to_string_lossy().into());
    if path.is_file() {
        return Ok(vec![(name(path), vec![path.to_owned()])]);
    }
    let mut tables = Vec::new();
    for candidates in [["nodes.parquet", "nodes"], ["edges.parquet", "edges"]] {
        if let Some(table) = candidates.map(|name| path.join(name)).into_iter().find(|table| table.exists()) {
            let files = if table.is_dir() { parquet_files(&table)? } else { vec![table.clone()] };
            if !files.is_empty() {
                tables.push((name(&table), files));
            }
        }
    }
    if tables.is_empty() {
        let files = parquet_files(path)?;
        if !files.is_empty() {
            tables.push((name(path), files));
        }
    }
    Ok(tables)
}

/// The `*.parquet` files of a folder, by name.
fn parquet_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(Error::io(folder, "list"))? {
        let file = entry.map_err(Error::io(folder, "list"))?.path();
        let hidden = file.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        if !hidden && file.is_file() && file.extension().is_some_and(|ext| ext == "parquet") {
            files.push(file);
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests;
