//! Classification of all edges by the model's results of their ends.
//!
//! ```text
//! ends of a chunk of edges → their rows → logits (compute thread)
//! ```

use std::sync::Arc;

use candle_core::Tensor;
use gnnflow_dataflow::flow::compute_thread::ComputeThread;
use gnnflow_nn::metrics::Counts;
use timely::worker::Worker;

use crate::collectives::{Collectives, Driver};
use crate::compute::ComputeState;
use crate::context::{SPLITS, WorkerContext};
use crate::error::Error;
use crate::evaluate::fetch_results::{FetchedRows, ResultFetcher};
use crate::evaluate::{Evaluation, reduce_metrics};
use crate::task::class_metrics::ClassMetrics;
use crate::task::classes::{Classes, cross_entropy, largest, probabilities};
use crate::task::edge_classification::edges::ClassedEdges;
use crate::task::objective::Tally;
use gnnflow_dataflow::storage::{Array, Place, RowStore};
use gnnflow_kernels::pairs::Edge;

/// Number of edges per request.
const CHUNK: usize = 8192;

/// The dataflow of one worker that classifies the edges of its partitions.
pub(crate) struct EdgeClassifier {
    /// The state holds the logits of a chunk.
    fetcher: ResultFetcher<Vec<f32>>,
    edges: ClassedEdges,
    metrics: ClassMetrics,
    /// By partition, the classes of the last evaluation.
    predicted: Vec<Vec<u32>>,
    /// By partition, the probabilities of all classes, edge by edge, in mapped files; `None` unless they are written.
    scores: Option<Vec<Array<f32>>>,
}

impl EdgeClassifier {
    /// Builds the dataflow over the model's `results`. With `writes_scores`, it keeps the probabilities of all classes.
    ///
    /// # Errors
    /// When the disk has no space for the probabilities.
    pub(crate) fn build(
        worker: &mut Worker,
        context: &WorkerContext,
        results: &Arc<RowStore>,
        (edges, metrics): (ClassedEdges, ClassMetrics),
        compute_thread: &ComputeThread<ComputeState>,
        writes_scores: bool,
    ) -> Result<Self, Error> {
        let fetcher = ResultFetcher::build(worker, context, results, compute_thread, "classify", write_logits);
        let (classes, place) = (metrics.classes().count, Place::Folder(context.scratch.clone()));
        let reserve = |edges: &Vec<Edge>| Array::zeros(edges.len() * classes, &place);
        let scores = writes_scores.then(|| edges.edges.iter().map(reserve).collect::<Result<_, _>>()).transpose();
        let scores = scores.map_err(Error::io("reserve scratch space in", &context.scratch))?;
        let predicted = vec![Vec::new(); edges.edges.len()];
        Ok(Self { fetcher, edges, metrics, predicted, scores })
    }

    /// Classifies all edges, and returns the metrics of the labeled edges of each split.
    ///
    /// # Errors
    /// The first error of an operator or of the compute thread.
    pub(crate) fn evaluate(
        &mut self,
        driver: &mut Driver<'_>,
        context: &WorkerContext,
        collectives: &mut Collectives,
    ) -> Result<Evaluation, Error> {
        let (classes, mut tallies) = (self.metrics.classes().count, Vec::new());
        let (progress, hosted) = (driver.runtime.progress(), context.placement.parts_of(context.worker));
        let edges = self.edges.edges[hosted].iter().map(|edges| edges.len() as u64);
        progress.brief_stage("classify edges", edges.sum(), "edges");
        for part in context.placement.parts_of(context.worker) {
            let mut counts = vec![(self.metrics.counts(), 0.0); SPLITS.len() - 1];
            self.predicted[part].clear();
            for first in (0..self.edges.edges[part].len()).step_by(CHUNK) {
                let chunk = first..(first + CHUNK).min(self.edges.edges[part].len());
                self.fetcher.request_ends(&self.edges.edges[part][chunk.clone()]);
                self.fetcher.wait(driver, 0)?;
                progress.advance(chunk.len() as u64);
                let logits = std::mem::take(&mut *self.fetcher.state());
                for (i, row) in chunk.zip(logits.chunks_exact(classes)) {
                    self.predicted[part].push(largest(row) as u32);
                    if let Some(scores) = &mut self.scores {
                        scores[part][i * classes..(i + 1) * classes].copy_from_slice(&probabilities(row));
                    }
                    let (label, split) = (self.edges.labels[part][i], usize::from(self.edges.splits[part][i]));
                    if let (Ok(label), 1..) = (u32::try_from(label), split) {
                        let (counts, loss) = &mut counts[split - 1];
                        counts.update_classes(row, &[label]);
                        *loss += cross_entropy(row, label as usize);
                    }
                }
            }
            let tally = |(counts, loss): (Counts, f64)| Tally { words: counts.words(), loss, sums: Vec::new() };
            tallies.push(counts.into_iter().map(tally).collect());
        }
        // Other workers may still request rows of this worker.
        self.fetcher.end(driver)?;
        progress.done();
        reduce_metrics(driver, context, collectives, &tallies, &|words, _| self.metrics.finish(words))
    }

    pub(crate) fn edges(&self) -> &ClassedEdges {
        &self.edges
    }

    /// Returns the classes of the last evaluation, of a partition hosted here.
    pub(crate) fn predicted(&self, part: usize) -> &[u32] {
        &self.predicted[part]
    }

    /// Returns the probabilities of all classes of the last evaluation by partition, edge by edge, if they are written.
    pub(crate) fn scores(&self) -> Option<&[Array<f32>]> {
        self.scores.as_deref()
    }

    /// Returns all classes.
    pub(crate) fn classes(&self) -> &Classes {
        self.metrics.classes()
    }
}

/// Computes the logits of the fetched pairs.
fn write_logits(logits: &mut Vec<f32>, compute: &ComputeState, fetched: &FetchedRows<'_>) -> Result<(), Error> {
    let tensor = gnnflow_nn::Error::from;
    *logits = compute.with_model(|model| {
        let (Some(pairs), Some(head)) = (fetched.pairs, model.pair_head()) else {
            return Err(Error::Bug("a batch of edges has no pairs, or the model no head".into()));
        };
        let nodes = fetched.nodes.len();
        compute.on_threads(|| {
            let shape = (nodes, fetched.rows.len() / nodes.max(1));
            let x = Tensor::from_slice(fetched.rows, shape, model.device()).map_err(tensor)?;
            let found = head.forward(&x, pairs)?;
            Ok(found.flatten_all().and_then(|found| found.to_vec1()).map_err(tensor)?)
        })
    })?;
    Ok(())
}
