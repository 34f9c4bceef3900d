//! What the program around a pipeline brings: ways to tensor workers.

use std::sync::Arc;
use std::time::Duration;

use gnnflow_operators::compute::model::ModelSpec;

use super::{TensorResult, TensorTask};
use crate::Error;
use crate::parameters::{Choice, ParameterService};

/// The tensor workers that this process may have. They are numbered from 0.
pub trait TensorWorkers: Send + Sync {
    /// How many there may be.
    fn count(&self) -> usize;

    /// What one is called in messages.
    fn name(&self, worker: usize) -> String;

    /// Serves this process's parameters to tensor workers, and says where.
    ///
    /// # Errors
    /// When this machine has no port for it.
    fn serve(&self, parameters: Arc<ParameterService>) -> Result<String, Error>;

    /// Launches a worker, or calls one up, for a model whose parameters are served at `servers`, one a process of the run.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    fn meet(
        &self,
        worker: usize,
        model: &ModelSpec,
        servers: &[String],
        limit: Duration,
    ) -> Result<Arc<dyn TensorWorker>, String>;

    /// Whether one that is gone may come back, and is to be called up again.
    fn may_come_back(&self) -> bool;
}

/// A tensor worker that has been met.
pub trait TensorWorker: Send + Sync {
    /// Has a task done by the parameters that were chosen for it; several calls may be under way at once.
    ///
    /// # Errors
    /// What is wrong with the worker, in words. It is then taken for lost.
    fn call(&self, task: &TensorTask, choice: Choice, limit: Duration) -> Result<TensorResult, String>;
}
