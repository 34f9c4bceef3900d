//! What every worker of a run is given.

use std::any::Any;
use std::path::PathBuf;
use std::sync::Arc;

use gnnflow_data::dataset::Dataset;
use gnnflow_data::progress::Progress;

use crate::config::Config;
use crate::error::Error;
use crate::runtime::executor::ExecutorFactory;
use crate::runtime::records::EpochRecord;
use crate::runtime::registry::Registry;

/// A run, ready to be worked on: the same on every process, but for `runtime`.
pub struct Job {
    /// The pipeline.
    pub config: Config,
    /// The prepared dataset.
    pub dataset: Dataset,
    /// What the pipeline calls by name.
    pub registry: Registry,
    /// The run folder; the first worker writes it, and all workers keep scratch files in it.
    pub run_dir: PathBuf,
    /// Whether to go on after the last whole checkpoint in the run folder.
    pub resume: bool,
    /// Threads of this process, for sampling and arithmetic.
    pub threads: usize,
    /// Seconds that preparing took.
    pub prepare_seconds: f64,
    /// The program around the worker.
    pub runtime: Arc<dyn Runtime>,
}

/// The program around a worker: watches over it and shows what it does.
pub trait Runtime: Send + Sync {
    /// The worker's loop has turned. Called at least every few milliseconds, also while the worker waits.
    fn turned(&self) {}
    /// Something is completed: a timestamp of a dataflow, or a job of the compute thread. Called from any thread.
    fn progressed(&self) {}
    /// Says that the worker's thread does long work of its own, until the value is dropped. `label` names the work.
    fn busy(&self, label: &str) -> Box<dyn Any> {
        let _ = label;
        Box::new(())
    }
    /// An epoch has ended; called on every worker.
    fn epoch(&self, record: &EpochRecord) {
        let _ = record;
    }
    /// Something goes on otherwise than was asked for.
    fn warn(&self, line: &str) {
        let _ = line;
    }
    /// Something worth a line goes on as was asked for.
    fn say(&self, line: &str) {
        let _ = line;
    }
    /// Returns the tensor workers that `train.tensor_workers` asks for.
    ///
    /// # Errors
    /// If the setting or this machine does not allow them.
    fn tensor_workers(&self) -> Result<Option<Arc<dyn ExecutorFactory>>, Error> {
        Ok(None)
    }
    /// Where long stages report.
    fn progress(&self) -> &dyn Progress {
        &gnnflow_data::progress::Silent
    }
}

/// A program that neither watches nor shows.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoRuntime;

impl Runtime for NoRuntime {}
