//! Collects rows in column buffers and writes them to a table by row groups.

use std::sync::Arc;

use arrow::array::{ArrayRef, FixedSizeListArray, Float32Array, Int64Array, StringBuilder};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};

use crate::dataset::IdKind;
use crate::error::{Error, Result};
use crate::generate::row_groups::group_rows;
use crate::generate::stream::TableStream;
use crate::generate::table::Output;

/// The buffered values of one column.
pub(super) enum Buffer {
    Int(Vec<i64>),
    Float(Vec<f32>),
    OptionalFloat(Vec<Option<f32>>),
    Text(StringBuilder),
    OptionalText(StringBuilder),
    /// Rows of this many values.
    Matrix(Vec<f32>, usize),
}

impl Buffer {
    pub(super) fn int() -> Self {
        Self::Int(Vec::new())
    }

    pub(super) fn float() -> Self {
        Self::Float(Vec::new())
    }

    pub(super) fn text() -> Self {
        Self::Text(StringBuilder::new())
    }

    pub(super) fn optional_float() -> Self {
        Self::OptionalFloat(Vec::new())
    }

    pub(super) fn optional_text() -> Self {
        Self::OptionalText(StringBuilder::new())
    }

    pub(super) fn matrix(width: usize) -> Self {
        Self::Matrix(Vec::new(), width)
    }

    pub(super) fn ids(kind: IdKind) -> Self {
        match kind {
            IdKind::Int => Self::int(),
            IdKind::Text => Self::text(),
        }
    }

    fn data_type(&self) -> DataType {
        match self {
            Self::Int(_) => DataType::Int64,
            Self::Float(_) | Self::OptionalFloat(_) => DataType::Float32,
            Self::Text(_) | Self::OptionalText(_) => DataType::Utf8,
            Self::Matrix(_, width) => DataType::FixedSizeList(element(DataType::Float32), *width as i32),
        }
    }

    fn is_optional(&self) -> bool {
        matches!(self, Self::OptionalFloat(_) | Self::OptionalText(_))
    }

    fn row_bytes(&self) -> usize {
        match self {
            Self::Int(_) => 8,
            Self::Float(_) | Self::OptionalFloat(_) => 4,
            Self::Text(_) | Self::OptionalText(_) => 24,
            Self::Matrix(_, width) => 4 * width,
        }
    }

    fn take(&mut self) -> Result<ArrayRef> {
        Ok(match self {
            Self::Int(values) => Arc::new(Int64Array::from(std::mem::take(values))),
            Self::Float(values) => Arc::new(Float32Array::from(std::mem::take(values))),
            Self::OptionalFloat(values) => Arc::new(Float32Array::from(std::mem::take(values))),
            Self::Text(values) | Self::OptionalText(values) => Arc::new(values.finish()),
            Self::Matrix(values, width) => matrix(std::mem::take(values), *width)?,
        })
    }
}

/// Returns the field for the items of a list column, named as in Parquet files.
pub(crate) fn element(item: DataType) -> Arc<Field> {
    Arc::new(Field::new("element", item, false))
}

/// Returns a list column with rows of `width` values.
pub(crate) fn matrix(values: Vec<f32>, width: usize) -> Result<ArrayRef> {
    let list = FixedSizeListArray::try_new(
        element(DataType::Float32),
        width as i32,
        Arc::new(Float32Array::from(values)),
        None,
    );
    Ok(Arc::new(list.map_err(|e| Error::Bug(e.to_string()))?))
}

/// A table that is written row by row.
pub(super) struct Rows {
    /// `None` for a sample of rows, which is not written.
    table: Option<TableStream>,
    schema: SchemaRef,
    buffers: Vec<Buffer>,
    buffered: usize,
    group: usize,
}

impl Rows {
    /// Starts table `name` with these columns.
    pub(super) fn begin(
        output: &Output,
        name: &'static str,
        columns: Vec<(String, Buffer)>,
        file_rows: Option<u64>,
    ) -> Result<Self> {
        let mut rows = Self::sample(columns);
        rows.group = group_rows(rows.buffers.iter().map(Buffer::row_bytes).sum());
        rows.table = Some(output.stream(name, rows.schema.clone(), file_rows)?);
        Ok(rows)
    }

    /// Starts a sample of rows in memory.
    pub(super) fn sample(columns: Vec<(String, Buffer)>) -> Self {
        let field = |(name, buffer): &(String, Buffer)| Field::new(name, buffer.data_type(), buffer.is_optional());
        let schema = Arc::new(Schema::new(columns.iter().map(field).collect::<Vec<_>>()));
        let buffers = columns.into_iter().map(|(_, buffer)| buffer).collect();
        Self { table: None, schema, buffers, buffered: 0, group: usize::MAX }
    }

    /// Returns the number of rows until the row group is full, at least 1.
    pub(super) fn rows_to_fill(&self) -> usize {
        self.group - self.buffered
    }

    #[inline]
    pub(super) fn int(&mut self, column: usize, value: i64) {
        if let Buffer::Int(values) = &mut self.buffers[column] {
            values.push(value);
        }
    }

    pub(super) fn ints(&mut self, column: usize, more: impl IntoIterator<Item = i64>) {
        if let Buffer::Int(values) = &mut self.buffers[column] {
            values.extend(more);
        }
    }

    /// Appends one value to a number column, or to the current row of a list column.
    #[inline]
    pub(super) fn float(&mut self, column: usize, value: f32) {
        match &mut self.buffers[column] {
            Buffer::Float(values) | Buffer::Matrix(values, _) => values.push(value),
            Buffer::OptionalFloat(values) => values.push(Some(value)),
            _ => {}
        }
    }

    pub(super) fn floats(&mut self, column: usize, more: &[f32]) {
        if let Buffer::Float(values) | Buffer::Matrix(values, _) = &mut self.buffers[column] {
            values.extend_from_slice(more);
        }
    }

    pub(super) fn text(&mut self, column: usize, value: &str) {
        if let Buffer::Text(values) | Buffer::OptionalText(values) = &mut self.buffers[column] {
            values.append_value(value);
        }
    }

    /// Appends a null to an optional column.
    pub(super) fn null(&mut self, column: usize) {
        match &mut self.buffers[column] {
            Buffer::OptionalFloat(values) => values.push(None),
            Buffer::OptionalText(values) => values.append_null(),
            _ => {}
        }
    }

    /// Completes `rows` rows, at most [`rows_to_fill`](Rows::rows_to_fill).
    #[inline]
    pub(super) fn end_rows(&mut self, rows: usize) -> Result<()> {
        self.buffered += rows;
        if self.buffered >= self.group { self.flush() } else { Ok(()) }
    }

    fn take(&mut self) -> Result<Vec<ArrayRef>> {
        self.buffered = 0;
        self.buffers.iter_mut().map(Buffer::take).collect()
    }

    fn flush(&mut self) -> Result<()> {
        let columns = self.take()?;
        self.table.as_mut().map_or(Ok(()), |table| table.push(columns))
    }

    /// Returns the schema and the columns of a sample.
    pub(super) fn into_columns(mut self) -> Result<(SchemaRef, Vec<ArrayRef>)> {
        let columns = self.take()?;
        Ok((self.schema, columns))
    }

    /// Ends the table and returns its number of rows.
    pub(super) fn finish(mut self, output: &mut Output) -> Result<u64> {
        if self.buffered > 0 {
            self.flush()?;
        }
        self.table.map_or(Ok(0), |table| output.end(table))
    }
}
