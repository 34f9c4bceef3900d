//! `predictions.parquet` of link prediction: held-out edges with their scores and ranks.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use arrow::array::{Float32Array, Float64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema};
use gnnflow_kernels::pairs::Edge;

use super::ranking::Ranked;
use crate::collectives::Driver;
use crate::context::WorkerContext;
use crate::context::edge_columns::EdgeColumns;
use crate::error::Error;
use crate::evaluate::ranking::Ranking;
use crate::outputs::columns::arrow_bug;
use crate::outputs::table::{Table, TableForm};
use crate::outputs::write_table::write_table;
use crate::runtime::job::Job;

/// Writes a row per held-out edge: `src`, `dst`, `type` (if edges have types), `split`, `score`, `rank` (of `dst`, given `src`) and `src_rank` (if
/// sources are ranked).
pub(crate) fn predictions(
    driver: &mut Driver<'_>,
    job: &Job,
    context: &WorkerContext,
    ranking: &Ranking,
    path: PathBuf,
) -> Result<String, Error> {
    let ends = EdgeColumns::open(job)?;
    let mut fields = ends.fields();
    fields.push(Field::new("split", DataType::Utf8, false));
    fields.push(Field::new("score", DataType::Float32, false));
    fields.push(Field::new("rank", DataType::Float64, false));
    if ranking.ranks_heads() {
        fields.push(Field::new("src_rank", DataType::Float64, false));
    }
    let schema = Arc::new(Schema::new(fields));
    let rows = |part: usize, range: Range<usize>| {
        let [val, test] = ranking.held_out(part);
        let all = val.0.iter().zip(val.1).map(|found| ("val", found));
        let all = all.chain(test.0.iter().zip(test.1).map(|found| ("test", found)));
        let found: Vec<(&str, (&Edge, &Ranked))> = all.skip(range.start).take(range.len()).collect();
        let ranked = || found.iter().map(|(_, (_, ranked))| **ranked);
        let mut columns = ends.columns(found.iter().map(|(_, (edge, _))| **edge));
        columns.push(Arc::new(StringArray::from_iter_values(found.iter().map(|(split, _)| split))));
        columns.push(Arc::new(Float32Array::from_iter_values(ranked().map(|ranked| ranked.score))));
        columns.push(Arc::new(Float64Array::from_iter_values(ranked().map(|ranked| ranked.tail_rank()))));
        if ranking.ranks_heads() {
            columns.push(Arc::new(Float64Array::from_iter_values(ranked().filter_map(|ranked| ranked.head_rank()))));
        }
        RecordBatch::try_new(Arc::clone(&schema), columns).map_err(arrow_bug)
    };
    let form = TableForm::of(job.config.infer.as_ref());
    let table = Table { path, form, schema: Arc::clone(&schema), row_bytes: 64, rows: &rows };
    write_table(driver, context, ranking.held_out_counts(), &table)
}
