//! Classes of all edges, by the model's results.
//!
//! ```text
//! ends of some edges → their rows → logits (compute thread)
//! ```

use std::sync::Arc;

use candle_core::Tensor;
use gnnflow_dataflow::flow::compute_thread::ComputeThread;
use gnnflow_nn::metrics::{Counts, Task};
use timely::worker::Worker;

use crate::collectives::{Collectives, Driver};
use crate::compute::ComputeState;
use crate::context::{SPLITS, WorkerContext};
use crate::error::Error;
use crate::evaluate::rows_of::{Brought, RowsOf};
use crate::evaluate::{Evaluation, reduce_metrics};
use crate::task::Tally;
use crate::task::classes::{Classes, cross_entropy, largest};
use crate::task::edge_classification::edges::ClassedEdges;
use gnnflow_dataflow::storage::RowStore;

/// Edges whose ends are asked for at once.
const CHUNK: usize = 8192;

/// The dataflow of one worker that classifies its partitions' edges.
pub(crate) struct Classifying {
    /// Logits of a chunk.
    rows: RowsOf<Vec<f32>>,
    edges: ClassedEdges,
    classes: Arc<Classes>,
    /// As the last pass left them, by partition.
    found: Vec<Vec<u32>>,
}

impl Classifying {
    /// Builds the dataflow over the model's `results`.
    pub(crate) fn build(
        worker: &mut Worker,
        context: &WorkerContext,
        results: &Arc<RowStore>,
        (edges, classes): (ClassedEdges, Arc<Classes>),
        compute_thread: &ComputeThread<ComputeState>,
    ) -> Self {
        let rows = RowsOf::build(worker, context, results, compute_thread, "classify", take);
        let found = vec![Vec::new(); edges.edges.len()];
        Self { rows, edges, classes, found }
    }

    /// Classifies all edges, and returns the metrics of those that have a class and are in a split.
    ///
    /// # Errors
    /// What an operator, or the compute thread, fails with.
    pub(crate) fn evaluate(
        &mut self,
        driver: &mut Driver<'_>,
        context: &WorkerContext,
        collectives: &mut Collectives,
    ) -> Result<Evaluation, Error> {
        let (classes, mut counted) = (self.classes.count, Vec::new());
        for part in context.placement.parts_of(context.worker) {
            let mut counts = vec![(Counts::new(Task::SingleLabel, classes), 0.0); SPLITS.len() - 1];
            self.found[part].clear();
            for first in (0..self.edges.edges[part].len()).step_by(CHUNK) {
                let chunk = first..(first + CHUNK).min(self.edges.edges[part].len());
                self.rows.send_ends(&self.edges.edges[part][chunk.clone()]);
                self.rows.wait(driver, 0)?;
                let logits = std::mem::take(&mut *self.rows.state());
                for (i, row) in chunk.zip(logits.chunks_exact(classes)) {
                    self.found[part].push(largest(row) as u32);
                    let (label, split) = (self.edges.labels[part][i], usize::from(self.edges.splits[part][i]));
                    if let (Ok(label), 1..) = (u32::try_from(label), split) {
                        let (counts, loss) = &mut counts[split - 1];
                        counts.update_classes(row, &[label]);
                        *loss += cross_entropy(row, label as usize);
                    }
                }
            }
            let tally = |(counts, loss): (Counts, f64)| Tally { words: counts.words(), loss, sums: Vec::new() };
            counted.push(counts.into_iter().map(tally).collect());
        }
        // Others may still ask for rows that are here.
        self.rows.end(driver)?;
        reduce_metrics(driver, context, collectives, &counted, &|words, _| {
            let mut counts = Counts::new(Task::SingleLabel, classes);
            counts.merge_words(words);
            (counts.rows(), counts.finish())
        })
    }

    /// The edges.
    pub(crate) fn edges(&self) -> &ClassedEdges {
        &self.edges
    }

    /// The classes that the last pass found, of a partition hosted here.
    pub(crate) fn found(&self, part: usize) -> &[u32] {
        &self.found[part]
    }

    /// The classes that there are.
    pub(crate) fn classes(&self) -> &Classes {
        &self.classes
    }
}

/// What the rows of both ends say.
fn take(logits: &mut Vec<f32>, trainer: &ComputeState, brought: &Brought<'_>) -> Result<(), Error> {
    let (Some(pairs), Some(head)) = (brought.pairs, trainer.model().pair_head()) else {
        return Err(Error::Bug("a batch of edges has no pairs, or the model no head".into()));
    };
    let tensor = gnnflow_nn::Error::from;
    let (nodes, device) = (brought.nodes.len(), trainer.model().device());
    *logits = trainer.on_threads(|| -> Result<Vec<f32>, Error> {
        let x = Tensor::from_slice(brought.rows, (nodes, brought.rows.len() / nodes.max(1)), device).map_err(tensor)?;
        let found = head.forward(&x, pairs)?;
        Ok(found.flatten_all().and_then(|found| found.to_vec1()).map_err(tensor)?)
    })?;
    Ok(())
}
