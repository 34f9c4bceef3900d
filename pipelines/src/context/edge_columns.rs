//! The first columns of tables of edges.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, LargeStringArray, StringArray};
use arrow::datatypes::{DataType, Field};
use gnnflow_data::dataset::{IdColumn, IdKind, Nodes, TypeInfo};
use gnnflow_kernels::pairs::Edge;

use crate::error::Error;
use crate::runtime::job::Job;

/// `src`, `dst` with the user's ids, and, if edges have types, `type` with their names or numbers.
pub(crate) struct EdgeColumns<'a> {
    ids: Ids<'a>,
    kind: IdKind,
    types: Option<&'a TypeInfo>,
}

impl<'a> EdgeColumns<'a> {
    /// Maps the ids of all partitions, because endpoints may be in any partition.
    ///
    /// # Errors
    /// If they cannot be read.
    pub(crate) fn open(job: &'a Job) -> Result<Self, Error> {
        let (dataset, manifest) = (&job.dataset, job.dataset.manifest());
        let nodes = (0..manifest.parts()).map(|part| dataset.nodes(part)).collect::<Result<Vec<_>, _>>()?;
        let ids = Ids { nodes, offsets: dataset.book().offsets() };
        Ok(Self { ids, kind: manifest.ids, types: manifest.edge_columns.edge_type.as_ref() })
    }

    pub(crate) fn fields(&self) -> Vec<Field> {
        let id = match self.kind {
            IdKind::Int => DataType::Int64,
            IdKind::Text => DataType::LargeUtf8,
        };
        let kind = self.types.map(|types| if types.names.is_empty() { DataType::Int64 } else { DataType::Utf8 });
        let ends = ["src", "dst"].map(|name| Field::new(name, id.clone(), false));
        ends.into_iter().chain(kind.map(|kind| Field::new("type", kind, false))).collect()
    }

    pub(crate) fn columns(&self, edges: impl Iterator<Item = Edge> + Clone) -> Vec<ArrayRef> {
        let mut columns = vec![
            self.ids.column(edges.clone().map(|edge| edge.head)),
            self.ids.column(edges.clone().map(|edge| edge.tail)),
        ];
        columns.extend(self.types.map(|types| -> ArrayRef {
            if types.names.is_empty() {
                return Arc::new(Int64Array::from_iter_values(edges.map(|edge| i64::from(edge.relation))));
            }
            let name = |edge: Edge| types.names[usize::from(edge.relation)].as_str();
            Arc::new(StringArray::from_iter_values(edges.map(name)))
        }));
        columns
    }
}

/// The user's ids of all nodes.
struct Ids<'a> {
    nodes: Vec<Nodes>,
    offsets: &'a [u64],
}

impl Ids<'_> {
    fn column(&self, nodes: impl Iterator<Item = u32>) -> ArrayRef {
        let place = |node: u32| {
            let part = self.offsets.partition_point(|&start| start <= u64::from(node)) - 1;
            (self.nodes[part].ids(), (u64::from(node) - self.offsets[part]) as usize)
        };
        let text = self.nodes.first().is_some_and(|nodes| matches!(nodes.ids(), IdColumn::Text(_)));
        if text {
            let value = |node: u32| match place(node) {
                (IdColumn::Text(ids), at) => ids.value(at).to_owned(),
                (IdColumn::Int(ids), at) => ids[at].to_string(),
            };
            return Arc::new(LargeStringArray::from_iter_values(nodes.map(value)));
        }
        let value = |node: u32| match place(node) {
            (IdColumn::Int(ids), at) => Some(ids[at]),
            (IdColumn::Text(_), _) => None,
        };
        Arc::new(Int64Array::from_iter_values(nodes.filter_map(value)))
    }
}

/// Returns the user's id of a node.
pub(crate) fn show(job: &Job, node: u32) -> Result<String, Error> {
    let book = job.dataset.book();
    let part = book.offsets().partition_point(|&start| start <= u64::from(node)) - 1;
    let local = u64::from(node) - book.range(part).start;
    Ok(job.dataset.nodes(part)?.ids().display(local as usize).to_string())
}
