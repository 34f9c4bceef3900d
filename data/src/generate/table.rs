//! Writes tables as Parquet: row groups made and encoded on all threads, appended in order, published whole.

use std::fs::{self, File};
use std::ops::Range;
use std::path::{Path, PathBuf};

use arrow::array::ArrayRef;
use arrow::datatypes::{DataType, SchemaRef};
use parquet::arrow::arrow_writer::{ArrowColumnChunk, ArrowRowGroupWriterFactory, ArrowWriter, compute_leaves};
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::schema::types::ColumnPath;
use rayon::prelude::*;

use super::{RECIPE_KEY, part_paths};
use crate::error::{Error, Result};
use crate::progress::Progress;

/// Raw bytes of a row group. With [`MAX_IN_FLIGHT`] it bounds the memory of a writer.
const ROW_GROUP_BYTES: usize = 8 << 20;
/// The most row groups that are made, or encoded and waiting to be written, at one time (twice: see `write_file`).
const MAX_IN_FLIGHT: usize = 16;

/// A table by its schema and a function that makes any range of its rows.
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

/// A folder in which tables become visible only when all of them are whole.
pub(super) struct Output<'a> {
    out: &'a Path,
    staging: tempfile::TempDir,
    files: usize,
    recipe: String,
    tables: Vec<&'static str>,
    bytes: u64,
}

impl<'a> Output<'a> {
    /// Makes the folder where it is missing. Every table will be split into `files`.
    pub(super) fn new(out: &'a Path, files: usize, recipe: String) -> Result<Self> {
        fs::create_dir_all(out).map_err(Error::io(out, "create"))?;
        let staging =
            tempfile::Builder::new().prefix(".generate-").tempdir_in(out).map_err(Error::io(out, "write into"))?;
        Ok(Self { out, staging, files, recipe, tables: Vec::new(), bytes: 0 })
    }

    /// Writes one table into the staging folder.
    pub(super) fn write(&mut self, table: &Table, progress: &dyn Progress) -> Result<()> {
        progress.stage(&format!("write {}", table.name), Some(table.rows), "rows");
        let target = self.staging.path().join(table.name);
        if self.files > 1 {
            fs::create_dir(&target).map_err(Error::io(&target, "create"))?;
        }
        let cut = |i: usize| (u128::from(table.rows) * i as u128 / self.files as u128) as u64;
        for (i, path) in part_paths(&target, self.files).iter().enumerate() {
            self.bytes += write_file(path, table, cut(i)..cut(i + 1), &self.recipe, progress)?;
        }
        progress.done();
        self.tables.push(table.name);
        Ok(())
    }

    /// Moves all tables into place and returns their size. Older ones of the same names go first, so that an
    /// interruption in between leaves a dump that lacks a table, never a mixture of two.
    pub(super) fn publish(self) -> Result<u64> {
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
        File::open(self.out).and_then(|folder| folder.sync_all()).map_err(Error::io(self.out, "sync"))?;
        Ok(self.bytes)
    }

    /// Where a table will be.
    pub(super) fn place(&self, name: &str) -> PathBuf {
        self.out.join(name)
    }
}

/// Ids are packed by difference; features are noise that no codec shrinks, so they stay plain.
fn properties(schema: &SchemaRef, recipe: &str) -> WriterProperties {
    let fast = Compression::ZSTD(ZstdLevel::try_new(1).unwrap_or_default());
    let mut properties = WriterProperties::builder()
        .set_max_row_group_row_count(None)
        .set_dictionary_enabled(false)
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_offset_index_disabled(true)
        .set_compression(fast)
        .set_key_value_metadata(Some(vec![KeyValue::new(RECIPE_KEY.to_owned(), recipe.to_owned())]));
    for field in schema.fields() {
        properties = match field.data_type() {
            DataType::Int64 => {
                properties.set_column_encoding(ColumnPath::from(field.name().as_str()), Encoding::DELTA_BINARY_PACKED)
            }
            DataType::Utf8 => properties.set_column_dictionary_enabled(ColumnPath::from(field.name().as_str()), true),
            _ => {
                let leaf = ColumnPath::new(vec![field.name().clone(), "list".into(), "element".into()]);
                properties
                    .set_column_compression(leaf.clone(), Compression::UNCOMPRESSED)
                    .set_column_statistics_enabled(leaf, EnabledStatistics::None)
            }
        };
    }
    properties.build()
}

/// Writes `rows` of the table as one synced file and returns its size.
///
/// A window of row groups is made and encoded in parallel while the window before it is written.
fn write_file(path: &Path, table: &Table, rows: Range<u64>, recipe: &str, progress: &dyn Progress) -> Result<u64> {
    let parquet = |e| write_error(path, e);
    let file = File::create_new(path).map_err(Error::io(path, "create"))?;
    let buffered = std::io::BufWriter::with_capacity(1 << 20, file);
    let properties = Some(properties(&table.schema, recipe));
    let writer = ArrowWriter::try_new(buffered, table.schema.clone(), properties).map_err(parquet)?;
    let (mut writer, factory) = writer.into_serialized_writer().map_err(parquet)?;

    let group_rows = (ROW_GROUP_BYTES / table.row_bytes).clamp(1 << 10, 1 << 20) as u64;
    let groups = (rows.end - rows.start).div_ceil(group_rows);
    let window = (2 * rayon::current_num_threads()).min(MAX_IN_FLIGHT) as u64;
    let encode_window = |first: u64| -> Result<Vec<Vec<ArrowColumnChunk>>> {
        let window = first..(first + window).min(groups);
        let encode = |group: u64| {
            let start = rows.start + group * group_rows;
            let columns = (table.make)(start..(start + group_rows).min(rows.end))?;
            encode_group(&factory, &table.schema, group, columns).map_err(parquet)
        };
        window.into_par_iter().map(encode).collect()
    };

    let mut ready = encode_window(0)?;
    let mut next = window;
    while !ready.is_empty() {
        let append = || -> Result<()> {
            for columns in ready {
                let mut group = writer.next_row_group().map_err(parquet)?;
                for column in columns {
                    column.append_to_row_group(&mut group).map_err(parquet)?;
                }
                let written = group.close().map_err(parquet)?;
                progress.advance(written.num_rows() as u64);
            }
            Ok(())
        };
        let (appended, encoded) = rayon::join(append, || encode_window(next));
        appended?;
        ready = encoded?;
        next += window;
    }
    let buffered = writer.into_inner().map_err(parquet)?;
    let file = buffered.into_inner().map_err(|e| Error::io(path, "write")(e.into_error()))?;
    file.sync_all().map_err(Error::io(path, "sync"))?;
    Ok(file.metadata().map_err(Error::io(path, "read"))?.len())
}

/// What the Parquet writer met: the operating system's refusal, or else a bug, for the data is our own.
fn write_error(path: &Path, error: ParquetError) -> Error {
    let error = match error {
        ParquetError::External(inner) => match inner.downcast::<std::io::Error>() {
            Ok(io) => return Error::io(path, "write")(*io),
            Err(inner) => ParquetError::External(inner),
        },
        other => other,
    };
    Error::Bug(format!("{}: {error}", path.display()))
}

fn encode_group(
    factory: &ArrowRowGroupWriterFactory,
    schema: &SchemaRef,
    group: u64,
    columns: Vec<ArrayRef>,
) -> parquet::errors::Result<Vec<ArrowColumnChunk>> {
    let mut writers = factory.create_column_writers(group as usize)?.into_iter();
    let mut chunks = Vec::with_capacity(columns.len());
    for (field, column) in schema.fields().iter().zip(&columns) {
        for (leaf, mut writer) in compute_leaves(field, column)?.iter().zip(&mut writers) {
            writer.write(leaf)?;
            chunks.push(writer.close()?);
        }
    }
    Ok(chunks)
}
