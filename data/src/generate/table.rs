//! Writes tables as Parquet. Row groups are created and encoded on all threads and appended in order. All tables are
//! published together.

use std::fs::{self, File};
use std::io::BufWriter;
use std::ops::Range;
use std::path::{Path, PathBuf};

use arrow::array::ArrayRef;
use arrow::datatypes::{DataType, SchemaRef};
use parquet::arrow::arrow_writer::{ArrowColumnChunk, ArrowRowGroupWriterFactory, ArrowWriter, compute_leaves};
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::ColumnPath;
use rayon::prelude::*;

use super::part_paths;
use super::stream::TableStream;
use crate::error::{Error, Result};
use crate::fs::sync_folder;
use crate::progress::Progress;

/// Raw bytes of a row group. Together with [`MAX_IN_FLIGHT`] it bounds the memory of a writer.
const ROW_GROUP_BYTES: usize = 8 << 20;
/// The largest number of row groups that are being created or encoded at the same time. As many again may wait to be
/// written (see `write_file`).
const MAX_IN_FLIGHT: usize = 16;

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

/// An entry in the Parquet footers of a dump that names its origin.
#[derive(Clone, Debug)]
pub(crate) struct Note {
    pub(crate) key: &'static str,
    pub(crate) text: String,
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
    pub(crate) fn new(out: &'a Path, note: Note) -> Result<Self> {
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

    /// Returns the final path of a table.
    pub(crate) fn place(&self, name: &str) -> PathBuf {
        self.out.join(name)
    }
}

/// Ids are delta-encoded. Features stay uncompressed, because they are noise that no codec shrinks.
fn properties(schema: &SchemaRef, note: &Note) -> WriterProperties {
    let fast = Compression::ZSTD(ZstdLevel::try_new(1).unwrap_or_default());
    let mut properties = WriterProperties::builder()
        .set_max_row_group_row_count(None)
        .set_dictionary_enabled(false)
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_offset_index_disabled(true)
        .set_compression(fast)
        .set_key_value_metadata(Some(vec![KeyValue::new(note.key.to_owned(), note.text.clone())]));
    for field in schema.fields() {
        properties = match field.data_type() {
            DataType::Int64 => {
                properties.set_column_encoding(ColumnPath::from(field.name().as_str()), Encoding::DELTA_BINARY_PACKED)
            }
            DataType::Utf8 => properties.set_column_dictionary_enabled(ColumnPath::from(field.name().as_str()), true),
            DataType::FixedSizeList(..) => {
                let leaf = ColumnPath::new(vec![field.name().clone(), "list".into(), "element".into()]);
                properties
                    .set_column_compression(leaf.clone(), Compression::UNCOMPRESSED)
                    .set_column_statistics_enabled(leaf, EnabledStatistics::None)
            }
            _ => properties,
        };
    }
    properties.build()
}

/// Returns the number of rows of a row group, from the raw size of a row.
pub(crate) fn group_rows(row_bytes: usize) -> usize {
    (ROW_GROUP_BYTES / row_bytes).clamp(1 << 10, 1 << 20)
}

/// Returns the number of row groups that are encoded at the same time.
pub(super) fn window() -> usize {
    (2 * rayon::current_num_threads()).min(MAX_IN_FLIGHT)
}

/// A Parquet file that grows by row groups.
pub(super) struct GroupFile {
    path: PathBuf,
    writer: SerializedFileWriter<BufWriter<File>>,
    /// Encodes row groups for this file.
    pub(super) encoder: Encoder,
}

impl GroupFile {
    pub(super) fn create(path: &Path, schema: &SchemaRef, note: &Note) -> Result<Self> {
        let parquet = |e| write_error(path, e);
        let file = File::create_new(path).map_err(Error::io(path, "create"))?;
        let buffered = BufWriter::with_capacity(1 << 20, file);
        let properties = Some(properties(schema, note));
        let writer = ArrowWriter::try_new(buffered, schema.clone(), properties).map_err(parquet)?;
        let (writer, factory) = writer.into_serialized_writer().map_err(parquet)?;
        let encoder = Encoder { path: path.to_owned(), schema: schema.clone(), factory };
        Ok(Self { path: path.to_owned(), writer, encoder })
    }

    /// Writes the footer, syncs, and returns the size.
    pub(super) fn close(self) -> Result<u64> {
        let path = &self.path;
        let buffered = self.writer.into_inner().map_err(|e| write_error(path, e))?;
        let file = buffered.into_inner().map_err(|e| Error::io(path, "write")(e.into_error()))?;
        file.sync_all().map_err(Error::io(path, "sync"))?;
        Ok(file.metadata().map_err(Error::io(path, "read"))?.len())
    }

    /// Returns the encoder and the appender, which may be used concurrently.
    pub(super) fn split(&mut self) -> (&Encoder, Appender<'_>) {
        (&self.encoder, Appender { path: &self.path, writer: &mut self.writer })
    }
}

/// Encodes row groups, on any thread.
pub(super) struct Encoder {
    path: PathBuf,
    schema: SchemaRef,
    factory: ArrowRowGroupWriterFactory,
}

impl Encoder {
    pub(super) fn encode(&self, group: usize, columns: &[ArrayRef]) -> Result<Vec<ArrowColumnChunk>> {
        encode_group(&self.factory, &self.schema, group, columns).map_err(|e| write_error(&self.path, e))
    }
}

/// Appends encoded row groups.
pub(super) struct Appender<'a> {
    path: &'a Path,
    writer: &'a mut SerializedFileWriter<BufWriter<File>>,
}

impl Appender<'_> {
    /// Appends a row group and returns its number of rows.
    pub(super) fn append(&mut self, columns: Vec<ArrowColumnChunk>) -> Result<u64> {
        let parquet = |e| write_error(self.path, e);
        let mut group = self.writer.next_row_group().map_err(parquet)?;
        for column in columns {
            column.append_to_row_group(&mut group).map_err(parquet)?;
        }
        Ok(group.close().map_err(parquet)?.num_rows() as u64)
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

/// Converts an error of the Parquet writer: an I/O error, or else a bug, because the data is our own.
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
    group: usize,
    columns: &[ArrayRef],
) -> parquet::errors::Result<Vec<ArrowColumnChunk>> {
    let mut writers = factory.create_column_writers(group)?.into_iter();
    let mut chunks = Vec::with_capacity(columns.len());
    for (field, column) in schema.fields().iter().zip(columns) {
        for (leaf, mut writer) in compute_leaves(field, column)?.iter().zip(&mut writers) {
            writer.write(leaf)?;
            chunks.push(writer.close()?);
        }
    }
    Ok(chunks)
}
