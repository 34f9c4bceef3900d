//! The job of a run's workers, and the interface of the program around them.

use std::any::Any;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use gnnflow_data::dataset::{Dataset, LabelInfo};
use gnnflow_data::progress::Progress;
use gnnflow_data::update::Missing;

use crate::config::{Config, Train};
use crate::error::Error;
use crate::model_file::{FittingModel, WarmStart};
use crate::runtime::executor::ExecutorFactory;
use crate::runtime::records::EpochRecord;
use crate::runtime::registry::Registry;
use crate::runtime::stage::Stage;

/// What a job does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// Trains a model, and computes the results of all nodes with it.
    Train {
        /// Whether to resume from the last checkpoint in the run folder.
        resume: bool,
        /// The model from which training starts, unless it resumes. `None` for parameters that are drawn.
        from: Option<WarmStart>,
    },
    /// Computes results with the model of an earlier run.
    Infer {
        /// The model.
        model: FittingModel,
        /// Which results are computed.
        scope: Scope,
        /// Which in-neighbors are read.
        neighbors: InNeighbors,
    },
    /// Computes what batches of changes change in the results of an earlier run, one batch after the other.
    Follow {
        /// The model.
        model: FittingModel,
        /// The changes.
        feed: Feed,
        /// Least room for new nodes in each partition; 0 for the default.
        room: usize,
    },
}

/// The in-neighbors of each node that inference reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum InNeighbors {
    /// All: results are exact.
    #[default]
    All,
    /// A sample of them. The numbers are the maximum of each layer, from the output layer on; −1 for all.
    Sampled(Vec<i64>),
}

/// Batches of changes of a dataset, and how they are applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feed {
    /// The folder, or the URL of one in an object store, in which batches appear: folders with [the files of a batch](gnnflow_data::update::Batch::FILES) and, when they
    /// are complete, `_SUCCESS`.
    pub changes: PathBuf,
    /// The folder of the rows of layers.
    pub layers: PathBuf,
    /// The URL below which the results of each batch are uploaded.
    pub upload: Option<PathBuf>,
    /// Batches up to this name are in the dataset already.
    pub after: Option<String>,
    /// Policy for removals of edges that do not exist.
    pub missing: Missing,
    /// Number of batches after which the changes are stored in the dataset.
    pub store_every: usize,
    /// Whether to end when all batches are applied, instead of waiting for others.
    pub once: bool,
}

/// The nodes whose results are computed with an earlier model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All nodes.
    All,
    /// Nodes whose results have changed since rows of layers were stored in this folder.
    Changed(PathBuf),
    /// Nodes of a table with the column `node_id`: a Parquet file, a folder of them, or a URL.
    Listed(PathBuf),
    /// Nodes of a split.
    Split(NodeSplit),
}

/// A split of the nodes. Its number is that of the column `split` of prepared datasets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeSplit {
    /// Nodes for training.
    Train = 1,
    /// Nodes for validation.
    Val = 2,
    /// Nodes for tests.
    Test = 3,
}

impl std::fmt::Display for Scope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::All => write!(f, "results"),
            Self::Changed(_) => write!(f, "changed results"),
            Self::Listed(_) => write!(f, "results of listed nodes"),
            Self::Split(split) => write!(f, "results of the split {split:?}"),
        }
    }
}

/// A prepared run. Equal on all processes, except for `runtime`.
pub struct Job {
    /// The pipeline.
    pub config: Config,
    /// The prepared dataset.
    pub dataset: Dataset,
    /// Registered layers, samplers and partitioners.
    pub registry: Registry,
    /// The run folder; the first worker writes it, and all workers keep scratch files in it.
    pub run_dir: PathBuf,
    /// What the workers do.
    pub work: Work,
    /// By rank, the number of the process's host. The processes of one host read the same files.
    pub hosts: Vec<usize>,
    /// By rank, the number of the process among those of its host, from 0. While processes are lost, some numbers are not in use.
    pub numbers_on_host: Vec<usize>,
    /// Threads of this process, for sampling and arithmetic.
    pub threads: usize,
    /// Seconds of preparation.
    pub prepare_seconds: f64,
    /// The build of the program. Stored rows are used by the build that has computed them.
    pub build: String,
    /// The program around the worker.
    pub runtime: Arc<dyn Runtime>,
}

impl Job {
    /// Returns the labels that the model learns, or has learned: those of nodes or, for tasks on edges, of edges.
    pub(crate) fn labels(&self) -> Option<&LabelInfo> {
        let of_edges = self.config.train.as_ref().is_some_and(Train::learns_edges);
        match (self.model(), self.dataset.manifest()) {
            (Some(model), _) => model.labels.as_ref(),
            (None, manifest) if of_edges => manifest.edge_columns.label.as_ref(),
            (None, manifest) => manifest.labels.as_ref(),
        }
    }

    /// Returns the trained model whose results are computed; `None` if the job trains.
    pub(crate) fn model(&self) -> Option<&FittingModel> {
        match &self.work {
            Work::Infer { model, .. } | Work::Follow { model, .. } => Some(model),
            Work::Train { .. } => None,
        }
    }

    /// Returns whether the dataset is that on which the model is, or was, trained.
    pub(crate) fn is_on_training_data(&self) -> bool {
        self.model().is_none_or(|model| model.trained_on_dataset)
    }

    /// Returns whether a model of edges is used on other edges than those of its training, of which none is held out.
    pub(crate) fn holds_out_no_edges(&self) -> bool {
        let of_edges = self.config.train.as_ref().is_some_and(Train::learns_edges);
        of_edges && self.model().is_some_and(|model| model.has_no_splits(self.dataset.manifest()))
    }

    /// Returns whether the job trains.
    pub(crate) fn trains(&self) -> bool {
        matches!(self.work, Work::Train { .. })
    }

    /// Returns whether training resumes from the last checkpoint in the run folder.
    pub(crate) fn resumes(&self) -> bool {
        matches!(self.work, Work::Train { resume: true, .. })
    }

    /// Returns the model from which training starts.
    pub(crate) fn starts_from(&self) -> Option<&WarmStart> {
        match &self.work {
            Work::Train { from, .. } => from.as_ref(),
            Work::Infer { .. } | Work::Follow { .. } => None,
        }
    }

    /// Returns the same job with other work on another version of the dataset.
    pub(crate) fn with(&self, dataset: Dataset, work: Work) -> Self {
        Self {
            config: self.config.clone(),
            dataset,
            registry: self.registry.clone(),
            run_dir: self.run_dir.clone(),
            work,
            hosts: self.hosts.clone(),
            numbers_on_host: self.numbers_on_host.clone(),
            threads: self.threads,
            prepare_seconds: self.prepare_seconds,
            build: self.build.clone(),
            runtime: Arc::clone(&self.runtime),
        }
    }

    /// Returns the number of processes on the host of the process of this rank.
    pub(crate) fn local(&self, rank: usize) -> usize {
        self.hosts.iter().filter(|&&host| host == self.hosts[rank]).count()
    }
}

/// Returns the folder of scratch files in a run folder. It exists during a run.
pub fn scratch_folder(run_dir: &Path) -> PathBuf {
    run_dir.join("scratch")
}

/// The program around a worker: detects stalls and prints progress.
pub trait Runtime: Send + Sync {
    /// Called after each turn of the worker's loop: every few milliseconds, also while the worker waits.
    fn turned(&self) {}
    /// Called when a timestamp of a dataflow or a job of the compute thread is complete. Called from any thread.
    fn progressed(&self) {}
    /// Returns whether the run is stalled, so that [`set_waits`](Runtime::set_waits) has to be called. Called at each turn of the loop.
    fn waits_wanted(&self) -> bool {
        false
    }
    /// Called with what the worker waits for, one line for each operator and time.
    fn set_waits(&self, lines: Vec<String>) {
        let _ = lines;
    }
    /// Called by a thread before a job for the items of `time`. Thread 0 is the compute thread.
    fn begin_job(&self, thread: usize, name: &Arc<str>, time: Option<u64>) {
        let _ = (thread, name, time);
    }
    /// Called by a thread after a job.
    fn end_job(&self, thread: usize) {
        let _ = thread;
    }
    /// Called before the worker's thread does long work outside the loop. The work ends when the value is dropped. `label`
    /// names the work.
    fn busy(&self, label: &str) -> Box<dyn Any> {
        let _ = label;
        Box::new(())
    }
    /// Called before training, if it can stop at a signal. Until the value is dropped, a signal that ends programs only makes
    /// [`stop_requested`](Runtime::stop_requested) true.
    fn defer_signals(&self) -> Box<dyn Any> {
        Box::new(())
    }
    /// Returns whether this process has received a signal while signals were deferred.
    fn stop_requested(&self) -> bool {
        false
    }
    /// Returns whether the run goes on without processes that are lost and may return. Equal at all workers.
    fn is_reduced(&self) -> bool {
        false
    }
    /// At the first worker: returns whether one of them has returned.
    fn has_returned(&self) -> bool {
        false
    }
    /// Called on every worker when a stage of the run begins.
    fn stage(&self, stage: Stage) {
        let _ = stage;
    }
    /// Called after a step with the counts so far of the cache of other workers' features.
    fn cached(&self, hits: u64, misses: u64) {
        let _ = (hits, misses);
    }
    /// Returns the counter of messages that this process has sent to others. Only the worker's thread adds to it.
    fn messages(&self) -> Arc<AtomicU64> {
        Arc::default()
    }
    /// Called on every worker at the end of an epoch.
    fn epoch(&self, record: &EpochRecord) {
        let _ = record;
    }
    /// Prints a warning: the run differs from the configuration.
    fn warn(&self, line: &str) {
        let _ = line;
    }
    /// Prints a line of information.
    fn say(&self, line: &str) {
        let _ = line;
    }
    /// Returns the factory for the workers of `train.tensor_workers`; `None` without this section.
    ///
    /// # Errors
    /// If the settings or this machine do not allow them.
    fn tensor_workers(&self) -> Result<Option<Arc<dyn ExecutorFactory>>, Error> {
        Ok(None)
    }
    /// Returns the progress display of long stages.
    fn progress(&self) -> &dyn Progress {
        &gnnflow_data::progress::Silent
    }
}

/// A runtime that does nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoRuntime;

impl Runtime for NoRuntime {}
