//! A Parquet file that grows by row groups: their size, their encoding, and how many are encoded at the same time.

use std::fs::File;
use std::io::BufWriter;
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

use crate::error::{Error, Result};

/// Raw bytes of a row group. Together with [`MAX_IN_FLIGHT`] it bounds the memory of a writer.
const ROW_GROUP_BYTES: usize = 8 << 20;
/// The largest number of row groups that are being created or encoded at the same time. As many again may wait to be
/// written (see `write_file` in `table.rs`).
const MAX_IN_FLIGHT: usize = 16;

/// An entry in the Parquet footers of a dump that names its origin.
#[derive(Clone, Debug)]
pub(crate) struct Note {
    pub(crate) key: &'static str,
    pub(crate) text: String,
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
    pub(super) fn close(mut self) -> Result<u64> {
        let path = &self.path;
        // `into_inner` would make a text of an error of the system.
        self.writer.finish().map_err(|e| write_error(path, e))?;
        let file = self.writer.inner().get_ref();
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
