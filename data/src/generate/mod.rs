//! Synthetic graphs of any size, written as Parquet dumps.
//!
//! | generator | structure | made for |
//! |---|---|---|
//! | [`Rmat`] | Graph500's recursive matrix: skewed degrees, no communities | sampling, partitioning and I/O benchmarks |
//! | [`Planted`] | degree-corrected block model whose classes show in edges and, faintly, in features | training: a GNN beats an MLP on it |
//!
//! Both write `nodes.parquet` and `edges.parquet` below a folder, or folders of those names that hold several files.
//! Every row is a pure function of the settings and its own number ([`crate::rng`]), so row groups are produced on all
//! threads and written in order, and the files are the same bytes whatever the number of threads. Memory does not
//! depend on the number of edges: about 0.4 GiB at most for row groups in flight, and for [`Planted`] four bytes a node.
//!
//! Files are written beside their place and renamed when all are whole. A dump of the same names is replaced.

mod nodes;
mod planted;
mod power_law;
mod rmat;
pub(crate) mod stream;
pub(crate) mod table;

pub use planted::Planted;
pub use rmat::Rmat;

use std::path::{Path, PathBuf};

use parquet::arrow::arrow_reader::ArrowReaderMetadata;

use crate::error::{Error, Result};
use crate::prepare::Lock;
use crate::progress::Progress;
use table::Note;

/// What a generator has written.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Generated {
    /// `nodes.parquet`: a file, or a folder of files.
    pub nodes_path: PathBuf,
    /// `edges.parquet`: a file, or a folder of files.
    pub edges_path: PathBuf,
    /// Rows of the node table.
    pub nodes: u64,
    /// Rows of the edge table; every undirected edge is one row.
    pub edges: u64,
    /// Size of all files together.
    pub bytes: u64,
}

/// The most nodes that a graph can have: indexes are stored as `u32`, and the largest value means none.
const MAX_NODES: u64 = u32::MAX as u64 - 1;

/// Key in the Parquet footer under which a file says which generator and settings made it.
pub(crate) const RECIPE_KEY: &str = "gnnflow.generate";

/// The recipe as text: generator and all settings, the version of the rows' definition first.
fn recipe(generator: &str, settings: &impl serde::Serialize) -> String {
    serde_json::json!({ "version": 1, "generator": generator, "settings": settings }).to_string()
}

fn note(recipe: String) -> Note {
    Note { key: RECIPE_KEY, text: recipe }
}

/// The file names of a table that is split into `files`.
fn part_paths(table: &Path, files: usize) -> Vec<PathBuf> {
    match files {
        0 | 1 => vec![table.to_owned()],
        _ => (0..files).map(|i| table.join(format!("part-{i:05}.parquet"))).collect(),
    }
}

/// Writes a dump into `out` with `write`, unless `is_written` says that it is there. Processes that share the folder take turns, so
/// that only the first one writes and none reads a folder whose files are being replaced.
///
/// # Errors
/// Whatever the folder, its lock file `.generate.lock` or `write` fails with.
pub fn write_once(
    out: &Path,
    progress: &dyn Progress,
    is_written: impl Fn() -> bool,
    write: impl FnOnce() -> Result<Generated>,
) -> Result<()> {
    if is_written() {
        return Ok(());
    }
    std::fs::create_dir_all(out).map_err(Error::io(out, "create"))?;
    let stage = "waiting for another process that generates this graph";
    let _lock = Lock::wait(&out.join(".generate.lock"), stage, progress)?;
    if !is_written() {
        write()?;
    }
    Ok(())
}

/// Whether `out` holds a whole dump whose footers all carry `recipe`.
fn is_made_by(out: &Path, recipe: &str, files: usize) -> bool {
    ["nodes.parquet", "edges.parquet"].iter().flat_map(|name| part_paths(&out.join(name), files)).all(|path| {
        let Ok(file) = std::fs::File::open(&path) else { return false };
        let Ok(footer) = ArrowReaderMetadata::load(&file, Default::default()) else { return false };
        let pairs = footer.metadata().file_metadata().key_value_metadata();
        pairs.is_some_and(|pairs| pairs.iter().any(|kv| kv.key == RECIPE_KEY && kv.value.as_deref() == Some(recipe)))
    })
}

/// Refuses a setting by its name.
fn refuse(key: &'static str, reason: impl Into<String>) -> Error {
    Error::Setting { key, reason: reason.into() }
}

/// Checks what both generators have in common.
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
