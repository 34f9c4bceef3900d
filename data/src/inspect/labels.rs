//! Counts labels and splits of a dump in one pass over their columns.

use std::collections::BTreeMap;

use arrow::array::Array;
use arrow::datatypes::DataType;
use serde::Serialize;

use super::Table;
use crate::convert::{is_int, is_text, to_f64, to_i64, to_lists, to_text};
use crate::error::{Error, Result};
use crate::progress::Progress;

/// Content of the column `label`. A negative or missing label means unlabeled.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "task", rename_all = "kebab-case")]
pub enum Labels {
    /// One class per node.
    Classes {
        /// Nodes of each class.
        counts: BTreeMap<i64, u64>,
        /// Nodes without a label.
        #[serde(rename = "unlabelled")]
        unlabeled: u64,
    },
    /// Any number of classes per node.
    MultiLabel {
        /// Nodes of each class.
        counts: BTreeMap<i64, u64>,
        /// Nodes without a label.
        #[serde(rename = "unlabelled")]
        unlabeled: u64,
    },
    /// A number per node.
    Values {
        /// Smallest.
        min: f64,
        /// Largest.
        max: f64,
        /// Mean.
        mean: f64,
        /// Nodes without a label.
        #[serde(rename = "unlabelled")]
        unlabeled: u64,
    },
}

/// Number of nodes of each split, by name. A missing split counts as `none`.
pub type Splits = BTreeMap<String, u64>;

/// Limit of distinct classes.
const MAX_DISTINCT: usize = 1 << 16;
/// Limit of distinct split names.
const MAX_SPLITS: usize = 64;

/// Counts the labels in column `name`, or adds a note with the reason why not.
pub(super) fn count_labels(
    table: &Table,
    name: &str,
    progress: &dyn Progress,
    notes: &mut Vec<String>,
) -> Result<Option<Labels>> {
    let Some(column) = table.column(name) else { return Ok(None) };
    let labels = match &column.arrow_type {
        t if t.is_integer() || *t == DataType::Boolean => count_classes(table, name, progress)?,
        t if t.is_floating() => Some(count_values(table, name, progress)?),
        DataType::List(i) | DataType::LargeList(i) | DataType::FixedSizeList(i, _) if i.data_type().is_integer() => {
            count_multi(table, name, progress)?
        }
        _ => {
            notes.push(format!("{}: labels are {}, so they are not counted", table.name, column.data_type));
            return Ok(None);
        }
    };
    if labels.is_none() {
        notes.push(format!("{}: more than {MAX_DISTINCT} distinct labels, so they are not counted", table.name));
    }
    Ok(labels)
}

fn count_classes(table: &Table, name: &str, progress: &dyn Progress) -> Result<Option<Labels>> {
    let (mut counts, mut unlabeled) = (BTreeMap::new(), 0);
    table.scan(&[name], progress, |batch| {
        for label in &to_i64(batch.column(0))? {
            match label {
                Some(class) if class >= 0 && counts.len() <= MAX_DISTINCT => *counts.entry(class).or_insert(0) += 1,
                Some(class) if class >= 0 => {}
                _ => unlabeled += 1,
            }
        }
        Ok(())
    })?;
    Ok((counts.len() <= MAX_DISTINCT).then_some(Labels::Classes { counts, unlabeled }))
}

/// Counts lists of class numbers. A list of flags per class looks the same and is counted as class numbers.
fn count_multi(table: &Table, name: &str, progress: &dyn Progress) -> Result<Option<Labels>> {
    let (mut counts, mut unlabeled) = (BTreeMap::new(), 0);
    table.scan(&[name], progress, |batch| {
        let column = batch.column(0);
        let Some((items, starts)) = to_lists(column) else { return Err(Error::Bug("labels are no lists".into())) };
        let classes = to_i64(&items)?;
        for (row, list) in starts.windows(2).map(|ends| ends[0]..ends[1]).enumerate() {
            let list = if column.is_valid(row) { list } else { 0..0 };
            unlabeled += u64::from(list.is_empty());
            for class in list.filter(|&i| classes.is_valid(i)).map(|i| classes.value(i)) {
                if counts.len() <= MAX_DISTINCT {
                    *counts.entry(class).or_insert(0) += 1;
                }
            }
        }
        Ok(())
    })?;
    Ok((counts.len() <= MAX_DISTINCT).then_some(Labels::MultiLabel { counts, unlabeled }))
}

fn count_values(table: &Table, name: &str, progress: &dyn Progress) -> Result<Labels> {
    let (mut min, mut max, mut sum, mut n, mut unlabeled) = (f64::INFINITY, f64::NEG_INFINITY, 0.0, 0u64, 0);
    table.scan(&[name], progress, |batch| {
        for value in &to_f64(batch.column(0))? {
            match value.filter(|value| value.is_finite()) {
                Some(value) => (min, max, sum, n) = (min.min(value), max.max(value), sum + value, n + 1),
                None => unlabeled += 1,
            }
        }
        Ok(())
    })?;
    Ok(Labels::Values { min, max, mean: sum / n.max(1) as f64, unlabeled })
}

/// Counts the splits in column `name`, or adds a note with the reason why not.
pub(super) fn count_splits(
    table: &Table,
    name: &str,
    progress: &dyn Progress,
    notes: &mut Vec<String>,
) -> Result<Option<Splits>> {
    let Some(column) = table.column(name) else { return Ok(None) };
    if !is_text(&column.arrow_type) && !is_int(&column.arrow_type) {
        notes.push(format!("{}: splits are {}, so they are not counted", table.name, column.data_type));
        return Ok(None);
    }
    let mut counts = Splits::new();
    table.scan(&[name], progress, |batch| {
        for word in &to_text(batch.column(0))? {
            let name = word.filter(|name| !name.is_empty()).unwrap_or("none");
            if let Some(count) = counts.get_mut(name) {
                *count += 1;
            } else if counts.len() <= MAX_SPLITS {
                counts.insert(name.to_owned(), 1);
            }
        }
        Ok(())
    })?;
    if counts.len() > MAX_SPLITS {
        notes.push(format!("{}: more than {MAX_SPLITS} different splits, so they are not counted", table.name));
        return Ok(None);
    }
    Ok(Some(counts))
}
