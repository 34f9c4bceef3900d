//! Rows of embeddings as a column.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Float16Array, Float32Array};
use arrow::datatypes::DataType;
use arrow::util::display::array_value_to_string;
use half::f16;

use crate::config::{EmbeddingDtype, Infer};
use crate::error::Error;
use crate::outputs::columns::{arrow_bug, list, list_of, nullable_list_of};

/// How rows of embeddings are written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EmbeddingRows {
    normalize: bool,
    dtype: EmbeddingDtype,
}

impl EmbeddingRows {
    /// Rows as they are computed.
    pub(crate) const EXACT: Self = Self { normalize: false, dtype: EmbeddingDtype::F32 };

    /// Rows as `[infer]` wants them.
    pub(crate) fn of(infer: Option<&Infer>) -> Self {
        infer.map_or(Self::EXACT, |infer| Self { normalize: infer.normalize, dtype: infer.embedding_dtype })
    }

    /// The type of a column of rows of `width` values.
    pub(crate) fn column_type(self, width: usize) -> DataType {
        list(width, self.item())
    }

    fn item(self) -> DataType {
        match self.dtype {
            EmbeddingDtype::F32 => DataType::Float32,
            EmbeddingDtype::F16 => DataType::Float16,
        }
    }

    /// Makes the column of `rows`, of `width` values each, of the nodes with these `ids`.
    ///
    /// # Errors
    /// If a value is too large for the type of the column.
    pub(crate) fn column<'a>(
        self,
        width: usize,
        rows: impl Iterator<Item = &'a [f32]>,
        ids: &dyn Array,
    ) -> Result<ArrayRef, Error> {
        list_of(width, self.values(rows, Some(ids))?)
    }

    /// Like [`EmbeddingRows::column`], with rows that may be null.
    pub(crate) fn nullable_column<'a>(
        self,
        width: usize,
        rows: impl Iterator<Item = Option<&'a [f32]>>,
    ) -> Result<ArrayRef, Error> {
        let rows: Vec<Option<&[f32]>> = rows.collect();
        let nulls = rows.iter().any(Option::is_none).then(|| rows.iter().map(Option::is_some).collect());
        let zeros = vec![0.0; width];
        let values = self.values(rows.into_iter().map(|row| row.unwrap_or(&zeros)), None)?;
        nullable_list_of(width, values, nulls)
    }

    /// Returns the values of all rows. Errors name the nodes by their ids, if these are given.
    fn values<'a>(self, rows: impl Iterator<Item = &'a [f32]>, ids: Option<&dyn Array>) -> Result<ArrayRef, Error> {
        let values = rows.enumerate().flat_map(|(at, row)| {
            let length = if self.normalize { length(row) } else { 1.0 };
            row.iter().map(move |value| (at, (f64::from(*value) / length) as f32))
        });
        Ok(match self.dtype {
            EmbeddingDtype::F32 => Arc::new(Float32Array::from_iter_values(values.map(|(_, value)| value))),
            EmbeddingDtype::F16 => {
                let half = |(at, value)| to_half(value).ok_or_else(|| too_large(value, ids, at));
                Arc::new(Float16Array::from_iter_values(values.map(half).collect::<Result<Vec<_>, _>>()?))
            }
        })
    }
}

/// Returns the length of `row`, or 1 for a row of zeros, which stays as it is.
fn length(row: &[f32]) -> f64 {
    let length = row.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
    if length > 0.0 { length } else { 1.0 }
}

/// Returns `None` if a finite value is too large.
fn to_half(value: f32) -> Option<f16> {
    let half = f16::from_f32(value);
    (half.is_finite() || !value.is_finite()).then_some(half)
}

/// Returns the error for a value of row `at` that is too large.
fn too_large(value: f32, ids: Option<&dyn Array>, at: usize) -> Error {
    let embedding = match ids.map(|ids| array_value_to_string(ids, at)).transpose() {
        Ok(Some(id)) => format!("the embedding of node {id}"),
        Ok(None) => "an embedding".to_owned(),
        Err(error) => return arrow_bug(error),
    };
    Error::Input(format!(
        "infer.embedding_dtype = \"f16\": {embedding} has the value {value}, and the largest of f16 is 65,504; use \"f32\" or \
         infer.normalize = true"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{AsArray, Int64Array};
    use arrow::datatypes::{Float16Type, Float32Type};

    #[test]
    fn normalized_rows_have_length_one() {
        let rows = EmbeddingRows { normalize: true, dtype: EmbeddingDtype::F32 };
        let ids = Int64Array::from(vec![7, 8, 9]);
        let column = rows.column(2, [&[3.0, 4.0][..], &[0.0, 0.0], &[-1e-40, 0.0]].into_iter(), &ids).unwrap();
        assert_eq!(column.data_type(), &rows.column_type(2));
        let values = column.as_fixed_size_list().values().as_primitive::<Float32Type>().values().to_vec();
        assert_eq!(values, [0.6, 0.8, 0.0, 0.0, -1.0, 0.0]);
    }

    #[test]
    fn half_precision_rounds_values() {
        let rows = EmbeddingRows { normalize: false, dtype: EmbeddingDtype::F16 };
        let ids = Int64Array::from(vec![7, 8]);
        let column = rows.column(2, [&[1.0, 0.1][..]].into_iter(), &ids).unwrap();
        assert_eq!(column.data_type(), &rows.column_type(2));
        let values = column.as_fixed_size_list().values().as_primitive::<Float16Type>().values().to_vec();
        assert_eq!(values, [f16::from_f32(1.0), f16::from_f32(0.1)]);
        let error = rows.column(1, [&[1.0][..], &[7e4]].into_iter(), &ids).unwrap_err();
        assert!(error.to_string().contains("the embedding of node 8 has the value 70000"), "{error}");
        let error = rows.nullable_column(1, [None, Some(&[7e4][..])].into_iter()).unwrap_err();
        assert!(error.to_string().contains("an embedding has the value 70000"), "{error}");
    }
}
