//! Generators of synthetic graphs of any size. The graphs are written as Parquet dumps.
//!
//! | generator | structure | made for |
//! |---|---|---|
//! | [`Rmat`] | Graph500's recursive matrix: skewed degrees, no communities | sampling, partitioning and I/O benchmarks |
//! | [`Planted`] | degree-corrected block model with informative edges and noisy features | training: a GNN beats an MLP |
//!
//! Both write `nodes.parquet` and `edges.parquet` below a folder. With several files per table, these are folders.
//!
//! Every row is a pure function of the settings and its number ([`crate::rng`]). Therefore row groups are produced on
//! all threads, and the bytes do not depend on the number of threads. Memory does not depend on the number of edges:
//! about 0.4 GiB at most for row groups in flight, and 4 bytes per node for [`Planted`].
//!
//! Files are written to a temporary folder and renamed when all are complete. A dump of the same names is replaced if gnnflow
//! wrote it, and refused otherwise.

mod nodes;
mod origin;
mod planted;
mod power_law;
mod rmat;
pub(crate) mod row_groups;
pub(crate) mod stream;
pub(crate) mod table;

pub use planted::Planted;
pub use rmat::Rmat;

use std::path::{Path, PathBuf};

use parquet::file::metadata::KeyValue;

use crate::error::{Error, Result};
use crate::prepare::Lock;
use crate::progress::Progress;
use origin::entries;
use row_groups::Note;
use table::{EDGES, NODES, part_paths};

/// Result of a generator.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Generated {
    /// `nodes.parquet`: a file, or a folder of files.
    pub nodes_path: PathBuf,
    /// `edges.parquet`: a file, or a folder of files.
    pub edges_path: PathBuf,
    /// Rows of the node table.
    pub nodes: u64,
    /// Rows of the edge table, one per undirected edge.
    pub edges: u64,
    /// Size of all files, in bytes.
    pub bytes: u64,
}

/// Largest number of nodes. Indexes are stored as `u32`, and the largest value marks a missing node.
const MAX_NODES: u64 = u32::MAX as u64 - 1;

/// Key in the Parquet footer for the generator of a file and its settings.
pub(crate) const RECIPE_KEY: &str = "gnnflow.generate";

/// Returns version, generator and all settings as text.
fn recipe(generator: &str, settings: &impl serde::Serialize) -> String {
    serde_json::json!({ "version": 1, "generator": generator, "settings": settings }).to_string()
}

fn note(recipe: String) -> Note {
    Note { key: RECIPE_KEY, text: recipe }
}

/// Calls `write` to write a dump into `out`, unless `is_written` returns true. The lock file `.generate.lock` serializes
/// processes that share the folder: only the first one writes, and none reads files that are being replaced.
///
/// # Errors
/// When the lock file cannot be created, or `write` fails.
pub fn write_once(
    out: &Path,
    progress: &dyn Progress,
    is_written: impl Fn() -> bool,
    write: impl FnOnce() -> Result<Generated>,
) -> Result<()> {
    if is_written() {
        return Ok(());
    }
    let stage = "waiting for another process that generates this graph";
    let _lock = Lock::take(&out.join(".generate.lock"), stage, progress)?;
    if !is_written() {
        write()?;
    }
    Ok(())
}

/// Returns whether `out` has a complete dump with `recipe` in all footers.
fn is_made_by(out: &Path, recipe: &str, files: usize) -> bool {
    let is_its = |entry: &KeyValue| entry.key == RECIPE_KEY && entry.value.as_deref() == Some(recipe);
    let mut paths = [NODES, EDGES].iter().flat_map(|name| part_paths(&out.join(name), files));
    paths.all(|path| entries(&path).iter().any(is_its))
}

/// Returns an error about a setting.
fn refuse(key: &'static str, reason: impl Into<String>) -> Error {
    Error::Setting { key, reason: reason.into() }
}

/// Checks the settings that both generators have.
fn check_common(nodes: u64, features: usize, files: usize, split: [f64; 3]) -> Result<()> {
    if !(2..=MAX_NODES).contains(&nodes) {
        return Err(refuse("nodes", format!("{nodes} nodes: must be 2 to {MAX_NODES}")));
    }
    if features > 1 << 16 {
        return Err(refuse("features", format!("{features} features: must be at most 65536")));
    }
    if !(1..=10_000).contains(&files) {
        return Err(refuse("files", format!("{files} files: must be 1 to 10000")));
    }
    let sum: f64 = split.iter().sum();
    if !(split.iter().all(|f| (0.0..=1.0).contains(f)) && sum <= 1.0 + 1e-9) {
        return Err(refuse("split", format!("{split:?}: must be three fractions that add up to at most 1")));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
