//! `predictions.parquet` of link prediction: held-out edges with their scores and ranks.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, Float32Array, Float64Array, Int64Array, LargeStringArray, RecordBatch, StringArray, UInt16Array,
};
use arrow::datatypes::{DataType, Field, Schema};
use gnnflow_data::dataset::{IdColumn, IdKind, Nodes};
use gnnflow_operators::sample::pairs::Edge;
use timely::worker::Worker;

use super::Ranking;
use super::ranking::Ranked;
use crate::Error;
use crate::job::Job;
use crate::outputs::{Table, arrow_bug, write_table};
use crate::setup::Setup;

/// Writes `src`, `dst`, `type` (where edges have types), `split`, `score`, `rank` (of `dst`, given `src`) and `src_rank` of every
/// edge that was held out.
pub(crate) fn predictions(
    worker: &mut Worker,
    job: &Job,
    setup: &Setup,
    ranking: &Ranking,
    path: PathBuf,
) -> Result<String, Error> {
    let (dataset, manifest) = (&job.dataset, job.dataset.manifest());
    let id = match manifest.ids {
        IdKind::Int => DataType::Int64,
        IdKind::Text => DataType::LargeUtf8,
    };
    let types = manifest.edge_columns.edge_type.as_ref();
    let mut fields = vec![Field::new("src", id.clone(), false), Field::new("dst", id, false)];
    let kind = types.map(|types| if types.names.is_empty() { DataType::UInt16 } else { DataType::Utf8 });
    fields.extend(kind.map(|kind| Field::new("type", kind, false)));
    fields.push(Field::new("split", DataType::Utf8, false));
    fields.push(Field::new("score", DataType::Float32, false));
    fields.extend(["rank", "src_rank"].map(|name| Field::new(name, DataType::Float64, false)));
    let schema = Arc::new(Schema::new(fields));
    // Ends may be of any partition; files of ids are mapped.
    let nodes = (0..manifest.parts()).map(|part| dataset.nodes(part)).collect::<Result<Vec<_>, _>>()?;
    let ids = Ids { nodes, offsets: dataset.book().offsets() };
    let rows = |part: usize, range: Range<usize>| {
        let [val, test] = ranking.held_out(part);
        let all = val.0.iter().zip(val.1).map(|found| ("val", found));
        let all = all.chain(test.0.iter().zip(test.1).map(|found| ("test", found)));
        let found: Vec<(&str, (&Edge, &Ranked))> = all.skip(range.start).take(range.len()).collect();
        let edges = || found.iter().map(|(_, (edge, _))| **edge);
        let ranked = || found.iter().map(|(_, (_, ranked))| **ranked);
        let mut columns = vec![ids.column(edges().map(|edge| edge.head)), ids.column(edges().map(|edge| edge.tail))];
        columns.extend(types.map(|types| -> ArrayRef {
            if types.names.is_empty() {
                return Arc::new(UInt16Array::from_iter_values(edges().map(|edge| edge.relation)));
            }
            let name = |edge: Edge| types.names[usize::from(edge.relation)].as_str();
            Arc::new(StringArray::from_iter_values(edges().map(name)))
        }));
        columns.push(Arc::new(StringArray::from_iter_values(found.iter().map(|(split, _)| split))));
        columns.push(Arc::new(Float32Array::from_iter_values(ranked().map(|ranked| ranked.score))));
        for side in 0..2 {
            columns.push(Arc::new(Float64Array::from_iter_values(ranked().map(|ranked| ranked.ranks()[side]))));
        }
        RecordBatch::try_new(Arc::clone(&schema), columns).map_err(arrow_bug)
    };
    let table = Table { path, schema: Arc::clone(&schema), row_bytes: 64, rows: &rows };
    write_table(worker, &*job.host, setup, ranking.held_out_counts(), &table)
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
