//! `changes.parquet`: the nodes that a refresh has computed anew, and removed nodes.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use arrow::array::{Array as ArrowArray, ArrayRef, RecordBatch};
use arrow::compute::concat;
use arrow::datatypes::{DataType, Field, Schema};
use gnnflow_dataflow::storage::{Array, Place, RowStore};

use crate::collectives::{Collectives, Driver};
use crate::context::WorkerContext;
use crate::error::Error;
use crate::outputs::columns::{arrow_bug, nullable, nullable_type};
use crate::outputs::embedding_rows::EmbeddingRows;
use crate::outputs::id_field;
use crate::outputs::output_nodes::of_partition;
use crate::outputs::table::{Table, TableForm};
use crate::outputs::write_table::write_table;
use crate::runtime::job::Job;
use crate::task::objective::NodeObjective;

/// The removed nodes of a partition, and their results before.
#[derive(Default)]
pub(crate) struct RemovedResults {
    /// The users' ids; `None` if there are no nodes.
    pub(crate) ids: Option<ArrayRef>,
    /// One row for each.
    pub(crate) rows: Vec<f32>,
}

impl RemovedResults {
    fn len(&self) -> usize {
        self.ids.as_ref().map_or(0, |ids| ids.len())
    }
}

/// The nodes of a worker that are computed anew, and removed ones; and their results before.
pub(crate) struct ChangedNodes {
    /// Global ids, ascending.
    nodes: Vec<u32>,
    /// By partition, how many nodes it had before; the nodes after these are new.
    before: Vec<u64>,
    /// The results before, one row for each of `nodes`, in a scratch file.
    rows: Array<f32>,
    width: usize,
    /// By partition, the removed nodes.
    removed: Vec<RemovedResults>,
}

/// Returns the users' ids of nodes of a partition, by local ids.
pub(crate) type IdsOf<'a> = &'a dyn Fn(usize, &mut dyn Iterator<Item = usize>) -> ArrayRef;

/// The rows of nodes, and how many of their columns are embeddings.
pub(crate) type Embeddings<'a> = Option<(&'a RowStore, usize)>;

impl ChangedNodes {
    /// Copies the results of own `nodes` before they are computed. `before` are the numbers of nodes of all partitions, whose results exist, and `removed`
    /// the removed nodes of all partitions.
    ///
    /// # Errors
    /// If the scratch folder has no space.
    pub(crate) fn copy(
        context: &WorkerContext,
        (nodes, before): (Vec<u32>, Vec<u64>),
        results: &RowStore,
        removed: Vec<RemovedResults>,
    ) -> Result<Self, Error> {
        let (width, place) = (results.width(), Place::Folder(context.scratch.clone()));
        let mut rows =
            Array::zeros(nodes.len() * width, &place).map_err(Error::io("reserve space in", &context.scratch))?;
        let results = results.read()?;
        for (row, &node) in rows.chunks_exact_mut(width).zip(&nodes) {
            let part = context.graph.partition_of(node);
            // New nodes have no results yet.
            if u64::from(node - context.graph.range(part).start) < before[part] {
                row.copy_from_slice(results.row(node));
            }
        }
        Ok(Self { nodes, before, rows, width, removed })
    }

    /// Returns the number of own nodes, removed ones included.
    pub(crate) fn len(&self) -> usize {
        self.nodes.len() + self.removed.iter().map(RemovedResults::len).sum::<usize>()
    }

    /// Writes a row per node: `node_id`, `old_prediction` (null for a new node), `prediction` and, if given, `embedding` (null for a removed node). The
    /// removed nodes of a partition follow the others. Returns the number of rows, and at the first worker their SHA-256.
    ///
    /// # Errors
    /// If the table cannot be written.
    pub(crate) fn write(
        &self,
        driver: &mut Driver<'_>,
        (job, context): (&Job, &WorkerContext),
        collectives: &mut Collectives,
        (task, results): (&dyn NodeObjective, &RowStore),
        (embeddings, ids): (Embeddings<'_>, IdsOf<'_>),
        (path, table_form): (PathBuf, TableForm),
    ) -> Result<(u64, String), Error> {
        let manifest = job.dataset.manifest();
        let field = |name: &str, values: DataType| Field::new(name, nullable_type(values), true);
        let prediction = |name: &str| field(name, task.prediction_type());
        let mut fields = vec![id_field(manifest), prediction("old_prediction"), prediction("prediction")];
        let form = EmbeddingRows::of(job.config.infer.as_ref());
        let embedding_width = embeddings.map_or(0, |(_, width)| width);
        if embedding_width > 0 {
            fields.push(field("embedding", form.column_type(embedding_width)));
        }
        let schema = Arc::new(Schema::new(fields));
        let (results, embeddings) = (results.read()?, embeddings.map(|(store, _)| store.read()).transpose()?);
        let rows = |part: usize, range: Range<usize>| {
            let (own, first) = (of_partition(&self.nodes, context, part), context.graph.range(part).start);
            let at = own.start + range.start.min(own.len())..own.start + range.end.min(own.len());
            let gone = range.start.max(own.len()) - own.len()..range.end.max(own.len()) - own.len();
            let removed = &self.removed[part];
            let nodes = &self.nodes[at.clone()];
            let local = |node: &u32| (node - first) as usize;
            let before = at.zip(nodes).map(|(row, node)| {
                let existed = (local(node) as u64) < self.before[part];
                existed.then(|| &self.rows[row * self.width..][..self.width])
            });
            let before_removal = gone.clone().map(|row| Some(&removed.rows[row * self.width..][..self.width]));
            let mut all_ids = vec![ids(part, &mut nodes.iter().map(local))];
            all_ids.extend(removed.ids.as_ref().map(|ids| ids.slice(gone.start, gone.len())));
            let all_ids: Vec<&dyn ArrowArray> = all_ids.iter().map(|ids| &**ids).collect();
            let none = || gone.clone().map(|_| None);
            let mut columns = vec![
                concat(&all_ids).map_err(arrow_bug)?,
                nullable(&task.predictions(&mut before.chain(before_removal))?)?,
                nullable(&task.predictions(&mut nodes.iter().map(|&node| Some(results.row(node))).chain(none()))?)?,
            ];
            if let Some(rows) = &embeddings {
                let rows = nodes.iter().map(|&node| Some(&rows.row(node)[..embedding_width]));
                columns.push(nullable(&form.nullable_column(embedding_width, rows.chain(none()))?)?);
            }
            RecordBatch::try_new(Arc::clone(&schema), columns).map_err(arrow_bug)
        };
        let counts = collectives.all_gather_parts(driver, |part| {
            (of_partition(&self.nodes, context, part).len() + self.removed[part].len()) as u64
        })?;
        let listed = match task.prediction_type() {
            DataType::FixedSizeList(_, width) => 2 * width as usize,
            _ => 0,
        };
        let row_bytes = 40 + listed + 4 * embedding_width;
        let table = Table { path, form: table_form, schema: Arc::clone(&schema), row_bytes, rows: &rows };
        let digest = write_table(driver, context, &counts, &table)?;
        Ok((counts.iter().sum(), digest))
    }
}
