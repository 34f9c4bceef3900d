//! Converts columns to 64-bit integers, floats or strings. Nulls stay nulls.
//!
//! Written by hand because `arrow::compute::cast` links code for every pair of Arrow's types, 5 MB of machine code.

use arrow::array::{
    Array, ArrayRef, ArrowPrimitiveType, AsArray, Int32Array, Int64Array, LargeStringArray, PrimitiveArray,
};
use arrow::datatypes::{
    DataType, Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type, UInt16Type,
    UInt32Type, UInt64Type,
};

use crate::error::{Error, Result};

/// Returns the type of a column's values; of a dictionary, that of its values.
fn plain(data_type: &DataType) -> &DataType {
    match data_type {
        DataType::Dictionary(_, values) => values,
        other => other,
    }
}

/// Returns whether the values are strings.
pub(crate) fn is_text(data_type: &DataType) -> bool {
    matches!(plain(data_type), DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
}

/// Returns whether the values are integers.
pub(crate) fn is_int(data_type: &DataType) -> bool {
    plain(data_type).is_integer()
}

fn unsupported(column: &dyn Array, wanted: &str) -> Error {
    Error::Bug(format!("a column of type {} was not refused before it is read as {wanted}", column.data_type()))
}

/// Returns the value of each row's key in a dictionary, from the dictionary's converted values.
fn look_up<V>(column: &dyn Array, get: impl Fn(usize) -> Option<V>) -> impl Iterator<Item = Option<V>> {
    let dictionary = column.as_any_dictionary();
    let keys = if dictionary.values().is_empty() { vec![0; column.len()] } else { dictionary.normalized_keys() };
    keys.into_iter().enumerate().map(move |(row, key)| dictionary.keys().is_valid(row).then(|| get(key)).flatten())
}

/// Returns integers, booleans (0 or 1), and the stored numbers of dates, times and durations. An integer that is too
/// large for `i64` becomes null.
pub(crate) fn to_i64(column: &dyn Array) -> Result<Int64Array> {
    fn widen<T: ArrowPrimitiveType<Native: TryInto<i64>>>(column: &dyn Array) -> Int64Array {
        column.as_primitive::<T>().unary_opt(|value| value.try_into().ok())
    }
    Ok(match column.data_type() {
        DataType::Int8 => widen::<Int8Type>(column),
        DataType::Int16 => widen::<Int16Type>(column),
        DataType::Int32 => widen::<Int32Type>(column),
        DataType::Int64 => column.as_primitive().clone(),
        DataType::UInt8 => widen::<UInt8Type>(column),
        DataType::UInt16 => widen::<UInt16Type>(column),
        DataType::UInt32 => widen::<UInt32Type>(column),
        DataType::UInt64 => widen::<UInt64Type>(column),
        DataType::Boolean => column.as_boolean().iter().map(|value| value.map(i64::from)).collect(),
        DataType::Dictionary(..) => {
            let values = to_i64(column.as_any_dictionary().values())?;
            look_up(column, |key| values.is_valid(key).then(|| values.value(key))).collect()
        }
        DataType::Date32 | DataType::Time32(_) => {
            widen::<Int32Type>(&Int32Array::from(stored(column, DataType::Int32)?))
        }
        DataType::Date64 | DataType::Time64(_) | DataType::Timestamp(..) | DataType::Duration(_) => {
            Int64Array::from(stored(column, DataType::Int64)?)
        }
        _ => return Err(unsupported(column, "integers")),
    })
}

/// Returns the buffers of a column of dates or times as integers of the same width.
fn stored(column: &dyn Array, data_type: DataType) -> Result<arrow::array::ArrayData> {
    column.to_data().into_builder().data_type(data_type).build().map_err(|error| Error::Bug(error.to_string()))
}

macro_rules! to_float {
    ($(#[$doc:meta])* $name:ident, $arrow:ty, $native:ty) => {
        $(#[$doc])*
        pub(crate) fn $name(column: &dyn Array) -> Result<PrimitiveArray<$arrow>> {
            Ok(match column.data_type() {
                DataType::Int8 => column.as_primitive::<Int8Type>().unary(|value| value as $native),
                DataType::Int16 => column.as_primitive::<Int16Type>().unary(|value| value as $native),
                DataType::Int32 => column.as_primitive::<Int32Type>().unary(|value| value as $native),
                DataType::Int64 => column.as_primitive::<Int64Type>().unary(|value| value as $native),
                DataType::UInt8 => column.as_primitive::<UInt8Type>().unary(|value| value as $native),
                DataType::UInt16 => column.as_primitive::<UInt16Type>().unary(|value| value as $native),
                DataType::UInt32 => column.as_primitive::<UInt32Type>().unary(|value| value as $native),
                DataType::UInt64 => column.as_primitive::<UInt64Type>().unary(|value| value as $native),
                DataType::Float16 => column.as_primitive::<Float16Type>().unary(|value| value.to_f32() as $native),
                DataType::Float32 => column.as_primitive::<Float32Type>().unary(|value| value as $native),
                DataType::Float64 => column.as_primitive::<Float64Type>().unary(|value| value as $native),
                DataType::Boolean => {
                    column.as_boolean().iter().map(|value| value.map(|value| u8::from(value) as $native)).collect()
                }
                DataType::Dictionary(..) => {
                    let values = $name(column.as_any_dictionary().values())?;
                    look_up(column, |key| values.is_valid(key).then(|| values.value(key))).collect()
                }
                _ => return Err(unsupported(column, "floats")),
            })
        }
    };
}

to_float! {
    /// Returns numbers as 32-bit floats, rounded to the nearest.
    to_f32, Float32Type, f32
}
to_float! {
    /// Returns numbers as 64-bit floats, rounded to the nearest.
    to_f64, Float64Type, f64
}

/// Returns strings, and integers as decimal text.
pub(crate) fn to_text(column: &dyn Array) -> Result<LargeStringArray> {
    Ok(match column.data_type() {
        DataType::Utf8 => column.as_string::<i32>().iter().collect(),
        DataType::LargeUtf8 => column.as_string::<i64>().clone(),
        DataType::Utf8View => column.as_string_view().iter().collect(),
        DataType::UInt64 => column.as_primitive::<UInt64Type>().iter().map(|id| id.map(|id| id.to_string())).collect(),
        DataType::Dictionary(..) => {
            let values = to_text(column.as_any_dictionary().values())?;
            look_up(column, |key| values.is_valid(key).then(|| values.value(key))).collect()
        }
        _ => to_i64(column)?.iter().map(|id| id.map(|id| id.to_string())).collect(),
    })
}

/// Returns the items of a column of lists, and where each list starts in them. The last start is the end of the last
/// list. `None` if it is not a column of lists.
pub(crate) fn to_lists(column: &dyn Array) -> Option<(ArrayRef, Vec<usize>)> {
    Some(match column.data_type() {
        DataType::List(_) => {
            let list = column.as_list::<i32>();
            (list.values().clone(), list.offsets().iter().map(|&start| start as usize).collect())
        }
        DataType::LargeList(_) => {
            let list = column.as_list::<i64>();
            (list.values().clone(), list.offsets().iter().map(|&start| start as usize).collect())
        }
        DataType::FixedSizeList(_, width) => {
            let list = column.as_fixed_size_list();
            (list.values().clone(), (0..=list.len()).map(|row| row * *width as usize).collect())
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{
        BooleanArray, Date32Array, DictionaryArray, Float16Array, Float64Array, StringArray, StringViewArray,
        TimestampMicrosecondArray, UInt64Array,
    };
    use arrow::compute::cast;
    use half::f16;

    use super::*;

    /// Columns of most types, with nulls, sliced so that they do not start at the start of their buffers.
    fn columns() -> Vec<ArrayRef> {
        let texts: Vec<_> = [Some("9"), None, Some("30"), Some("30"), Some("")].into();
        let keys = Int32Array::from(vec![Some(1), None, Some(0), Some(1), Some(0)]);
        let all: Vec<ArrayRef> = vec![
            Arc::new(Int32Array::from(vec![Some(7), None, Some(-3), Some(i32::MIN), Some(16_777_217)])),
            Arc::new(Int64Array::from(vec![Some(7), None, Some(-3), Some(i64::MIN), Some(i64::MAX)])),
            Arc::new(UInt64Array::from(vec![Some(7), None, Some(1 << 63), Some(u64::MAX), Some(16_777_217)])),
            Arc::new(BooleanArray::from(vec![Some(true), None, Some(false), Some(true), Some(true)])),
            Arc::new(Float16Array::from(vec![
                Some(f16::ONE),
                None,
                Some(f16::MAX),
                Some(f16::EPSILON),
                Some(f16::NAN),
            ])),
            Arc::new(Float64Array::from(vec![Some(0.1), None, Some(-1e300), Some(f64::NAN), Some(16_777_217.0)])),
            Arc::new(Date32Array::from(vec![Some(20_000), None, Some(-1), Some(0), Some(5)])),
            Arc::new(TimestampMicrosecondArray::from(vec![Some(1 << 50), None, Some(-1), Some(0), Some(5)])),
            Arc::new(StringArray::from(texts.clone())),
            Arc::new(LargeStringArray::from(texts.clone())),
            Arc::new(StringViewArray::from(texts.clone())),
            Arc::new(texts.into_iter().collect::<DictionaryArray<Int32Type>>()),
            Arc::new(DictionaryArray::new(keys, Arc::new(UInt64Array::from(vec![Some(12), None])))),
            Arc::new(DictionaryArray::new(Int32Array::new_null(5), Arc::new(Int64Array::new_null(0)))),
        ];
        all.iter().flat_map(|column| [column.clone(), column.slice(1, 3), column.slice(0, 0)]).collect()
    }

    /// Compares a conversion with arrow's `cast` for all columns that it accepts. Returns their number.
    fn compare<A: Array + std::fmt::Debug>(convert: impl Fn(&dyn Array) -> Result<A>, to: &DataType) -> usize {
        let mut accepted = 0;
        for column in columns() {
            let Ok(converted) = convert(&column) else { continue };
            // Arrow casts dates of 32 bits through 32-bit integers only.
            let expected = match column.data_type() {
                DataType::Date32 => cast(&cast(&column, &DataType::Int32).unwrap(), to),
                _ => cast(&column, to),
            };
            let (expected, found) = (expected.unwrap().to_data(), converted.to_data());
            assert_eq!(
                format!("{:?}", arrow::array::make_array(found)),
                format!("{:?}", arrow::array::make_array(expected))
            );
            accepted += 1;
        }
        accepted
    }

    #[test]
    fn integers_are_those_of_cast() {
        // All but floats and strings.
        assert_eq!(compare(to_i64, &DataType::Int64), 3 * 8);
    }

    #[test]
    fn floats_are_those_of_cast() {
        // All but dates, timestamps and strings.
        assert_eq!(compare(to_f32, &DataType::Float32), 3 * 8);
        assert_eq!(compare(to_f64, &DataType::Float64), 3 * 8);
    }

    #[test]
    fn texts_are_those_of_cast() {
        let texts = |column: &dyn Array| match column.data_type() {
            DataType::Boolean | DataType::Date32 | DataType::Timestamp(..) => Err(unsupported(column, "text")),
            _ => to_text(column),
        };
        assert_eq!(compare(texts, &DataType::LargeUtf8), 3 * 9);
    }

    #[test]
    fn lists_of_all_kinds_have_starts() {
        let items = Some(vec![Some(1), Some(2)]);
        let lists =
            arrow::array::ListArray::from_iter_primitive::<Int64Type, _, _>([items.clone(), None, items.clone()]);
        let fixed = arrow::array::FixedSizeListArray::from_iter_primitive::<Int64Type, _, _>([items.clone(), items], 2);
        assert_eq!(to_lists(&lists).unwrap().1, [0, 2, 2, 4]);
        assert_eq!(to_lists(&lists.slice(1, 2)).unwrap().1, [2, 2, 4]);
        assert_eq!(to_lists(&fixed).unwrap().1, [0, 2, 4]);
        assert!(to_lists(&Int64Array::new_null(1)).is_none());
    }
}
