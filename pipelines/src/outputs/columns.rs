//! Columns of output tables.

use std::sync::Arc;

use arrow::array::{ArrayRef, FixedSizeListArray};
use arrow::buffer::NullBuffer;
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field};

use crate::error::Error;

/// Returns the error for rows that do not fit their schema, which only a bug can cause.
pub(crate) fn arrow_bug(error: impl std::fmt::Display) -> Error {
    Error::Bug(format!("rows of an output: {error}"))
}

/// Returns the type of lists of `width` items.
pub(crate) fn list(width: usize, item: DataType) -> DataType {
    DataType::FixedSizeList(Arc::new(Field::new("item", item, false)), width as i32)
}

/// Returns the type of a column of such values that may be null. pyarrow (17, for example) cannot read null lists of fixed length, but those of any length.
pub(crate) fn nullable_type(values: DataType) -> DataType {
    match values {
        DataType::FixedSizeList(item, _) => DataType::List(item),
        other => other,
    }
}

/// Converts a column to its [`nullable_type`].
pub(crate) fn nullable(column: &ArrayRef) -> Result<ArrayRef, Error> {
    cast(column, &nullable_type(column.data_type().clone())).map_err(arrow_bug)
}

/// Makes a column of lists, each of the next `width` values.
pub(crate) fn list_of(width: usize, values: ArrayRef) -> Result<ArrayRef, Error> {
    nullable_list_of(width, values, None)
}

/// Like [`list_of`], with lists that may be null.
pub(crate) fn nullable_list_of(width: usize, values: ArrayRef, nulls: Option<NullBuffer>) -> Result<ArrayRef, Error> {
    let item = Arc::new(Field::new("item", values.data_type().clone(), false));
    let array = FixedSizeListArray::try_new(item, width as i32, values, nulls).map_err(arrow_bug)?;
    Ok(Arc::new(array))
}
