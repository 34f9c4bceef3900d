//! The input of an update.

use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// Changes that take effect together. Each list has files, or folders of `*.parquet`, with the columns of the dump.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Added nodes.
    pub nodes: Vec<PathBuf>,
    /// New values of nodes that exist: the id, and features, label or split. A column that is missing keeps its values.
    pub values: Vec<PathBuf>,
    /// Removed edges: both ends and, if edges have types, the type.
    pub remove: Vec<PathBuf>,
    /// Removed nodes: the id. Their edges are removed with them.
    pub remove_nodes: Vec<PathBuf>,
    /// Added edges.
    pub edges: Vec<PathBuf>,
}

impl Batch {
    /// The names of the tables of a batch in a folder.
    pub const FILES: [&str; 5] =
        ["nodes.parquet", "values.parquet", "remove.parquet", "remove_nodes.parquet", "edges.parquet"];

    /// Returns the batch whose tables, files or folders of files, are in `folder`.
    pub fn in_folder(folder: &Path) -> Self {
        let [nodes, values, remove, remove_nodes, edges] = Self::FILES.map(|name| {
            let path = folder.join(name);
            if path.exists() { vec![path] } else { Vec::new() }
        });
        Self { nodes, values, remove, remove_nodes, edges }
    }

    /// Returns the batches in `folder`, each a folder, in the order of their names. Names that begin with `.` or `_` are ignored.
    ///
    /// # Errors
    /// If the folder cannot be listed or has Parquet files, or a batch has no table or other files.
    pub fn all_in(folder: &Path) -> Result<Vec<Self>> {
        let mut batches: Vec<PathBuf> = listed(folder)?.into_iter().filter(|path| !is_hidden(path)).collect();
        batches.iter().try_for_each(|path| Self::check_is_folder(path))?;
        batches.retain(|path| path.is_dir());
        let batch = |path: &PathBuf| {
            let tables = listed(path)?.into_iter().map(|file| Self::is_table(&file)).collect::<Result<Vec<bool>>>()?;
            Self::check_tables(path, tables.into_iter().filter(|is_table| *is_table).count())?;
            Ok(Self::in_folder(path))
        };
        batches.iter().map(batch).collect()
    }

    /// Checks what is at `path` in a folder of batches.
    ///
    /// # Errors
    /// If it is a Parquet file and no folder.
    pub fn check_is_folder(path: &Path) -> Result<()> {
        if is_hidden(path) || path.is_dir() || path.extension().is_none_or(|extension| extension != "parquet") {
            return Ok(());
        }
        let reason = format!("a batch is a folder with {}; move this file into one", Self::FILES.join(", "));
        Err(Error::File { path: path.to_owned(), reason })
    }

    /// Returns whether the file or folder at `path` in the folder of a batch is a table. It is not if its name begins with `.` or `_`.
    ///
    /// # Errors
    /// If a batch cannot have it.
    pub fn is_table(path: &Path) -> Result<bool> {
        if is_hidden(path) {
            return Ok(false);
        }
        if path.file_name().is_some_and(|name| Self::FILES.iter().any(|known| name == *known)) {
            return Ok(true);
        }
        let reason = format!("a batch has the files {} only", Self::FILES.join(", "));
        Err(Error::File { path: path.to_owned(), reason })
    }

    /// Checks the number of tables of the batch in `folder`.
    ///
    /// # Errors
    /// If there are none.
    pub fn check_tables(folder: &Path, tables: usize) -> Result<()> {
        if tables > 0 {
            return Ok(());
        }
        let reason = format!("the batch has none of {}", Self::FILES.join(", "));
        Err(Error::File { path: folder.to_owned(), reason })
    }
}

fn is_hidden(path: &Path) -> bool {
    path.file_name()
        .is_some_and(|name| name.as_encoded_bytes().starts_with(b".") || name.as_encoded_bytes().starts_with(b"_"))
}

/// Returns the files and folders in `folder`, by name.
fn listed(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(Error::io(folder, "list"))? {
        found.push(entry.map_err(Error::io(folder, "list"))?.path());
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_folders_of_known_tables_in_the_order_of_their_names() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        for folder in ["b/nodes.parquet", "a", "_later", ".new"] {
            std::fs::create_dir_all(at(folder)).unwrap();
        }
        for file in ["a/edges.parquet", "a/remove.parquet", "a/_SUCCESS", "_SUCCESS"] {
            std::fs::write(at(file), "").unwrap();
        }
        let a = Batch { edges: vec![at("a/edges.parquet")], remove: vec![at("a/remove.parquet")], ..Batch::default() };
        let b = Batch { nodes: vec![at("b/nodes.parquet")], ..Batch::default() };
        assert_eq!(Batch::all_in(place.path()).unwrap(), [a, b]);
        let refused = |message: &str| {
            let error = Batch::all_in(place.path()).unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        };
        std::fs::write(at("b/edge.parquet"), "").unwrap();
        refused("b/edge.parquet: a batch has the files nodes.parquet, values.parquet");
        std::fs::remove_file(at("b/edge.parquet")).unwrap();
        std::fs::remove_dir(at("b/nodes.parquet")).unwrap();
        refused("b: the batch has none of nodes.parquet");
        std::fs::write(at("edges.parquet"), "").unwrap();
        refused("edges.parquet: a batch is a folder with nodes.parquet");
    }
}
