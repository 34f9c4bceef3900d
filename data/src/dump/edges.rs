//! Reads the edges of a dump in chunks.

use arrow::array::LargeStringArray;
use arrow::datatypes::DataType;

use super::nodes::MAX_CLASSES;
use super::table::{Chunk, Origin, Table};
use super::values::{self, Matrix, Types};
use crate::convert::{is_int, is_text, to_text};
use crate::dataset::{FeatureColumns, IdKind};
use crate::error::{Error, Result};
use crate::ids::Ids;
use crate::source::GraphSource;

/// Maximum number of rows of a chunk.
const CHUNK: usize = 1 << 15;

/// Reads the edge files of a dump.
///
/// ```no_run
/// # fn main() -> gnnflow_data::Result<()> {
/// use gnnflow_data::GraphSource;
/// use gnnflow_data::dump::EdgeReader;
///
/// let reader = EdgeReader::open(&GraphSource::new("nodes.parquet", "edges.parquet"), None)?;
/// let mut rows = 0;
/// reader.for_each(|chunk| Ok(chunk.src.len()), |n| Ok(rows += n))?;
/// assert_eq!(rows as u64, reader.rows());
/// # Ok(())
/// # }
/// ```
pub struct EdgeReader {
    table: Table,
    src: String,
    dst: String,
    weight: Option<String>,
    edge_type: Option<String>,
    time: Option<String>,
    features: Matrix,
    split: Option<String>,
    label: Option<String>,
    ids: IdKind,
    named_types: bool,
}

/// A chunk of edges.
pub struct EdgeChunk {
    pub(crate) origin: Origin,
    /// Row of the first edge, counted over all files.
    pub first_row: u64,
    /// Ids of the sources.
    pub src: Ids,
    /// Ids of the destinations.
    pub dst: Ids,
    /// Weights.
    pub weights: Option<Vec<f32>>,
    /// Types.
    pub types: Option<Types>,
    /// Times.
    pub times: Option<Vec<i64>>,
    /// Features, row by row; empty when there are none.
    pub features: Vec<f32>,
    /// Splits, see [`split`](crate::dataset::split).
    pub splits: Option<Vec<u8>>,
    /// Labels.
    pub labels: Option<EdgeLabels>,
}

/// Labels of edges as in the dump.
#[derive(Clone, Debug)]
pub enum EdgeLabels {
    /// Classes; −1 = unlabeled.
    Class(Vec<i32>),
    /// Names of classes; null = unlabeled.
    Name(LargeStringArray),
}

impl EdgeReader {
    /// Opens the files and checks that the columns exist and have usable types. `ids` is the kind of the nodes' ids, if it is
    /// known.
    ///
    /// # Errors
    /// A missing or broken file, a missing column, a column of the wrong type.
    pub fn open(source: &GraphSource, ids: Option<IdKind>) -> Result<Self> {
        let columns = &source.columns;
        let mut table = Table::open_typed(&source.edge_files()?, "graph.edges", columns.edge_type.as_deref())?;
        let kind = values::id_kind(&table, &columns.src, "src", ids)?;
        values::id_kind(&table, &columns.dst, "dst", Some(kind))?;
        if let Some(name) = &columns.weight {
            table.column_type(name, "weight", |found| match values::is_number(found) {
                true => Ok(()),
                false => Err("numbers".into()),
            })?;
        }
        let named_types = match &columns.edge_type {
            Some(name) => values::check_types(&table, name, "edge_type")?,
            None => false,
        };
        if let Some(name) = &columns.time {
            table.column_type(name, "time", |found| match is_int(found) || values::is_time(found) {
                true => Ok(()),
                false => Err("integers, dates or timestamps".into()),
            })?;
        }
        let features = Matrix::open(&table, &columns.edge_features, "edge_features")?;
        if let Some(name) = &columns.edge_split {
            values::check_splits(&mut table, name, "edge_split")?;
        }
        if let Some(name) = &columns.edge_label {
            check_labels(&mut table, name)?;
        }
        Ok(Self {
            src: columns.src.clone(),
            dst: columns.dst.clone(),
            weight: columns.weight.clone(),
            edge_type: columns.edge_type.clone(),
            time: columns.time.clone(),
            split: columns.edge_split.clone(),
            label: columns.edge_label.clone(),
            features,
            table,
            ids: kind,
            named_types,
        })
    }

    /// Number of edges, from the footers.
    pub fn rows(&self) -> u64 {
        self.table.rows()
    }

    /// Kind of the endpoints' ids.
    pub(crate) fn id_kind(&self) -> IdKind {
        self.ids
    }

    /// Whether edge types are strings.
    pub fn named_types(&self) -> bool {
        self.named_types
    }

    /// Values per edge.
    pub(crate) fn feature_width(&self) -> usize {
        self.features.width()
    }

    /// The columns of features.
    pub(crate) fn feature_columns(&self) -> FeatureColumns {
        self.features.columns(|row_type| self.table.type_name(row_type))
    }

    /// Number of columns beside source and destination; features count as one.
    pub(crate) fn other_columns(&self) -> usize {
        let columns = [&self.weight, &self.edge_type, &self.time, &self.split, &self.label];
        columns.into_iter().flatten().count() + usize::from(self.feature_width() > 0)
    }

    /// Reads all columns. `map` runs in parallel, `consume` in the order of the dump. The chunks are the same for any number
    /// of threads.
    ///
    /// # Errors
    /// An error in the data, with its place; or an error of `map` or `consume`.
    pub fn for_each<T: Send>(
        &self,
        map: impl Fn(EdgeChunk) -> Result<T> + Sync,
        consume: impl FnMut(T) -> Result<()>,
    ) -> Result<()> {
        self.table.scan(&self.columns(), self.chunk_rows(), |chunk| map(self.read(&chunk)?), consume)
    }

    /// Reads the endpoints only.
    ///
    /// # Errors
    /// Those of [`EdgeReader::for_each`].
    pub(crate) fn for_each_pair<T: Send>(
        &self,
        map: impl Fn(EdgeChunk) -> Result<T> + Sync,
        consume: impl FnMut(T) -> Result<()>,
    ) -> Result<()> {
        self.table.scan(&[&self.src, &self.dst], CHUNK, |chunk| map(self.ends(&chunk)?), consume)
    }

    /// Returns the maximum number of bytes that a reading thread prefetches: 0 if all files are local.
    pub(crate) fn read_ahead(&self) -> u64 {
        self.table.read_ahead()
    }

    /// Number of units of reading (row groups).
    pub(crate) fn units(&self) -> usize {
        self.table.units()
    }

    pub(crate) fn unit_rows(&self, unit: usize) -> u64 {
        self.table.unit_rows(unit)
    }

    /// Reads one unit like [`EdgeReader::for_each`]. `send` returns whether to continue.
    pub(crate) fn read_all<T>(
        &self,
        unit: usize,
        map: impl Fn(EdgeChunk) -> Result<T>,
        send: &mut dyn FnMut(T) -> bool,
    ) -> Result<()> {
        self.table.read_unit(unit, &self.columns(), self.chunk_rows(), |chunk| map(self.read(&chunk)?), send)
    }

    /// Reads the endpoints of one unit.
    pub(crate) fn read_pairs<T>(
        &self,
        unit: usize,
        map: impl Fn(EdgeChunk) -> Result<T>,
        send: &mut dyn FnMut(T) -> bool,
    ) -> Result<()> {
        self.table.read_unit(unit, &[&self.src, &self.dst], CHUNK, |chunk| map(self.ends(&chunk)?), send)
    }

    /// Reads the types of one unit.
    pub(crate) fn read_types<T>(
        &self,
        unit: usize,
        map: impl Fn(Types) -> Result<T>,
        send: &mut dyn FnMut(T) -> bool,
    ) -> Result<()> {
        let Some(name) = &self.edge_type else { return Ok(()) };
        self.table.read_unit(unit, &[name], CHUNK, |chunk| map(values::types(&chunk, name)?), send)
    }

    /// Reads the labels of one unit.
    pub(crate) fn read_labels<T>(
        &self,
        unit: usize,
        map: impl Fn(EdgeLabels) -> Result<T>,
        send: &mut dyn FnMut(T) -> bool,
    ) -> Result<()> {
        let Some(name) = &self.label else { return Ok(()) };
        self.table.read_unit(unit, &[name], CHUNK, |chunk| map(labels(&chunk, name)?), send)
    }

    fn columns(&self) -> Vec<&str> {
        let mut columns = vec![self.src.as_str(), self.dst.as_str()];
        columns.extend(self.weight.as_deref());
        columns.extend(self.edge_type.as_deref());
        columns.extend(self.time.as_deref());
        columns.extend(self.split.as_deref());
        columns.extend(self.label.as_deref());
        columns.extend(self.features.names());
        columns
    }

    fn chunk_rows(&self) -> usize {
        (CHUNK * 16 / (16 + 4 * self.features.width())).max(64)
    }

    /// Returns the place of a row, which is counted over all files.
    pub(crate) fn place(&self, row: u64) -> Box<crate::error::Location> {
        self.table.place(row, &self.src)
    }

    /// Names of the source column and of the destination column.
    pub(crate) fn end_names(&self) -> [&str; 2] {
        [&self.src, &self.dst]
    }

    fn ends(&self, chunk: &Chunk) -> Result<EdgeChunk> {
        Ok(EdgeChunk {
            origin: chunk.origin.clone(),
            first_row: chunk.origin.first_row(),
            src: values::ids(chunk, &self.src)?,
            dst: values::ids(chunk, &self.dst)?,
            weights: None,
            types: None,
            times: None,
            features: Vec::new(),
            splits: None,
            labels: None,
        })
    }

    fn read(&self, chunk: &Chunk) -> Result<EdgeChunk> {
        let origin = &chunk.origin;
        let mut edges = self.ends(chunk)?;
        if let Some(name) = &self.weight {
            edges.weights = Some(values::floats(origin, chunk.column(name)?, name)?.to_vec());
        }
        if let Some(name) = &self.edge_type {
            edges.types = Some(values::types(chunk, name)?);
        }
        if let Some(name) = &self.time {
            edges.times = Some(values::all_ints(origin, chunk.column(name)?, name)?.to_vec());
        }
        edges.splits = self.split.as_ref().map(|name| values::splits(chunk, name)).transpose()?;
        edges.labels = self.label.as_ref().map(|name| labels(chunk, name)).transpose()?;
        edges.features = self.features.read(chunk)?;
        Ok(edges)
    }
}

/// Checks that a label column holds classes or their names.
fn check_labels(table: &mut Table, name: &str) -> Result<()> {
    let mut text = None;
    table.optional_column_type(name, "edge_label", |found| {
        let this = is_text(found);
        if !this && !is_int(found) && *found != DataType::Boolean {
            return Err("integers, booleans or strings".into());
        }
        match *text.get_or_insert(this) == this {
            true => Ok(()),
            false => Err("the same type in every file".into()),
        }
    })
}

fn labels(chunk: &Chunk, name: &str) -> Result<EdgeLabels> {
    let (origin, array) = (&chunk.origin, chunk.column(name)?);
    if is_text(array.data_type()) {
        return to_text(array).map(EdgeLabels::Name);
    }
    let integers = values::ints(origin, array, name)?;
    let class = |(row, value): (usize, Option<i64>)| match value.unwrap_or(-1) {
        value if (-1..i64::from(MAX_CLASSES)).contains(&value) => Ok(value as i32),
        value => Err(Error::Value {
            place: origin.place(row, name),
            value: value.to_string(),
            wanted: format!("a class from 0 to {} (or -1 for an unlabeled edge)", MAX_CLASSES - 1),
        }),
    };
    let classes = integers.iter().enumerate().map(class).collect::<Result<_>>()?;
    Ok(EdgeLabels::Class(classes))
}
