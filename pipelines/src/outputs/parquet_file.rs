//! A Parquet file of results.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::ipc::{reader::StreamReader, writer::StreamWriter};
use gnnflow_data::fs::{move_over, temporary_file};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;
use sha2::{Digest, Sha256};

use crate::error::Error;
use crate::outputs::columns::arrow_bug;
use crate::outputs::table::Table;

/// Bytes of a row group, before compression.
const ROW_GROUP_BYTES: usize = 64 << 20;

/// A Parquet file with a temporary name until it is complete.
pub(super) struct ParquetFile {
    path: PathBuf,
    writer: ArrowWriter<File>,
    temporary: tempfile::TempPath,
    hash: Sha256,
}

impl ParquetFile {
    /// Creates a file with rows of `table`.
    pub(super) fn create(path: &Path, table: &Table<'_>) -> Result<Self, Error> {
        let folder = path.parent().unwrap_or(Path::new("."));
        let (file, temporary) = temporary_file(folder).map_err(Error::io("write", path))?.into_parts();
        let by_bytes = (ROW_GROUP_BYTES / table.row_bytes.max(1)).clamp(1024, 1 << 20);
        let properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::default()))
            .set_max_row_group_row_count(Some(table.form.row_group_size.unwrap_or(by_bytes)))
            .build();
        let writer = ArrowWriter::try_new(file, Arc::clone(&table.schema), Some(properties)).map_err(arrow_bug)?;
        Ok(Self { path: path.to_owned(), writer, temporary, hash: Sha256::new() })
    }

    /// Appends the rows of a message of [`encode`].
    pub(super) fn write(&mut self, message: &[u8]) -> Result<(), Error> {
        self.hash.update(message);
        for rows in StreamReader::try_new(message, None).map_err(arrow_bug)? {
            let written = self.writer.write(&rows.map_err(arrow_bug)?);
            written.map_err(|error| failed(&self.path, error))?;
        }
        Ok(())
    }

    /// Moves the complete file into place, and returns the SHA-256 of its messages.
    pub(super) fn finish(mut self) -> Result<[u8; 32], Error> {
        let path = &self.path;
        // `into_inner` would make a text of an error of the system.
        self.writer.finish().map_err(|error| failed(path, error))?;
        self.writer.inner().sync_all().map_err(Error::io("write", path))?;
        move_over(&self.temporary, path).map_err(Error::io("write", path))?;
        Ok(self.hash.finalize().into())
    }
}

/// Returns rows as a message.
pub(super) fn encode(rows: &RecordBatch) -> Result<Vec<u8>, Error> {
    let mut writer = StreamWriter::try_new(Vec::new(), &rows.schema()).map_err(arrow_bug)?;
    writer.write(rows).map_err(arrow_bug)?;
    writer.into_inner().map_err(arrow_bug)
}

/// Converts an error of the Parquet writer, which is an error of the system.
fn failed(path: &Path, error: parquet::errors::ParquetError) -> Error {
    let source = match error {
        parquet::errors::ParquetError::External(inner) => match inner.downcast::<std::io::Error>() {
            Ok(source) => *source,
            Err(other) => std::io::Error::other(other),
        },
        other => std::io::Error::other(other),
    };
    Error::Io { action: "write", path: path.to_owned(), source }
}
