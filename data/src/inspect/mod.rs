//! Describes dumps, local or in an object store, and prepared datasets.
//!
//! Most facts are read from footers and manifests. Degrees, classes and splits need one streaming pass over their
//! columns. Memory: 8 bytes per node for degrees, or about 40 if ids are text or far apart.

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

use crate::dump::DumpFile;
use crate::error::{Error, Fault, Result};
use crate::progress::Progress;
use crate::source::{RETRY, expand, is_url};

/// The description of a path. It prints as text and serializes as JSON with a `kind`.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Inspection {
    /// Parquet files.
    Dump(Box<Dump>),
    /// A prepared dataset.
    Dataset(Box<Prepared>),
}

/// One table, or a node and an edge table.
#[derive(Clone, Debug, Serialize)]
pub struct Dump {
    /// The inspected path.
    pub path: PathBuf,
    /// The tables, nodes before edges.
    pub tables: Vec<Table>,
    /// From the column `label`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub labels: Option<Labels>,
    /// From the column `split`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub splits: Option<Splits>,
    /// From the column `edge_label`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub edge_labels: Option<Labels>,
    /// From the column `edge_split`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub edge_splits: Option<Splits>,
    /// From the columns `src` and `dst`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub degrees: Option<Degrees>,
    /// Irregularities, and reasons why something was not counted.
    pub notes: Vec<String>,
}

/// The kind of a path, guessed without reading files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A Parquet file, or a folder with such files.
    Dump,
    /// A folder with `manifest.json`.
    Dataset,
    /// A run: a folder with `summary.json`, `metrics.jsonl` or `model.safetensors`. The program `gnnflow` describes these.
    Run,
}

/// Returns the kind of a path.
///
/// # Errors
/// When the path does not exist or is none of these. A layer store has its own message.
pub fn kind(path: &Path) -> Result<Kind> {
    if is_url(path) {
        return Ok(Kind::Dump);
    }
    if !path.exists() {
        return Err(Error::Missing { path: path.to_owned(), role: "inspect" });
    }
    let holds = |name: &str| path.join(name).is_file();
    match () {
        () if path.is_file() => Ok(Kind::Dump),
        () if holds("manifest.json") => Ok(Kind::Dataset),
        () if ["summary.json", "metrics.jsonl", "model.safetensors"].into_iter().any(holds) => Ok(Kind::Run),
        () if is_layer_store(path) => {
            let reason = "this is a layer store, not a dataset: rows of layers that `gnnflow refresh` or `gnnflow follow` has stored, with a folder for \
                          each model, named by the first digits of its model_sha256; inspect the dataset or the run instead";
            Err(Error::File { path: path.to_owned(), reason: reason.to_owned() })
        }
        () => dump_tables(path).map(|_| Kind::Dump),
    }
}

/// Whether a folder has rows of layers of models, or is the folder of one of these models: named by 16 digits, with a snapshot of the dataset.
fn is_layer_store(path: &Path) -> bool {
    let of_model = |folder: &Path| {
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        name.len() == 16 && name.bytes().all(|digit| digit.is_ascii_hexdigit()) && folder.join("dataset").is_dir()
    };
    let has_models =
        |mut entries: std::fs::ReadDir| entries.any(|entry| entry.is_ok_and(|entry| of_model(&entry.path())));
    of_model(path) || std::fs::read_dir(path).is_ok_and(has_models)
}

/// Describes a dump or a prepared dataset.
///
/// # Errors
/// When the path does not exist, a file or the dataset is damaged; [`Error::Setting`] for a run folder.
pub fn inspect(path: &Path, progress: &dyn Progress) -> Result<Inspection> {
    match kind(path)? {
        Kind::Dump => inspect_dump(path, progress).map(Box::new).map(Inspection::Dump),
        Kind::Dataset => dataset::inspect(path, progress).map(Box::new).map(Inspection::Dataset),
        Kind::Run => {
            let reason = format!("{} is a run folder, not a dump or a dataset; use `gnnflow inspect`", path.display());
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
        edge_labels: None,
        edge_splits: None,
        degrees: None,
        notes: Vec::new(),
    };
    for (name, files) in dump_tables(path)? {
        dump.tables.push(Table::read(name, files, ROLE, &mut dump.notes)?);
    }
    let with = |columns: &[&str]| dump.tables.iter().find(|t| columns.iter().all(|c| t.column(c).is_some()));
    let notes = &mut dump.notes;
    let mut labels = |name: &str| match with(&[name]) {
        Some(table) => labels::count_labels(table, name, progress, notes),
        None => Ok(None),
    };
    (dump.labels, dump.edge_labels) = (labels("label")?, labels("edge_label")?);
    let mut splits = |name: &str| match with(&[name]) {
        Some(table) => labels::count_splits(table, name, progress, notes),
        None => Ok(None),
    };
    (dump.splits, dump.edge_splits) = (splits("split")?, splits("edge_split")?);
    let nodes = with(&["node_id"]).map(|t| t.rows);
    if let Some(edges) = with(&["src", "dst"]) {
        dump.degrees = degrees::count(edges, nodes, progress, &mut dump.notes)?;
    }
    Ok(dump)
}

/// Returns names and files of the tables of a dump.
fn dump_tables(path: &Path) -> Result<Vec<(String, Vec<DumpFile>)>> {
    let name =
        |path: &Path| path.file_name().map_or_else(|| path.display().to_string(), |n| n.to_string_lossy().into());
    let files = |path: &Path| expand(&[path.to_owned()], ROLE, RETRY);
    if path.is_file() {
        return Ok(vec![(name(path), files(path)?)]);
    }
    let mut tables = Vec::new();
    // A URL of an object has no tables below it.
    let folder = !is_url(path) || path.to_string_lossy().ends_with('/');
    for candidates in [["nodes.parquet", "nodes"], ["edges.parquet", "edges"]] {
        for table in candidates.map(|name| path.join(name)).into_iter().filter(|_| folder) {
            match if is_url(path) || table.exists() { files(&table) } else { continue } {
                Ok(found) => tables.push((name(&table), found)),
                Err(Error::NoFiles { .. } | Error::Missing { .. }) => continue,
                // If access was refused, reading the whole folder below fails with the same reason.
                Err(Error::Remote { fault: Fault::Input, .. }) => continue,
                Err(error) => return Err(error),
            }
            break;
        }
    }
    if tables.is_empty() {
        tables = vec![(name(path), files(path)?)];
    }
    Ok(tables)
}

/// The role of the files in errors.
const ROLE: &str = "inspect";

#[cfg(test)]
mod tests;
