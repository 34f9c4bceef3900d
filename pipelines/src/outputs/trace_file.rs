//! The JSON files of a traced run: for each process, one for each kind of content.

use std::path::{Path, PathBuf};

use gnnflow_data::fs::write_atomic;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::run_folder::TRACE;
use crate::error::Error;

/// Returns the file with the `content` of the process of rank `rank`.
pub(super) fn path(run_dir: &Path, rank: usize, content: &str) -> PathBuf {
    run_dir.join(TRACE).join(format!("worker-{rank}-{content}.json"))
}

pub(super) fn write(path: &Path, value: &impl Serialize) -> Result<(), Error> {
    let text = serde_json::to_string(value).map_err(|error| Error::Bug(error.to_string()))?;
    write_atomic(path, text.as_bytes()).map_err(Error::io("write", path))
}

pub(super) fn read<T: DeserializeOwned>(path: &Path) -> Result<T, Error> {
    let text = std::fs::read_to_string(path).map_err(Error::io("read", path))?;
    serde_json::from_str(&text).map_err(|error| Error::Input(format!("{}: {error}", path.display())))
}
