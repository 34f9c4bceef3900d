//! The state that the operators of one worker share, and operators that take it as one parameter.
//!
//! ```
//! use gnnflow_dataflow::prelude::*;
//!
//! execute_threads(2, |worker| {
//!     // A ring of 100 nodes in two partitions.
//!     let book = PartitionBook::even(100, 2);
//!     let cx = OperatorContext::load(worker, &book, 7, |part| {
//!         OwnedInEdges::from_fn(book.range(part), |node| [(node + 1) % 100])
//!     });
//!     let seeds = NodeBatches::all_nodes(&cx, 10);
//!     worker.dataflow::<u64, _, _>(|scope| {
//!         cx.partitions()
//!             .to_stream(scope)
//!             .seeds(seeds)
//!             .sample_hops(&cx, &[Strategy::uniform(5), Strategy::uniform(5)])
//!             .inspect(|batch| assert_eq!((batch.num_seeds, batch.blocks[0].num_edges()), (10, 10)));
//!     });
//!     worker.step_until_done();
//! })
//! .unwrap();
//! ```

use std::convert::Infallible;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use gnnflow_data::{Error, PartitionBook, Result};
use gnnflow_kernels::sample::{Columns, Strategy};
use timely::dataflow::StreamVec;
use timely::worker::Worker;

use crate::batch::feature_view::FeatureView;
use crate::batch::mini_batch::MiniBatch;
use crate::collective::all_reduce::{self, Contribution, Reduced};
use crate::embed::push_rows::{self, Arrival, PushTo, PushedRows, RowGradients};
use crate::fetch::fetch_rows::{self, FetchFrom};
use crate::graph::local_graph::{InEdges, LocalGraph, OwnedInEdges};
use crate::graph::placement::Placement;
use crate::sample::sample_hop::{CompactorPool, Hop, SampleHop};
use crate::sample::seeds::NodeBatches;
use crate::wire::meter::Meter;

/// The state that the operators of one worker share. Cheap to clone.
#[derive(Clone)]
pub struct OperatorContext {
    /// This worker's part of the graph.
    pub graph: Arc<LocalGraph>,
    /// Counts messages and time.
    pub meter: Rc<Meter>,
    /// Memory and threads for sampling.
    pub pool: CompactorPool,
    /// The seed of all random draws.
    pub seed: u64,
}

impl OperatorContext {
    /// Loads the partitions of `book` that `worker` hosts. `edges` returns the in-edges of a partition.
    ///
    /// # Panics
    /// When there are more workers than partitions, or a partition has another number of nodes than in `book`.
    pub fn load(
        worker: &Worker,
        book: &PartitionBook,
        seed: u64,
        mut edges: impl FnMut(usize) -> OwnedInEdges,
    ) -> Self {
        let placement = Placement::new(book.parts(), worker.peers());
        let load = |part: usize| Ok::<_, Infallible>(Arc::new(edges(part)) as Arc<dyn InEdges>);
        let Ok(graph) = LocalGraph::load(book, placement, worker.index(), false, load);
        Self { graph: Arc::new(graph.with_degrees()), meter: Rc::default(), pool: CompactorPool::default(), seed }
    }

    /// Returns the partitions that this worker hosts.
    pub fn partitions(&self) -> Range<u32> {
        let hosted = self.graph.hosted();
        hosted.start as u32..hosted.end as u32
    }
}

impl NodeBatches {
    /// Creates batches of at most `batch` seeds. All nodes hosted here are training nodes.
    pub fn all_nodes(cx: &OperatorContext, batch: usize) -> Arc<Self> {
        let mut train = vec![Vec::new(); cx.graph.placement().parts()];
        cx.graph.hosted().for_each(|part| train[part] = cx.graph.range(part).collect());
        Arc::new(Self { batch, seed: cx.seed, train, times: Vec::new() })
    }
}

/// Samples and fetches batches.
pub trait BatchOperators<'scope> {
    /// Samples one hop for each of `strategies`, that of the seeds first.
    fn sample_hops(self, cx: &OperatorContext, strategies: &[Strategy]) -> Self;

    /// Fetches the row of each node of each batch from `rows`, the same at all times.
    fn fetch_rows(self, cx: &OperatorContext, rows: FeatureView) -> Self;
}

impl<'scope> BatchOperators<'scope> for StreamVec<'scope, u64, MiniBatch> {
    fn sample_hops(self, cx: &OperatorContext, strategies: &[Strategy]) -> Self {
        strategies.iter().zip(0u32..).fold(self, |stream, (strategy, hop)| {
            stream.sample_hop(Hop {
                graph: Arc::clone(&cx.graph),
                seed: cx.seed,
                hop,
                strategy: strategy.clone(),
                columns: Columns::default(),
                last: hop as usize + 1 == strategies.len(),
                pool: cx.pool.clone(),
                meter: Rc::clone(&cx.meter),
            })
        })
    }

    fn fetch_rows(self, cx: &OperatorContext, rows: FeatureView) -> Self {
        let from = FetchFrom {
            graph: Arc::clone(&cx.graph),
            rows: Rc::new(move |_| rows.clone()),
            degrees: false,
            cache: None,
            meter: Rc::clone(&cx.meter),
        };
        fetch_rows::FetchRows::fetch_rows(self, from)
    }
}

/// Sums contributions of partitions.
pub trait ContributionOperators<'scope> {
    /// Sums vectors of `length` numbers over all partitions, in partition order. Every worker gets the sum. Every partition
    /// contributes once per time.
    fn all_reduce(self, cx: &OperatorContext, length: usize) -> StreamVec<'scope, u64, Reduced>;
}

impl<'scope> ContributionOperators<'scope> for StreamVec<'scope, u64, Contribution> {
    fn all_reduce(self, cx: &OperatorContext, length: usize) -> StreamVec<'scope, u64, Reduced> {
        all_reduce::AllReduce::all_reduce(self, cx.graph.placement().parts(), length, Rc::clone(&cx.meter))
    }
}

/// Sends gradients of rows.
pub trait GradientOperators<'scope> {
    /// Sends the gradients of rows of `dim` numbers to the rows' owners, which get those of all batches of a time together.
    fn push_rows(self, cx: &OperatorContext, dim: usize) -> StreamVec<'scope, u64, PushedRows>;
}

impl<'scope> GradientOperators<'scope> for StreamVec<'scope, u64, RowGradients> {
    fn push_rows(self, cx: &OperatorContext, dim: usize) -> StreamVec<'scope, u64, PushedRows> {
        let (graph, meter) = (Arc::clone(&cx.graph), Rc::clone(&cx.meter));
        push_rows::PushRows::push_rows(self, PushTo { graph, dim, arrival: Arrival::Together, meter })
    }
}

/// Runs `work` on `workers` workers, each on a thread of this process, and waits for them.
///
/// # Errors
/// When timely cannot start, or a worker panics.
pub fn execute_threads(workers: usize, work: impl Fn(&mut Worker) + Send + Sync + 'static) -> Result<()> {
    let guards = timely::execute(timely::Config::process(workers), work).map_err(Error::Bug)?;
    guards.join().into_iter().try_for_each(|worker| worker.map_err(Error::Bug))
}

/// Runs a worker to the end of its dataflows.
pub trait StepUntilDone {
    /// Steps the worker until all of its dataflows are complete.
    fn step_until_done(&mut self);
}

impl StepUntilDone for Worker {
    fn step_until_done(&mut self) {
        while self.step_or_park(None) {}
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use gnnflow_kernels::matrix::{Matrix, Number, Values};
    use timely::dataflow::operators::core::Inspect;
    use timely::dataflow::operators::vec::{Map, ToStream};

    use super::*;
    use crate::sample::seeds::Seeds;
    use crate::testing::TellingRows;

    /// Node lists, rows, sums and pushed nodes of all workers.
    type Found = Arc<Mutex<[Vec<String>; 3]>>;

    fn run(workers: usize) -> [Vec<String>; 3] {
        let found = Found::default();
        let results = Arc::clone(&found);
        execute_threads(workers, move |worker| {
            let book = PartitionBook::even(90, 4);
            let cx = OperatorContext::load(worker, &book, 3, |part| {
                OwnedInEdges::from_fn(book.range(part), |node| (1..=6).map(move |i| (node * i + i) % 90))
            });
            let seeds = NodeBatches::all_nodes(&cx, 5);
            let source = Arc::new(TellingRows::new(90, 2));
            let rows = FeatureView { source, number: Number::F32, dim: 2, packed: None, halo: None };
            let [batches, sums, pushes] = [0, 1, 2].map(|i| {
                let results = Arc::clone(&results);
                move |text: String| results.lock().unwrap()[i].push(text)
            });
            worker.dataflow::<u64, _, _>(|scope| {
                let stream = cx.partitions().to_stream(scope).seeds(seeds);
                let stream =
                    stream.sample_hops(&cx, &[Strategy::uniform(2), Strategy::uniform(3)]).fetch_rows(&cx, rows);
                let parts = stream.map(move |batch| {
                    let Matrix { values: Values::F32(values), .. } = &batch.features else { panic!("rows are f32") };
                    batches(format!("{:?} {:?} {values:?}", batch.key, batch.nodes));
                    let part = Contribution::new(batch.key.partition, vec![values[0]], vec![batch.num_edges()]);
                    (
                        part,
                        RowGradients {
                            partition: batch.key.partition,
                            examples: 1,
                            nodes: batch.nodes,
                            rows: Arc::new(values.clone()),
                        },
                    )
                });
                let first = cx.graph.hosts(0);
                parts.clone().map(|(part, _)| part).all_reduce(&cx, 1).inspect(move |sum| {
                    if first {
                        sums(format!("{:?} {}", sum.sum, sum.total(0)));
                    }
                });
                parts.map(|(_, gradients)| gradients).push_rows(&cx, 2).inspect(move |pushed| {
                    pushed.pieces().flat_map(|(nodes, _)| nodes).for_each(|node| pushes(format!("{node:03}")));
                });
            });
            worker.step_until_done();
        })
        .unwrap();
        let mut found = found.lock().unwrap().clone();
        found.iter_mut().for_each(|texts| texts.sort());
        found
    }

    #[test]
    fn operators_have_the_same_results_at_1_2_and_4_workers() {
        let one = run(1);
        assert_eq!((one[0].len(), one[1].len()), (4, 1));
        assert!(one[2].len() >= 20);
        for workers in [2, 4] {
            assert_eq!(run(workers), one, "{workers} workers");
        }
    }

    #[test]
    fn a_panic_of_a_worker_is_an_error() {
        assert!(execute_threads(1, |_| panic!("expected")).is_err());
    }
}
