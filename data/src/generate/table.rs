//! Writes tables as Parquet. Row groups are created and encoded on all threads and appended in order. All tables are
//! published together.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use arrow::array::ArrayRef;
use arrow::datatypes::SchemaRef;
use parquet::arrow::arrow_writer::ArrowColumnChunk;
use rayon::prelude::*;

use super::origin::refuse_foreign;
use super::row_groups::{GroupFile, Note, group_rows, window};
use super::stream::TableStream;
use crate::error::{Error, Result};
use crate::fs::sync_folder;
use crate::progress::Progress;

/// File or folder names of the tables of a dump.
pub(crate) const NODES: &str = "nodes.parquet";
pub(crate) const EDGES: &str = "edges.parquet";

/// A table, as its schema and a function that creates any range of its rows.
pub(super) struct Table<'a> {
    /// File or folder name.
    pub(super) name: &'static str,
    pub(super) schema: SchemaRef,
    pub(super) rows: u64,
    /// Raw size of a row, for the size of row groups.
    pub(super) row_bytes: usize,
    /// Columns of some rows, in the schema's order.
    pub(super) make: &'a (dyn Fn(Range<u64>) -> Result<Vec<ArrayRef>> + Sync),
}

/// A folder in which tables become visible only when all of them are complete.
pub(crate) struct Output<'a> {
    out: &'a Path,
    staging: tempfile::TempDir,
    note: Note,
    tables: Vec<&'static str>,
    bytes: u64,
}

impl<'a> Output<'a> {
    /// Creates the folder if it does not exist.
    ///
    /// # Errors
    /// When the folder has tables that gnnflow did not write, or cannot be written.
    pub(crate) fn new(out: &'a Path, note: Note) -> Result<Self> {
        [NODES, EDGES].iter().try_for_each(|name| refuse_foreign(&out.join(name)))?;
        fs::create_dir_all(out).map_err(Error::io(out, "create"))?;
        let staging = tempfile::Builder::new().prefix(".writing-").tempdir_in(out);
        Ok(Self { out, staging: staging.map_err(Error::io(out, "write into"))?, note, tables: Vec::new(), bytes: 0 })
    }

    /// Writes one table into the staging folder, split into `files`.
    pub(super) fn write(&mut self, table: &Table, files: usize, progress: &dyn Progress) -> Result<()> {
        progress.stage(&format!("write {}", table.name), Some(table.rows), "rows");
        let target = self.staging.path().join(table.name);
        if files > 1 {
            fs::create_dir(&target).map_err(Error::io(&target, "create"))?;
        }
        let cut = |i: usize| (u128::from(table.rows) * i as u128 / files as u128) as u64;
        for (i, path) in part_paths(&target, files).iter().enumerate() {
            self.bytes += write_file(path, table, cut(i)..cut(i + 1), &self.note, progress)?;
        }
        progress.done();
        self.tables.push(table.name);
        Ok(())
    }

    /// Starts a table whose row groups arrive as a stream. With `file_rows`, the table is a folder of files with at
    /// least that many rows each; otherwise it is one file.
    pub(crate) fn stream(&self, name: &'static str, schema: SchemaRef, file_rows: Option<u64>) -> Result<TableStream> {
        TableStream::begin(name, self.staging.path().join(name), schema, file_rows, self.note.clone())
    }

    /// Ends a table and returns its number of rows.
    pub(crate) fn end(&mut self, table: TableStream) -> Result<u64> {
        let name = table.name();
        let (rows, bytes) = table.finish()?;
        self.bytes += bytes;
        self.tables.push(name);
        Ok(rows)
    }

    /// Writes a small file.
    pub(crate) fn text(&mut self, name: &'static str, text: &str) -> Result<()> {
        let path = self.staging.path().join(name);
        fs::write(&path, text).map_err(Error::io(&path, "write"))?;
        self.tables.push(name);
        Ok(())
    }

    /// Moves all tables into place and returns their size in bytes. Old tables of the same names are removed first: an
    /// interruption leaves an incomplete dump, never a mixture of two dumps.
    pub(crate) fn publish(self) -> Result<u64> {
        let old = self.staging.path().join("old");
        fs::create_dir(&old).map_err(Error::io(&old, "create"))?;
        let rename = |from: &Path, to: &Path| fs::rename(from, to).map_err(Error::io(to, "move into place"));
        for name in &self.tables {
            let place = self.out.join(name);
            if place.symlink_metadata().is_ok() {
                rename(&place, &old.join(name))?;
            }
        }
        for name in &self.tables {
            rename(&self.staging.path().join(name), &self.out.join(name))?;
        }
        sync_folder(self.out).map_err(Error::io(self.out, "sync"))?;
        Ok(self.bytes)
    }

    /// Returns the folder.
    pub(crate) fn folder(&self) -> &Path {
        self.out
    }

    /// Returns the final path of a table.
    pub(crate) fn place(&self, name: &str) -> PathBuf {
        self.out.join(name)
    }
}

/// Returns the file names of a table of `files` files.
pub(super) fn part_paths(table: &Path, files: usize) -> Vec<PathBuf> {
    match files {
        0 | 1 => vec![table.to_owned()],
        _ => (0..files).map(|i| table.join(format!("part-{i:05}.parquet"))).collect(),
    }
}

/// Writes `rows` of the table as one synced file and returns its size.
///
/// A window of row groups is created and encoded in parallel while the previous window is written.
fn write_file(path: &Path, table: &Table, rows: Range<u64>, note: &Note, progress: &dyn Progress) -> Result<u64> {
    let mut file = GroupFile::create(path, &table.schema, note)?;
    let (encoder, mut appender) = file.split();
    let group_rows = group_rows(table.row_bytes) as u64;
    let groups = (rows.end - rows.start).div_ceil(group_rows);
    let window = window() as u64;
    let encode_window = |first: u64| -> Result<Vec<Vec<ArrowColumnChunk>>> {
        let window = first..(first + window).min(groups);
        let encode = |group: u64| {
            let start = rows.start + group * group_rows;
            encoder.encode(group as usize, &(table.make)(start..(start + group_rows).min(rows.end))?)
        };
        window.into_par_iter().map(encode).collect()
    };

    let mut ready = encode_window(0)?;
    let mut next = window;
    while !ready.is_empty() {
        let append = || -> Result<()> {
            for columns in ready {
                progress.advance(appender.append(columns)?);
            }
            Ok(())
        };
        let (appended, encoded) = rayon::join(append, || encode_window(next));
        appended?;
        ready = encoded?;
        next += window;
    }
    file.close()
}
