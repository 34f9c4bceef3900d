//! The table of recommendations.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use arrow::array::{Float32Array, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema};

use super::Recommendation;
use crate::collectives::{Collectives, Driver};
use crate::context::WorkerContext;
use crate::context::edge_columns::EdgeColumns;
use crate::error::Error;
use crate::outputs::columns::arrow_bug;
use crate::outputs::table::{Table, TableForm};
use crate::outputs::write_table::write_table;
use crate::runtime::job::Job;

/// Writes a row per recommended edge: `src`, `dst`, `type` (if edges have types), `rank` (from 1) and `score`. `rows` are those of each partition hosted here.
///
/// # Errors
/// When the table cannot be written.
pub(crate) fn write(
    driver: &mut Driver<'_>,
    job: &Job,
    (context, collectives): (&WorkerContext, &mut Collectives),
    rows: &[Vec<Recommendation>],
    path: PathBuf,
) -> Result<(), Error> {
    let first = context.placement.parts_of(context.worker).start;
    let counts = collectives.all_gather_parts(driver, |part| rows[part - first].len() as u64)?;
    let ends = EdgeColumns::open(job)?;
    let mut fields = ends.fields();
    fields.push(Field::new("rank", DataType::Int64, false));
    fields.push(Field::new("score", DataType::Float32, false));
    let schema = Arc::new(Schema::new(fields));
    let batch = |part: usize, range: Range<usize>| {
        let rows = &rows[part - first][range];
        let mut columns = ends.columns(rows.iter().map(|row| row.edge));
        columns.push(Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| i64::from(row.rank)))));
        columns.push(Arc::new(Float32Array::from_iter_values(rows.iter().map(|row| row.score))));
        RecordBatch::try_new(Arc::clone(&schema), columns).map_err(arrow_bug)
    };
    let form = TableForm::of(job.config.infer.as_ref());
    let table = Table { path, form, schema: Arc::clone(&schema), row_bytes: 48, rows: &batch };
    write_table(driver, context, &counts, &table)?;
    Ok(())
}
