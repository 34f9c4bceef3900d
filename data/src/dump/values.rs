//! Converts Arrow columns to plain values. Every invalid value is an error with its place.

use std::ops::Range;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, LargeStringArray};
use arrow::buffer::ScalarBuffer;
use arrow::datatypes::{DataType, Float32Type, Float64Type};

use super::table::{Chunk, Origin, Table};
use crate::convert::{is_int, is_text, to_f32, to_i64, to_lists, to_text};
use crate::dataset::{FeatureColumn, FeatureColumns, IdKind, RowLayout, split};
use crate::error::{Error, Result};
use crate::ids::Ids;
use crate::source::FeatureDtype;

/// Types of nodes or edges of one chunk.
#[derive(Clone, Debug)]
pub enum Types {
    /// The column holds integers.
    Code(Vec<u16>),
    /// The column holds strings.
    Name(LargeStringArray),
}

/// Returns whether the values are dates, times or durations.
pub(crate) fn is_time(data_type: &DataType) -> bool {
    use DataType::{Date32, Date64, Duration, Time32, Time64, Timestamp};
    matches!(data_type, Date32 | Date64 | Time32(_) | Time64(_) | Timestamp(..) | Duration(_))
}

pub(crate) fn is_number(data_type: &DataType) -> bool {
    is_int(data_type) || data_type.is_floating() || *data_type == DataType::Boolean
}

/// Returns the kind of an id column, which must be the same in all files.
pub(super) fn id_kind(table: &Table, name: &str, role: &'static str, wanted: Option<IdKind>) -> Result<IdKind> {
    let mut kind = wanted;
    table.column_type(name, role, |found| {
        let this = match found {
            found if is_int(found) => IdKind::Int,
            found if is_text(found) => IdKind::Text,
            _ => return Err("integers or strings".into()),
        };
        match *kind.get_or_insert(this) {
            kind if kind == this => Ok(()),
            IdKind::Int => Err("integers, like the node ids of the first file".into()),
            IdKind::Text => Err("strings, like the node ids of the first file".into()),
        }
    })?;
    Ok(kind.unwrap_or(IdKind::Int))
}

/// Checks that a type column holds integers or strings. Returns whether it holds strings.
pub(super) fn check_types(table: &Table, name: &str, role: &'static str) -> Result<bool> {
    let mut text = None;
    table.column_type(name, role, |found| match (is_text(found), is_int(found)) {
        (false, false) => Err("integers in 0..65535 or strings".into()),
        (this, _) if *text.get_or_insert(this) != this => Err("the same type in every file".into()),
        _ => Ok(()),
    })?;
    Ok(text.unwrap_or(false))
}

/// Returns [`Error::Null`] for the first null, if there is one.
pub(super) fn no_nulls(origin: &Origin, array: &dyn Array, name: &str) -> Result<()> {
    match array.logical_nulls().filter(|nulls| nulls.null_count() > 0) {
        Some(nulls) => {
            let row = (0..array.len()).find(|&i| nulls.is_null(i)).unwrap_or(0);
            Err(Error::Null { place: origin.place(row, name) })
        }
        None => Ok(()),
    }
}

/// Converts a column of integers, dates or timestamps to 64-bit integers. Keeps nulls.
pub(super) fn ints(origin: &Origin, array: &ArrayRef, name: &str) -> Result<Int64Array> {
    let integers = to_i64(array)?;
    if integers.null_count() > array.logical_null_count() {
        let row = (0..integers.len()).find(|&i| integers.is_null(i) && array.is_valid(i)).unwrap_or(0);
        let value = to_text(array)?.value(row).to_string();
        return Err(Error::Value { place: origin.place(row, name), value, wanted: "a 64-bit signed integer".into() });
    }
    Ok(integers)
}

/// Converts a column of integers and checks that it has no nulls.
pub(super) fn all_ints(origin: &Origin, array: &ArrayRef, name: &str) -> Result<ScalarBuffer<i64>> {
    no_nulls(origin, array, name)?;
    Ok(ints(origin, array, name)?.values().clone())
}

pub(super) fn ids(chunk: &Chunk, name: &str) -> Result<Ids> {
    let array = chunk.column(name)?;
    if is_text(array.data_type()) {
        no_nulls(&chunk.origin, array, name)?;
        return Ok(Ids::Text(to_text(array)?));
    }
    Ok(Ids::Int(all_ints(&chunk.origin, array, name)?))
}

pub(super) fn types(chunk: &Chunk, name: &str) -> Result<Types> {
    let array = chunk.column(name)?;
    if is_text(array.data_type()) {
        no_nulls(&chunk.origin, array, name)?;
        return Ok(Types::Name(to_text(array)?));
    }
    let codes = all_ints(&chunk.origin, array, name)?;
    let narrow = codes.iter().map(|&code| u16::try_from(code).ok().filter(|&code| code < u16::MAX));
    let narrow: Option<Vec<u16>> = narrow.collect();
    narrow.map(Types::Code).ok_or_else(|| {
        let row = codes.iter().position(|code| !(0..i64::from(u16::MAX)).contains(code)).unwrap_or(0);
        let wanted = "a type from 0 to 65534".into();
        Error::Value { place: chunk.origin.place(row, name), value: codes[row].to_string(), wanted }
    })
}

/// Checks that a split column holds strings or integers.
pub(super) fn check_splits(table: &mut Table, name: &str, role: &'static str) -> Result<()> {
    table.optional_column_type(name, role, |found| match is_int(found) || is_text(found) {
        true => Ok(()),
        false => Err("strings or integers".into()),
    })
}

/// Reads a column of splits, see [`split`].
pub(super) fn splits(chunk: &Chunk, name: &str) -> Result<Vec<u8>> {
    let (origin, array) = (&chunk.origin, chunk.column(name)?);
    let wrong = |row: usize, value: String, wanted: &str| Error::Value {
        place: origin.place(row, name),
        value,
        wanted: wanted.to_string(),
    };
    if is_text(array.data_type()) {
        let names = to_text(array)?;
        let read = |(row, value): (usize, Option<&str>)| {
            let other = || format!("{:?}", value.unwrap_or_default());
            split::named(value).ok_or_else(|| wrong(row, other(), "a split; use train, val, test or none"))
        };
        return names.iter().enumerate().map(read).collect();
    }
    let numbers = ints(origin, array, name)?;
    let read = |(row, value): (usize, Option<i64>)| match value.unwrap_or(0) {
        value @ 0..=3 => Ok(value as u8),
        other => Err(wrong(row, other.to_string(), "a split; use 0 (none), 1 (train), 2 (validation) or 3 (test)")),
    };
    numbers.iter().enumerate().map(read).collect()
}

/// Converts a column of numbers to 32-bit floats and checks that all are present and finite.
pub(super) fn floats(origin: &Origin, array: &ArrayRef, name: &str) -> Result<ScalarBuffer<f32>> {
    no_nulls(origin, array, name)?;
    finite(array, |i| origin.place(i, name))
}

/// Converts a column of numbers to 32-bit floats and checks that they are finite. Nulls become NaN.
pub(super) fn optional_floats(origin: &Origin, array: &ArrayRef, name: &str) -> Result<Vec<f32>> {
    if array.logical_null_count() == 0 {
        return Ok(floats(origin, array, name)?.to_vec());
    }
    let numbers = to_f32(array)?;
    let read = |(row, value): (usize, Option<f32>)| match value {
        Some(value) if !value.is_finite() => {
            Err(Error::NotFinite { place: origin.place(row, name), value: f64::from(value), hint: "" })
        }
        value => Ok(value.unwrap_or(f32::NAN)),
    };
    numbers.iter().enumerate().map(read).collect()
}

/// Converts numbers without nulls. `place` returns the place of number `i`.
fn finite(array: &ArrayRef, place: impl Fn(usize) -> Box<crate::error::Location>) -> Result<ScalarBuffer<f32>> {
    let values: ScalarBuffer<f32> = match array.data_type() {
        DataType::Float32 => array.as_primitive::<Float32Type>().values().clone(),
        _ => to_f32(array)?.values().clone(),
    };
    if values.iter().fold(true, |finite, x| finite & x.is_finite()) {
        return Ok(values);
    }
    let i = values.iter().position(|x| !x.is_finite()).unwrap_or(0);
    let value = match array.data_type() {
        DataType::Float64 => array.as_primitive::<Float64Type>().value(i),
        _ => f64::from(values[i]),
    };
    let hint = if value.is_finite() { " when stored as 32-bit float" } else { "" };
    Err(Error::NotFinite { place: place(i), value, hint })
}

/// Columns of numbers or lists of numbers, side by side: one row-major matrix.
///
/// If each type of rows has its files, each type has its own block of columns; the values of a row outside of the block of its type are 0.
pub(crate) struct Matrix {
    names: Vec<String>,
    /// The columns of each type of rows; a single list without types.
    blocks: Vec<Vec<MatrixColumn>>,
    width: usize,
}

/// A column of a [`Matrix`].
struct MatrixColumn {
    /// Number in the list of names.
    name: usize,
    /// Its first value in a row, and the next column's.
    values: Range<usize>,
}

impl Matrix {
    /// Checks the types of the columns, and reads the widths from the first row.
    pub(super) fn open(table: &Table, names: &[String], role: &'static str) -> Result<Self> {
        let (mut blocks, mut width) = (Vec::with_capacity(table.row_types()), 0);
        for row_type in 0..table.row_types() {
            let mut block = Vec::new();
            for (number, name) in names.iter().enumerate() {
                if let Some(columns) = width_of(table, row_type, name, role)? {
                    block.push(MatrixColumn { name: number, values: width..width + columns });
                    width += columns;
                }
            }
            blocks.push(block);
        }
        let is_missing = |number: &usize| !blocks.iter().flatten().any(|column| column.name == *number);
        if let Some(missing) = (0..names.len()).find(is_missing) {
            table.column_type(&names[missing], role, |_| Ok(()))?;
        }
        Ok(Self { names: names.to_vec(), blocks, width })
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }

    /// Number of values per row.
    pub(crate) fn width(&self) -> usize {
        self.width
    }

    /// Describes the columns. `type_name` returns the name of a type of rows, if each type has its files.
    pub(super) fn columns(&self, type_name: impl Fn(usize) -> Option<String>) -> FeatureColumns {
        let of_type = |(row_type, block): (usize, &Vec<MatrixColumn>)| {
            let column = |column: &MatrixColumn| FeatureColumn {
                name: self.names[column.name].clone(),
                row_type: type_name(row_type),
                values: column.values.len(),
            };
            block.iter().map(column).collect::<Vec<_>>()
        };
        FeatureColumns { values: self.width, columns: self.blocks.iter().enumerate().flat_map(of_type).collect() }
    }

    /// Returns the values that rows of a type have; all without types.
    pub(crate) fn block(&self, row_type: usize) -> Range<usize> {
        let block = &self.blocks[row_type];
        block.first().map_or(0, |first| first.values.start)..block.last().map_or(0, |last| last.values.end)
    }

    /// Returns the layout of stored rows: all columns in one type, or each in its own.
    pub(super) fn layout(&self, dtypes: &[FeatureDtype]) -> Result<RowLayout> {
        match dtypes {
            [dtype] => Ok(RowLayout::new([(self.width(), *dtype)])),
            dtypes if dtypes.len() == self.names.len() => {
                let columns = self.blocks.iter().flatten();
                Ok(RowLayout::new(columns.map(|column| (column.values.len(), dtypes[column.name]))))
            }
            dtypes => {
                let reason = format!(
                    "{} types for {} feature columns; give one type for all, or one per column",
                    dtypes.len(),
                    self.names.len()
                );
                Err(Error::Setting { key: "graph.feature_dtype", reason })
            }
        }
    }

    /// Returns the matrix of one chunk.
    pub(super) fn read(&self, chunk: &Chunk) -> Result<Vec<f32>> {
        let (rows, width) = (chunk.len(), self.width);
        let block = &self.blocks[chunk.origin.row_type()];
        if let [column] = &block[..]
            && column.values.len() == width
        {
            return Ok(flat(chunk, &self.names[column.name], width)?.to_vec());
        }
        let mut matrix = vec![0.0; rows * width];
        for column in block {
            let values = flat(chunk, &self.names[column.name], column.values.len())?;
            for (row, values) in values.chunks_exact(column.values.len().max(1)).enumerate().take(rows) {
                matrix[row * width..][column.values.clone()].copy_from_slice(values);
            }
        }
        Ok(matrix)
    }
}

/// Returns the number of values per row in column `name` of one type of rows; `None` if the type's files lack the column.
fn width_of(table: &Table, row_type: usize, name: &str, role: &'static str) -> Result<Option<usize>> {
    // The width by the column's type: used if the table has no rows.
    let mut type_width = 0;
    let is_present = table.column_type_of(row_type, name, role, &mut |found| {
        type_width = match found {
            DataType::FixedSizeList(_, width) => *width as usize,
            found => usize::from(is_number(found)),
        };
        match found {
            DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _)
                if is_number(item.data_type()) =>
            {
                Ok(())
            }
            found if is_number(found) => Ok(()),
            _ => Err("numbers or lists of numbers".into()),
        }
    })?;
    if !is_present {
        return Ok(None);
    }
    let first = table.first_of_type(row_type, &[name], 1)?;
    Ok(Some(match &first {
        Some(chunk) => first_width(chunk.column(name)?),
        None => type_width,
    }))
}

fn first_width(array: &ArrayRef) -> usize {
    match array.data_type() {
        DataType::FixedSizeList(_, width) => *width as usize,
        DataType::List(_) if !array.is_empty() => array.as_list::<i32>().value_length(0) as usize,
        DataType::LargeList(_) if !array.is_empty() => array.as_list::<i64>().value_length(0) as usize,
        _ => 1,
    }
}

/// Returns the items of a list column and the start of each list; `None` if it is not a column of lists.
pub(super) fn items(origin: &Origin, array: &ArrayRef, name: &str) -> Result<Option<(ArrayRef, Vec<usize>)>> {
    let Some((values, starts)) = to_lists(array) else { return Ok(None) };
    no_nulls(origin, array, name)?;
    if let Some(nulls) = values.logical_nulls().filter(|nulls| nulls.null_count() > 0) {
        let (first, last) = (starts[0], starts[starts.len() - 1]);
        if let Some(at) = (first..last).find(|&i| nulls.is_null(i)) {
            let row = starts.partition_point(|&start| start <= at) - 1;
            return Err(Error::Null { place: origin.place(row, name) });
        }
    }
    Ok(Some((values, starts)))
}

/// Returns the values of column `name`, `width` per row.
fn flat(chunk: &Chunk, name: &str, width: usize) -> Result<ScalarBuffer<f32>> {
    let (origin, array) = (&chunk.origin, chunk.column(name)?);
    let place = |row| origin.place(row, name);
    let Some((values, starts)) = items(origin, array, name)? else {
        return match width {
            1 => floats(origin, array, name),
            _ => Err(Error::Width { place: place(0), found: 1, expected: width }),
        };
    };
    if let Some(row) = (0..array.len()).find(|&row| starts[row + 1] - starts[row] != width) {
        return Err(Error::Width { place: place(row), found: starts[row + 1] - starts[row], expected: width });
    }
    let values = values.slice(starts[0], starts[starts.len() - 1] - starts[0]);
    finite(&values, |i| place(i / width.max(1)))
}
