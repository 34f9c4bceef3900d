//! Inference: all neighbors of all nodes, stage by stage of the model, partition by partition. On request, it reads
//! samples of neighbors instead. A node has one sample in each stage, so a stage computes each row once.
//!
//! ```text
//! chunks of nodes → sample_hop (all neighbors, or samples) → fetch_remote_rows (the layer below) → local rows, layer (compute thread) → probe
//!                 ╰─ if all rows of the layer below are here: ───────────────────────→ reduction, layer ────────────────╯
//! ```
//!
//! A stage is a layer, or work on single nodes, which skips the sampling: before the first or after the last layer, or the rows that a layer
//! sends. It starts when the frontier of all workers has passed the stage before. A stage computes every node once; sampling would compute a
//! node again for each batch that reaches it. A stage that begins with a sum or mean of rows, all of which are in this process, reads them
//! where they lie: nothing is sampled, fetched or copied. A stage may also read features and rows of earlier stages of its own nodes; these are local.

use std::io;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use gnnflow_dataflow::batch::mini_batch::{BatchKey, MiniBatch};
use gnnflow_dataflow::fetch::fetch_edge_rows::FetchEdgeRows;
use gnnflow_dataflow::fetch::fetch_rows::{FeatureView, FetchFrom, FetchRows};
use gnnflow_dataflow::fetch::read_ahead::ReadAhead;
use gnnflow_dataflow::flow::compute_thread::ComputeThread;
use gnnflow_dataflow::graph::live_graph::LiveGraph;
use gnnflow_dataflow::graph::local_graph::LocalGraph;
use gnnflow_dataflow::sample::own_samples::OwnSamples;
use gnnflow_dataflow::sample::sample_hop::{CompactorPool, Hop, SampleHop, Strategy};
use gnnflow_dataflow::time;
use gnnflow_kernels::matrix::Number;
use gnnflow_kernels::sample::Fanout;
use gnnflow_nn::model::{Stage, StageRows};
use timely::container::CapacityContainerBuilder;
use timely::dataflow::InputHandle;
use timely::dataflow::StreamVec;
use timely::dataflow::operators::core::OkErr;
use timely::dataflow::operators::vec::Map;
use timely::dataflow::operators::{Concatenate, Input, Probe, probe};
use timely::worker::Worker;

use crate::collectives::{Driver, FirstError};
use crate::compute::{ComputeState, RunJobs, lie_in_place};
use crate::context::WorkerContext;
use crate::error::Error;
use gnnflow_dataflow::storage::{Place, RowStore};

/// The jobs' name.
pub(crate) const LAYER: &str = "layer";
/// Maximum number of edges of a chunk, unless one node has more. It bounds the rows that are fetched for a chunk.
pub(crate) const CHUNK_EDGES: usize = 1 << 14;
/// Maximum number of chunks in flight.
const WINDOW: u32 = 3;

/// Returns the maximum number of chunks in flight, with `jobs` in computation.
pub(crate) fn window(jobs: usize) -> u32 {
    WINDOW.max(jobs as u32 + 1)
}

/// The nodes of a chunk, all of one partition, by global ids.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Nodes {
    All(Range<u32>),
    Some(Vec<u32>),
}

impl Nodes {
    fn len(&self) -> usize {
        match self {
            Self::All(nodes) => nodes.len(),
            Self::Some(nodes) => nodes.len(),
        }
    }

    fn into_list(self) -> Vec<u32> {
        match self {
            Self::All(nodes) => nodes.collect(),
            Self::Some(nodes) => nodes,
        }
    }
}

/// The edges that stages read.
#[derive(Clone)]
pub(crate) enum EdgesOf {
    /// None: the model reads no edges.
    NoGraph,
    /// Those of the dataset.
    Dataset,
    /// Samples of those of the dataset, by stage; `None` for a stage that reads no edges.
    Sampled(Rc<[Option<OwnSamples>]>),
    /// Those of a graph that changes.
    Live(Rc<LiveGraph>),
}

/// A chunk of a partition's nodes.
type Chunk = (BatchKey, Nodes);

/// The inference dataflow of one worker.
pub(crate) struct Inference {
    input: InputHandle<u64, CapacityContainerBuilder<Vec<Chunk>>>,
    probe: probe::Handle<u64>,
    errors: FirstError,
    /// Results by stage.
    stores: Vec<Arc<RowStore>>,
    /// The stage whose results are the embeddings.
    embedding_stage: usize,
    graph: Arc<LocalGraph>,
    edges: EdgesOf,
    /// Maximum number of nodes of a chunk.
    most: usize,
    /// Stages computed in all passes so far. Timestamps use it as epoch.
    stages_done: u32,
    /// Maximum number of chunks in flight.
    window: u32,
}

impl Inference {
    /// Builds the dataflow of the model's `stages`, which writes their rows to `stores`. The embeddings are those of `embedding_stage`. A chunk has
    /// at most `nodes` nodes; up to `jobs` chunks are computed at the same time.
    pub(crate) fn build(
        worker: &mut Worker,
        context: &WorkerContext,
        (stages, stores, embedding_stage): (&[Stage], Vec<Arc<RowStore>>, usize),
        edges: EdgesOf,
        degrees: bool,
        (nodes, jobs): (usize, usize),
        compute_thread: &ComputeThread<ComputeState>,
    ) -> Self {
        let count = stages.len();
        let (mut input, probe, errors) = (InputHandle::new_with_builder(), probe::Handle::new(), FirstError::default());
        let stage_of = move |time: u64| time::epoch(time) as usize % count;
        let results = stores.iter().map(|store| {
            let (source, dim) = (Arc::clone(store) as _, store.width());
            FeatureView { source, number: Number::F32, dim, packed: None, halo: None }
        });
        let (features, results) = (context.features.clone(), results.collect::<Vec<_>>());
        let view = move |rows: StageRows| match rows {
            StageRows::Features => features.clone(),
            StageRows::Of(stage) => results[stage].clone(),
        };
        let own: Vec<Vec<FeatureView>> =
            stages.iter().map(|stage| stage.own.iter().map(|&own| view(own)).collect()).collect();
        let rows = move |time| view(stage_of(time).checked_sub(1).map_or(StageRows::Features, StageRows::Of));
        let without_edges: Vec<bool> = stages.iter().map(|stage| !stage.edges).collect();
        let reads_edges_only = matches!(edges, EdgesOf::Dataset) && context.columns.is_empty();
        let reductions: Vec<_> =
            stages.iter().map(|stage| stage.reduction.filter(|_| reads_edges_only && stage.edges)).collect();
        let (first_error, results, edges_read) = (errors.clone(), stores.clone(), edges.clone());
        worker.dataflow::<u64, _, _>(|scope| {
            let chunks = scope.input_from(&mut input);
            let batch = |(key, nodes): Chunk| MiniBatch::new(key, nodes.into_list());
            let without = move |chunk: &Chunk| without_edges[chunk.0.epoch as usize % count];
            let (with_edges, without_edges): (StreamVec<'_, u64, Chunk>, StreamVec<'_, u64, Chunk>) =
                chunks.ok_err(move |chunk: Chunk| if without(&chunk) { Err(chunk) } else { Ok(chunk) });
            let (rows_of, reduces) = (rows.clone(), reductions.clone());
            let in_place = move |(key, nodes): &Chunk| {
                let has_reduction = reduces[key.epoch as usize % count].is_some() && matches!(nodes, Nodes::All(_));
                has_reduction && lie_in_place(&rows_of(time::at(key.epoch, key.step)))
            };
            let (with_edges, in_place): (StreamVec<'_, u64, Chunk>, StreamVec<'_, u64, Chunk>) =
                with_edges.ok_err(move |chunk: Chunk| if in_place(&chunk) { Err(chunk) } else { Ok(chunk) });
            let with_edges = match edges_read {
                EdgesOf::NoGraph => with_edges.map(batch),
                EdgesOf::Dataset => {
                    let sampled = with_edges.map(batch).sample_hop(Hop {
                        graph: Arc::clone(&context.graph),
                        seed: 0, // nothing is drawn
                        hop: 0,
                        strategy: Strategy::Fanout(Fanout::All),
                        columns: context.columns,
                        last: true,
                        pool: CompactorPool::default(),
                        meter: Rc::clone(&context.other_meter),
                    });
                    sampled.fetch_edge_rows(context.fetch_edges(&context.graph, &context.other_meter))
                }
                EdgesOf::Sampled(samples) => {
                    let sampled = with_edges.map(batch).map(move |mut batch| {
                        if let Some(samples) = &samples[batch.key.epoch as usize % count] {
                            samples.add_block(&mut batch);
                        }
                        batch
                    });
                    sampled.fetch_edge_rows(context.fetch_edges(&context.graph, &context.other_meter))
                }
                EdgesOf::Live(graph) => {
                    let columns = context.columns;
                    with_edges.map(batch).map(move |mut batch| {
                        graph.add_block(&mut batch, columns);
                        batch
                    })
                }
            };
            let stream = scope.concatenate([with_edges, without_edges.map(batch)]);
            let (worker, inputs) = (context.worker, rows.clone());
            let rows: Rc<dyn Fn(u64) -> FeatureView> = Rc::new(rows);
            let from = FetchFrom {
                graph: Arc::clone(&context.graph),
                rows: Rc::clone(&rows),
                degrees,
                cache: None,
                meter: Rc::clone(&context.other_meter),
            };
            // Random reads take most of the time. So each of several jobs reads the local rows of its chunk. A single job would wait for its
            // reads, so the worker reads them while it computes the chunk before.
            let jobs_read = jobs > 1;
            let stream = stream.read_ahead(rows);
            let fetched = if jobs_read { stream.fetch_remote_rows(from) } else { stream.fetch_rows(from) };
            let graph = Arc::clone(&context.graph);
            scope
                .concatenate([fetched, in_place.map(batch)])
                .run_jobs(LAYER, compute_thread, move |passes, on, mut batch| {
                    let stage = batch.key.epoch as usize % count;
                    let rows = inputs(time::at(batch.key.epoch, batch.key.step));
                    // Nothing was sampled if rows are reduced in place.
                    if let Some(reduction) = reductions[stage].filter(|_| batch.blocks.is_empty()) {
                        let of = (&*graph, &batch.nodes[..]);
                        return passes.infer_in_place(
                            on,
                            (stage, reduction),
                            of,
                            (&rows, &own[stage]),
                            &results[stage],
                        );
                    }
                    if jobs_read {
                        rows.complete(&mut batch, worker);
                    }
                    passes.infer(on, stage, batch, &own[stage], &results[stage])
                })
                .flat_map(move |done| first_error.capture(done))
                .probe_with(&probe);
        });
        Self {
            input,
            probe,
            errors,
            stores,
            embedding_stage,
            graph: Arc::clone(&context.graph),
            edges,
            most: nodes,
            window: window(jobs),
            stages_done: 0,
        }
    }

    /// Computes all stages of all nodes with the compute thread's parameters. Returns when all workers have finished the last stage.
    ///
    /// # Errors
    /// The first error of an operator or of the compute thread.
    pub(crate) fn pass(&mut self, driver: &mut Driver<'_>) -> Result<(), Error> {
        let chunks = all_chunks(&self.graph, self.most);
        let nodes = chunks.iter().map(|(_, nodes)| nodes.len() as u64).sum::<u64>();
        let stages = self.stores.len();
        driver.runtime.progress().brief_stage("compute all nodes", nodes * stages as u64, "rows");
        (0..stages).try_for_each(|_| self.stage(driver, chunks.iter().cloned()))?;
        driver.runtime.progress().done();
        Ok(())
    }

    /// Computes `nodes` by stage, which are own nodes, ascending. The rows of all other nodes stay as they are. Returns when all workers have
    /// finished the last stage.
    ///
    /// # Errors
    /// The first error of an operator or of the compute thread.
    pub(crate) fn pass_over(&mut self, driver: &mut Driver<'_>, nodes: &[Vec<u32>]) -> Result<(), Error> {
        let rows = nodes.iter().map(|nodes| nodes.len() as u64).sum();
        driver.runtime.progress().brief_stage("compute nodes", rows, "rows");
        let (graph, edges, most) = (Arc::clone(&self.graph), self.edges.clone(), self.most);
        let count = |node: u32| match &edges {
            EdgesOf::Live(graph) => graph.num_in_edges(node),
            EdgesOf::Dataset | EdgesOf::Sampled(_) => num_in_edges(&graph, node),
            EdgesOf::NoGraph => 0,
        };
        nodes.iter().try_for_each(|nodes| self.stage(driver, chunks_of(&graph, nodes, most, count)))?;
        driver.runtime.progress().done();
        Ok(())
    }

    /// Computes the next stage of `chunks`.
    fn stage(&mut self, driver: &mut Driver<'_>, chunks: impl Iterator<Item = (u32, Nodes)>) -> Result<(), Error> {
        let epoch = self.stages_done;
        for (step, (partition, nodes)) in (0..).zip(chunks) {
            let (key, count) = (BatchKey { epoch, step, partition }, nodes.len() as u64);
            self.input.send((key, nodes));
            self.input.advance_to(time::at(epoch, step + 1));
            self.input.flush();
            let oldest = time::at(epoch, (step + 1).saturating_sub(self.window));
            driver.run_until(&self.probe, oldest, &self.errors)?;
            driver.runtime.progress().advance(count);
        }
        self.stages_done += 1;
        let next = time::at(epoch + 1, 0);
        self.input.advance_to(next);
        self.input.flush();
        driver.run_until(&self.probe, next, &self.errors)
    }

    /// Returns the samples of edges by stage, if results are computed from samples.
    pub(crate) fn samples(&self) -> Option<Rc<[Option<OwnSamples>]>> {
        match &self.edges {
            EdgesOf::Sampled(samples) => Some(Rc::clone(samples)),
            EdgesOf::NoGraph | EdgesOf::Dataset | EdgesOf::Live(_) => None,
        }
    }

    /// Returns the rows of each stage. Several stages may use one store, which has the rows of the last one then.
    pub(crate) fn stores(&self) -> &[Arc<RowStore>] {
        &self.stores
    }

    /// Returns the model's results of the last pass.
    pub(crate) fn results(&self) -> &Arc<RowStore> {
        &self.stores[self.stores.len() - 1]
    }

    /// Returns the embeddings of the last pass ([`Model::embedding_stage`](gnnflow_nn::Model::embedding_stage)).
    pub(crate) fn embeddings(&self) -> &Arc<RowStore> {
        &self.stores[self.embedding_stage]
    }
}

/// Reserves the stores of all stages at `place`.
///
/// # Errors
/// When there is no space for the rows.
pub(crate) fn reserve_stores(
    context: &WorkerContext,
    stages: &[Stage],
    place: &Place,
) -> io::Result<Vec<Arc<RowStore>>> {
    let mut stores: Vec<Arc<RowStore>> = Vec::new();
    for (stage, earlier) in reused_stores(stages).into_iter().enumerate() {
        stores.push(match earlier {
            Some(earlier) => Arc::clone(&stores[earlier]),
            None => Arc::new(RowStore::create(place, &context.graph, context.worker, stages[stage].width)?),
        });
    }
    Ok(stores)
}

/// Returns how many numbers the stores have for each node.
pub(crate) fn scratch_width(stages: &[Stage]) -> usize {
    let stores = stages.iter().zip(reused_stores(stages)).filter(|(_, reused)| reused.is_none());
    stores.map(|(stage, _)| stage.width).sum()
}

/// Returns, for each stage, the earlier stage whose store it may overwrite: of equal width, and no longer read. The last stage overwrites none, so
/// that all rows which it reads remain.
fn reused_stores(stages: &[Stage]) -> Vec<Option<usize>> {
    let last = stages.len().saturating_sub(1);
    let read_until = |earlier: usize| {
        let reads = |stage: usize| stage == earlier + 1 || stages[stage].own.contains(&StageRows::Of(earlier));
        let readers = (earlier + 1..stages.len()).filter(|&stage| reads(stage));
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
fn all_chunks(graph: &LocalGraph, most: usize) -> Vec<(u32, Nodes)> {
    let cut = |part: usize| {
        let cut = chunks(graph.in_edges(part).indptr(), graph.range(part).start, most);
        cut.into_iter().map(move |chunk| (part as u32, Nodes::All(chunk)))
    };
    graph.hosted().flat_map(cut).collect()
}

/// Returns the number of in-edges of a node hosted here.
fn num_in_edges(graph: &LocalGraph, node: u32) -> usize {
    let part = graph.partition_of(node);
    let (indptr, local) = (graph.in_edges(part).indptr(), (node - graph.range(part).start) as usize);
    (indptr[local + 1] - indptr[local]) as usize
}

/// Cuts nodes hosted here, ascending, into chunks of one partition, at most `most` nodes and about [`CHUNK_EDGES`] edges. `count_edges` returns the
/// number of a node's edges.
fn chunks_of(
    graph: &LocalGraph,
    nodes: &[u32],
    most: usize,
    count_edges: impl Fn(u32) -> usize,
) -> impl Iterator<Item = (u32, Nodes)> {
    let mut rest = nodes;
    std::iter::from_fn(move || {
        let part = graph.partition_of(*rest.first()?);
        let range = graph.range(part);
        let (mut count, mut edges) = (0, 0);
        for &node in rest.iter().take(most).take_while(|node| range.contains(node)) {
            edges += count_edges(node);
            if count > 0 && edges > CHUNK_EDGES {
                break;
            }
            count += 1;
        }
        let (chunk, after) = rest.split_at(count);
        rest = after;
        Some((part as u32, Nodes::Some(chunk.to_vec())))
    })
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
    use gnnflow_data::PartitionBook;
    use gnnflow_dataflow::graph::local_graph::{InEdges, OwnedInEdges};
    use gnnflow_dataflow::graph::placement::Placement;

    use super::*;

    #[test]
    fn reused_stores_are_no_longer_read() {
        let stage = |width: usize, own: &[usize]| {
            let own = own.iter().map(|&earlier| StageRows::Of(earlier)).collect();
            Stage { width, edges: true, own, reduction: None }
        };
        assert_eq!(reused_stores(&[]), []);
        assert_eq!(reused_stores(&[stage(7, &[])]), [None]);
        let plain = [stage(16, &[]), stage(16, &[]), stage(16, &[]), stage(16, &[]), stage(16, &[])];
        assert_eq!((reused_stores(&plain), scratch_width(&plain)), (vec![None, None, Some(0), Some(1), None], 48));
        let other = [stage(8, &[]), stage(16, &[]), stage(16, &[]), stage(7, &[])];
        assert_eq!(reused_stores(&other), [None; 4]);
        // APPNP: every propagation reads the prediction. Jumping knowledge: the readout reads every layer.
        let appnp = [stage(7, &[]), stage(7, &[0]), stage(7, &[0]), stage(7, &[0]), stage(7, &[0])];
        assert_eq!(reused_stores(&appnp), [None, None, None, Some(1), None]);
        let jumping = [stage(7, &[]), stage(7, &[]), stage(7, &[]), stage(7, &[0, 1])];
        assert_eq!(reused_stores(&jumping), [None; 4]);
    }

    #[test]
    fn chunks_of_nodes_are_of_one_partition_within_their_bounds() {
        let degrees = [3, 0, CHUNK_EDGES / 2 + 1, CHUNK_EDGES / 2 + 1, 0, CHUNK_EDGES * 2, 1, 0, 0, 2];
        let book = PartitionBook::new(vec![0, 2, 2, 10]).unwrap();
        let load = |part: usize| -> Result<Arc<dyn InEdges>, ()> {
            let of = |node: u32| vec![0; degrees[node as usize]];
            Ok(Arc::new(OwnedInEdges::from_fn(book.range(part), of)))
        };
        let graph = LocalGraph::load(&book, Placement::new(3, 1), 0, false, load).unwrap();
        let cut = |nodes: &[u32], most: usize| {
            chunks_of(&graph, nodes, most, |node| num_in_edges(&graph, node)).collect::<Vec<_>>()
        };
        let chunk = |part: u32, nodes: &[u32]| (part, Nodes::Some(nodes.to_vec()));
        assert_eq!(cut(&[], 3), []);
        let all: Vec<u32> = (0..10).collect();
        let expected = [&[0, 1][..], &[2], &[3, 4], &[5], &[6, 7, 8], &[9]];
        let expected: Vec<_> =
            expected.into_iter().map(|nodes| chunk(if nodes[0] < 2 { 0 } else { 2 }, nodes)).collect();
        assert_eq!(cut(&all, 3), expected);
        assert_eq!(cut(&[1, 4, 9], 1), [chunk(0, &[1]), chunk(2, &[4]), chunk(2, &[9])]);
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
