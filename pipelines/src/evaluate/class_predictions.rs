//! `predictions.parquet` of edge classification: all edges of the classified types.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use arrow::array::{Float32Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema};

use crate::collectives::Driver;
use crate::context::edge_columns::EdgeColumns;
use crate::context::{SPLITS, WorkerContext};
use crate::error::Error;
use crate::evaluate::classification::EdgeClassifier;
use crate::outputs::columns::{arrow_bug, list, list_of};
use crate::outputs::table::{Table, TableForm};
use crate::outputs::write_table::write_table;
use crate::runtime::job::Job;

/// Writes a row per edge: `src`, `dst`, `type` (if edges have types), `prediction`, `label`, `split` and optionally `scores`.
pub(crate) fn predictions(
    driver: &mut Driver<'_>,
    job: &Job,
    context: &WorkerContext,
    classifier: &EdgeClassifier,
    path: PathBuf,
) -> Result<String, Error> {
    let (ends, classes) = (EdgeColumns::open(job)?, classifier.classes());
    let mut fields = ends.fields();
    fields.push(Field::new("prediction", classes.data_type(), false));
    fields.push(Field::new("label", classes.data_type(), true));
    fields.push(Field::new("split", DataType::Utf8, false));
    let (width, scores) = (classes.count, classifier.scores());
    if scores.is_some() {
        fields.push(Field::new("scores", list(width, DataType::Float32), false));
    }
    let schema = Arc::new(Schema::new(fields));
    let all = classifier.edges();
    let rows = |part: usize, range: Range<usize>| {
        let mut columns = ends.columns(all.edges[part][range.clone()].iter().copied());
        let predicted = classifier.predicted(part)[range.clone()].iter();
        columns.push(classes.column(predicted.map(|&class| Some(class as usize))));
        let labels = all.labels[part][range.clone()].iter();
        columns.push(classes.column(labels.map(|&label| usize::try_from(label).ok())));
        let splits = all.splits[part][range.clone()].iter().map(|&split| SPLITS[usize::from(split).min(3)]);
        columns.push(Arc::new(StringArray::from_iter_values(splits)));
        if let Some(scores) = scores {
            let scores = scores[part][range.start * width..range.end * width].to_vec();
            columns.push(list_of(width, Arc::new(Float32Array::from(scores)))?);
        }
        RecordBatch::try_new(Arc::clone(&schema), columns).map_err(arrow_bug)
    };
    let form = TableForm::of(job.config.infer.as_ref());
    let row_bytes = 48 + scores.map_or(0, |_| 4 * width);
    let table = Table { path, form, schema: Arc::clone(&schema), row_bytes, rows: &rows };
    write_table(driver, context, &all.totals, &table)
}
