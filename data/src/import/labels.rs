//! Labels: classes, values, or one flag per class. They are read from an array or from text.

use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, FixedSizeListArray, Float32Array, Int64Array};
use arrow::datatypes::{DataType, Field};

use super::columns::Column;
use super::npy::{Array, Item};
use super::records::{Records, class, show};
use super::rows::element;
use super::text_rows::TextRows;
use crate::error::{Error, Result};
use crate::format::plural;

/// The kind of labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LabelStyle {
    /// One class, −1 = none.
    Class,
    /// A number.
    Value,
    /// One flag for each of this many classes.
    Flags(usize),
}

pub(super) enum LabelSource {
    Npy(Array),
    Text(TextRows),
    /// Missing labels, in the style of the labels of other nodes.
    None,
}

/// The labels of nodes.
pub(super) struct Labels {
    pub(super) style: LabelStyle,
    pub(super) source: LabelSource,
}

impl Labels {
    /// Creates labels from an array. Integers are classes. Floats are values to predict, or classes if `classes` is
    /// set.
    pub(super) fn array(array: Array, classes: bool, rows: u64, count_source: &str) -> Result<Self> {
        let (found, width) = array.matrix()?;
        if found != rows {
            return Err(array.wrong(format!("has {found} rows, but {count_source} {rows}")));
        }
        let style = match (width, array.item) {
            (1, Item::Float(_)) if !classes => LabelStyle::Value,
            (1, _) => LabelStyle::Class,
            (width, _) => LabelStyle::Flags(width),
        };
        Ok(Self { style, source: LabelSource::Npy(array) })
    }

    /// Creates labels from a text file with one column of classes, or one column per class. `first` is a second reader
    /// at the start of the file.
    pub(super) fn text(
        mut first: Records<'static>,
        source: Records<'static>,
        rows: u64,
        count_source: &str,
    ) -> Result<Self> {
        let width = if first.advance()? { first.len() } else { 1 };
        let style = if width == 1 { LabelStyle::Class } else { LabelStyle::Flags(width) };
        Ok(Self { style, source: LabelSource::Text(TextRows::new(source, rows, count_source)) })
    }

    fn ints(&mut self, items: usize, width: usize) -> Result<Vec<i64>> {
        let mut into = Vec::with_capacity(items);
        match &mut self.source {
            LabelSource::Npy(array) => array.ints(items, Some(-1), &mut into)?,
            LabelSource::None => into.resize(items, if width == 1 { -1 } else { 0 }),
            LabelSource::Text(source) => {
                while into.len() < items {
                    let records = source.advance()?;
                    for i in 0..width {
                        let field = records.get(i).unwrap_or_default();
                        let wrong = || records.wrong(format!("label {} is not a class", show(field)));
                        into.push(class(field).ok_or_else(wrong)?);
                    }
                    if records.len() != width {
                        return Err(records
                            .wrong(format!("{}, but the rows before have {width}", plural(records.len(), "label"))));
                    }
                }
            }
        }
        Ok(into)
    }
}

impl Column for Labels {
    fn field(&self) -> Field {
        let data_type = match self.style {
            LabelStyle::Class => DataType::Int64,
            LabelStyle::Value => DataType::Float32,
            LabelStyle::Flags(width) => DataType::FixedSizeList(element(DataType::Boolean), width as i32),
        };
        Field::new("label", data_type, false)
    }

    fn take(&mut self, rows: usize) -> Result<ArrayRef> {
        match self.style {
            LabelStyle::Class => Ok(Arc::new(Int64Array::from(self.ints(rows, 1)?))),
            LabelStyle::Value => {
                let mut values = Vec::new();
                if let LabelSource::Npy(array) = &mut self.source {
                    array.floats(rows, &mut values)?;
                }
                Ok(Arc::new(Float32Array::from(values)))
            }
            LabelStyle::Flags(width) => {
                let flags = self.ints(rows * width, width)?;
                if let Some(&other) = flags.iter().find(|&&flag| !(0..=1).contains(&flag)) {
                    let reason = format!("the label {other}; labels in {width} columns must be 0 or 1");
                    return Err(match &self.source {
                        LabelSource::Npy(array) => array.wrong(format!("has {reason}")),
                        LabelSource::Text(source) => source.records.wrong(format!("at or before this line: {reason}")),
                        LabelSource::None => Error::Bug(reason),
                    });
                }
                flag_lists(flags.into_iter().map(|flag| flag == 1), width)
            }
        }
    }

    fn end(&mut self) -> Result<()> {
        match &mut self.source {
            LabelSource::Text(source) => source.end(),
            _ => Ok(()),
        }
    }
}

/// Returns a list column with `width` flags per row.
pub(crate) fn flag_lists(flags: impl Iterator<Item = bool>, width: usize) -> Result<ArrayRef> {
    let flags: BooleanArray = flags.map(Some).collect();
    let list = FixedSizeListArray::try_new(element(DataType::Boolean), width as i32, Arc::new(flags), None);
    Ok(Arc::new(list.map_err(|e| Error::Bug(e.to_string()))?))
}
