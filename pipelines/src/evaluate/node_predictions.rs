//! `predictions.parquet` of tasks on nodes.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use arrow::array::{ArrayRef, Float32Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema};
use gnnflow_dataflow::storage::RowStore;

use crate::collectives::Driver;
use crate::context::{SPLITS, WorkerContext};
use crate::error::Error;
use crate::outputs::columns::{arrow_bug, list, list_of};
use crate::outputs::output_nodes::OutputNodes;
use crate::outputs::table::{Table, TableForm};
use crate::outputs::write_table::write_table;
use crate::outputs::{id_field, ids};
use crate::runtime::job::Job;
use crate::task::objective::NodeObjective;

/// Writes a row per node: `node_id`, `prediction`, `label`, `split` and optionally `scores`.
pub(crate) fn predictions(
    driver: &mut Driver<'_>,
    job: &Job,
    context: &WorkerContext,
    task: &dyn NodeObjective,
    (nodes, results): (&OutputNodes, &RowStore),
    scores: bool,
    path: PathBuf,
) -> Result<String, Error> {
    let (manifest, results) = (job.dataset.manifest(), results.read()?);
    let data_type = task.prediction_type();
    let width = if scores { task.score_width() } else { 0 };
    let mut fields = vec![
        id_field(manifest),
        Field::new("prediction", data_type.clone(), false),
        Field::new("label", data_type.clone(), true),
        Field::new("split", DataType::Utf8, false),
    ];
    if width > 0 {
        fields.push(Field::new("scores", list(width, DataType::Float32), false));
    }
    let schema = Arc::new(Schema::new(fields));
    let rows = |part: usize, range: Range<usize>| {
        let (partition, locals) = (context.parts.get(part), nodes.locals(context, part, range));
        let first = partition.range.start as u32;
        let row = |&local: &usize| results.row(first + local as u32);
        let prediction = task.predictions(&mut locals.iter().map(|local| Some(row(local))))?;
        let label = task.labels(part, &locals)?;
        let splits = partition.nodes.split();
        let split = locals.iter().map(|&local| SPLITS[usize::from(splits[local]).min(3)]);
        let split: ArrayRef = Arc::new(StringArray::from_iter_values(split));
        let mut columns = vec![ids(&context.parts, part, locals.iter().copied()), prediction, label, split];
        if width > 0 {
            let values: Vec<f32> = locals.iter().flat_map(|local| task.scores(row(local))).collect();
            columns.push(list_of(width, Arc::new(Float32Array::from(values)))?);
        }
        RecordBatch::try_new(Arc::clone(&schema), columns).map_err(arrow_bug)
    };
    let listed = match data_type {
        DataType::FixedSizeList(_, width) => 2 * width as usize,
        _ => 0,
    };
    let row_bytes = 40 + 4 * width + listed;
    let form = TableForm::of(job.config.infer.as_ref());
    let table = Table { path, form, schema: Arc::clone(&schema), row_bytes, rows: &rows };
    write_table(driver, context, nodes.counts(), &table)
}
