//! Fetches the model's results of given nodes, from all workers, to the compute thread.
//!
//! ```text
//! nodes, and optionally pairs of them → fetch_rows → consume (compute thread) → probe
//! ```

use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gnnflow_dataflow::batch::mini_batch::{BatchKey, MiniBatch};
use gnnflow_dataflow::fetch::fetch_rows::{FeatureView, FetchFrom, FetchRows};
use gnnflow_dataflow::flow::compute_thread::{ComputeThread, OnThread};
use gnnflow_dataflow::time;
use gnnflow_kernels::matrix::{Number, Values};
use gnnflow_kernels::pairs::{Edge, Pairs};
use timely::container::CapacityContainerBuilder;
use timely::dataflow::InputHandle;
use timely::dataflow::operators::vec::Map;
use timely::dataflow::operators::{Input, Probe, probe};
use timely::worker::Worker;

use crate::collectives::{Driver, FirstError};
use crate::compute::ComputeState;
use crate::context::WorkerContext;
use crate::error::Error;
use gnnflow_dataflow::storage::RowStore;

/// Nodes, and pairs of their positions.
type Request = (BatchKey, Vec<u32>, Option<Arc<Pairs>>);

/// Fetched results.
pub(crate) struct FetchedRows<'a> {
    pub(crate) nodes: &'a [u32],
    /// `[nodes, width]`.
    pub(crate) rows: &'a [f32],
    /// Pairs of positions among the nodes, if requested.
    pub(crate) pairs: Option<&'a Arc<Pairs>>,
}

/// The dataflow of one worker. The compute thread updates the state `S` with fetched rows.
pub(crate) struct ResultFetcher<S> {
    input: InputHandle<u64, CapacityContainerBuilder<Vec<Request>>>,
    probe: probe::Handle<u64>,
    errors: FirstError,
    state: Arc<Mutex<S>>,
    passes: u32,
    step: u32,
    partition: u32,
}

impl<S: Default + Send + 'static> ResultFetcher<S> {
    /// Builds the dataflow over the model's `results`. The compute thread calls `consume` with fetched rows.
    pub(crate) fn build(
        worker: &mut Worker,
        context: &WorkerContext,
        results: &Arc<RowStore>,
        compute_thread: &ComputeThread<ComputeState>,
        name: &str,
        consume: impl Fn(&mut S, &ComputeState, &FetchedRows<'_>) -> Result<(), Error> + Send + Sync + 'static,
    ) -> Self {
        let (mut input, probe, errors) = (InputHandle::new_with_builder(), probe::Handle::new(), FirstError::default());
        let state: Arc<Mutex<S>> = Arc::default();
        let (first_error, shared, consume) = (errors.clone(), Arc::clone(&state), Arc::new(consume));
        let source = Arc::clone(results) as _;
        let rows = FeatureView { source, number: Number::F32, dim: results.width(), packed: None, halo: None };
        worker.dataflow::<u64, _, _>(|scope| {
            scope
                .input_from(&mut input)
                .map(|(key, nodes, pairs): Request| {
                    let mut batch = MiniBatch::new(key, nodes);
                    batch.pairs = pairs;
                    batch
                })
                .fetch_rows(FetchFrom {
                    graph: Arc::clone(&context.graph),
                    rows: Rc::new(move |_| rows.clone()),
                    degrees: false,
                    cache: None,
                    meter: Rc::clone(&context.other_meter),
                })
                .on_thread(name, compute_thread.clone(), move |compute: &mut ComputeState, batch: MiniBatch| {
                    let Values::F32(rows) = &batch.features.values else {
                        return Err(Error::Bug("the model's results are 32-bit floats".into()));
                    };
                    let mut state = shared.lock().unwrap_or_else(PoisonError::into_inner);
                    consume(
                        &mut state,
                        compute,
                        &FetchedRows { nodes: &batch.nodes, rows, pairs: batch.pairs.as_ref() },
                    )
                })
                .flat_map(move |done| first_error.capture(done))
                .probe_with(&probe);
        });
        let partition = context.placement.parts_of(context.worker).start as u32;
        Self { input, probe, errors, state, passes: 0, step: 0, partition }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, S> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Requests the rows of distinct `nodes`.
    pub(crate) fn request(&mut self, nodes: Vec<u32>, pairs: Option<Pairs>) {
        let key = BatchKey { epoch: self.passes, step: self.step, partition: self.partition };
        self.input.send((key, nodes, pairs.map(Arc::new)));
        self.step += 1;
        self.input.advance_to(time::at(self.passes, self.step));
        self.input.flush();
    }

    /// Requests the rows of the ends of `edges`, which become the pairs.
    pub(crate) fn request_ends(&mut self, edges: &[Edge]) {
        let nodes = distinct(edges.iter().flat_map(|edge| [edge.head, edge.tail]));
        let position = |node: u32| nodes.partition_point(|&other| other < node) as u32;
        let pairs = Pairs {
            heads: edges.iter().map(|edge| position(edge.head)).collect(),
            tails: edges.iter().map(|edge| position(edge.tail)).collect(),
            relations: edges.iter().map(|edge| edge.relation).collect(),
            positives: edges.len(),
            ..Pairs::default()
        };
        self.request(nodes, Some(pairs));
    }

    /// Waits until at most `window` requests are in flight.
    ///
    /// # Errors
    /// The first error of an operator or of the compute thread.
    pub(crate) fn wait(&self, driver: &mut Driver<'_>, window: u32) -> Result<(), Error> {
        let oldest = time::at(self.passes, self.step.saturating_sub(window));
        driver.run_until(&self.probe, oldest, &self.errors)
    }

    /// Ends a pass: waits until the requests of all workers are complete.
    ///
    /// # Errors
    /// See [`ResultFetcher::wait`].
    pub(crate) fn end(&mut self, driver: &mut Driver<'_>) -> Result<(), Error> {
        self.passes += 1;
        self.step = 0;
        let next = time::at(self.passes, 0);
        self.input.advance_to(next);
        self.input.flush();
        driver.run_until(&self.probe, next, &self.errors)
    }
}

/// Returns the distinct nodes, ascending.
pub(crate) fn distinct(nodes: impl Iterator<Item = u32>) -> Vec<u32> {
    let mut nodes: Vec<u32> = nodes.collect();
    nodes.sort_unstable();
    nodes.dedup();
    nodes
}
