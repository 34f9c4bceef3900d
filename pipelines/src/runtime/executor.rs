//! What the program around a pipeline brings: ways to tensor workers.

use std::sync::Arc;
use std::time::Duration;

use gnnflow_nn::model::ModelSpec;

use super::tensor_task::{TensorResult, TensorTask};
use crate::error::Error;
use gnnflow_nn::parameter_versions::{ParameterVersion, ParameterVersions};

/// The tensor workers that this process may have. They are numbered from 0.
pub trait TensorWorkers: Send + Sync {
    /// How many there are when a run begins; those that enlist come behind them.
    fn count(&self) -> usize;

    /// What one is called in messages.
    fn name(&self, worker: usize) -> String;

    /// Serves this process's parameters to tensor workers, and says where. Where workers may enlist, the first process listens for them.
    ///
    /// # Errors
    /// When this machine has no port for it, or not the one that the pipeline asks for.
    fn serve(&self, parameters: Arc<ParameterVersions>) -> Result<String, Error>;

    /// From now on, `told` is called when somebody enlists, or leaves again. `servers` is where each process of the run serves
    /// parameters; who enlists with one is sent to the others.
    fn watch(&self, servers: &[String], told: Box<dyn Fn(Enlisted) + Send + Sync>) {
        let _ = (servers, told);
    }

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

    /// What is done about a worker that has been lost, or could not be met, `times` times.
    fn again(&self, worker: usize, times: u32) -> Again;

    /// The run needs no worker any more: those that have enlisted are told.
    fn end(&self) {}
}

/// What becomes of a worker that was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Again {
    /// Nothing: it is gone.
    Never,
    /// It is called up after so long. Nobody waits for it.
    CalledUp(Duration),
    /// It is started again after so long. Tasks wait for it where nobody else has them.
    Started(Duration),
}

/// Who comes by himself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enlisted {
    /// This worker is there, for the first time or again.
    Came(usize),
    /// It is gone.
    Left(usize),
}

/// A task as a worker is asked for it.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The task.
    pub task: Arc<TensorTask>,
    /// How many rows its first half has, where it may come in halves ([`TensorTask::run_from_row`]).
    pub half: Option<usize>,
}

/// A tensor worker that has been met.
pub trait TensorWorker: Send + Sync {
    /// Has tasks that are [alike](TensorTask::is_like) done in one call, by the parameters that were chosen for them; several calls may be
    /// under way at once. `answered` is called with each result as it comes, by the task's place among them; all are answered when nothing is
    /// wrong. `limit` is how long an answer may take.
    ///
    /// # Errors
    /// What is wrong with the worker, in words; or what `answered` says of a result. It is then taken for lost.
    fn call(
        &self,
        tasks: &[Asked],
        choice: ParameterVersion,
        limit: Duration,
        answered: &mut dyn FnMut(usize, TensorResult) -> Result<(), String>,
    ) -> Result<(), String>;
}
