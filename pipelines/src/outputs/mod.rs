//! Outputs of a run: predictions and embeddings as Parquet, the model as safetensors.
//!
//! A table is one file, to which all workers send their rows, or a folder of parts, each written by the worker of the partition.

pub(crate) mod columns;
pub(crate) mod embedding_rows;
mod event_file;
mod messages;
pub(crate) mod output_nodes;
mod parquet_file;
mod parts;
pub(crate) mod run_folder;
pub(crate) mod settings;
pub mod summary;
pub(crate) mod table;
mod trace_file;
pub mod trace_table;
pub(crate) mod work_log;
pub(crate) mod write_table;

use std::path::PathBuf;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, LargeStringArray, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema};
use gnnflow_data::dataset::{IdColumn, Manifest};

use crate::collectives::Driver;
use crate::context::WorkerContext;
use crate::context::feature_store::FeatureStore;
use crate::error::Error;
use crate::outputs::columns::arrow_bug;
use crate::outputs::embedding_rows::EmbeddingRows;
use crate::outputs::output_nodes::OutputNodes;
use crate::outputs::table::{Table, TableForm};
use crate::outputs::write_table::write_table;

/// Returns the user's ids of some nodes of a partition, given by local ids.
pub(crate) fn ids(parts: &FeatureStore, part: usize, nodes: impl Iterator<Item = usize>) -> ArrayRef {
    ids_of(parts.get(part).nodes.ids(), nodes)
}

/// Returns some of the user's ids.
pub(crate) fn ids_of(ids: IdColumn<'_>, nodes: impl Iterator<Item = usize>) -> ArrayRef {
    match ids {
        IdColumn::Int(ids) => Arc::new(Int64Array::from_iter_values(nodes.map(|node| ids[node]))),
        IdColumn::Text(ids) => Arc::new(LargeStringArray::from_iter_values(nodes.map(|node| ids.value(node)))),
    }
}

pub(crate) fn id_field(manifest: &Manifest) -> Field {
    let kind = match manifest.ids {
        gnnflow_data::dataset::IdKind::Text => DataType::LargeUtf8,
        _ => DataType::Int64,
    };
    Field::new("node_id", kind, false)
}

/// Writes `embeddings.parquet` or `node_embeddings.parquet`: `node_id`, `embedding`, in the form of `rows`. `row` returns the `dim`
/// values of a node of this worker.
pub(crate) fn embeddings<'a>(
    driver: &mut Driver<'_>,
    context: &WorkerContext,
    (manifest, nodes): (&Manifest, &OutputNodes),
    (rows, dim, row): (EmbeddingRows, usize, impl Fn(u32) -> &'a [f32]),
    (path, form): (PathBuf, TableForm),
) -> Result<String, Error> {
    let fields = vec![id_field(manifest), Field::new("embedding", rows.column_type(dim), false)];
    let schema = Arc::new(Schema::new(fields));
    let make = |part: usize, range: std::ops::Range<usize>| {
        let (first, locals) = (context.parts.get(part).range.start as u32, nodes.locals(context, part, range));
        let ids = ids(&context.parts, part, locals.iter().copied());
        let values = rows.column(dim, locals.iter().map(|&local| row(first + local as u32)), &ids)?;
        RecordBatch::try_new(Arc::clone(&schema), vec![ids, values]).map_err(arrow_bug)
    };
    let table = Table { path, form, schema: Arc::clone(&schema), row_bytes: 16 + 4 * dim, rows: &make };
    write_table(driver, context, nodes.counts(), &table)
}
