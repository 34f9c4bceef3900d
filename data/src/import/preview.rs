//! The first rows of text files as an import understands them, without writing anything.

use std::fmt;
use std::path::PathBuf;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::{DataType, Float32Type, Int64Type, SchemaRef};
use serde::Serialize;

use super::rows::Rows;
use super::text::Edges;
use super::text_nodes::Nodes;
use super::text_sample::Sample;
use super::{Import, Kind, Skipped};
use crate::dataset::IdKind;
use crate::error::{Error, Result};
use crate::progress::Silent;

/// Number of rows that are read and checked.
const READ: u64 = 1000;

/// Number of rows that are shown.
const SHOWN: usize = 5;

/// What an import would read: its decisions and the first rows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Preview {
    /// The format.
    pub kind: Kind,
    /// Whether ids are integers or strings.
    pub ids: IdKind,
    /// Whether each row is an edge in both directions.
    pub undirected: bool,
    /// The first edge file.
    pub edges: PreviewTable,
    /// The first node file.
    pub nodes: Option<PreviewTable>,
    /// Notes for the user, as in [`Imported`](super::Imported::notes).
    pub notes: Vec<String>,
    /// What is left out of the rows that were read.
    pub skipped: Skipped,
}

/// The start of a text file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PreviewTable {
    /// The file.
    pub path: PathBuf,
    /// The delimiter of its fields, as a word.
    pub delimiter: String,
    /// Whether the first line has column names.
    pub header: bool,
    /// The columns of the dump.
    pub columns: Vec<PreviewColumn>,
    /// The columns of the file that are not used.
    pub ignored: Vec<String>,
    /// The first rows: one text per column.
    pub rows: Vec<Vec<String>>,
}

/// A column of the dump.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PreviewColumn {
    /// Its name, which is its role: `src`, `weight`, `label`, ….
    pub name: String,
    /// The columns of the file that it is read from: names, or numbers from 1.
    pub from: Vec<String>,
    /// `integer`, `number`, `string`, or `numbers`.
    #[serde(rename = "type")]
    pub data_type: &'static str,
}

impl Import {
    /// Reads the first rows of the first edge file and of the first node file. Writes nothing.
    ///
    /// # Errors
    /// Those that [`Import::run`] finds in these rows; a format other than text.
    pub fn preview(&self) -> Result<Preview> {
        let kind = self.check()?;
        if kind != Kind::Text {
            return Err(Error::Setting { key: "--dry-run", reason: "is for text only".into() });
        }
        let mut notes = Vec::new();
        let files = Edges::open(self, &mut notes)?;
        let (columns, mut pass) = files.columns();
        let mut rows = Rows::sample(columns);
        files.file(&self.paths[0], &mut pass, &mut rows, READ, &mut notes, &Silent)?;
        let edges = PreviewTable::new(&files.sample, &files.fields(), rows)?;
        let mut skipped = pass.skipped;
        let nodes = match self.text.nodes.first() {
            None => None,
            Some(path) => {
                let files = Nodes::open(self, files.kind)?;
                let mut rows = Rows::sample(files.columns());
                files.file(path, &mut rows, READ, &mut skipped, &mut notes, &Silent)?;
                Some(PreviewTable::new(&files.sample, &files.fields(), rows)?)
            }
        };
        notes.extend(skipped.note(&format!(" in the first {READ} rows")));
        Ok(Preview { kind, ids: files.kind, undirected: files.recipe.undirected, edges, nodes, notes, skipped })
    }
}

impl PreviewTable {
    fn new(sample: &Sample, fields: &[Vec<usize>], rows: Rows) -> Result<Self> {
        let (schema, arrays): (SchemaRef, Vec<ArrayRef>) = rows.into_columns()?;
        let column = |(field, from): (&arrow::datatypes::FieldRef, &Vec<usize>)| PreviewColumn {
            name: field.name().clone(),
            from: from.iter().map(|&field| sample.name(field)).collect(),
            data_type: match field.data_type() {
                DataType::Int64 => "integer",
                DataType::Float32 => "number",
                DataType::Utf8 => "string",
                _ => "numbers",
            },
        };
        let shown = arrays.first().map_or(0, |array| array.len().min(SHOWN));
        Ok(Self {
            path: sample.path.clone(),
            delimiter: sample.delimiter.to_string(),
            header: sample.header.is_some(),
            columns: schema.fields().iter().zip(fields).map(column).collect(),
            ignored: sample.others(&fields.concat()),
            rows: (0..shown).map(|row| arrays.iter().map(|array| show(array, row)).collect()).collect(),
        })
    }

    /// Writes the rows below the names of their columns.
    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let column = |of: fn(&PreviewColumn) -> String| self.columns.iter().map(of).collect::<Vec<_>>();
        let mut lines = vec![
            ("column".to_string(), column(|column| column.name.clone())),
            ("read from".into(), column(|column| column.from.join(", "))),
            ("type".into(), column(|column| column.data_type.into())),
        ];
        lines.extend((1..).zip(&self.rows).map(|(number, row)| (format!("row {number}"), row.clone())));
        let width = |column: usize| lines.iter().map(|(_, cells)| cells[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        for (title, cells) in &lines {
            let cells = cells.iter().zip(&widths).map(|(cell, &width)| format!("  {cell:width$}")).collect::<String>();
            writeln!(f, "{}", format!("  {title:9}{cells}").trim_end())?;
        }
        if !self.ignored.is_empty() {
            writeln!(f, "  ignored    {}", self.ignored.join(", "))?;
        }
        Ok(())
    }
}

/// Returns a value as text; empty for null.
fn show(array: &ArrayRef, row: usize) -> String {
    match array.data_type() {
        _ if array.is_null(row) => String::new(),
        DataType::Int64 => array.as_primitive::<Int64Type>().value(row).to_string(),
        DataType::Float32 => array.as_primitive::<Float32Type>().value(row).to_string(),
        DataType::Utf8 => array.as_string::<i32>().value(row).chars().take(40).collect(),
        DataType::FixedSizeList(..) => {
            let list = array.as_fixed_size_list().value(row);
            let more = if list.len() > 4 { ", …" } else { "" };
            let items: Vec<String> = (0..list.len().min(4)).map(|item| show(&list, item)).collect();
            format!("[{}{more}]", items.join(", "))
        }
        other => other.to_string(),
    }
}

impl fmt::Display for Preview {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ids = if self.ids == IdKind::Int { "integers" } else { "strings" };
        let ways = if self.undirected { "undirected" } else { "directed" };
        for (table, what) in [(Some(&self.edges), "edges"), (self.nodes.as_ref(), "nodes")] {
            let Some(table) = table else { continue };
            let kind = if what == "edges" { format!("{ways} edges") } else { what.into() };
            let header = if table.header { "yes" } else { "no" };
            let (path, delimiter) = (table.path.display(), &table.delimiter);
            writeln!(f, "{path}: {kind}; delimiter {delimiter}, header {header}, ids are {ids}")?;
            table.write(f)?;
        }
        if self.nodes.is_none() {
            writeln!(f, "nodes: the ids that occur in edges")?;
        }
        Ok(())
    }
}
