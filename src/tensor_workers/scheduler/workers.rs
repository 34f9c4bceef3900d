//! Tensor workers as the scheduler sees them: a pool of numbered workers, and a connection to each.

use std::sync::Arc;
use std::time::Duration;

use gnnflow_nn::model::ModelSpec;
use gnnflow_nn::node_task::{NodeResult, NodeTask};
use gnnflow_nn::parameter_versions::ParameterVersion;

/// The tensor workers that this process may use, numbered from 0.
pub(crate) trait WorkerPool: Send + Sync {
    /// Returns the number of workers at the start of a run. Workers that register get the numbers after these.
    fn count(&self) -> usize;

    /// Returns the worker's name in messages.
    fn name(&self, worker: usize) -> String;

    /// Reports workers that register or leave to `on_event` from now on.
    ///
    /// `servers` are the addresses at which the processes of the run serve parameters; a worker that registers with one
    /// process gets the addresses of the others.
    fn watch(&self, servers: &[String], on_event: Box<dyn Fn(RegistryEvent) + Send + Sync>);

    /// Launches a worker or connects to one, for a model whose parameters are served at `servers`, by rank.
    ///
    /// # Errors
    /// If the worker cannot be used; the text says why.
    fn connect(
        &self,
        worker: usize,
        model: &ModelSpec,
        servers: &[String],
        limit: Duration,
    ) -> Result<Arc<dyn TensorWorker>, String>;

    /// Returns what to do after a worker has been lost, or could not be connected, `times` times.
    fn retry(&self, worker: usize, times: u32) -> Retry;

    /// Tells registered workers that the run is over.
    fn end(&self);
}

/// What to do after a worker has been lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retry {
    /// The worker is not used again.
    Never,
    /// Connect to it again after this time. Tasks do not wait for it.
    Reconnect(Duration),
    /// Launch it again after this time. Tasks wait for it if there is no other worker.
    Relaunch(Duration),
}

/// A worker has registered or left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RegistryEvent {
    /// This worker has registered, for the first time or again.
    Registered(usize),
    /// This worker has left.
    Left(usize),
}

/// A task in a call.
#[derive(Clone, Debug)]
pub(crate) struct TaskRequest {
    /// The task.
    pub(crate) task: Arc<NodeTask>,
    /// Rows of the first half, if the task may be split ([`NodeTask::run_from_row`]).
    pub(crate) split: Option<usize>,
}

/// A connected tensor worker.
pub(crate) trait TensorWorker: Send + Sync {
    /// Runs [similar](NodeTask::is_like) tasks in one call, with one version of the parameters.
    ///
    /// Calls `on_result` with each result in the order of `tasks`, and its position there; all tasks have results if the call succeeds.
    /// `limit` bounds the wait for each result. Several calls may be in flight.
    ///
    /// # Errors
    /// If the worker fails, in words; or the error of `on_result`. The worker is then lost.
    fn call(
        &self,
        tasks: &[TaskRequest],
        version: ParameterVersion,
        limit: Duration,
        on_result: &mut dyn FnMut(usize, NodeResult) -> Result<(), String>,
    ) -> Result<(), String>;
}
