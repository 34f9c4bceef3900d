//! `summary.json`: the results and measurements of a run, for scripts.

use crate::config::{AutoSchedule, Price};
use crate::error::Error;
pub use crate::runtime::records::{ByClass, ClassScores, EpochRecord, Scores, TensorUse};
use gnnflow_data::fs::write_atomic;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, path::Path};

/// Version of the layout of `summary.json`. It increases when a field changes its meaning or is removed.
pub const SCHEMA: u32 = 1;

/// The results and measurements of a run. Fields of stages that did not run are absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// [`SCHEMA`].
    pub schema: u32,
    /// `name` of the pipeline.
    pub name: String,
    /// `train.seed`.
    pub seed: u64,
    /// `train.task`. Tasks on edges count edges instead of nodes.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub task: String,
    /// The schedule of training, after `auto` is resolved.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub schedule: String,
    /// How `train.schedule = "auto"` was resolved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auto_schedule: Option<AutoSchedule>,
    /// Number of partitions.
    pub partitions: usize,
    /// Number of processes.
    pub processes: usize,
    /// Threads of each process.
    pub threads: usize,
    /// Sampling threads of the first process, at the end.
    pub sampling_threads: usize,
    /// Compute threads of the first process, at the end.
    pub compute_threads: usize,
    /// The SHA-256 of the model file of `train.from`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_model: Option<String>,
    /// Trained epochs, including those before a resume.
    pub epochs: usize,
    /// The epoch (from 1) of the best model by the validation metric.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best_epoch: Option<usize>,
    /// Metrics of the best model on the training nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub train: Option<Scores>,
    /// Metrics of the best model on the validation nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub val: Option<Scores>,
    /// Metrics of the best model on the test nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub test: Option<Scores>,
    /// Of two classes, the one whose scores `roc_auc`, `pr_auc` and similar metrics rank.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub positive_class: Option<String>,
    /// The metrics of each class by split, for tasks with classes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub by_class: BTreeMap<String, ByClass>,
    /// Remarks on how scores and predictions are computed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Seconds by stage.
    pub seconds: Seconds,
    /// Bytes sent between processes.
    pub bytes_sent: u64,
    /// Messages sent between processes.
    pub messages_sent: u64,
    /// Rounds of messages between partitions per training step.
    pub rounds_per_step: f64,
    /// Mean bytes sent by all processes per training step.
    pub bytes_per_step: f64,
    /// Mean messages sent by all processes per training step.
    pub messages_per_step: f64,
    /// Counts of `train.schedule.cache` in training.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheUse>,
    /// Counts of the features that GPUs hold in mini-batch training (`train.schedule.device_cache`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_cache: Option<CacheUse>,
    /// Maximum age of a neighbor's rows in epochs, if `train.schedule.mode` is `async`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub staleness_max: Option<u64>,
    /// Mean age of neighbors' rows in epochs, over all intervals and stages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub staleness_mean: Option<f64>,
    /// Counts of tensor workers, over all processes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tensor: Option<TensorUse>,
    /// Cost of the run, if prices are given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<Value>,
    /// Measurements of learned rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_embeddings: Option<EmbeddingUse>,
    /// What a refresh has computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refreshed: Option<Refreshed>,
    /// What inference of some nodes has computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chosen: Option<Chosen>,
    /// Measurements of each process, in training.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub workers: Vec<WorkerUse>,
    /// Peak resident memory of each process.
    pub peak_rss_bytes: Vec<u64>,
    /// SHA-256 of the best model's parameters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_sha256: Option<String>,
    /// SHA-256 of the predictions in the order of global ids; with `infer.parts`, of the hashes of the parts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub predictions_sha256: Option<String>,
    /// SHA-256 of all sampled blocks in key order, with `train.hash_blocks`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocks_sha256: Option<String>,
    /// The device that computed.
    pub device: String,
    /// Versions: `gnnflow`, `commit`, `rustc` and so on.
    pub versions: BTreeMap<String, String>,
}

/// Cost and value of a run (Dorylus, section 7.1), by the prices of its pipeline file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Value {
    /// Seconds of training of each process.
    pub seconds: f64,
    /// Cost of the processes.
    pub graph_workers: f64,
    /// Cost of tensor workers' calls.
    pub tensor_calls: f64,
    /// Cost of tensor workers' seconds.
    pub tensor_seconds: f64,
    /// Total cost.
    pub cost: f64,
    /// 1 / (seconds × cost); 0 without costs.
    pub value: f64,
}

impl Value {
    /// Computes the value of `seconds` of training with `processes` processes and tensor workers.
    ///
    /// ```
    /// use gnnflow_pipelines::config::Price;
    /// use gnnflow_pipelines::summary::TensorUse;
    /// use gnnflow_pipelines::summary::Value;
    ///
    /// let price = Price { graph_worker_hour: 3.6, tensor_call: 0.01, tensor_second: 0.1 };
    /// let tensor = TensorUse { calls: 100, seconds: 5.0, ..TensorUse::default() };
    /// let value = Value::new(&price, 10.0, 2, Some(&tensor));
    /// assert!((value.cost - (0.02 + 1.0 + 0.5)).abs() < 1e-12);
    /// assert!((value.value - 1.0 / (10.0 * 1.52)).abs() < 1e-12);
    /// ```
    pub fn new(price: &Price, seconds: f64, processes: usize, tensor: Option<&TensorUse>) -> Self {
        let (calls, tensor_seconds) = tensor.map_or((0, 0.0), |tensor| (tensor.calls, tensor.seconds));
        let graph_workers = price.graph_worker_hour / 3600.0 * seconds * processes as f64;
        let (tensor_calls, tensor_seconds) = (price.tensor_call * calls as f64, price.tensor_second * tensor_seconds);
        let cost = graph_workers + tensor_calls + tensor_seconds;
        let value = if cost * seconds > 0.0 { 1.0 / (seconds * cost) } else { 0.0 };
        Self { seconds, graph_workers, tensor_calls, tensor_seconds, cost, value }
    }
}

/// Counts of feature caches, over all processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CacheUse {
    /// Rows found in the cache.
    pub hits: u64,
    /// Rows fetched, or copied to the GPU.
    pub misses: u64,
    /// Hits over hits and misses.
    pub hit_rate: f64,
}

impl CacheUse {
    /// Computes the hit rate.
    pub fn new(hits: u64, misses: u64) -> Self {
        Self { hits, misses, hit_rate: hits as f64 / (hits + misses).max(1) as f64 }
    }
}

/// What a refresh of stored results has computed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Refreshed {
    /// Nodes whose results may have changed, and removed nodes; absent if no earlier results are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed_nodes: Option<u64>,
    /// Rows of layers that were computed. Rows of stages that read no neighbors do not count.
    pub computed_rows: u64,
    /// Rows of layers of all nodes.
    pub all_rows: u64,
    /// Why all rows were computed; absent if only those of changed nodes were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub because: Option<String>,
    /// Seconds of finding the changes and computing the rows. Changed rows are written to disk after that, beside the results.
    pub seconds: f64,
}

/// What inference of some nodes has computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Chosen {
    /// Nodes with results.
    pub nodes: u64,
    /// Rows of layers that were computed. Rows of stages that read no neighbors do not count.
    pub computed_rows: u64,
    /// Rows of layers of all nodes.
    pub all_rows: u64,
}

/// Measurements of one process, in training.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkerUse {
    /// Mean bytes sent per step.
    pub bytes_per_step: f64,
    /// Bytes of its tables in full-graph training, in memory or in files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table_bytes: Option<u64>,
    /// Values that it sums per epoch of full-graph training: edges, forward and backward, times columns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub edge_numbers: Option<u64>,
    /// Bytes of its learned rows, their optimizer state and the rows of the best epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub embedding_bytes: Option<u64>,
    /// Bytes of the dataset that it has copied to `graph.dataset_cache`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copied_bytes: Option<u64>,
    /// The most memory of its GPU that its tensors have taken at the same time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_peak_bytes: Option<u64>,
}

/// Measurements of learned rows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EmbeddingUse {
    /// Width of a row.
    pub dim: usize,
    /// Updates of rows.
    pub rows_moved: u64,
    /// Maximum number of incomplete earlier steps when a batch requests its rows. 0 in synchronous training.
    pub staleness_max: u64,
    /// Mean of this number over batches.
    pub staleness_mean: f64,
    /// SHA-256 of the rows of the best model in the order of global ids.
    pub sha256: String,
}

/// Wall-clock seconds. Stages within an epoch overlap, so their sum may exceed the seconds of the epochs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Seconds {
    /// Reading the dump, partitioning, writing the dataset; near 0 for an existing dataset.
    pub prepare: f64,
    /// All epochs, with evaluation and checkpoints.
    pub train: f64,
    /// Evaluation in training.
    #[serde(default)]
    pub evaluate: f64,
    /// The results of the best model, unless the last evaluation has computed them, and writing predictions and embeddings.
    pub infer: f64,
    /// Training part of each epoch.
    pub per_epoch: Vec<f64>,
    /// Sampling in all epochs. Of this and the following stages, the slowest process counts.
    pub sample: f64,
    /// Fetching features.
    pub fetch: f64,
    /// Forward passes. With several jobs at the same time, a job's seconds are divided by how many may run; so are those of backward passes.
    pub forward: f64,
    /// Backward passes.
    pub backward: f64,
    /// Summing gradients over partitions.
    pub reduce: f64,
    /// Optimizer steps.
    pub step: f64,
    /// Forward and backward passes on a GPU, by its own clock: from their first operation to their last. The GPU is idle in the rest of the
    /// epochs, except for copies.
    #[serde(default)]
    pub device: f64,
}

impl Summary {
    /// Name of the file in a run folder.
    pub const FILE: &'static str = "summary.json";

    /// Returns the examples of the task: `nodes` or `edges`.
    pub fn examples(&self) -> &'static str {
        if self.task.starts_with("edge") || self.ranks_links() { "edges" } else { "nodes" }
    }

    /// Whether held-out edges are ranked. Their `loss` is then not the loss of training.
    pub fn ranks_links(&self) -> bool {
        self.task.starts_with("link")
    }

    /// Reads a run folder's summary.
    ///
    /// # Errors
    /// [`Error::Io`] if there is none; [`Error::Input`] if it has another format or schema.
    pub fn read(run_dir: &Path) -> Result<Self, Error> {
        let path = run_dir.join(Self::FILE);
        let text = std::fs::read_to_string(&path).map_err(Error::io("read", &path))?;
        let summary: Self = serde_json::from_str(&text)
            .map_err(|error| Error::Input(format!("{}: not a summary of a run: {error}", path.display())))?;
        if summary.schema != SCHEMA {
            let (path, found) = (path.display(), summary.schema);
            return Err(Error::Input(format!("{path}: schema {found}, but this version reads {SCHEMA}")));
        }
        Ok(summary)
    }

    /// Writes the run folder's summary atomically.
    ///
    /// # Errors
    /// [`Error::Io`] if the folder cannot be written.
    pub fn write(&self, run_dir: &Path) -> Result<(), Error> {
        std::fs::create_dir_all(run_dir).map_err(Error::io("create", run_dir))?;
        let path = run_dir.join(Self::FILE);
        write_atomic(&path, self.to_json().as_bytes()).map_err(Error::io("write", &path))
    }

    /// Returns the JSON text of the file and of `--json`.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("all keys of a summary are strings") + "\n"
    }
}
