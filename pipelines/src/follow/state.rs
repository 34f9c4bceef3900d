//! The state of following, the names of applied batches, and the description of each batch, in the folder of results.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use gnnflow_data::dataset::InputFile;
use gnnflow_data::fs::write_atomic;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::Error;

/// Version of [`State`] and [`BatchResults`]. It increases when a field changes.
pub(crate) const SCHEMA: u32 = 1;
/// The folder of the results of batches.
pub(crate) const BATCHES: &str = "batches";
/// The folder of batches that are not in the dataset yet.
pub(crate) const PENDING: &str = "pending";
const STATE: &str = "follow.json";
/// What to do when files of the folder of results are missing or damaged.
pub(crate) const RESTORE: &str = "restore the folder from a copy, or choose another one with --out, and give --after with the last batch that the \
                                  dataset contains";
/// The names of all applied batches, a line each.
const APPLIED: &str = "applied.txt";
pub(super) const MANIFEST: &str = "manifest.json";

/// What is stored in the dataset.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct State {
    pub(crate) schema: u32,
    /// The SHA-256 of the model's file.
    pub(crate) model: String,
    /// The fingerprint of the dataset, without the pending batches.
    pub(crate) dataset: String,
    /// Batches up to this name were in the dataset at the beginning.
    pub(crate) after: Option<String>,
    /// The last batch that is in the dataset.
    pub(crate) stored: Option<String>,
    /// The share of edges between partitions at the beginning.
    pub(crate) edge_cut: f64,
    /// The URL below which the results of all batches are uploaded.
    #[serde(default)]
    pub(crate) upload: Option<PathBuf>,
}

/// The description of a batch's results.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct BatchResults {
    pub(crate) schema: u32,
    pub(crate) batch: String,
    /// The files of the batch.
    pub(crate) files: Vec<InputFile>,
    pub(crate) nodes_added: u64,
    /// Nodes of which the batch sets the features, the label or the split.
    #[serde(default)]
    pub(crate) nodes_changed: u64,
    /// Removed nodes.
    pub(crate) nodes_removed: u64,
    /// Added directed edges.
    pub(crate) edges_added: u64,
    /// Removed directed edges, those of removed nodes included.
    pub(crate) edges_removed: u64,
    /// Added directed edges that exist and were dropped.
    pub(crate) duplicates_dropped: u64,
    /// Rows of `changes.parquet`.
    pub(crate) changed_nodes: u64,
    /// The SHA-256 of these rows.
    pub(crate) changes_sha256: String,
    /// Seconds from reading the batch to the last row.
    pub(crate) seconds: f64,
}

impl State {
    /// Reads the state in folder `out`; `None` if there is none.
    ///
    /// # Errors
    /// If the file is damaged or of another version.
    pub(crate) fn read(out: &Path) -> Result<Option<Self>, Error> {
        let state: Option<Self> = read(&out.join(STATE))?;
        match state {
            Some(state) if state.schema != SCHEMA => {
                let path = out.join(STATE);
                let message = "it is of another version of gnnflow; choose another folder with --out";
                Err(Error::Input(format!("{}: {message}", path.display())))
            }
            state => Ok(state),
        }
    }

    /// Writes the state.
    ///
    /// # Errors
    /// If the folder cannot be written.
    pub(crate) fn write(&self, out: &Path) -> Result<(), Error> {
        write(self, &out.join(STATE))
    }
}

impl BatchResults {
    /// Reads the description in the folder of a batch's results; `None` if it was removed.
    ///
    /// # Errors
    /// If the file is damaged.
    pub(crate) fn read(folder: &Path) -> Result<Option<Self>, Error> {
        read(&folder.join(MANIFEST))
    }

    /// Writes the description.
    ///
    /// # Errors
    /// If the folder cannot be written.
    pub(crate) fn write(&self, folder: &Path) -> Result<(), Error> {
        write(self, &folder.join(MANIFEST))
    }
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, Error> {
    let bytes = match std::fs::read(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        bytes => bytes.map_err(Error::io("read", path))?,
    };
    let damaged = |error| Error::Input(format!("{}: the file is damaged ({error})", path.display()));
    serde_json::from_slice(&bytes).map(Some).map_err(damaged)
}

fn write(value: &impl Serialize, path: &Path) -> Result<(), Error> {
    let text = serde_json::to_string_pretty(value).map_err(|error| Error::Bug(error.to_string()))?;
    write_atomic(path, text.as_bytes()).map_err(Error::io("write", path))
}

/// Returns the names of the batches whose results are complete.
///
/// # Errors
/// If the file cannot be read.
pub(crate) fn read_applied(out: &Path) -> Result<BTreeSet<String>, Error> {
    let path = out.join(APPLIED);
    let bytes = match std::fs::read(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(BTreeSet::new()),
        bytes => bytes.map_err(Error::io("read", &path))?,
    };
    // A process that was killed may have left a part of a line.
    let complete = &bytes[..bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1)];
    if complete.len() < bytes.len() {
        write_atomic(&path, complete).map_err(Error::io("write", &path))?;
    }
    let damaged = |_| Error::Input(format!("{}: the file is damaged; {RESTORE}", path.display()));
    let text = std::str::from_utf8(complete).map_err(damaged)?;
    Ok(text.lines().map(str::to_owned).collect())
}

/// Adds a batch to those whose results are complete.
///
/// # Errors
/// If the file cannot be written.
pub(crate) fn add_applied(out: &Path, name: &str) -> Result<(), Error> {
    let path = out.join(APPLIED);
    let file = OpenOptions::new().create(true).append(true).open(&path);
    let written =
        file.and_then(|mut file| file.write_all(format!("{name}\n").as_bytes()).and_then(|()| file.sync_data()));
    written.map_err(Error::io("write", &path))
}

/// Returns the names of the folders in `folder` that are not hidden. A missing folder has none.
///
/// # Errors
/// If the folder cannot be read.
pub(crate) fn folders_in(folder: &Path) -> Result<BTreeSet<String>, Error> {
    let list = |error| Error::io("list", folder)(error);
    let mut names = BTreeSet::new();
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(names),
        entries => entries.map_err(list)?,
    };
    for entry in entries {
        let entry = entry.map_err(list)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with('.') && entry.path().is_dir() {
            names.insert(name);
        }
    }
    Ok(names)
}
