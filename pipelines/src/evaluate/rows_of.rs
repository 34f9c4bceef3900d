//! The model's results of named nodes, brought to the compute thread, wherever they are.
//!
//! ```text
//! nodes, and perhaps pairs of them → fetch_rows → what is made of them (compute thread) → probe
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

/// Nodes whose rows are wanted, and pairs of their places.
type Wanted = (BatchKey, Vec<u32>, Option<Arc<Pairs>>);

/// What has been brought.
pub(crate) struct Brought<'a> {
    pub(crate) nodes: &'a [u32],
    /// A row for each node.
    pub(crate) rows: &'a [f32],
    /// Pairs of places among the nodes, where there are any.
    pub(crate) pairs: Option<&'a Arc<Pairs>>,
}

/// The dataflow of one worker, and what is made of rows: an `S`, which the compute thread changes.
pub(crate) struct RowsOf<S> {
    input: InputHandle<u64, CapacityContainerBuilder<Vec<Wanted>>>,
    probe: probe::Handle<u64>,
    errors: FirstError,
    state: Arc<Mutex<S>>,
    passes: u32,
    step: u32,
    partition: u32,
}

impl<S: Default + Send + 'static> RowsOf<S> {
    /// Builds the dataflow over the model's `results`; `take` is called on the compute thread.
    pub(crate) fn build(
        worker: &mut Worker,
        context: &WorkerContext,
        results: &Arc<RowStore>,
        compute_thread: &ComputeThread<ComputeState>,
        name: &str,
        take: impl Fn(&mut S, &ComputeState, &Brought<'_>) -> Result<(), Error> + Send + Sync + 'static,
    ) -> Self {
        let (mut input, probe, errors) = (InputHandle::new_with_builder(), probe::Handle::new(), FirstError::default());
        let state: Arc<Mutex<S>> = Arc::default();
        let (kept, changed, take) = (errors.clone(), Arc::clone(&state), Arc::new(take));
        let source = Arc::clone(results) as _;
        let rows = FeatureView { source, number: Number::F32, dim: results.width(), packed: None, halo: None };
        worker.dataflow::<u64, _, _>(|scope| {
            scope
                .input_from(&mut input)
                .map(|(key, nodes, pairs): Wanted| {
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
                .on_thread(name, compute_thread.clone(), move |trainer: &mut ComputeState, batch: MiniBatch| {
                    let Values::F32(rows) = &batch.features.values else {
                        return Err(Error::Bug("the model's results are 32-bit floats".into()));
                    };
                    let mut state = changed.lock().unwrap_or_else(PoisonError::into_inner);
                    take(&mut state, trainer, &Brought { nodes: &batch.nodes, rows, pairs: batch.pairs.as_ref() })
                })
                .flat_map(move |done| kept.capture(done))
                .probe_with(&probe);
        });
        let partition = context.placement.parts_of(context.worker).start as u32;
        Self { input, probe, errors, state, passes: 0, step: 0, partition }
    }

    /// What has been made of the rows so far.
    pub(crate) fn state(&self) -> MutexGuard<'_, S> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for the rows of `nodes`, distinct.
    pub(crate) fn send(&mut self, nodes: Vec<u32>, pairs: Option<Pairs>) {
        let key = BatchKey { epoch: self.passes, step: self.step, partition: self.partition };
        self.input.send((key, nodes, pairs.map(Arc::new)));
        self.step += 1;
        self.input.advance_to(time::at(self.passes, self.step));
        self.input.flush();
    }

    /// Asks for the rows of the ends of `edges`, which are the pairs.
    pub(crate) fn send_ends(&mut self, edges: &[Edge]) {
        let nodes = distinct(edges.iter().flat_map(|edge| [edge.head, edge.tail]));
        let place = |node: u32| nodes.partition_point(|&other| other < node) as u32;
        let pairs = Pairs {
            heads: edges.iter().map(|edge| place(edge.head)).collect(),
            tails: edges.iter().map(|edge| place(edge.tail)).collect(),
            relations: edges.iter().map(|edge| edge.relation).collect(),
            positives: edges.len(),
            ..Pairs::default()
        };
        self.send(nodes, Some(pairs));
    }

    /// Waits until no more than `window` of what was sent are under way.
    ///
    /// # Errors
    /// What an operator, or the compute thread, fails with.
    pub(crate) fn wait(&self, driver: &mut Driver<'_>, window: u32) -> Result<(), Error> {
        let oldest = time::at(self.passes, self.step.saturating_sub(window));
        driver.run_until(&self.probe, oldest, &self.errors)
    }

    /// Ends a pass: waits until nobody asks for rows any more that are here.
    ///
    /// # Errors
    /// As [`RowsOf::wait`].
    pub(crate) fn end(&mut self, driver: &mut Driver<'_>) -> Result<(), Error> {
        self.passes += 1;
        self.step = 0;
        let next = time::at(self.passes, 0);
        self.input.advance_to(next);
        self.input.flush();
        driver.run_until(&self.probe, next, &self.errors)
    }
}

/// Ascending, each once.
pub(crate) fn distinct(nodes: impl Iterator<Item = u32>) -> Vec<u32> {
    let mut nodes: Vec<u32> = nodes.collect();
    nodes.sort_unstable();
    nodes.dedup();
    nodes
}
