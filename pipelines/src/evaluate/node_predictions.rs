//! `predictions.parquet` of tasks on nodes: all nodes.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use arrow::array::{ArrayRef, Float32Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema};
use gnnflow_dataflow::storage::RowStore;

use crate::collectives::Driver;
use crate::context::{SPLITS, WorkerContext};
use crate::error::Error;
use crate::outputs::{Table, arrow_bug, id_field, ids, list, list_of, write_table};
use crate::runtime::job::Job;
use crate::task::objective::NodeObjective;

/// Writes a row per node: `node_id`, `prediction`, `label`, `split` and optionally `scores`.
pub(crate) fn predictions(
    driver: &mut Driver<'_>,
    job: &Job,
    context: &WorkerContext,
    task: &dyn NodeObjective,
    results: &RowStore,
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
    let rows = |part: usize, nodes: Range<usize>| {
        let partition = context.parts.get(part);
        let first = partition.range.start as u32;
        let row = |local: usize| results.row(first + local as u32);
        let prediction = task.predictions(&mut nodes.clone().map(|local| Some(row(local))))?;
        let label = task.labels(part, nodes.clone())?;
        let split = partition.nodes.split()[nodes.clone()].iter().map(|&split| SPLITS[usize::from(split).min(3)]);
        let split: ArrayRef = Arc::new(StringArray::from_iter_values(split));
        let mut columns = vec![ids(context, part, nodes.clone()), prediction, label, split];
        if width > 0 {
            let values: Vec<f32> = nodes.flat_map(|local| task.scores(row(local))).collect();
            columns.push(list_of(width, Arc::new(Float32Array::from(values)))?);
        }
        RecordBatch::try_new(Arc::clone(&schema), columns).map_err(arrow_bug)
    };
    let listed = match data_type {
        DataType::FixedSizeList(_, width) => 2 * width as usize,
        _ => 0,
    };
    let row_bytes = 40 + 4 * width + listed;
    let nodes: Vec<u64> = manifest.partitions.iter().map(|part| part.nodes).collect();
    write_table(driver, context, &nodes, &Table { path, schema: Arc::clone(&schema), row_bytes, rows: &rows })
}
