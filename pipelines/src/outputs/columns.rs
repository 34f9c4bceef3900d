//! Columns of output tables.

use std::sync::Arc;

use arrow::array::{ArrayRef, FixedSizeListArray};
use arrow::buffer::NullBuffer;
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
