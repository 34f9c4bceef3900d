//! The state of the compute thread: model, optimizer, and the arithmetic on them.

mod batch;
mod nodes;
mod pairs;
mod step;
mod visit;

pub(crate) use batch::{Gradients, StepReport};
use nodes::Versions;
pub(crate) use pairs::PairGradients;
pub(crate) use visit::Visited;

use std::sync::Arc;
use std::time::{Duration, Instant};

use gnnflow_data::error::FEWER_THREADS;
use gnnflow_dataflow::batch::mini_batch::MiniBatch;
use gnnflow_kernels::matrix::{Matrix, Values};
use gnnflow_nn::Model;
use gnnflow_nn::optimizer::{Optimizer, State};

use self::batch::blocks;
use crate::config;
use crate::error::Error;
use crate::task::Objective;
use gnnflow_dataflow::storage::RowStore;
use gnnflow_nn::tensors::{read, tensor};

/// Time spent on the compute thread.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ComputeTime {
    pub(crate) forward: Duration,
    pub(crate) backward: Duration,
    pub(crate) step: Duration,
}

/// Model, optimizer, and what they work on.
pub(crate) struct ComputeState {
    pool: rayon::ThreadPool,
    model: Model,
    optimizer: Box<dyn Optimizer>,
    /// All parameters, one after another; the buffers, which the optimizer leaves alone, at the end.
    params: Vec<f32>,
    objective: Arc<dyn Objective>,
    uses_edges: bool,
    seed: u64,
    hash_blocks: bool,
    clip_norm: Option<f64>,
    /// Whether what a batch reads of its nodes is learned too.
    learns_rows: bool,
    spent: ComputeTime,
    fault: Option<Error>,
    /// Where partitions are trained in turn: what each of them begins with, while one is.
    common: Option<Replica>,
    /// Of averages, where they have momentum; as long as what is trained.
    velocity: Option<Vec<f32>>,
    average_momentum: f64,
    /// Where others ask for parameters by their version.
    versions: Option<Versions>,
}

/// Parameters, and the optimizer's state.
#[derive(Clone)]
struct Replica {
    params: Vec<f32>,
    optimizer: State,
}

impl ComputeState {
    pub(crate) fn new(
        model: Model,
        objective: Arc<dyn Objective>,
        config: (&config::Model, &config::Train),
        threads: usize,
    ) -> Result<Self, Error> {
        let (model_spec, train) = config;
        let pool = compute_pool(threads)?;
        let mut params = vec![0.0; model.params().flat_len()];
        model.params().copy_to(&mut params)?;
        let (trained, average_momentum) = (model.params().trained_len(), train.average_momentum());
        let optimizer = step::optimizer(&train.optimizer, trained);
        Ok(Self {
            pool,
            model,
            optimizer,
            params,
            objective,
            uses_edges: model_spec.uses_edges(),
            seed: train.seed,
            hash_blocks: train.hash_blocks,
            clip_norm: train.clip_norm,
            learns_rows: model_spec.embedding.is_some(),
            spent: ComputeTime::default(),
            fault: None,
            common: None,
            velocity: (average_momentum > 0.0).then(|| vec![0.0; trained]),
            average_momentum,
            versions: None,
        })
    }

    /// Times so far, or the first thing that failed.
    pub(crate) fn report(&mut self) -> Result<ComputeTime, Error> {
        self.fault.take().map_or(Ok(self.spent), Err)
    }

    /// Runs stage `stage` of the model on a batch without seeds' labels and writes its rows; `own` has those of earlier stages
    /// that it asks for.
    pub(crate) fn infer(
        &mut self,
        stage: usize,
        batch: MiniBatch,
        own: &[Arc<RowStore>],
        into: &RowStore,
    ) -> Result<(), Error> {
        let Self { pool, model, .. } = self;
        pool.install(|| {
            let nodes = &batch.nodes[..batch.num_seeds];
            let reads = !batch.blocks.is_empty();
            let block = blocks(batch.blocks, &batch.edges, nodes.len(), 1, reads).remove(0);
            let degrees = (!batch.degrees.is_empty()).then_some(&batch.degrees[..]);
            let x = tensor(batch.features, batch.nodes.len(), model)?;
            let rows = |store: &Arc<RowStore>| -> Result<_, Error> {
                let mut values = Vec::with_capacity(nodes.len() * store.width());
                let rows = store.read()?;
                nodes.iter().for_each(|&node| values.extend_from_slice(rows.row(node)));
                Ok(tensor(Matrix { dim: store.width(), values: Values::F32(values) }, nodes.len(), model)?)
            };
            let own = own.iter().map(rows).collect::<Result<Vec<_>, _>>()?;
            let rows = model.forward_stage(stage, &block, &x, degrees, &own)?;
            let mut into = into.write()?;
            Ok(read(&rows, |rows| into.set(nodes, rows))?)
        })
    }

    /// Goes on with another number of compute threads.
    pub(crate) fn set_threads(&mut self, threads: usize) -> Result<(), Error> {
        if threads != self.pool.current_num_threads() {
            self.pool = compute_pool(threads)?;
        }
        Ok(())
    }

    /// Runs `work` on the compute threads.
    pub(crate) fn on_threads<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        self.pool.install(work)
    }

    /// As [`ComputeState::on_threads`], as a part of going forwards.
    pub(crate) fn timed_forward(&mut self, work: impl FnOnce() + Send) {
        let start = Instant::now();
        self.pool.install(work);
        self.spent.forward += start.elapsed();
    }

    /// As [`ComputeState::on_threads`], as a part of going back.
    pub(crate) fn timed_backward(&mut self, work: impl FnOnce() + Send) {
        let start = Instant::now();
        self.pool.install(work);
        self.spent.backward += start.elapsed();
    }

    /// The parameters, one after another.
    pub(crate) fn params(&self) -> &[f32] {
        &self.params
    }

    /// The model.
    pub(crate) fn model(&self) -> &Model {
        &self.model
    }

    /// Replaces the parameters.
    pub(crate) fn set_params(&mut self, params: Vec<f32>) -> Result<(), Error> {
        self.model.params_mut().set_from(&params)?;
        self.params = params;
        self.publish();
        Ok(())
    }

    /// Changes the learning rate from the next step on.
    pub(crate) fn set_learning_rate(&mut self, lr: f64) {
        self.optimizer.set_learning_rate(lr);
    }
}

fn compute_pool(threads: usize) -> Result<rayon::ThreadPool, Error> {
    rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .thread_name(|i| format!("compute-{i}"))
        .build()
        .map_err(|error| Error::Machine(format!("cannot start {threads} compute threads: {error}; {FEWER_THREADS}")))
}
