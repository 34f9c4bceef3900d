//! Columns of a node table. Each is a stream with one value per node, from an array, from text or computed.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, StringArray, StringBuilder};
use arrow::datatypes::{DataType, Field, Schema};

use super::npy::Array;
use super::records::{class, show};
use super::text_rows::TextRows;
use crate::dataset::split;
use crate::error::{Error, Result};
use crate::generate::row_groups::group_rows;
use crate::generate::stream::TableStream;
use crate::generate::table::Output;
use crate::progress::Progress;

pub(super) trait Column {
    fn field(&self) -> Field;
    fn row_bytes(&self) -> usize {
        8
    }
    /// Returns the next `rows` values.
    ///
    /// # Errors
    /// When there are fewer.
    fn take(&mut self, rows: usize) -> Result<ArrayRef>;
    /// Checks that no values remain.
    ///
    /// # Errors
    /// When there are more values.
    fn end(&mut self) -> Result<()> {
        Ok(())
    }
}

/// A range of consecutive nodes and their columns. All sections of a table have the same schema.
pub(super) struct Section {
    pub(super) rows: u64,
    pub(super) columns: Vec<Box<dyn Column>>,
}

/// Writes a node table, one section after the other.
pub(super) fn write(
    output: &mut Output,
    name: &'static str,
    sections: Vec<Section>,
    file_rows: Option<u64>,
    progress: &dyn Progress,
) -> Result<u64> {
    let Some(first) = sections.first() else { return Err(Error::Bug("a node table without sections".into())) };
    let schema = Arc::new(Schema::new(first.columns.iter().map(|column| column.field()).collect::<Vec<_>>()));
    let group = group_rows(first.columns.iter().map(|column| column.row_bytes()).sum());
    progress.stage("importing nodes", Some(sections.iter().map(|section| section.rows).sum()), "nodes");
    let mut table: TableStream = output.stream(name, schema, file_rows)?;
    for mut section in sections {
        let mut left = section.rows;
        while left > 0 {
            let rows = left.min(group as u64) as usize;
            table.push(section.columns.iter_mut().map(|column| column.take(rows)).collect::<Result<_>>()?)?;
            progress.advance(rows as u64);
            left -= rows as u64;
        }
        section.columns.iter_mut().try_for_each(|column| column.end())?;
    }
    let rows = output.end(table)?;
    progress.done();
    Ok(rows)
}

/// Consecutive integers from `next`.
pub(super) struct Count {
    pub(super) name: &'static str,
    pub(super) next: i64,
}

impl Column for Count {
    fn field(&self) -> Field {
        Field::new(self.name, DataType::Int64, false)
    }

    fn take(&mut self, rows: usize) -> Result<ArrayRef> {
        let first = self.next;
        self.next += rows as i64;
        Ok(Arc::new(Int64Array::from_iter_values(first..self.next)))
    }
}

/// The same string for every node.
pub(super) struct Constant {
    pub(super) name: &'static str,
    pub(super) value: String,
}

impl Column for Constant {
    fn field(&self) -> Field {
        Field::new(self.name, DataType::Utf8, false)
    }

    fn take(&mut self, rows: usize) -> Result<ArrayRef> {
        Ok(Arc::new(StringArray::from_iter_values(std::iter::repeat_n(&self.value, rows))))
    }
}

/// Splits; one byte per node.
pub(super) struct Splits {
    pub(super) of: Vec<u8>,
    pub(super) at: usize,
}

impl Column for Splits {
    fn field(&self) -> Field {
        Field::new("split", DataType::Utf8, false)
    }

    fn take(&mut self, rows: usize) -> Result<ArrayRef> {
        let some = &self.of[self.at..self.at + rows];
        self.at += rows;
        Ok(Arc::new(StringArray::from_iter_values(some.iter().map(|&which| split_name(which)))))
    }
}

/// Returns the name of a split.
pub(crate) fn split_name(which: u8) -> &'static str {
    match which {
        split::TRAIN => "train",
        split::VAL => "val",
        split::TEST => "test",
        _ => "none",
    }
}

/// Integers from a text file with one row per node; −1 for all nodes if there is no file.
pub(super) struct Ints {
    pub(super) name: String,
    pub(super) source: Option<TextRows>,
}

impl Column for Ints {
    fn field(&self) -> Field {
        Field::new(&self.name, DataType::Int64, false)
    }

    fn take(&mut self, rows: usize) -> Result<ArrayRef> {
        let Some(source) = &mut self.source else { return Ok(Arc::new(Int64Array::from(vec![-1; rows]))) };
        let mut values = Vec::with_capacity(rows);
        for _ in 0..rows {
            let records = source.advance()?;
            let field = records.get(0).unwrap_or_default();
            let value = class(field);
            values
                .push(value.ok_or_else(|| records.wrong(format!("{} {} is not an integer", self.name, show(field))))?);
        }
        Ok(Arc::new(Int64Array::from(values)))
    }

    fn end(&mut self) -> Result<()> {
        self.source.as_mut().map_or(Ok(()), TextRows::end)
    }
}

pub(super) struct ArrayInts {
    pub(super) name: String,
    pub(super) array: Array,
}

impl Column for ArrayInts {
    fn field(&self) -> Field {
        Field::new(&self.name, DataType::Int64, false)
    }

    fn take(&mut self, rows: usize) -> Result<ArrayRef> {
        let mut values = Vec::new();
        self.array.ints(rows, Some(-1), &mut values)?;
        Ok(Arc::new(Int64Array::from(values)))
    }
}

/// Original names of the nodes, from a table of node numbers (ascending from 0) and names.
pub(super) struct Names {
    pub(super) source: Option<TextRows>,
}

impl Column for Names {
    fn field(&self) -> Field {
        Field::new("original_id", DataType::Utf8, false)
    }

    fn row_bytes(&self) -> usize {
        24
    }

    fn take(&mut self, rows: usize) -> Result<ArrayRef> {
        let mut names = StringBuilder::new();
        for _ in 0..rows {
            let Some(source) = &mut self.source else {
                names.append_value("");
                continue;
            };
            let number = source.read;
            let records = source.advance()?;
            if records.int(0, "node number")? != number as i64 {
                let found = show(records.get(0).unwrap_or_default());
                let reason =
                    format!("node number {found} instead of {number}; sort the file, or ignore it (--without mapping)");
                return Err(records.wrong(reason));
            }
            names.append_value(records.text(1)?);
        }
        Ok(Arc::new(names.finish()))
    }

    fn end(&mut self) -> Result<()> {
        self.source.as_mut().map_or(Ok(()), TextRows::end)
    }
}
