//! `changes.parquet`: the nodes that a refresh has computed anew.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema};
use gnnflow_dataflow::storage::{Array, Place, RowStore};

use crate::collectives::{Collectives, Driver};
use crate::context::WorkerContext;
use crate::error::Error;
use crate::outputs::columns::arrow_bug;
use crate::outputs::embedding_rows::EmbeddingRows;
use crate::outputs::id_field;
use crate::outputs::output_nodes::of_partition;
use crate::outputs::table::{Table, TableForm};
use crate::outputs::write_table::write_table;
use crate::runtime::job::Job;
use crate::task::objective::NodeObjective;

/// The nodes of a worker that are computed anew, and their results before.
pub(crate) struct ChangedNodes {
    /// Global ids, ascending.
    nodes: Vec<u32>,
    /// By partition, how many nodes it had before; the nodes after these are new.
    before: Vec<u64>,
    /// The results before, one row for each of `nodes`, in a scratch file.
    rows: Array<f32>,
    width: usize,
}

/// Returns the users' ids of nodes of a partition, by local ids.
pub(crate) type IdsOf<'a> = &'a dyn Fn(usize, &mut dyn Iterator<Item = usize>) -> ArrayRef;

/// The rows of nodes, and how many of their columns are embeddings.
pub(crate) type Embeddings<'a> = Option<(&'a RowStore, usize)>;

impl ChangedNodes {
    /// Copies the results of own `nodes` before they are computed. `before` are the numbers of nodes of all partitions, whose results exist.
    ///
    /// # Errors
    /// If the scratch folder has no space.
    pub(crate) fn copy(
        context: &WorkerContext,
        nodes: Vec<u32>,
        before: Vec<u64>,
        results: &RowStore,
    ) -> Result<Self, Error> {
        let (width, place) = (results.width(), Place::Folder(context.scratch.clone()));
        let mut rows =
            Array::zeros(nodes.len() * width, &place).map_err(Error::io("reserve space in", &context.scratch))?;
        let results = results.read()?;
        for (row, &node) in rows.chunks_exact_mut(width).zip(&nodes) {
            row.copy_from_slice(results.row(node));
        }
        Ok(Self { nodes, before, rows, width })
    }

    /// Writes a row per node: `node_id`, `old_prediction` (null for a new node), `prediction` and, if given, `embedding`. Returns the number of
    /// rows, and at the first worker their SHA-256.
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
        let nullable = |name: &str, null: bool| Field::new(name, task.prediction_type(), null);
        let mut fields = vec![id_field(manifest), nullable("old_prediction", true), nullable("prediction", false)];
        let form = EmbeddingRows::of(job.config.infer.as_ref());
        let embedding_width = embeddings.map_or(0, |(_, width)| width);
        if embedding_width > 0 {
            fields.push(Field::new("embedding", form.column_type(embedding_width), false));
        }
        let schema = Arc::new(Schema::new(fields));
        let (results, embeddings) = (results.read()?, embeddings.map(|(store, _)| store.read()).transpose()?);
        let rows = |part: usize, range: Range<usize>| {
            let (own, first) = (of_partition(&self.nodes, context, part), context.graph.range(part).start);
            let at = own.start + range.start..own.start + range.end;
            let nodes = &self.nodes[at.clone()];
            let local = |node: &u32| (node - first) as usize;
            let mut before = at.zip(nodes).map(|(row, node)| {
                let existed = (local(node) as u64) < self.before[part];
                existed.then(|| &self.rows[row * self.width..][..self.width])
            });
            let mut columns = vec![
                ids(part, &mut nodes.iter().map(local)),
                task.predictions(&mut before)?,
                task.predictions(&mut nodes.iter().map(|&node| Some(results.row(node))))?,
            ];
            if let Some(rows) = &embeddings {
                let rows = nodes.iter().map(|&node| &rows.row(node)[..embedding_width]);
                columns.push(form.column(embedding_width, rows)?);
            }
            RecordBatch::try_new(Arc::clone(&schema), columns).map_err(arrow_bug)
        };
        let counts =
            collectives.all_gather_parts(driver, |part| of_partition(&self.nodes, context, part).len() as u64)?;
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
