//! The Parquet files of one role (nodes or edges), read as one long table: a chunk at a time, row groups in parallel.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::DataType;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder};

use super::ordered::ordered;
use crate::error::{Error, Place, Result};

/// All files of one role.
pub(crate) struct Table {
    role: &'static str,
    files: Vec<Arc<TableFile>>,
    units: Vec<Unit>,
    rows: u64,
}

/// One file.
pub(crate) struct TableFile {
    path: PathBuf,
    metadata: ArrowReaderMetadata,
    /// Rows in the files before.
    first_row: u64,
}

/// One row group.
struct Unit {
    file: usize,
    row_group: usize,
    /// First row within the file.
    first_row: u64,
}

/// Where a chunk comes from.
#[derive(Clone)]
pub(crate) struct Origin {
    file: Arc<TableFile>,
    row_group: usize,
    /// First row within the file.
    row: u64,
}

impl Origin {
    /// The place of row `i` of the chunk.
    pub(crate) fn place(&self, i: usize, column: &str) -> Box<Place> {
        let row = self.row + i as u64;
        Box::new(Place { path: self.file.path.clone(), row_group: self.row_group, row, column: column.into() })
    }

    /// First row of the chunk, counted over all files.
    pub(crate) fn first_row(&self) -> u64 {
        self.file.first_row + self.row
    }
}

/// One chunk of the wanted columns.
pub(crate) struct Chunk {
    pub(crate) origin: Origin,
    batch: RecordBatch,
}

impl Chunk {
    pub(crate) fn len(&self) -> usize {
        self.batch.num_rows()
    }

    /// Column `name`, which the scan was asked for.
    pub(crate) fn column(&self, name: &str) -> Result<&ArrayRef> {
        self.batch.column_by_name(name).ok_or_else(|| Error::Bug(format!("column {name} was not read")))
    }
}

impl Table {
    /// Opens the files and reads their footers. `role` is "nodes" or "edges".
    pub(crate) fn open(files: &[PathBuf], role: &'static str) -> Result<Self> {
        let mut table = Self { role, files: Vec::with_capacity(files.len()), units: Vec::new(), rows: 0 };
        for path in files {
            let file = open(path, role)?;
            let metadata = ArrowReaderMetadata::load(&file, ArrowReaderOptions::new())
                .map_err(|e| Error::NotParquet { path: path.clone(), reason: one_line(&e) })?;
            let mut first_row = 0;
            for (row_group, info) in metadata.metadata().row_groups().iter().enumerate() {
                table.units.push(Unit { file: table.files.len(), row_group, first_row });
                first_row += info.num_rows().max(0) as u64;
            }
            table.files.push(Arc::new(TableFile { path: path.clone(), metadata, first_row: table.rows }));
            table.rows += first_row;
        }
        Ok(table)
    }

    /// Number of rows, from the footers.
    pub(crate) fn rows(&self) -> u64 {
        self.rows
    }

    /// Calls `check` with the path and type of column `name` in every file.
    ///
    /// # Errors
    /// [`Error::MissingColumn`], or what `check` returned.
    pub(crate) fn column_type(
        &self,
        name: &str,
        role: &'static str,
        mut check: impl FnMut(&DataType) -> std::result::Result<(), String>,
    ) -> Result<()> {
        for file in &self.files {
            let schema = file.metadata.schema();
            let field = schema.field_with_name(name).map_err(|_| Error::MissingColumn {
                path: file.path.clone(),
                role,
                column: name.into(),
                available: schema.fields().iter().map(|field| field.name().clone()).collect(),
            })?;
            check(field.data_type()).map_err(|wanted| Error::ColumnType {
                path: file.path.clone(),
                role,
                column: name.into(),
                found: field.data_type().to_string(),
                wanted,
            })?;
        }
        Ok(())
    }

    /// Reads `columns` of all rows in chunks of at most `rows` (which end with the row groups), maps the chunks in parallel, and
    /// consumes the results in order.
    pub(crate) fn scan<T: Send>(
        &self,
        columns: &[&str],
        rows: usize,
        map: impl Fn(Chunk) -> Result<T> + Sync,
        consume: impl FnMut(T) -> Result<()>,
    ) -> Result<()> {
        let produce =
            |unit: usize, send: &mut dyn FnMut(T) -> bool| self.read(&self.units[unit], columns, rows, &map, send);
        ordered(self.units.len(), rayon::current_num_threads(), produce, consume)
    }

    /// Number of units of reading: row groups.
    pub(crate) fn units(&self) -> usize {
        self.units.len()
    }

    /// Rows of a unit.
    pub(crate) fn unit_rows(&self, unit: usize) -> u64 {
        let Unit { file, row_group, .. } = self.units[unit];
        self.files[file].metadata.metadata().row_group(row_group).num_rows().max(0) as u64
    }

    /// Reads `columns` of one unit as [`Table::scan`] reads all; `send` tells whether to go on.
    pub(crate) fn read_unit<T>(
        &self,
        unit: usize,
        columns: &[&str],
        rows: usize,
        map: impl Fn(Chunk) -> Result<T>,
        send: &mut dyn FnMut(T) -> bool,
    ) -> Result<()> {
        self.read(&self.units[unit], columns, rows, &map, send)
    }

    /// The first row of `columns`, if there is any.
    pub(crate) fn first(&self, columns: &[&str]) -> Result<Option<Chunk>> {
        let mut first = None;
        for unit in &self.units {
            self.read(unit, columns, 1, &Ok, &mut |chunk| {
                first = Some(chunk);
                false
            })?;
            if first.is_some() {
                break;
            }
        }
        Ok(first)
    }

    /// The place of a row counted over all files.
    pub(crate) fn place(&self, row: u64, column: &str) -> Box<Place> {
        let unit = self.units.partition_point(|unit| self.files[unit.file].first_row + unit.first_row <= row) - 1;
        let Unit { file, row_group, .. } = self.units[unit];
        let file = &self.files[file];
        Box::new(Place { path: file.path.clone(), row_group, row: row - file.first_row, column: column.into() })
    }

    fn read<T>(
        &self,
        unit: &Unit,
        columns: &[&str],
        rows: usize,
        map: &impl Fn(Chunk) -> Result<T>,
        send: &mut dyn FnMut(T) -> bool,
    ) -> Result<()> {
        let file = &self.files[unit.file];
        let fail = |reason: String| Error::NotParquet {
            path: file.path.clone(),
            reason: format!("row group {}: {reason}", unit.row_group),
        };
        let schema = file.metadata.schema();
        let roots = columns.iter().filter_map(|name| schema.index_of(name).ok());
        let mask = ProjectionMask::roots(file.metadata.parquet_schema(), roots);
        let input = open(&file.path, self.role)?;
        let reader = ParquetRecordBatchReaderBuilder::new_with_metadata(input, file.metadata.clone())
            .with_row_groups(vec![unit.row_group])
            .with_projection(mask)
            .with_batch_size(rows)
            .build()
            .map_err(|e| fail(one_line(&e)))?;
        let mut row = unit.first_row;
        for batch in reader {
            let batch = batch.map_err(|e| fail(one_line(&e)))?;
            let length = batch.num_rows() as u64;
            let origin = Origin { file: file.clone(), row_group: unit.row_group, row };
            if !send(map(Chunk { origin, batch })?) {
                return Ok(());
            }
            row += length;
        }
        Ok(())
    }
}

fn open(path: &Path, role: &'static str) -> Result<File> {
    File::open(path).map_err(|source| match source.kind() {
        std::io::ErrorKind::NotFound => Error::Missing { path: path.to_path_buf(), role },
        _ => Error::io(path, "open")(source),
    })
}

/// A message of another library on one line.
fn one_line(error: &dyn std::error::Error) -> String {
    error.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}
