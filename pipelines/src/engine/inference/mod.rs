//! Exact inference: all neighbors of all nodes, stage by stage of the model, partition by partition.
//!
//! ```text
//! chunks of nodes → sample_hop (all neighbors) → fetch_rows (the layer below) → layer (compute thread) → probe
//! ```
//!
//! A stage is a layer, or work on single nodes before the first or after the last layer, which skips the sampling. It starts when the frontier of
//! all workers has passed the stage before. A stage computes every node once; sampling would compute a node again for each batch that
//! reaches it. A stage may also read rows of earlier stages for its own nodes; these are local.

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use gnnflow_dataflow::batch::mini_batch::{BatchKey, MiniBatch};
use gnnflow_dataflow::fetch::fetch_edge_rows::FetchEdgeRows;
use gnnflow_dataflow::fetch::fetch_rows::{FeatureView, FetchFrom, FetchRows};
use gnnflow_dataflow::fetch::read_ahead::ReadAhead;
use gnnflow_dataflow::flow::compute_thread::ComputeThread;
use gnnflow_dataflow::sample::sample_hop::{CompactorPool, Hop, SampleHop, Strategy};
use gnnflow_dataflow::time;
use gnnflow_kernels::matrix::Number;
use gnnflow_kernels::sample::Fanout;
use gnnflow_nn::model::Stage;
use timely::container::CapacityContainerBuilder;
use timely::dataflow::InputHandle;
use timely::dataflow::StreamVec;
use timely::dataflow::operators::core::OkErr;
use timely::dataflow::operators::vec::Map;
use timely::dataflow::operators::{Concatenate, Input, Probe, probe};
use timely::worker::Worker;

use crate::collectives::{Driver, FirstError};
use crate::compute::{ComputeState, RunJobs};
use crate::context::WorkerContext;
use crate::engine::result_sink::ResultSink;
use crate::error::Error;
use gnnflow_dataflow::storage::{Place, RowStore};

/// The jobs' name.
pub(crate) const LAYER: &str = "layer";
/// Maximum number of edges of a chunk, unless one node has more.
pub(crate) const CHUNK_EDGES: usize = 1 << 18;
/// Maximum number of chunks in flight.
const WINDOW: u32 = 3;

/// Returns the maximum number of chunks in flight, with `jobs` in computation.
pub(crate) fn window(jobs: usize) -> u32 {
    WINDOW.max(jobs as u32 + 1)
}

/// A chunk of a partition's nodes, by global ids.
type Chunk = (BatchKey, Range<u32>);

/// The inference dataflow of one worker.
pub(crate) struct Inference {
    input: InputHandle<u64, CapacityContainerBuilder<Vec<Chunk>>>,
    probe: probe::Handle<u64>,
    errors: FirstError,
    /// Results by stage.
    stores: Vec<Arc<RowStore>>,
    /// The chunks of the partitions hosted here: partition and global ids.
    chunks: Vec<(u32, Range<u32>)>,
    /// Stages computed in all passes so far. Timestamps use it as epoch.
    stages_done: u32,
    /// Maximum number of chunks in flight.
    window: u32,
}

impl Inference {
    /// Builds the dataflow of the model's `stages`. A chunk has at most `nodes` nodes; up to `jobs` chunks are computed at the same time.
    ///
    /// # Errors
    /// When there is no space for the rows of the stages.
    pub(crate) fn build(
        worker: &mut Worker,
        context: &WorkerContext,
        stages: &[Stage],
        uses_edges: bool,
        degrees: bool,
        (nodes, jobs): (usize, usize),
        compute_thread: &ComputeThread<ComputeState>,
    ) -> Result<Self, Error> {
        let stores = reserve_stores(context, stages)?;
        let count = stages.len();
        let (mut input, probe, errors) = (InputHandle::new_with_builder(), probe::Handle::new(), FirstError::default());
        let stage_of = move |time: u64| time::epoch(time) as usize % count;
        let (features, inputs) = (context.features.clone(), stores.clone());
        let rows = move |time| match stage_of(time) {
            0 => features.clone(),
            stage => FeatureView {
                source: Arc::clone(&inputs[stage - 1]) as _,
                number: Number::F32,
                dim: inputs[stage - 1].width(),
                packed: None,
                halo: None,
            },
        };
        let own: Vec<Vec<Arc<RowStore>>> =
            stages.iter().map(|stage| stage.own.iter().map(|&own| Arc::clone(&stores[own])).collect()).collect();
        let without_edges: Vec<bool> = stages.iter().map(|stage| !stage.edges).collect();
        let (first_error, results) = (errors.clone(), stores.clone());
        worker.dataflow::<u64, _, _>(|scope| {
            let chunks = scope.input_from(&mut input);
            let batch = |(key, nodes): Chunk| MiniBatch::new(key, nodes.collect());
            let stream = if uses_edges {
                let without = move |chunk: &Chunk| without_edges[chunk.0.epoch as usize % count];
                let (with_edges, without_edges): (StreamVec<'_, u64, Chunk>, StreamVec<'_, u64, Chunk>) =
                    chunks.ok_err(move |chunk: Chunk| if without(&chunk) { Err(chunk) } else { Ok(chunk) });
                let with_edges = with_edges.map(batch).sample_hop(Hop {
                    graph: Arc::clone(&context.graph),
                    seed: 0, // nothing is drawn
                    hop: 0,
                    strategy: Strategy::Fanout(Fanout::All),
                    columns: context.columns,
                    last: true,
                    pool: CompactorPool::default(),
                    meter: Rc::clone(&context.other_meter),
                });
                let with_edges = with_edges.fetch_edge_rows(context.fetch_edges(&context.graph, &context.other_meter));
                scope.concatenate([with_edges, without_edges.map(batch)])
            } else {
                chunks.map(batch)
            };
            let rows: Rc<dyn Fn(u64) -> FeatureView> = Rc::new(rows);
            stream
                .read_ahead(Rc::clone(&rows))
                .fetch_rows(FetchFrom {
                    graph: Arc::clone(&context.graph),
                    rows,
                    degrees,
                    cache: None,
                    meter: Rc::clone(&context.other_meter),
                })
                .run_jobs(LAYER, compute_thread, move |passes, on, batch| {
                    let stage = batch.key.epoch as usize % count;
                    passes.infer(on, stage, batch, &own[stage], &results[stage])
                })
                .flat_map(move |done| first_error.capture(done))
                .probe_with(&probe);
        });
        Ok(Self {
            input,
            probe,
            errors,
            stores,
            chunks: own_chunks(context, nodes),
            window: window(jobs),
            stages_done: 0,
        })
    }

    /// Computes all stages with the compute thread's parameters. Returns when all workers have finished the last stage.
    ///
    /// # Errors
    /// The first error of an operator or of the compute thread.
    pub(crate) fn pass(&mut self, driver: &mut Driver<'_>) -> Result<(), Error> {
        let progress = driver.runtime.progress();
        let nodes = self.chunks.iter().map(|(_, nodes)| nodes.len() as u64).sum::<u64>();
        progress.brief_stage("compute all nodes", nodes * self.stores.len() as u64, "rows");
        for _stage in 0..self.stores.len() {
            let epoch = self.stages_done;
            for (step, (partition, nodes)) in (0..).zip(&self.chunks) {
                let key = BatchKey { epoch, step, partition: *partition };
                self.input.send((key, nodes.clone()));
                self.input.advance_to(time::at(epoch, step + 1));
                self.input.flush();
                let oldest = time::at(epoch, (step + 1).saturating_sub(self.window));
                driver.run_until(&self.probe, oldest, &self.errors)?;
                progress.advance(nodes.len() as u64);
            }
            self.stages_done += 1;
            let next = time::at(epoch + 1, 0);
            self.input.advance_to(next);
            self.input.flush();
            driver.run_until(&self.probe, next, &self.errors)?;
        }
        progress.done();
        Ok(())
    }

    /// Returns the model's results of the last pass.
    pub(crate) fn results(&self) -> &Arc<RowStore> {
        &self.stores[self.stores.len() - 1]
    }

    /// Returns the inputs of the last stage in the last pass; the results if there is one stage.
    pub(crate) fn embeddings(&self) -> &Arc<RowStore> {
        &self.stores[self.stores.len().saturating_sub(2)]
    }

    /// Returns the store of the results and, with `embeddings`, that of the inputs of the last stage, for an evaluation without [`Inference::pass`].
    pub(crate) fn sink(&self, embeddings: bool) -> ResultSink {
        let (results, inputs) = (Arc::clone(self.results()), self.embeddings());
        let embeddings = (embeddings && !Arc::ptr_eq(&results, inputs)).then(|| Arc::clone(inputs));
        ResultSink { results, embeddings }
    }
}

/// Reserves the stores of all stages.
fn reserve_stores(context: &WorkerContext, stages: &[Stage]) -> Result<Vec<Arc<RowStore>>, Error> {
    let place = Place::Folder(context.scratch.clone());
    let mut stores: Vec<Arc<RowStore>> = Vec::new();
    for (stage, earlier) in reused_stores(stages).into_iter().enumerate() {
        stores.push(match earlier {
            Some(earlier) => Arc::clone(&stores[earlier]),
            None => Arc::new(
                RowStore::create(&place, &context.graph, context.worker, stages[stage].width)
                    .map_err(Error::io("reserve scratch space in", &context.scratch))?,
            ),
        });
    }
    Ok(stores)
}

/// Returns, for each stage, the earlier stage whose store it may overwrite: of equal width, and no longer read. The last two stages keep their
/// stores.
fn reused_stores(stages: &[Stage]) -> Vec<Option<usize>> {
    let last = stages.len() - 1;
    let read_until = |earlier: usize| {
        let readers = (earlier + 1..stages.len()).filter(|&s| s == earlier + 1 || stages[s].own.contains(&earlier));
        readers.max().unwrap_or(last)
    };
    let mut reused: Vec<Option<usize>> = Vec::with_capacity(stages.len());
    for stage in 0..stages.len() {
        let free = (0..stage).find(|&earlier| {
            let same = stages[earlier].width == stages[stage].width && !reused.contains(&Some(earlier));
            same && stage < last && read_until(earlier) < stage
        });
        reused.push(free);
    }
    reused
}

/// Cuts the partitions hosted here into chunks of at most `most` nodes.
fn own_chunks(context: &WorkerContext, most: usize) -> Vec<(u32, Range<u32>)> {
    let cut = |part: usize| {
        let cut = chunks(context.parts.get(part).topology.indptr(), context.graph.range(part).start, most);
        cut.into_iter().map(move |chunk| (part as u32, chunk))
    };
    context.placement.parts_of(context.worker).flat_map(cut).collect()
}

/// Cuts a partition's nodes, from global id `first`, into chunks of at most `most` nodes and about [`CHUNK_EDGES`] edges.
///
/// The cuts depend on the partition only, so a chunk has the same shape for any number of workers.
fn chunks(indptr: &[i64], first: u32, most: usize) -> Vec<Range<u32>> {
    let nodes = indptr.len() - 1;
    let (mut chunks, mut start) = (Vec::new(), 0);
    while start < nodes {
        let limit = indptr[start] + CHUNK_EDGES as i64;
        let by_edges = indptr.partition_point(|&edges| edges <= limit) - 1;
        let end = by_edges.clamp(start + 1, (start + most).min(nodes));
        chunks.push(first + start as u32..first + end as u32);
        start = end;
    }
    chunks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reused_stores_are_no_longer_read() {
        let stage = |width: usize, own: &[usize]| Stage { width, edges: true, own: own.to_vec() };
        assert_eq!(reused_stores(&[stage(7, &[])]), [None]);
        let plain = [stage(16, &[]), stage(16, &[]), stage(16, &[]), stage(16, &[]), stage(16, &[])];
        assert_eq!(reused_stores(&plain), [None, None, Some(0), Some(1), None]);
        let other = [stage(8, &[]), stage(16, &[]), stage(16, &[]), stage(7, &[])];
        assert_eq!(reused_stores(&other), [None; 4]);
        // APPNP: every propagation reads the prediction. Jumping knowledge: the readout reads every layer.
        let appnp = [stage(7, &[]), stage(7, &[0]), stage(7, &[0]), stage(7, &[0]), stage(7, &[0])];
        assert_eq!(reused_stores(&appnp), [None, None, None, Some(1), None]);
        let jumping = [stage(7, &[]), stage(7, &[]), stage(7, &[]), stage(7, &[0, 1])];
        assert_eq!(reused_stores(&jumping), [None; 4]);
    }

    #[test]
    fn chunks_cover_a_partition_within_their_bounds() {
        let degrees = [3, 0, CHUNK_EDGES as i64 * 2, 5, 0, CHUNK_EDGES as i64, 1, 0, 0];
        let indptr: Vec<i64> = std::iter::once(0)
            .chain(degrees.iter().scan(0, |sum, degree| {
                *sum += degree;
                Some(*sum)
            }))
            .collect();
        let cut = chunks(&indptr, 10, 3);
        assert_eq!(cut, [10..12, 12..13, 13..15, 15..16, 16..19]);
        assert_eq!(chunks(&[0], 7, 3), []);
        assert_eq!(chunks(&[0, 0, 0], 0, 1), [0..1, 1..2]);
    }
}
