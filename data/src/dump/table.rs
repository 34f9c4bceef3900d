//! The Parquet files of one role (nodes or edges) as one long table, read in chunks, several row groups in parallel.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::array::{
    ArrayRef, ListArray, RecordBatch, RecordBatchOptions, StringArray, new_empty_array, new_null_array,
};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field, Schema};
use arrow::error::ArrowError;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ParquetRecordBatchReaderBuilder};
use parquet::file::reader::ChunkReader;

use super::ordered::ordered;
use super::prefetch;
use crate::decoding::guard;
use crate::error::{Error, Location, Result};
use crate::store::{DumpFile, READ_AHEAD, RowGroup, SHARE, on_one_line};

/// Bytes that are fetched first of a row group when only its first rows are needed.
const FIRST_FETCH: u64 = 64 << 10;

/// All files of one role.
pub(crate) struct Table {
    /// A number that is unique in this process.
    identity: u64,
    role: &'static str,
    files: Vec<Arc<TableFile>>,
    units: Vec<Unit>,
    rows: u64,
    /// Types of rows, if each type has its files.
    types: Vec<Arc<str>>,
    /// Name of the column with the types, if each type has its files.
    type_column: Option<String>,
    /// Columns that some files lack, and the type of their values there, which are null.
    optional: Vec<(String, DataType)>,
}

pub(crate) struct TableFile {
    file: DumpFile,
    metadata: ArrowReaderMetadata,
    /// The type of its rows, in [`Table::types`]; 0 without types.
    row_type: usize,
    /// Number of rows in the files before this one.
    first_row: u64,
}

struct Unit {
    file: usize,
    row_group: usize,
    /// First row within the file.
    first_row: u64,
}

/// The place of a chunk.
#[derive(Clone)]
pub(crate) struct Origin {
    file: Arc<TableFile>,
    row_group: usize,
    /// First row within the file.
    row: u64,
}

impl Origin {
    /// Returns the place of row `i` of the chunk.
    pub(crate) fn place(&self, i: usize, column: &str) -> Box<Location> {
        let row = self.row + i as u64;
        Box::new(Location { path: self.file.file.path().into(), row_group: self.row_group, row, column: column.into() })
    }

    /// First row of the chunk, counted over all files.
    pub(crate) fn first_row(&self) -> u64 {
        self.file.first_row + self.row
    }

    /// The type of the rows, in the table's types; 0 without types.
    pub(super) fn row_type(&self) -> usize {
        self.file.row_type
    }
}

/// A chunk of the requested columns.
pub(crate) struct Chunk {
    pub(crate) origin: Origin,
    batch: RecordBatch,
}

impl Chunk {
    pub(crate) fn len(&self) -> usize {
        self.batch.num_rows()
    }

    /// Returns all requested columns.
    pub(crate) fn into_batch(self) -> RecordBatch {
        self.batch
    }

    /// Returns the requested column `name`.
    pub(crate) fn column(&self, name: &str) -> Result<&ArrayRef> {
        self.batch.column_by_name(name).ok_or_else(|| Error::Bug(format!("column {name} was not read")))
    }
}

impl Table {
    /// Opens the files and reads their footers. `role` is "graph.nodes" or "graph.edges".
    pub(crate) fn open(files: &[DumpFile], role: &'static str) -> Result<Self> {
        Self::open_typed(files, role, None)
    }

    /// Like [`Table::open`]. If each type of rows has its files, the table has their types in `type_column`.
    pub(super) fn open_typed(files: &[DumpFile], role: &'static str, type_column: Option<&str>) -> Result<Self> {
        static TABLES: AtomicU64 = AtomicU64::new(0);
        let mut types: Vec<Arc<str>> = files.iter().filter_map(DumpFile::row_type).cloned().collect();
        types.sort();
        types.dedup();
        let mut table = Self {
            identity: TABLES.fetch_add(1, Ordering::Relaxed),
            role,
            files: Vec::with_capacity(files.len()),
            units: Vec::new(),
            rows: 0,
            type_column: type_column.filter(|_| !types.is_empty()).map(Into::into),
            types,
            optional: Vec::new(),
        };
        for (file, metadata) in files.iter().zip(DumpFile::metadata(files, role)?) {
            let row_type = table.types.iter().position(|name| Some(name) == file.row_type()).unwrap_or(0);
            let mut first_row = 0;
            for (row_group, info) in metadata.metadata().row_groups().iter().enumerate() {
                table.units.push(Unit { file: table.files.len(), row_group, first_row });
                first_row += info.num_rows().max(0) as u64;
            }
            table.files.push(Arc::new(TableFile { file: file.clone(), metadata, row_type, first_row: table.rows }));
            table.rows = table.rows.saturating_add(first_row);
        }
        Ok(table)
    }

    /// Number of rows, from the footers.
    pub(crate) fn rows(&self) -> u64 {
        self.rows
    }

    /// Returns whether a file has the column `name`.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.files.iter().any(|file| file.has(name))
    }

    /// Number of types whose rows have their own files; 1 without types.
    pub(super) fn row_types(&self) -> usize {
        self.types.len().max(1)
    }

    /// Returns the name of a type whose rows have their own files.
    pub(super) fn type_name(&self, row_type: usize) -> Option<String> {
        self.types.get(row_type).map(ToString::to_string)
    }

    /// Calls `check` with the type of column `name` in every file.
    ///
    /// # Errors
    /// [`Error::MissingColumn`], or [`Error::ColumnType`] with the text that `check` returned.
    pub(crate) fn column_type(
        &self,
        name: &str,
        role: &'static str,
        mut check: impl FnMut(&DataType) -> std::result::Result<(), String>,
    ) -> Result<()> {
        if self.type_column.as_deref() == Some(name) {
            return check(&DataType::Utf8).map_err(Error::Bug);
        }
        self.files.iter().try_for_each(|file| file.column_type(name, role, &mut check))
    }

    /// Like [`Table::column_type`], for the files of one type of rows. If each type has its files and those of this type lack the column,
    /// returns false.
    ///
    /// # Errors
    /// Those of [`Table::column_type`].
    pub(super) fn column_type_of(
        &self,
        row_type: usize,
        name: &str,
        role: &'static str,
        check: &mut dyn FnMut(&DataType) -> std::result::Result<(), String>,
    ) -> Result<bool> {
        let mut files = self.files.iter().filter(|file| file.row_type == row_type);
        if !self.types.is_empty() && !files.clone().any(|file| file.has(name)) {
            return Ok(false);
        }
        files.try_for_each(|file| file.column_type(name, role, check))?;
        Ok(true)
    }

    /// Like [`Table::column_type`]. If each type of rows has its files, the files of a type may lack the column, whose values are null there.
    /// (Lists are empty there.)
    ///
    /// # Errors
    /// Those of [`Table::column_type`], also if no file has the column.
    pub(super) fn optional_column_type(
        &mut self,
        name: &str,
        role: &'static str,
        mut check: impl FnMut(&DataType) -> std::result::Result<(), String>,
    ) -> Result<()> {
        let (mut data_type, mut lacking) = (None, false);
        for row_type in 0..self.row_types() {
            let mut check = |found: &DataType| {
                data_type.get_or_insert_with(|| found.clone());
                check(found)
            };
            lacking |= !self.column_type_of(row_type, name, role, &mut check)?;
        }
        match data_type {
            Some(data_type) if lacking => self.optional.push((name.into(), data_type)),
            Some(_) => {}
            None => self.column_type(name, role, check)?,
        }
        Ok(())
    }

    /// Whether some files lack the optional column `name`.
    pub(super) fn is_lacking(&self, name: &str) -> bool {
        self.optional.iter().any(|(optional, _)| optional == name)
    }

    /// Reads `columns` of all rows in chunks of at most `rows` rows. A chunk never spans two row groups. `map` runs in parallel, `consume` in
    /// order.
    pub(crate) fn scan<T: Send>(
        &self,
        columns: &[&str],
        rows: usize,
        map: impl Fn(Chunk) -> Result<T> + Sync,
        consume: impl FnMut(T) -> Result<()>,
    ) -> Result<()> {
        let produce = |unit: usize, send: &mut dyn FnMut(T) -> bool| self.read_unit(unit, columns, rows, &map, send);
        ordered(self.units.len(), rayon::current_num_threads(), produce, consume)
    }

    /// Returns the maximum number of bytes that a reading thread prefetches.
    pub(crate) fn read_ahead(&self) -> u64 {
        let remote = self.files.iter().any(|file| file.file.object().is_some());
        if remote { READ_AHEAD } else { 0 }
    }

    /// Number of units of reading (row groups).
    pub(crate) fn units(&self) -> usize {
        self.units.len()
    }

    pub(crate) fn unit_rows(&self, unit: usize) -> u64 {
        let Unit { file, row_group, .. } = self.units[unit];
        self.files[file].metadata.metadata().row_group(row_group).num_rows().max(0) as u64
    }

    /// Reads `columns` of one unit like [`Table::scan`]. `send` returns whether to continue.
    pub(crate) fn read_unit<T>(
        &self,
        unit: usize,
        columns: &[&str],
        rows: usize,
        map: impl Fn(Chunk) -> Result<T>,
        send: &mut dyn FnMut(T) -> bool,
    ) -> Result<()> {
        let fetched = prefetch::take(self.identity, columns, unit, |unit| self.fetch(unit, columns, SHARE, true))?;
        self.read(unit, fetched, columns, rows, &mut |chunk| Ok(send(map(chunk)?)))
    }

    /// Returns the first rows of `columns`, at most `rows`, from one row group; `None` if the table is empty.
    pub(crate) fn first(&self, columns: &[&str], rows: usize) -> Result<Option<Chunk>> {
        self.first_of(0..self.units.len(), columns, rows)
    }

    /// Like [`Table::first`], for the rows of one type.
    pub(super) fn first_of_type(&self, row_type: usize, columns: &[&str], rows: usize) -> Result<Option<Chunk>> {
        let units = (0..self.units.len()).filter(|&unit| self.row_type(unit) == row_type);
        self.first_of(units, columns, rows)
    }

    /// The type of the rows of a unit; 0 without types.
    pub(super) fn row_type(&self, unit: usize) -> usize {
        self.files[self.units[unit].file].row_type
    }

    fn first_of(&self, units: impl Iterator<Item = usize>, columns: &[&str], rows: usize) -> Result<Option<Chunk>> {
        let mut first = None;
        for unit in units {
            let row_group = self.fetch(unit, columns, FIRST_FETCH, false)?;
            self.read(unit, row_group, columns, rows, &mut |chunk| {
                first = Some(chunk);
                Ok(false)
            })?;
            if first.is_some() {
                break;
            }
        }
        Ok(first)
    }

    /// Returns the place of a row, which is counted over all files.
    pub(crate) fn place(&self, row: u64, column: &str) -> Box<Location> {
        let unit = self.units.partition_point(|unit| self.files[unit.file].first_row + unit.first_row <= row) - 1;
        let Unit { file, row_group, .. } = self.units[unit];
        let file = &self.files[file];
        Box::new(Location {
            path: file.file.path().into(),
            row_group,
            row: row - file.first_row,
            column: column.into(),
        })
    }

    fn mask(&self, file: &TableFile, columns: &[&str]) -> ProjectionMask {
        let schema = file.metadata.schema();
        let stored = columns.iter().filter(|name| self.type_column.as_deref() != Some(**name));
        let roots = stored.filter_map(|name| schema.index_of(name).ok());
        ProjectionMask::roots(file.metadata.parquet_schema(), roots)
    }

    /// Starts fetching the columns of a row group. Returns `None` for a local file and beyond the last unit.
    fn fetch(&self, unit: usize, columns: &[&str], share: u64, ahead: bool) -> Result<Option<RowGroup>> {
        let Some(unit) = self.units.get(unit) else { return Ok(None) };
        let file = &self.files[unit.file];
        let Some(object) = file.file.object() else { return Ok(None) };
        let mask = self.mask(file, columns);
        let chunks = file.metadata.metadata().row_group(unit.row_group).columns().iter().enumerate();
        let ranges = chunks.filter(|(leaf, _)| mask.leaf_included(*leaf)).filter_map(|(_, chunk)| {
            let start = chunk.dictionary_page_offset().unwrap_or(chunk.data_page_offset());
            let (start, length) = (u64::try_from(start).ok()?, u64::try_from(chunk.compressed_size()).ok()?);
            Some(start..start.saturating_add(length))
        });
        RowGroup::begin(object, ranges.collect(), share, ahead).map(Some)
    }

    /// Reads a row group from `fetched`, or from the disk, until `next` returns false. Not generic over what callers make of
    /// chunks, so that Parquet's decoder is compiled once per kind of input.
    fn read(
        &self,
        unit: usize,
        fetched: Option<RowGroup>,
        columns: &[&str],
        rows: usize,
        next: &mut dyn FnMut(Chunk) -> Result<bool>,
    ) -> Result<()> {
        let unit = &self.units[unit];
        match fetched {
            Some(fetched) => self
                .decode(unit, fetched.clone(), columns, rows, next)
                .map_err(|error| fetched.failure().unwrap_or(error)),
            None => {
                let input = self.files[unit.file].file.open(self.role)?;
                self.decode(unit, input, columns, rows, next)
            }
        }
    }

    fn decode(
        &self,
        unit: &Unit,
        input: impl ChunkReader + 'static,
        columns: &[&str],
        rows: usize,
        next: &mut dyn FnMut(Chunk) -> Result<bool>,
    ) -> Result<()> {
        let file = &self.files[unit.file];
        let fail = |reason: String| Error::NotParquet {
            path: file.file.path().into(),
            reason: format!("row group {}: {reason}", unit.row_group),
        };
        let builder = ParquetRecordBatchReaderBuilder::new_with_metadata(input, file.metadata.clone())
            .with_row_groups(vec![unit.row_group])
            .with_projection(self.mask(file, columns))
            .with_batch_size(rows);
        let mut reader = guard(|| builder.build()).map_err(fail)?.map_err(|e| fail(on_one_line(&e)))?;
        let mut row = unit.first_row;
        while let Some(batch) = guard(|| reader.next()).map_err(fail)? {
            let batch = batch.map_err(|e| fail(on_one_line(&e)))?;
            let length = batch.num_rows() as u64;
            let batch = self.complete(batch, file, columns).map_err(|e| Error::Bug(e.to_string()))?;
            let origin = Origin { file: file.clone(), row_group: unit.row_group, row };
            if !next(Chunk { origin, batch })? {
                return Ok(());
            }
            row += length;
        }
        Ok(())
    }

    /// Adds the requested columns that the file lacks: the type of its rows, and nulls in optional columns.
    fn complete(
        &self,
        batch: RecordBatch,
        file: &TableFile,
        columns: &[&str],
    ) -> std::result::Result<RecordBatch, ArrowError> {
        let rows = batch.num_rows();
        let mut added: Vec<(Field, ArrayRef)> = Vec::new();
        if let (Some(name), Some(row_type)) = (&self.type_column, self.types.get(file.row_type))
            && columns.contains(&name.as_str())
        {
            let types = StringArray::from_iter_values(std::iter::repeat_n(row_type, rows));
            added.push((Field::new(name, DataType::Utf8, false), Arc::new(types)));
        }
        for (name, data_type) in &self.optional {
            if columns.contains(&name.as_str()) && !file.has(name) {
                let nulls = nothing(data_type, rows);
                added.push((Field::new(name, nulls.data_type().clone(), true), nulls));
            }
        }
        if added.is_empty() {
            return Ok(batch);
        }
        let schema = batch.schema();
        let fields = schema.fields().iter().cloned().chain(added.iter().map(|(field, _)| Arc::new(field.clone())));
        let schema = Schema::new(fields.collect::<Vec<_>>());
        let arrays = batch.columns().iter().cloned().chain(added.into_iter().map(|(_, array)| array)).collect();
        RecordBatch::try_new_with_options(
            Arc::new(schema),
            arrays,
            &RecordBatchOptions::new().with_row_count(Some(rows)),
        )
    }
}

/// Returns `rows` empty lists for a type of lists, and otherwise nulls.
fn nothing(data_type: &DataType, rows: usize) -> ArrayRef {
    match data_type {
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            let (starts, items) = (OffsetBuffer::new_zeroed(rows), new_empty_array(item.data_type()));
            Arc::new(ListArray::new(Arc::clone(item), starts, items, None))
        }
        data_type => new_null_array(data_type, rows),
    }
}

impl TableFile {
    fn has(&self, name: &str) -> bool {
        self.metadata.schema().field_with_name(name).is_ok()
    }

    /// Calls `check` with the type of column `name`.
    fn column_type(
        &self,
        name: &str,
        role: &'static str,
        check: &mut dyn FnMut(&DataType) -> std::result::Result<(), String>,
    ) -> Result<()> {
        let schema = self.metadata.schema();
        let field = schema.field_with_name(name).map_err(|_| Error::MissingColumn {
            path: self.file.path().into(),
            role,
            column: name.into(),
            available: schema.fields().iter().map(|field| field.name().clone()).collect(),
        })?;
        check(field.data_type()).map_err(|wanted| Error::ColumnType {
            path: self.file.path().into(),
            role,
            column: name.into(),
            found: field.data_type().to_string(),
            wanted,
        })
    }
}
