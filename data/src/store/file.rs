//! A Parquet file of a dump, on disk or in an object store.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use parquet::file::metadata::ParquetMetaData;
use parquet::file::reader::ChunkReader;
use rayon::prelude::*;

use super::{Object, Tail, tails};
use crate::error::{Error, Result};

/// Number of files whose footers are read concurrently.
const CONCURRENT: usize = 64;

/// A Parquet file: a local file, or an object in a store at a fixed version.
#[derive(Clone)]
pub struct DumpFile {
    place: Place,
    row_type: Option<Arc<str>>,
}

#[derive(Clone)]
enum Place {
    Local(PathBuf),
    Remote(Arc<Object>),
}

impl std::fmt::Debug for DumpFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("DumpFile").field(&self.path()).finish()
    }
}

impl DumpFile {
    pub(crate) fn local(path: PathBuf) -> Self {
        Self { place: Place::Local(path), row_type: None }
    }

    pub(crate) fn remote(object: Arc<Object>) -> Self {
        Self { place: Place::Remote(object), row_type: None }
    }

    /// Sets the type of all rows.
    pub(crate) fn with_row_type(self, row_type: Option<Arc<str>>) -> Self {
        Self { row_type, ..self }
    }

    /// Returns the type of all rows, if the source has a table for each type.
    pub(crate) fn row_type(&self) -> Option<&Arc<str>> {
        self.row_type.as_ref()
    }

    /// Returns the path, or the URL as the user wrote it. For an object below a prefix, the URL includes the object's name.
    pub fn path(&self) -> &Path {
        match &self.place {
            Place::Local(path) => path,
            Place::Remote(object) => object.url(),
        }
    }

    /// Returns the object, or `None` for a local file.
    pub(crate) fn object(&self) -> Option<&Arc<Object>> {
        match &self.place {
            Place::Local(_) => None,
            Place::Remote(object) => Some(object),
        }
    }

    /// Returns the length and the ETag of an object; `None` for a local file.
    pub fn version(&self) -> Option<String> {
        self.object().map(|object| format!("{} {}", object.bytes(), object.version()))
    }

    /// Returns the size in bytes.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub(crate) fn bytes(&self) -> Result<u64> {
        match &self.place {
            Place::Local(path) => Ok(std::fs::metadata(path).map_err(Error::io(path, "read"))?.len()),
            Place::Remote(object) => Ok(object.bytes()),
        }
    }

    /// Returns the names of the columns.
    ///
    /// # Errors
    /// When the file or object cannot be read or is not a Parquet file.
    pub fn column_names(&self, role: &'static str) -> Result<Vec<String>> {
        let metadata = Self::metadata(std::slice::from_ref(self), role)?;
        Ok(metadata.iter().flat_map(|footer| footer.schema().fields()).map(|field| field.name().clone()).collect())
    }

    /// Opens a local file. Returns [`Error::Bug`] for an object.
    pub(crate) fn open(&self, role: &'static str) -> Result<File> {
        let Place::Local(path) = &self.place else {
            return Err(Error::Bug(format!("{} was not fetched", self.path().display())));
        };
        File::open(path).map_err(|source| match source.kind() {
            std::io::ErrorKind::NotFound => Error::Missing { path: path.clone(), role },
            _ => Error::io(path, "open")(source),
        })
    }

    /// Returns the footers of files, in the same order.
    pub(crate) fn metadata(files: &[Self], role: &'static str) -> Result<Vec<ArrowReaderMetadata>> {
        let mut footers = Vec::with_capacity(files.len());
        for files in files.chunks(CONCURRENT) {
            let read = |(file, tail): (&Self, Option<Tail>)| match tail {
                Some(tail) => file.footer(&tail, role),
                None => file.footer(&file.open(role)?, role),
            };
            let some: Vec<Result<ArrowReaderMetadata>> = files.par_iter().zip(Self::tails(files)?).map(read).collect();
            // Returns the first error in the order of the files, not the first in time.
            for footer in some {
                footers.push(footer?);
            }
        }
        Ok(footers)
    }

    /// Reads the ends of those files that are objects, concurrently.
    pub(crate) fn tails(files: &[Self]) -> Result<Vec<Option<Tail>>> {
        let remote: Vec<&Arc<Object>> = files.iter().filter_map(Self::object).collect();
        if remote.is_empty() {
            return Ok(files.iter().map(|_| None).collect());
        }
        let mut tails = tails(remote.into_iter())?.into_iter();
        Ok(files.iter().map(|file| file.object().and_then(|_| tails.next())).collect())
    }

    fn footer(&self, input: &impl ChunkReader, role: &'static str) -> Result<ArrowReaderMetadata> {
        let footer = ArrowReaderMetadata::load(input, ArrowReaderOptions::new()).map_err(|error| {
            use parquet::errors::ParquetError::External;
            match error {
                External(cause) if cause.is::<Error>() => match cause.downcast() {
                    Ok(error) => *error,
                    Err(cause) => Error::Bug(cause.to_string()),
                },
                _ if self.looks_like_text(input) => Error::LooksLikeText { path: self.path().into(), role },
                error => Error::NotParquet { path: self.path().into(), reason: on_one_line(&error) },
            }
        })?;
        check_places(footer.metadata(), input.len())
            .map_err(|reason| Error::NotParquet { path: self.path().into(), reason })?;
        Ok(footer)
    }

    /// Whether a local file that has no valid footer is text: by its name, or because it begins with text.
    fn looks_like_text(&self, input: &impl ChunkReader) -> bool {
        let Place::Local(path) = &self.place else { return false };
        let begin = input.get_bytes(0, input.len().min(512) as usize).unwrap_or_default();
        if begin.starts_with(b"PAR1") {
            return false;
        }
        let name = path.to_string_lossy().to_lowercase();
        let name = name.trim_end_matches(".gz").trim_end_matches(".zst");
        if [".csv", ".tsv", ".txt"].iter().any(|extension| name.ends_with(extension)) {
            return true;
        }
        let control = |&byte: &u8| byte == 127 || (byte < 32 && !b"\t\r\n".contains(&byte));
        // The sample may end within a character.
        let text = std::str::from_utf8(&begin).map_or_else(|error| error.error_len().is_none(), |_| true);
        // A Parquet file that is cut off after fewer than four bytes is not text.
        text && !b"PAR1".starts_with(&begin) && !begin.iter().any(control)
    }
}

/// Checks that all columns are within a file of `bytes` bytes. The `parquet` crate does not check the positions and lengths in a footer: it
/// panics on a negative position, and allocates memory for any length. Also checks the numbers of rows.
fn check_places(footer: &ParquetMetaData, bytes: u64) -> std::result::Result<(), String> {
    let mut rows = 0u64;
    for (number, group) in footer.row_groups().iter().enumerate() {
        if group.num_rows() < 0 {
            return Err(format!("row group {number} has {} rows", group.num_rows()));
        }
        rows = rows.saturating_add(group.num_rows() as u64);
        for column in group.columns() {
            let start = column.dictionary_page_offset().unwrap_or(column.data_page_offset());
            let length = column.compressed_size();
            let end = u64::try_from(start).ok().zip(u64::try_from(length).ok()).map(|(start, length)| start + length);
            if column.data_page_offset() < 0 || end.is_none_or(|end| end > bytes) {
                let path = column.column_path();
                return Err(format!(
                    "row group {number} has {length} bytes of column {path} at {start}, beyond the end of the file"
                ));
            }
        }
    }
    match footer.file_metadata().num_rows() {
        found if u64::try_from(found) == Ok(rows) => Ok(()),
        found => Err(format!("its footer says {found} rows, but its row groups have {rows}")),
    }
}

/// Formats an error of another library on one line.
pub(crate) fn on_one_line(error: &dyn std::fmt::Display) -> String {
    error.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use arrow::array::Int64Array;
    use parquet::file::metadata::FileMetaData;

    use super::*;
    use crate::testing::write_parquet;

    #[test]
    fn number_of_rows_is_that_of_the_row_groups() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("a.parquet");
        write_parquet(&path, vec![("a", Arc::new(Int64Array::from(vec![1, 2, 3])))], 2);
        let bytes = std::fs::metadata(&path).unwrap().len();
        let footer = ArrowReaderMetadata::load(&File::open(&path).unwrap(), ArrowReaderOptions::new()).unwrap();
        let (metadata, of_file) = (footer.metadata(), footer.metadata().file_metadata());
        assert_eq!(check_places(metadata, bytes), Ok(()));
        for rows in [-1, 7] {
            let file = FileMetaData::new(of_file.version(), rows, None, None, of_file.schema_descr_ptr(), None);
            let why = check_places(&ParquetMetaData::new(file, metadata.row_groups().to_vec()), bytes).unwrap_err();
            assert_eq!(why, format!("its footer says {rows} rows, but its row groups have 3"));
        }
    }
}
