//! The types and values that columns need for their roles. A check fails with the reason why a column cannot have the role.

use arrow::datatypes::DataType;
use serde::Serialize;

use super::column::Column;
use crate::dataset::split;
use crate::dump::{MAX_CLASSES, is_number, is_time};
use crate::format::count;

/// The kind of a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LabelKind {
    /// One class.
    Class,
    /// Any number of classes.
    Classes,
    /// A number to predict.
    Number,
}

pub(super) fn id(column: &Column<'_>) -> Result<(), String> {
    match column.is_int() || column.is_text() {
        true => Ok(()),
        false => Err(column.is_not("integers or strings")),
    }
}

/// A label of nodes.
pub(super) fn label(column: &Column<'_>) -> Result<LabelKind, String> {
    if column.is_empty() {
        return Err("it has no values".into());
    }
    match (column.data_type(), column.item_type()) {
        (_, None) if column.is_int() || column.is_text() || *column.data_type() == DataType::Boolean => {
            class(column).map(|()| LabelKind::Class)
        }
        (found, None) if found.is_floating() => number(column).map(|()| LabelKind::Number),
        (_, Some(item)) if item.is_integer() || *item == DataType::Boolean => {
            column.is_complete().map(|()| LabelKind::Classes)
        }
        _ => Err(column.is_not("integers, strings, numbers, or lists of integers or booleans")),
    }
}

/// A class of nodes or edges.
pub(super) fn class(column: &Column<'_>) -> Result<(), String> {
    let boolean = *column.data_type() == DataType::Boolean;
    match column.integer_range() {
        _ if !boolean && !column.is_int() && !column.is_text() => Err(column.is_not("integers, booleans or strings")),
        _ if column.is_empty() => Err("it has no values".into()),
        Some((_, max)) if max < 0 => Err("all its values are below 0, which means no label".into()),
        Some((min, _)) if min < -1 => Err(format!("it has the value {min}, but classes are 0 or more")),
        Some((_, max)) if max >= i64::from(MAX_CLASSES) => {
            Err(format!("it has the value {max}, but classes are below {}", count(MAX_CLASSES.into())))
        }
        _ => column.repeats().map(drop),
    }
}

/// A number to predict. Nulls are missing labels.
fn number(column: &Column<'_>) -> Result<(), String> {
    match column.is_complete() {
        Ok(()) => column.numbers().map(drop).map_err(|reason| format!("{reason}; a missing label is null")),
        Err(_) => Ok(()),
    }
}

/// A split with training rows.
pub(super) fn split(column: &Column<'_>) -> Result<(), String> {
    if !column.is_int() && !column.is_text() {
        return Err(column.is_not("words or integers"));
    }
    let texts = column.texts()?;
    let named = |text: Option<&str>| match column.is_int() {
        true => text.map_or(Some(split::NONE), |number| number.parse().ok().filter(|&split| split <= split::TEST)),
        false => split::named(text),
    };
    if let Some(other) = texts.iter().find(|text| named(*text).is_none()) {
        return Err(format!("{:?} is no split; splits are train, val, test and none", other.unwrap_or_default()));
    }
    let trains = |text| named(text) == Some(split::TRAIN);
    let may_train = match (column.integer_range(), column.text_range()) {
        _ if column.is_empty() => false,
        (Some((min, max)), _) => min <= i64::from(split::TRAIN) && i64::from(split::TRAIN) <= max,
        (_, Some((min, max))) => min <= "train" && "train" <= max,
        _ => !column.is_short() || texts.iter().any(trains),
    };
    if may_train { Ok(()) } else { Err("no row is in the split \"train\"".into()) }
}

/// A type. Returns the number of types in the first rows.
pub(super) fn kind(column: &Column<'_>) -> Result<usize, String> {
    if !column.is_int() && !column.is_text() {
        return Err(column.is_not("integers or strings"));
    }
    column.is_complete()?;
    if column.is_constant() {
        return Err("all its values are equal".into());
    }
    match column.integer_range() {
        Some((min, max)) if min < 0 || max >= i64::from(u16::MAX) => {
            Err(format!("its integers are from {min} to {max}, not from 0 to {}", u16::MAX - 1))
        }
        _ => column.repeats(),
    }
}

pub(super) fn weight(column: &Column<'_>) -> Result<(), String> {
    if !is_number(column.data_type()) {
        return Err(column.is_not("numbers"));
    }
    column.is_complete()?;
    let (numbers, _) = column.numbers()?;
    match numbers.iter().flatten().find(|number| *number < 0.0) {
        Some(negative) => Err(format!("it has the value {negative}, and weights are 0 or more")),
        None => Ok(()),
    }
}

pub(super) fn time(column: &Column<'_>) -> Result<(), String> {
    if !column.is_int() && !is_time(column.data_type()) {
        return Err(column.is_not("integers, dates or timestamps"));
    }
    column.is_complete()
}

/// Features. Returns the number of values per row.
pub(super) fn features(column: &Column<'_>) -> Result<usize, String> {
    if column.item_type().is_none() {
        column.is_complete()?;
    }
    let (_, width) = column.numbers()?;
    if width == 0 { Err("its lists are empty".into()) } else { Ok(width) }
}
