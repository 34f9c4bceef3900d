//! Writes a prepared dataset as a Parquet dump.
//!
//! ```text
//! nodes.parquet   node_id, features, label, split, node_type, node_time, partition     partition after partition
//! edges.parquet   src, dst, weight, edge_type, time, edge_split, edge_label, edge_features      by destination, in the nodes' order
//! pipeline.toml   reads the two
//! ```
//!
//! Ids are the user's. Every directed edge of the dataset is a row, so an undirected graph has two rows for each edge.
//! The edges are those that remain after all policies of the preparation.
//!
//! To get the same graph with the same numbering, prepare the export with `undirected = false`, `duplicates = "keep"`
//! and every node in the partition that the column `partition` names. Features are written as the dataset stores them,
//! that is, scaled and rounded.
//!
//! Types and classes are written as names if the numbering of the dataset follows the order of the names. Otherwise
//! they are written as numbers.
//!
//! Partitions are read one after the other from mapped files. In memory are only some row groups (about 0.4 GiB at
//! most).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{ArrayRef, Float32Array, Int32Array, Int64Array, StringArray, StringBuilder};
use arrow::datatypes::{DataType, Field, Schema};
use serde::Serialize;

use crate::dataset::{Dataset, IdColumn, IdKind, LabelInfo, LabelKind, Labels, Nodes, Partition, TypeInfo};
use crate::error::{Error, Result};
use crate::generate::row_groups::{Note, group_rows};
use crate::generate::stream::TableStream;
use crate::generate::table::{EDGES, NODES, Output};
use crate::import::{PIPELINE, Recipe, element, flag_lists, matrix, split_name};
use crate::pipeline_file::{Key, quoted};
use crate::progress::Progress;

/// Key in the Parquet footer for the origin of an exported file.
pub(crate) const NOTE_KEY: &str = "gnnflow.export";

/// Result of an export.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Exported {
    /// `nodes.parquet`: a file, or a folder of files.
    pub nodes_path: PathBuf,
    /// `edges.parquet`: a file, or a folder of files.
    pub edges_path: PathBuf,
    /// A pipeline file that reads the two.
    pub pipeline_path: PathBuf,
    /// Rows of the node table.
    pub nodes: u64,
    /// Rows of the edge table.
    pub edges: u64,
    /// Number of partitions.
    pub parts: usize,
    /// Size of all Parquet files, in bytes.
    pub bytes: u64,
    /// The place of the previous pipeline file, if it was a different one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// Writes `dataset` to folder `out`. With `file_rows`, each table is a folder of files with at least that many rows
/// each; otherwise it is one file. An earlier dump of gnnflow in the folder is replaced.
///
/// # Errors
/// When the dataset is damaged, or when the folder has other tables or cannot be written.
pub fn export(dataset: &Dataset, out: &Path, file_rows: Option<u64>, progress: &dyn Progress) -> Result<Exported> {
    if file_rows == Some(0) {
        return Err(Error::Setting { key: "--file-rows", reason: "must be at least 1".into() });
    }
    dataset.verify(progress)?;
    let manifest = dataset.manifest();
    let text = serde_json::json!({ "version": 1, "fingerprint": manifest.fingerprint }).to_string();
    let mut output = Output::new(out, Note { key: NOTE_KEY, text })?;

    let nodes = NodeTable { dataset, names: Names::of(dataset) };
    let nodes = nodes.write(&mut output, file_rows, progress)?;
    let edges = EdgeTable::open(dataset)?.write(&mut output, file_rows, progress)?;
    let note = recipe(dataset).write(&mut output)?;
    let place = |name: &str| output.place(name);
    let (nodes_path, edges_path, pipeline_path) = (place(NODES), place(EDGES), place(PIPELINE));
    let parts = manifest.parts();
    Ok(Exported { nodes_path, edges_path, pipeline_path, nodes, edges, parts, bytes: output.publish()?, note })
}

fn recipe(dataset: &Dataset) -> Recipe {
    let manifest = dataset.manifest();
    let labels = manifest.labels.as_ref();
    let names = Names::of(dataset);
    Recipe {
        title: "Exported from a prepared dataset: its edges, both directions if it was undirected.".into(),
        undirected: false,
        reverse_edges: false,
        keep_duplicates: true,
        features: manifest.features.dim,
        // Features of several dtypes are exported as one column whose type can represent all of them.
        feature_dtype: manifest.features.layout().dtype().unwrap_or_default(),
        label: labels.map(|labels| labels.kind != LabelKind::Value),
        num_classes: labels
            .filter(|labels| labels.kind == LabelKind::Class && !names.classes)
            .map(|labels| labels.classes),
        split: true,
        node_type: manifest.node_types.is_some(),
        node_time: manifest.node_times,
        weight: manifest.edge_columns.weight,
        edge_type: manifest.edge_columns.edge_type.is_some(),
        edge_types: manifest.edge_columns.edge_type.as_ref().map_or(0, |types| types.count as usize),
        time: manifest.edge_columns.time,
        edge_features: manifest.edge_columns.features > 0,
        edge_split: manifest.edge_columns.split.is_some(),
        edge_label: manifest.edge_columns.label.is_some(),
        partition: vec![
            Key::new("method", quoted("file"), "the same partition as before"),
            Key::new("file", quoted(NODES), ""),
            Key::new("file_columns", "{ part = \"partition\" }", ""),
            Key::new("parts", manifest.parts(), ""),
        ],
    }
}

/// Whether numbers are written as names, for each kind of number.
#[derive(Clone, Copy, Debug)]
struct Names {
    classes: bool,
    node_types: bool,
    edge_types: bool,
    edge_classes: bool,
}

impl Names {
    fn of(dataset: &Dataset) -> Self {
        let manifest = dataset.manifest();
        // Only sorted names get the same numbers again when the export is prepared.
        let ordered = |names: &[String], count: u64| {
            !names.is_empty() && names.len() as u64 == count && names.is_sorted_by(|a, b| a < b)
        };
        let types = |info: &Option<TypeInfo>| info.as_ref().is_some_and(|info| ordered(&info.names, info.count.into()));
        let labels = manifest.labels.as_ref();
        Self {
            classes: labels.is_some_and(|labels| {
                // A class without nodes would be lost, and an unlabeled node has no name.
                labels.kind == LabelKind::Class
                    && ordered(&labels.names, labels.classes.into())
                    && labels.counts.iter().all(|&count| count > 0)
                    && labels.labeled == manifest.nodes
            }),
            node_types: types(&manifest.node_types),
            edge_types: types(&manifest.edge_columns.edge_type),
            // An unlabeled edge is null in the dump.
            edge_classes: manifest.edge_columns.label.as_ref().is_some_and(|labels| {
                ordered(&labels.names, labels.classes.into()) && labels.counts.iter().all(|&count| count > 0)
            }),
        }
    }
}

struct NodeTable<'a> {
    dataset: &'a Dataset,
    names: Names,
}

impl NodeTable<'_> {
    fn write(&self, output: &mut Output, file_rows: Option<u64>, progress: &dyn Progress) -> Result<u64> {
        let manifest = self.dataset.manifest();
        let (fields, row_bytes) = self.fields();
        let mut table = output.stream(NODES, Arc::new(Schema::new(fields)), file_rows)?;
        progress.stage("exporting nodes", Some(manifest.nodes), "nodes");
        for part in 0..manifest.parts() {
            let partition = self.dataset.partition(part)?;
            for rows in chunks(partition.nodes.len(), group_rows(row_bytes)) {
                let length = rows.len() as u64;
                table.push(self.columns(&partition, rows)?)?;
                progress.advance(length);
            }
        }
        let rows = output.end(table)?;
        progress.done();
        Ok(rows)
    }

    fn fields(&self) -> (Vec<Field>, usize) {
        let manifest = self.dataset.manifest();
        let mut fields = vec![Field::new("node_id", id_type(manifest.ids), false)];
        let mut bytes = 24;
        let dim = manifest.features.dim;
        if dim > 0 {
            fields.push(Field::new("features", DataType::FixedSizeList(element(DataType::Float32), dim as i32), false));
            bytes += 4 * dim;
        }
        if let Some(labels) = &manifest.labels {
            let data_type = match labels.kind {
                LabelKind::Class if self.names.classes => DataType::Utf8,
                LabelKind::Class => DataType::Int64,
                LabelKind::Value => DataType::Float32,
                LabelKind::Multi => {
                    bytes += labels.classes as usize / 8;
                    DataType::FixedSizeList(element(DataType::Boolean), labels.classes as i32)
                }
            };
            fields.push(Field::new("label", data_type, false));
        }
        fields.push(Field::new("split", DataType::Utf8, false));
        if manifest.node_types.is_some() {
            fields.push(Field::new("node_type", type_type(self.names.node_types), false));
        }
        if manifest.node_times {
            fields.push(Field::new("node_time", DataType::Int64, false));
        }
        fields.push(Field::new("partition", DataType::Int32, false));
        (fields, bytes)
    }

    fn columns(&self, partition: &Partition, rows: std::ops::Range<usize>) -> Result<Vec<ArrayRef>> {
        let manifest = self.dataset.manifest();
        let nodes = &partition.nodes;
        let mut columns = vec![ids(nodes, rows.clone())];
        let dim = manifest.features.dim;
        if dim > 0 {
            let mut values = vec![0.0; rows.len() * dim];
            for (row, into) in rows.clone().zip(values.chunks_exact_mut(dim)) {
                partition.features.row_to_f32(row, into);
            }
            columns.push(matrix(values, dim)?);
        }
        match nodes.labels() {
            Labels::None => {}
            Labels::Class(classes) => {
                let classes = &classes[rows.clone()];
                let names = manifest.labels.as_ref().filter(|_| self.names.classes).map(|labels| &labels.names);
                columns.push(match names {
                    Some(names) => named(classes.iter().map(|&class| class as usize), names),
                    None => Arc::new(Int64Array::from_iter_values(classes.iter().map(|&class| i64::from(class)))),
                });
            }
            Labels::Value(values) => columns.push(Arc::new(Float32Array::from(values[rows.clone()].to_vec()))),
            Labels::Multi(flags, classes) => {
                let flags = &flags[rows.start * classes..rows.end * classes];
                columns.push(flag_lists(flags.iter().map(|&flag| flag == 1), *classes)?);
            }
        }
        let splits = nodes.split()[rows.clone()].iter().map(|&which| split_name(which));
        columns.push(Arc::new(StringArray::from_iter_values(splits)));
        if let (Some(types), Some(info)) = (nodes.node_types(), &manifest.node_types) {
            columns.push(types_column(&types[rows.clone()], info, self.names.node_types));
        }
        if let Some(times) = nodes.times() {
            columns.push(Arc::new(Int64Array::from(times[rows.clone()].to_vec())));
        }
        columns.push(Arc::new(Int32Array::from(vec![partition.part as i32; rows.len()])));
        Ok(columns)
    }
}

/// The edge table. A source may be in any partition, so the node files of all partitions are mapped.
struct EdgeTable<'a> {
    dataset: &'a Dataset,
    nodes: Vec<Nodes>,
    names: Names,
}

impl<'a> EdgeTable<'a> {
    fn open(dataset: &'a Dataset) -> Result<Self> {
        let nodes = (0..dataset.manifest().parts()).map(|part| dataset.nodes(part)).collect::<Result<_>>()?;
        Ok(Self { dataset, nodes, names: Names::of(dataset) })
    }

    fn write(&self, output: &mut Output, file_rows: Option<u64>, progress: &dyn Progress) -> Result<u64> {
        let manifest = self.dataset.manifest();
        let (fields, row_bytes) = self.fields();
        let mut table: TableStream = output.stream(EDGES, Arc::new(Schema::new(fields)), file_rows)?;
        progress.stage("exporting edges", Some(manifest.edges), "edges");
        for part in 0..manifest.parts() {
            let topology = self.dataset.topology(part)?;
            let indptr = topology.indptr();
            for rows in chunks(topology.indices().len(), group_rows(row_bytes)) {
                // Start with the local node whose edge list contains the first row.
                let mut local = indptr.partition_point(|&start| start as usize <= rows.start) - 1;
                let destinations = rows.clone().map(|row| {
                    while indptr[local + 1] as usize <= row {
                        local += 1;
                    }
                    (part, local)
                });
                let sources = topology.indices()[rows.clone()].iter().map(|&node| self.owner(u64::from(node)));
                let mut columns = vec![self.ids(sources), self.ids(destinations)];
                if let Some(weights) = topology.weights() {
                    columns.push(Arc::new(Float32Array::from(weights[rows.clone()].to_vec())));
                }
                if let (Some(types), Some(info)) = (topology.edge_types(), &manifest.edge_columns.edge_type) {
                    columns.push(types_column(&types[rows.clone()], info, self.names.edge_types));
                }
                if let Some(times) = topology.times() {
                    columns.push(Arc::new(Int64Array::from(times[rows.clone()].to_vec())));
                }
                if let Some(splits) = topology.splits() {
                    let words = splits[rows.clone()].iter().map(|&which| split_name(which));
                    columns.push(Arc::new(StringArray::from_iter_values(words)));
                }
                if let (Some(labels), Some(info)) = (topology.labels(), &manifest.edge_columns.label) {
                    columns.push(classes_column(&labels[rows.clone()], info, self.names.edge_classes));
                }
                if let Some((values, width)) = topology.edge_features() {
                    columns.push(matrix(values[rows.start * width..rows.end * width].to_vec(), width)?);
                }
                progress.advance(rows.len() as u64);
                table.push(columns)?;
            }
        }
        let rows = output.end(table)?;
        progress.done();
        Ok(rows)
    }

    fn fields(&self) -> (Vec<Field>, usize) {
        let manifest = self.dataset.manifest();
        let (id, columns) = (id_type(manifest.ids), &manifest.edge_columns);
        let mut fields = vec![Field::new("src", id.clone(), false), Field::new("dst", id, false)];
        if columns.weight {
            fields.push(Field::new("weight", DataType::Float32, false));
        }
        if columns.edge_type.is_some() {
            fields.push(Field::new("edge_type", type_type(self.names.edge_types), false));
        }
        if columns.time {
            fields.push(Field::new("time", DataType::Int64, false));
        }
        if columns.split.is_some() {
            fields.push(Field::new("edge_split", DataType::Utf8, false));
        }
        if columns.label.is_some() {
            fields.push(Field::new("edge_label", type_type(self.names.edge_classes), true));
        }
        let width = columns.features;
        if width > 0 {
            let list = DataType::FixedSizeList(element(DataType::Float32), width as i32);
            fields.push(Field::new("edge_features", list, false));
        }
        (fields, 32 + 4 * width)
    }

    /// Returns partition and local number of a global id. All ids in a topology have an owner.
    fn owner(&self, node: u64) -> (usize, usize) {
        let book = self.dataset.book();
        let part = book.owner(node).unwrap_or_default();
        (part, (node - book.offsets()[part]) as usize)
    }

    fn ids(&self, nodes: impl Iterator<Item = (usize, usize)>) -> ArrayRef {
        match self.dataset.manifest().ids {
            IdKind::Int => {
                let columns: Vec<&[i64]> = self.nodes.iter().map(int_ids).collect();
                Arc::new(Int64Array::from_iter_values(nodes.map(|(part, local)| columns[part][local])))
            }
            IdKind::Text => {
                let mut texts = StringBuilder::new();
                for (part, local) in nodes {
                    if let IdColumn::Text(ids) = self.nodes[part].ids() {
                        texts.append_value(ids.value(local));
                    }
                }
                Arc::new(texts.finish())
            }
        }
    }
}

fn int_ids(nodes: &Nodes) -> &[i64] {
    match nodes.ids() {
        IdColumn::Int(ids) => ids,
        IdColumn::Text(_) => &[],
    }
}

/// Returns the range `0..length` in chunks of at most `most`.
fn chunks(length: usize, most: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    (0..length).step_by(most).map(move |start| start..(start + most).min(length))
}

fn ids(nodes: &Nodes, rows: std::ops::Range<usize>) -> ArrayRef {
    match nodes.ids() {
        IdColumn::Int(ids) => Arc::new(Int64Array::from(ids[rows].to_vec())),
        IdColumn::Text(ids) => Arc::new(StringArray::from_iter_values(rows.map(|row| ids.value(row)))),
    }
}

fn id_type(kind: IdKind) -> DataType {
    match kind {
        IdKind::Int => DataType::Int64,
        IdKind::Text => DataType::Utf8,
    }
}

fn type_type(named: bool) -> DataType {
    if named { DataType::Utf8 } else { DataType::Int64 }
}

fn types_column(types: &[u16], info: &TypeInfo, by_name: bool) -> ArrayRef {
    match by_name {
        true => named(types.iter().map(|&code| usize::from(code)), &info.names),
        false => Arc::new(Int64Array::from_iter_values(types.iter().map(|&code| i64::from(code)))),
    }
}

/// Returns the classes of edges; null for unlabeled edges.
fn classes_column(classes: &[i32], info: &LabelInfo, by_name: bool) -> ArrayRef {
    let classes = classes.iter().map(|&class| usize::try_from(class).ok());
    match by_name {
        true => Arc::new(StringArray::from_iter(classes.map(|class| info.names.get(class?).map(String::as_str)))),
        false => Arc::new(Int64Array::from_iter(classes.map(|class| class.map(|class| class as i64)))),
    }
}

/// Returns the names of numbers.
fn named(numbers: impl Iterator<Item = usize>, names: &[String]) -> ArrayRef {
    Arc::new(StringArray::from_iter_values(numbers.map(|number| names.get(number).map_or("", String::as_str))))
}

#[cfg(test)]
mod tests;
