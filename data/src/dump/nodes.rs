//! Reads the nodes of a dump in chunks.

use std::ops::Range;

use arrow::array::{Array, LargeStringArray};
use arrow::datatypes::DataType;

use super::table::{Chunk, Origin, Table};
use super::values::{self, Matrix, Types};
use crate::convert::{is_int, is_text, to_text};
use crate::dataset::{FeatureColumns, IdKind, LabelKind, RowLayout};
use crate::error::{Error, Result};
use crate::ids::Ids;
use crate::source::GraphSource;

/// Maximum number of classes unless `num_classes` sets another. A label column with more values is probably a column of ids.
pub(crate) const MAX_CLASSES: u32 = 1 << 20;

/// Maximum number of rows of a chunk.
const CHUNK: usize = 1 << 16;

/// Approximate number of bytes of a chunk's features.
const CHUNK_BYTES: usize = 1 << 20;

/// Reads the node files of a dump.
pub struct NodeReader {
    table: Table,
    id: String,
    label: Option<(String, LabelType)>,
    split: Option<String>,
    node_type: Option<String>,
    time: Option<String>,
    features: Matrix,
    layout: RowLayout,
    ids: IdKind,
    named_types: bool,
    classes: u32,
}

/// The type of a label column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LabelType {
    Int,
    Text,
    Float,
    /// Lists of integers.
    List,
    /// Lists of booleans.
    Flags,
}

/// A chunk of nodes.
pub struct NodeChunk {
    pub(crate) origin: Origin,
    /// Row of the first node, counted over all files: its index.
    pub first_row: u64,
    /// The ids.
    pub ids: Ids,
    /// Labels as in the dump.
    pub labels: Option<RawLabels>,
    /// Splits.
    pub split: Option<Vec<u8>>,
    /// Types.
    pub types: Option<Types>,
    /// Times.
    pub times: Option<Vec<i64>>,
    /// Features, row by row; empty if there are none or they were not requested.
    pub features: Vec<f32>,
    /// The values of each row that nodes of this type have: all, unless each type has its table. The other values are 0.
    pub(crate) feature_block: Range<usize>,
}

/// Labels as in the dump.
pub enum RawLabels {
    /// Classes; −1 = unlabeled.
    Int(Vec<i32>),
    /// Names of classes; null = unlabeled.
    Text(LargeStringArray),
    /// Numbers; NaN = unlabeled.
    Float(Vec<f32>),
    /// Lists of flags or classes: list `i` is `items[starts[i]..starts[i + 1]]`.
    List {
        /// Starts of the lists, and the end of the last.
        starts: Vec<usize>,
        /// The items of all lists.
        items: Vec<i32>,
    },
}

impl RawLabels {
    /// Returns whether the node in `row` has a label.
    pub(crate) fn has(&self, row: usize) -> bool {
        match self {
            Self::Int(labels) => labels[row] >= 0,
            Self::Text(labels) => labels.is_valid(row),
            Self::Float(labels) => !labels[row].is_nan(),
            Self::List { .. } => true,
        }
    }
}

impl NodeReader {
    /// Opens the files and checks that the columns exist and have usable types.
    ///
    /// # Errors
    /// A missing or broken file, a missing column, a column of the wrong type.
    pub fn open(source: &GraphSource) -> Result<Self> {
        let columns = &source.columns;
        let mut table = Table::open_typed(&source.node_files()?, "graph.nodes", columns.node_type.as_deref())?;
        if table.rows() >= u64::from(u32::MAX) {
            let limit = u64::from(u32::MAX) - 1;
            return Err(Error::TooLarge { what: "number of nodes".into(), found: table.rows(), limit });
        }
        let ids = values::id_kind(&table, &columns.id, "id", None)?;
        let label = columns.label.as_ref().map(|name| Ok((name.clone(), label_type(&mut table, name)?))).transpose()?;
        if let Some((name, LabelType::List | LabelType::Flags)) = &label
            && table.is_lacking(name)
            && source.split_fractions.is_some()
        {
            let reason = "cannot draw from the nodes with labels, because the labels are lists and some types of nodes have no labels; add a split column";
            return Err(Error::Setting { key: "graph.split_fractions", reason: reason.into() });
        }
        if let Some(name) = &columns.split {
            values::check_splits(&mut table, name, "split")?;
        }
        let named_types = match &columns.node_type {
            Some(name) => values::check_types(&table, name, "node_type")?,
            None => false,
        };
        if let Some(name) = &columns.node_time {
            table.column_type(name, "node_time", |found| match is_int(found) || values::is_time(found) {
                true => Ok(()),
                false => Err("integers, dates or timestamps".into()),
            })?;
        }
        let features = Matrix::open(&table, &columns.features, "features")?;
        let layout = features.layout(&source.feature_dtype)?;
        Ok(Self {
            id: columns.id.clone(),
            label,
            split: columns.split.clone(),
            node_type: columns.node_type.clone(),
            time: columns.node_time.clone(),
            features,
            layout,
            table,
            ids,
            named_types,
            classes: source.classes().unwrap_or(MAX_CLASSES),
        })
    }

    /// Number of nodes, from the footers.
    pub fn rows(&self) -> u64 {
        self.table.rows()
    }

    /// Kind of the ids.
    pub(crate) fn id_kind(&self) -> IdKind {
        self.ids
    }

    /// Values per node.
    pub(crate) fn feature_width(&self) -> usize {
        self.features.width()
    }

    /// The columns of features.
    pub(crate) fn feature_columns(&self) -> FeatureColumns {
        self.features.columns(|row_type| self.table.type_name(row_type))
    }

    /// The values that the nodes of a unit have: all, unless each type has its table.
    pub(crate) fn feature_block(&self, unit: usize) -> Range<usize> {
        self.features.block(self.table.row_type(unit))
    }

    /// How the dataset stores a node's features.
    pub(crate) fn feature_layout(&self) -> &RowLayout {
        &self.layout
    }

    /// Whether node types are strings.
    pub fn named_types(&self) -> bool {
        self.named_types
    }

    /// Kind of the labels, by the column's type.
    pub(crate) fn label_kind(&self) -> Option<LabelKind> {
        self.label.as_ref().map(|(_, label)| match label {
            LabelType::Int | LabelType::Text => LabelKind::Class,
            LabelType::Float => LabelKind::Value,
            LabelType::List | LabelType::Flags => LabelKind::Multi,
        })
    }

    /// Reads all columns except the features. `map` runs in parallel, `consume` in the order of the dump. The chunks are the same for any
    /// number of threads.
    ///
    /// # Errors
    /// An error in the data, with its place; or an error of `map` or `consume`.
    pub fn for_each_without_features<T: Send>(
        &self,
        map: impl Fn(NodeChunk) -> Result<T> + Sync,
        consume: impl FnMut(T) -> Result<()>,
    ) -> Result<()> {
        self.table.scan(&self.small_columns(), CHUNK, |chunk| map(self.read(&chunk, false)?), consume)
    }

    /// Reads all columns.
    ///
    /// # Errors
    /// Those of [`NodeReader::for_each_without_features`].
    pub fn for_each<T: Send>(
        &self,
        map: impl Fn(NodeChunk) -> Result<T> + Sync,
        consume: impl FnMut(T) -> Result<()>,
    ) -> Result<()> {
        let mut columns = self.small_columns();
        columns.extend(self.features.names());
        self.table.scan(&columns, self.chunk_rows(), |chunk| map(self.read(&chunk, true)?), consume)
    }

    /// Returns the maximum number of bytes that a reading thread prefetches: 0 if all files are local.
    pub(crate) fn read_ahead(&self) -> u64 {
        self.table.read_ahead()
    }

    /// Number of units of reading (row groups).
    pub(crate) fn units(&self) -> usize {
        self.table.units()
    }

    /// Reads one unit like [`NodeReader::for_each`]. `send` returns whether to continue.
    pub(crate) fn read_all<T>(
        &self,
        unit: usize,
        map: impl Fn(NodeChunk) -> Result<T>,
        send: &mut dyn FnMut(T) -> bool,
    ) -> Result<()> {
        let mut columns = self.small_columns();
        columns.extend(self.features.names());
        self.table.read_unit(unit, &columns, self.chunk_rows(), |chunk| map(self.read(&chunk, true)?), send)
    }

    /// Reads the features of one unit. `map` gets the first row and the features of each chunk.
    pub(crate) fn read_features<T>(
        &self,
        unit: usize,
        map: impl Fn(u64, Vec<f32>) -> Result<T>,
        send: &mut dyn FnMut(T) -> bool,
    ) -> Result<()> {
        let columns: Vec<&str> = self.features.names().collect();
        self.table.read_unit(
            unit,
            &columns,
            self.chunk_rows(),
            |chunk| map(chunk.origin.first_row(), self.features.read(&chunk)?),
            send,
        )
    }

    fn chunk_rows(&self) -> usize {
        (CHUNK_BYTES / (4 * self.features.width() + 16)).clamp(16, CHUNK)
    }

    /// Name of the id column.
    pub(crate) fn id_name(&self) -> &str {
        &self.id
    }

    /// Returns the place of a row, which is counted over all files.
    pub(crate) fn place(&self, row: u64, column: &str) -> Box<crate::error::Location> {
        self.table.place(row, column)
    }

    /// Names of the feature columns, for messages.
    pub(crate) fn feature_names(&self) -> String {
        self.features.names().collect::<Vec<_>>().join(", ")
    }

    /// Whether nodes have times.
    pub(crate) fn has_times(&self) -> bool {
        self.time.is_some()
    }

    /// Name of the label column.
    pub(crate) fn label_name(&self) -> &str {
        self.label.as_ref().map_or("", |(name, _)| name)
    }

    /// Whether labels are names of classes.
    pub(crate) fn labels_are_names(&self) -> bool {
        matches!(self.label, Some((_, LabelType::Text)))
    }

    /// Whether labels are lists of booleans.
    pub(crate) fn labels_are_flags(&self) -> bool {
        matches!(self.label, Some((_, LabelType::Flags)))
    }

    fn small_columns(&self) -> Vec<&str> {
        let mut columns = vec![self.id.as_str()];
        columns.extend(self.label.as_ref().map(|(name, _)| name.as_str()));
        columns.extend(self.split.as_deref());
        columns.extend(self.node_type.as_deref());
        columns.extend(self.time.as_deref());
        columns
    }

    fn read(&self, chunk: &Chunk, features: bool) -> Result<NodeChunk> {
        let labels = self.label.as_ref().map(|(name, label)| self.labels(chunk, name, *label));
        Ok(NodeChunk {
            origin: chunk.origin.clone(),
            first_row: chunk.origin.first_row(),
            ids: values::ids(chunk, &self.id)?,
            labels: labels.transpose()?,
            split: self.split.as_ref().map(|name| values::splits(chunk, name)).transpose()?,
            types: self.node_type.as_ref().map(|name| values::types(chunk, name)).transpose()?,
            times: self
                .time
                .as_ref()
                .map(|name| Ok(values::all_ints(&chunk.origin, chunk.column(name)?, name)?.to_vec()))
                .transpose()?,
            features: if features { self.features.read(chunk)? } else { Vec::new() },
            feature_block: self.features.block(chunk.origin.row_type()),
        })
    }

    fn labels(&self, chunk: &Chunk, name: &str, label: LabelType) -> Result<RawLabels> {
        let (origin, array) = (&chunk.origin, chunk.column(name)?);
        let last = i64::from(self.classes) - 1;
        let class = |value: i64, lowest: i64, row: usize| {
            let fits = (lowest..=last).contains(&value);
            fits.then_some(value as i32).ok_or_else(|| Error::Value {
                place: origin.place(row, name),
                value: value.to_string(),
                wanted: match lowest {
                    0 => format!("a class from 0 to {last}"),
                    _ => format!("a class from 0 to {last} (or -1 for an unlabeled node)"),
                },
            })
        };
        match label {
            LabelType::Int => {
                let integers = values::ints(origin, array, name)?;
                let values = integers.iter().map(|value| value.unwrap_or(-1)).enumerate();
                values.map(|(row, value)| class(value, -1, row)).collect::<Result<_>>().map(RawLabels::Int)
            }
            LabelType::Text => to_text(array).map(RawLabels::Text),
            LabelType::Float => values::optional_floats(origin, array, name).map(RawLabels::Float),
            LabelType::List | LabelType::Flags => {
                if let Some(row) = (0..array.len()).find(|&row| array.is_null(row)) {
                    let wanted =
                        "a list of labels; use an empty list (or only 0), and leave the node out of all splits";
                    return Err(Error::Value {
                        place: origin.place(row, name),
                        value: "null".into(),
                        wanted: wanted.into(),
                    });
                }
                let (items, starts) = values::items(origin, array, name)?
                    .ok_or_else(|| Error::Bug(format!("label column {name} is not a list")))?;
                let integers = values::ints(origin, &items, name)?;
                let all = integers.values();
                let mut items = Vec::with_capacity(all.len());
                for row in 0..array.len() {
                    for &value in &all[starts[row]..starts[row + 1]] {
                        items.push(class(value, 0, row)?);
                    }
                }
                let first = starts[0];
                Ok(RawLabels::List { starts: starts.into_iter().map(|start| start - first).collect(), items })
            }
        }
    }
}

fn label_type(table: &mut Table, name: &str) -> Result<LabelType> {
    let mut label = None;
    table.optional_column_type(name, "label", |found| {
        let this = match found {
            found if is_int(found) || *found == DataType::Boolean => LabelType::Int,
            found if is_text(found) => LabelType::Text,
            found if found.is_floating() => LabelType::Float,
            DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
                match item.data_type() {
                    DataType::Boolean => LabelType::Flags,
                    item if item.is_integer() => LabelType::List,
                    _ => return Err("lists of integers or booleans".into()),
                }
            }
            _ => return Err("integers, strings, floats, or lists of integers or booleans".into()),
        };
        match *label.get_or_insert(this) == this {
            true => Ok(()),
            false => Err("the same type in every file".into()),
        }
    })?;
    Ok(label.unwrap_or(LabelType::Int))
}
