//! Execution of node tasks outside the compute thread: the interface that the program's tensor workers implement.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use gnnflow_nn::model::{Hop, ModelSpec};
use gnnflow_nn::node_task::{NodeResult, NodeTask};
use gnnflow_nn::parameter_versions::{ParameterVersion, ParameterVersions};

use crate::config::Price;
use crate::error::Error;
use crate::runtime::records::TensorUse;

pub use crate::runtime::task_sizes::{CALL_BYTES, CALL_TASKS, CALLS_PER_WORKER};

/// How a submitted task ended.
#[derive(Debug)]
pub enum Completion {
    /// The task has this result.
    Done(NodeResult),
    /// No worker is left; the caller runs the task itself.
    Returned(Box<NodeTask>),
}

/// Receives the end of a task, on any thread.
pub type OnCompletion = Box<dyn FnOnce(Result<Completion, Error>) + Send>;

/// A task, the version of the parameters that it uses, and the receiver of its end.
pub struct SubmittedTask {
    /// The task.
    pub task: NodeTask,
    /// The version of the parameters.
    pub version: ParameterVersion,
    /// The name of its job, for traces.
    pub name: Arc<str>,
    /// The time of its token.
    pub time: u64,
    /// Receives its end.
    pub done: OnCompletion,
}

/// Runs node tasks outside the compute thread, which runs all tasks without an executor. Dropping it ends its threads.
pub trait TaskExecutor: Send + Sync {
    /// Returns the number of tasks that may be in flight besides those of the compute thread.
    fn capacity(&self) -> usize;

    /// Returns the counter of jobs that wait for the compute thread. The caller updates it.
    fn backlog(&self) -> Arc<AtomicUsize>;

    /// Runs a task, and calls its `done` with its end.
    fn submit(&self, submitted: SubmittedTask);

    /// Returns a submitted task that no worker has yet, for an idle compute thread. The caller runs it and calls its `done`.
    fn take(&self) -> Option<SubmittedTask>;

    /// Tells the executor that an epoch has ended, which took `seconds`.
    fn epoch_ended(&self, seconds: f64);

    /// Returns the counts so far.
    fn stats(&self) -> TensorUse;
}

/// The properties of a run that an executor needs.
#[derive(Clone)]
pub struct ExecutorSetup {
    /// The versions of the parameters that this process serves.
    pub parameters: Arc<ParameterVersions>,
    /// The model.
    pub model: ModelSpec,
    /// The model's hops: they give the shapes of results.
    pub hops: Vec<Hop>,
    /// By node task: whether it may be split, in evaluation and in training. None may be on GPUs.
    pub splittable: Vec<[bool; 2]>,
    /// Length of the flat vector of parameters and buffers.
    pub flat_len: usize,
    /// Addresses at which the processes of the run serve parameters, by rank.
    pub servers: Vec<String>,
    /// Number of this worker's intervals.
    pub intervals: usize,
    /// Tasks that may be in flight besides those of the compute thread.
    pub capacity: usize,
    /// Whether the processes of the run may compute tasks, too: they are on the same kind of device.
    pub may_compute: bool,
    /// The prices of machines.
    pub price: Option<Price>,
}

/// Makes the executor of a run.
pub trait ExecutorFactory: Send + Sync {
    /// Serves this process's parameters to tensor workers. Returns the address.
    ///
    /// # Errors
    /// If no port is free, or not the port that the pipeline names.
    fn serve(&self, parameters: Arc<ParameterVersions>) -> Result<String, Error>;

    /// Describes the GPU that all workers of this process must have; empty if any will do, or on the CPU.
    fn gpu(&self) -> String;

    /// Starts the executor. Call it once, after [`ExecutorFactory::serve`].
    ///
    /// # Errors
    /// If the system has no threads left.
    fn start(self: Arc<Self>, setup: ExecutorSetup) -> Result<Box<dyn TaskExecutor>, Error>;
}
