//! The state of the compute thread: model, optimizer, and their operations.

mod batch;
mod device_edges;
mod device_graph;
mod device_rows;
mod device_sampler;
mod held_rows;
mod in_place;
mod job_threads;
mod nodes;
mod pairs;
mod partition;
mod passes;
mod ready_batch;
mod run_jobs;
mod step;
mod threads;

pub(crate) use batch::{Gradients, StepReport};
pub(crate) use device_graph::WholeGraph;
pub(crate) use device_rows::Held;
pub(crate) use in_place::lie_in_place;
pub(crate) use job_threads::{JobObserver, JobThread};
pub(crate) use pairs::PairGradients;
pub(crate) use partition::TrainedPartition;
pub(crate) use passes::{ComputeTime, Passes};
pub(crate) use run_jobs::RunJobs;

use std::sync::Arc;
use std::time::{Duration, Instant};

use gnnflow_dataflow::flow::compute_thread::Done;
use gnnflow_nn::Model;
use gnnflow_nn::optimizer::{Adam, AdamOptions, Optimizer, Sgd, SgdOptions, State};

use crate::config;
use crate::error::Error;
use crate::task::objective::Objective;
use job_threads::JobThreads;
use passes::Pass;

/// Model, optimizer and task of a process.
pub(crate) struct ComputeState {
    /// The threads of jobs of the compute thread, one at a time.
    all: JobThread,
    /// Maximum number of jobs at the same time.
    jobs: usize,
    /// As many threads again, for several jobs at the same time. Both may be busy together: rows are gathered while node tasks run.
    job_threads: Option<JobThreads>,
    passes: Arc<Passes>,
    optimizer: Box<dyn Optimizer>,
    /// All parameters, one after another, followed by the buffers, which the optimizer does not change.
    params: Vec<f32>,
    clip_norm: Option<f64>,
    /// Time of steps.
    step_time: Duration,
    error: Option<Error>,
    /// In a round of partition-local training: the replica with which every partition begins.
    common: Option<Replica>,
    /// The velocity of averages with momentum, as long as the trained parameters.
    velocity: Option<Vec<f32>>,
    average_momentum: f64,
    observer: Box<dyn JobObserver>,
}

/// Parameters, and the state of the optimizer that updates the first of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Replica {
    /// All in one vector.
    pub(crate) params: Vec<f32>,
    pub(crate) optimizer: State,
}

impl ComputeState {
    /// Creates the state on `threads` threads, which run up to `jobs` jobs at the same time. `observer` is that of the compute thread.
    ///
    /// # Errors
    /// [`Error::Machine`] if the system cannot start a thread.
    pub(crate) fn new(
        model: Model,
        objective: Arc<dyn Objective>,
        (model_spec, train): (&config::Model, &config::Train),
        (threads, jobs): (usize, usize),
        observer: Box<dyn JobObserver>,
    ) -> Result<Self, Error> {
        let mut params = vec![0.0; model.params().flat_len()];
        model.params().copy_to(&mut params)?;
        let (trained, average_momentum) = (model.params().trained_len(), train.average_momentum());
        let optimizer = optimizer(&train.optimizer, trained);
        let options = (model_spec.uses_edges(), model_spec.embedding.is_some(), train.hash_blocks);
        let mut state = Self {
            all: JobThread::alone(threads)?,
            jobs,
            job_threads: None,
            passes: Arc::new(Passes::new(model, objective, options, train.seed)),
            optimizer,
            params,
            clip_norm: train.clip_norm,
            step_time: Duration::ZERO,
            error: None,
            common: None,
            velocity: (average_momentum > 0.0).then(|| vec![0.0; trained]),
            average_momentum,
            observer,
        };
        state.start_job_threads()?;
        Ok(state)
    }

    /// Returns the times so far, or the first error of a step.
    pub(crate) fn report(&mut self) -> Result<ComputeTime, Error> {
        let spent = ComputeTime { step: self.step_time, ..self.passes.spent() };
        self.error.take().map_or(Ok(spent), Err)
    }

    /// Changes the number of compute threads.
    pub(crate) fn set_threads(&mut self, threads: usize) -> Result<(), Error> {
        if threads != self.all.threads.count() {
            self.all = JobThread::alone(threads)?;
            self.observe_threads();
            self.start_job_threads()?;
        }
        Ok(())
    }

    /// Counts the CPU time of the compute threads. Called on the compute thread.
    pub(crate) fn observe(&self) {
        self.observer.count_this_thread();
        self.observe_threads();
    }

    fn observe_threads(&self) {
        self.all.threads.for_each_started(|| self.observer.count_this_thread());
    }

    fn start_job_threads(&mut self) -> Result<(), Error> {
        let threads = self.all.threads.count();
        let jobs = self.jobs.min(threads);
        self.job_threads = match jobs {
            0 | 1 => None,
            _ => Some(JobThreads::start(jobs, threads, &*self.observer)?),
        };
        Ok(())
    }

    /// Tells whether several jobs may run at the same time.
    pub(crate) fn runs_several_jobs(&self) -> bool {
        self.job_threads.is_some()
    }

    /// Runs `job` on its own threads beside other jobs, or else on the compute thread.
    pub(crate) fn run_job(
        &mut self,
        name: &Arc<str>,
        time: u64,
        job: impl FnOnce(&Passes, &JobThread) + Send + 'static,
    ) -> Done {
        match &self.job_threads {
            Some(threads) => {
                let passes = Arc::clone(&self.passes);
                threads.queue(Arc::clone(name), time, move |on| job(&passes, on));
                Done::Elsewhere
            }
            None => {
                job(&self.passes, &self.all);
                Done::Here
            }
        }
    }

    /// Returns what passes read.
    pub(crate) fn passes(&self) -> Arc<Passes> {
        Arc::clone(&self.passes)
    }

    /// Runs `work` on the compute threads.
    pub(crate) fn on_threads<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        self.all.threads.install(work)
    }

    /// Runs `work` on the compute threads and adds its time to the forward pass.
    pub(crate) fn timed_forward(&mut self, work: impl FnOnce() + Send) {
        self.timed(Pass::Forward, work);
    }

    /// Runs `work` on the compute threads and adds its time to the backward pass.
    pub(crate) fn timed_backward(&mut self, work: impl FnOnce() + Send) {
        self.timed(Pass::Backward, work);
    }

    /// Adds time of a GPU, by its own clock.
    pub(crate) fn add_device_time(&self, time: Duration) {
        self.passes.add_device_time(time);
    }

    fn timed(&self, pass: Pass, work: impl FnOnce() + Send) {
        let start = Instant::now();
        self.all.threads.install(work);
        self.passes.spend(pass, &self.all, start);
    }

    /// Returns the parameters, one after another.
    pub(crate) fn params(&self) -> &[f32] {
        &self.params
    }

    /// Calls `read` with the model.
    pub(crate) fn with_model<R>(&self, read: impl FnOnce(&Model) -> R) -> R {
        read(&self.passes.read().model)
    }

    /// Returns the vectors of the relations of the decoder of pairs, one after the other; `None` if it has none.
    pub(crate) fn relations(&self) -> Result<Option<Vec<f32>>, Error> {
        let rows =
            self.with_model(|model| model.relations().map(|rows| rows.flatten_all()?.to_vec1::<f32>()).transpose());
        Ok(rows.map_err(gnnflow_nn::Error::from)?)
    }

    /// Replaces the parameters.
    pub(crate) fn set_params(&mut self, params: Vec<f32>) -> Result<(), Error> {
        let mut loaded = self.passes.write();
        loaded.model.params_mut().set_from(&params)?;
        self.params = params;
        self.passes.publish(&mut loaded, &self.params);
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
