//! A column of a table: facts from the footers, and its values in the first rows.

use std::collections::HashSet;

use arrow::array::{Array, ArrayRef, Float32Array, LargeStringArray};
use arrow::datatypes::DataType;

use crate::convert::{is_int, is_text, to_f32, to_lists, to_text};
use crate::dump::is_number;
use crate::format::counted;
use crate::inspect;

/// Number of values that show whether the values of a column repeat.
const ENOUGH: usize = 20;

/// A column. Methods that fail return the reason why the column cannot have a role.
#[derive(Clone, Copy)]
pub(super) struct Column<'a> {
    facts: &'a inspect::Column,
    first: &'a ArrayRef,
    rows: u64,
}

impl<'a> Column<'a> {
    /// `first` has the values of the first rows of the table, which has `rows` rows.
    pub(super) fn new(facts: &'a inspect::Column, first: &'a ArrayRef, rows: u64) -> Self {
        Self { facts, first, rows }
    }

    pub(super) fn data_type(&self) -> &'a DataType {
        &self.facts.arrow_type
    }

    pub(super) fn is_int(&self) -> bool {
        is_int(self.data_type())
    }

    pub(super) fn is_text(&self) -> bool {
        is_text(self.data_type())
    }

    /// Returns the type of the items if the values are lists.
    pub(super) fn item_type(&self) -> Option<&'a DataType> {
        match self.data_type() {
            DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
                Some(item.data_type())
            }
            _ => None,
        }
    }

    /// Returns the error that the values are not `wanted`.
    pub(super) fn is_not(&self, wanted: &str) -> String {
        format!("its values are {}, not {wanted}", self.facts.data_type)
    }

    /// Returns the smallest and the largest integer, if the footers have them.
    pub(super) fn integer_range(&self) -> Option<(i64, i64)> {
        self.facts.integer_range()
    }

    /// Returns the first and the last text in alphabetical order, if the footers have them.
    pub(super) fn text_range(&self) -> Option<(&'a str, &'a str)> {
        Some((self.facts.min.as_ref()?.as_str()?, self.facts.max.as_ref()?.as_str()?))
    }

    /// Whether all values are known to be null.
    pub(super) fn is_empty(&self) -> bool {
        self.facts.nulls == Some(self.rows)
    }

    /// Whether the first rows are all rows.
    pub(super) fn is_short(&self) -> bool {
        self.first.len() as u64 == self.rows
    }

    /// Whether all values are known to be equal.
    pub(super) fn is_constant(&self) -> bool {
        let bounds = self.facts.min.as_ref().zip(self.facts.max.as_ref());
        self.rows > 1 && bounds.is_some_and(|(min, max)| !min.is_null() && min == max)
    }

    /// Fails if a value is null.
    pub(super) fn is_complete(&self) -> Result<(), String> {
        match self.facts.nulls.unwrap_or(self.first.logical_null_count() as u64) {
            0 => Ok(()),
            nulls => Err(format!("it has {}", counted(nulls, "null"))),
        }
    }

    /// Returns the values of the first rows as text.
    pub(super) fn texts(&self) -> Result<LargeStringArray, String> {
        to_text(self.first).map_err(|error| error.to_string())
    }

    /// Whether the first rows have only whole numbers.
    pub(super) fn is_whole(&self) -> bool {
        to_f32(self.first).is_ok_and(|numbers| numbers.iter().flatten().all(|number| number.fract() == 0.0))
    }

    /// Returns the number of different values in the first rows, without null and -1. Fails if most of them differ, as ids and names do.
    pub(super) fn repeats(&self) -> Result<usize, String> {
        let texts = self.texts()?;
        let known: Vec<&str> = texts.iter().flatten().filter(|text| *text != "-1").collect();
        let different = known.iter().collect::<HashSet<_>>().len();
        if known.len() >= ENOUGH && 2 * different > known.len() {
            let of = counted(known.len() as u64, "row");
            return Err(format!("there are {different} different values in {of}, as in a column of ids or names"));
        }
        Ok(different)
    }

    /// Returns the numbers of the first rows, and how many there are per row: more than one for lists.
    ///
    /// # Errors
    /// Other types; a value that is not finite; lists of different lengths.
    pub(super) fn numbers(&self) -> Result<(Float32Array, usize), String> {
        let wanted = "numbers or lists of numbers";
        let (values, width) = match (self.item_type(), to_lists(self.first)) {
            (Some(item), Some((items, starts))) if is_number(item) => {
                self.is_complete()?;
                let width = starts.get(1).map_or(0, |second| second - starts[0]);
                if let Some(row) = starts.windows(2).position(|ends| ends[1] - ends[0] != width) {
                    let other = starts[row + 1] - starts[row];
                    return Err(format!("row {row} has {other} values, but the rows before have {width}"));
                }
                (items.slice(starts[0], starts[starts.len() - 1] - starts[0]), width)
            }
            (None, _) if is_number(self.data_type()) => (self.first.clone(), 1),
            _ => return Err(self.is_not(wanted)),
        };
        let numbers = to_f32(&values).map_err(|error| error.to_string())?;
        match numbers.iter().position(|number| number.is_none_or(|number| !number.is_finite())) {
            Some(at) => Err(format!("row {} has a value that is not a finite number", at / width.max(1))),
            None => Ok((numbers, width)),
        }
    }
}
