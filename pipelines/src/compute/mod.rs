//! The state of the compute thread: model, optimizer, and their operations.

mod batch;
mod nodes;
mod pairs;
mod partition;
mod step;
mod threads;

pub(crate) use batch::{Gradients, StepReport};
pub(crate) use pairs::PairGradients;
pub(crate) use partition::TrainedPartition;

use std::sync::Arc;
use std::time::{Duration, Instant};

use gnnflow_dataflow::trace::thread_group::ThreadGroup;
use gnnflow_nn::Model;
use gnnflow_nn::optimizer::{Adam, AdamOptions, Optimizer, Sgd, SgdOptions, State};
use gnnflow_nn::parameter_versions::ParameterVersions;

use crate::config;
use crate::error::Error;
use crate::task::objective::Objective;
use threads::Threads;

/// Time spent on the compute thread.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ComputeTime {
    pub(crate) forward: Duration,
    pub(crate) backward: Duration,
    pub(crate) step: Duration,
}

/// Model, optimizer and task of a process.
pub(crate) struct ComputeState {
    threads: Threads,
    model: Model,
    optimizer: Box<dyn Optimizer>,
    /// All parameters, one after another, followed by the buffers, which the optimizer does not change.
    params: Vec<f32>,
    objective: Arc<dyn Objective>,
    uses_edges: bool,
    seed: u64,
    hash_blocks: bool,
    clip_norm: Option<f64>,
    /// Whether the input rows of nodes are learned.
    learns_rows: bool,
    spent: ComputeTime,
    error: Option<Error>,
    /// In a round of partition-local training: the replica with which every partition begins.
    common: Option<Replica>,
    /// The velocity of averages with momentum, as long as the trained parameters.
    velocity: Option<Vec<f32>>,
    average_momentum: f64,
    /// In full-graph training: the published versions of the parameters.
    versions: Option<Versions>,
    /// Counts the CPU time of the threads, for traces.
    group: Option<ThreadGroup>,
}

/// Parameters, and the optimizer's state.
#[derive(Clone)]
struct Replica {
    params: Vec<f32>,
    optimizer: State,
}

/// The versions of the parameters.
struct Versions {
    parameters: Arc<ParameterVersions>,
    /// The version in the model.
    loaded: u64,
}

impl ComputeState {
    pub(crate) fn new(
        model: Model,
        objective: Arc<dyn Objective>,
        config: (&config::Model, &config::Train),
        threads: usize,
    ) -> Result<Self, Error> {
        let (model_spec, train) = config;
        let threads = Threads::start(threads)?;
        let mut params = vec![0.0; model.params().flat_len()];
        model.params().copy_to(&mut params)?;
        let (trained, average_momentum) = (model.params().trained_len(), train.average_momentum());
        let optimizer = optimizer(&train.optimizer, trained);
        Ok(Self {
            threads,
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
            error: None,
            common: None,
            velocity: (average_momentum > 0.0).then(|| vec![0.0; trained]),
            average_momentum,
            versions: None,
            group: None,
        })
    }

    /// Returns the times so far, or the first error of a step.
    pub(crate) fn report(&mut self) -> Result<ComputeTime, Error> {
        self.error.take().map_or(Ok(self.spent), Err)
    }

    /// Changes the number of compute threads.
    pub(crate) fn set_threads(&mut self, threads: usize) -> Result<(), Error> {
        if threads != self.threads.count() {
            self.threads = Threads::start(threads)?;
            self.enter_group();
        }
        Ok(())
    }

    /// Counts the CPU time of the compute threads in `group`.
    pub(crate) fn count_threads_in(&mut self, group: ThreadGroup) {
        self.group = Some(group);
        self.enter_group();
    }

    fn enter_group(&self) {
        if let Some(group) = &self.group {
            self.threads.count_in(group);
        }
    }

    /// Runs `work` on the compute threads.
    pub(crate) fn on_threads<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        self.threads.install(work)
    }

    /// Runs `work` on the compute threads and adds its time to the forward pass.
    pub(crate) fn timed_forward(&mut self, work: impl FnOnce() + Send) {
        let start = Instant::now();
        self.threads.install(work);
        self.spent.forward += start.elapsed();
    }

    /// Runs `work` on the compute threads and adds its time to the backward pass.
    pub(crate) fn timed_backward(&mut self, work: impl FnOnce() + Send) {
        let start = Instant::now();
        self.threads.install(work);
        self.spent.backward += start.elapsed();
    }

    /// Returns the parameters, one after another.
    pub(crate) fn params(&self) -> &[f32] {
        &self.params
    }

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

    /// Sets the learning rate of later steps.
    pub(crate) fn set_learning_rate(&mut self, lr: f64) {
        self.optimizer.set_learning_rate(lr);
    }
}

/// Returns the configured optimizer.
fn optimizer(config: &config::Optimizer, len: usize) -> Box<dyn Optimizer> {
    let adam = |options: &config::optimizer::Adam, decoupled| {
        let [beta1, beta2] = options.betas;
        Box::new(Adam::new(
            len,
            AdamOptions {
                learning_rate: options.lr,
                beta1,
                beta2,
                epsilon: options.eps,
                weight_decay: options.weight_decay,
                decoupled,
            },
        ))
    };
    match config {
        config::Optimizer::Sgd(options) => Box::new(Sgd::new(
            len,
            SgdOptions {
                learning_rate: options.lr,
                momentum: options.momentum,
                weight_decay: options.weight_decay,
                ..SgdOptions::default()
            },
        )),
        config::Optimizer::Adam(options) => adam(options, false),
        config::Optimizer::Adamw(options) => adam(options, true),
    }
}
