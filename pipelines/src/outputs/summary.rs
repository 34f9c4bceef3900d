//! `summary.json`: what a run did, in numbers that scripts read.

use crate::config::{AutoSchedule, Price};
use crate::error::Error;
pub use crate::runtime::records::{EpochRecord, Scores, TensorUse};
use gnnflow_data::fs::write_atomic;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, path::Path};

/// Version of the layout of `summary.json`; rises when a field changes its meaning or goes away.
pub const SCHEMA: u32 = 1;

/// What a run did. Fields that a stage did not run for are absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// [`SCHEMA`].
    pub schema: u32,
    /// `name` of the pipeline.
    pub name: String,
    /// `train.seed`.
    pub seed: u64,
    /// `train.schedule`, as it was trained by.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub schedule: String,
    /// Why that one, where it was "auto".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auto_schedule: Option<AutoSchedule>,
    /// Number of partitions.
    pub partitions: usize,
    /// Number of processes.
    pub processes: usize,
    /// Threads of each process.
    pub threads: usize,
    /// How many of them sampled at the end, at the first process.
    pub sampling_threads: usize,
    /// How many computed.
    pub compute_threads: usize,
    /// Epochs that were trained, those before a resume included.
    pub epochs: usize,
    /// The epoch (from 1) whose model was kept: the best by the validation metric.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best_epoch: Option<usize>,
    /// The kept model on the train nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub train: Option<Scores>,
    /// The kept model on the validation nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub val: Option<Scores>,
    /// The kept model on the test nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub test: Option<Scores>,
    /// What a reader of the scores and predictions must know of how they were made.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Where the time went.
    pub seconds: Seconds,
    /// Bytes that crossed between processes, all of them together.
    pub bytes_sent: u64,
    /// Messages that crossed between processes.
    pub messages_sent: u64,
    /// Rounds of messages between partitions in a training step.
    pub rounds_per_step: f64,
    /// Bytes that processes sent in a step of training, all together; on average.
    pub bytes_per_step: f64,
    /// Messages that they sent in one.
    pub messages_per_step: f64,
    /// What `train.schedule.cache` did in training, when there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheUse>,
    /// How many epochs behind a neighbor's rows were at most, where `train.schedule.mode` is `async`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub staleness_max: Option<u64>,
    /// The same, on average over all intervals and stages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub staleness_mean: Option<f64>,
    /// What tensor workers did, all processes' together, where there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tensor: Option<TensorUse>,
    /// What the run cost, where prices were given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<Value>,
    /// Learnt rows of nodes, when there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_embeddings: Option<EmbeddingUse>,
    /// What each process had to do, in training.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub workers: Vec<WorkerUse>,
    /// Peak resident memory of each process.
    pub peak_rss_bytes: Vec<u64>,
    /// SHA-256 of the kept model's parameters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_sha256: Option<String>,
    /// SHA-256 of the predictions in the order of global ids.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub predictions_sha256: Option<String>,
    /// SHA-256 of all sampled blocks in key order, with `train.hash_blocks`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocks_sha256: Option<String>,
    /// Where the arithmetic was done.
    pub device: String,
    /// Versions of what made the result: `gnnflow`, `commit`, `rustc` and so on.
    pub versions: BTreeMap<String, String>,
}

/// What a run cost and was worth (Dorylus, section 7.1), by the prices of its pipeline file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Value {
    /// Seconds of training that are counted, of each process.
    pub seconds: f64,
    /// Of the processes.
    pub graph_workers: f64,
    /// Of tensor workers' calls.
    pub tensor_calls: f64,
    /// Of tensor workers' seconds.
    pub tensor_seconds: f64,
    /// All of it.
    pub cost: f64,
    /// 1 / (seconds × cost); 0 where nothing costs anything.
    pub value: f64,
}

impl Value {
    /// The value of `seconds` of training with so many processes and tensor workers.
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

/// What caches of features did, all processes together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CacheUse {
    /// Foreign rows that were there.
    pub hits: u64,
    /// Foreign rows that were fetched.
    pub misses: u64,
    /// Hits over both.
    pub hit_rate: f64,
}

impl CacheUse {
    /// From the counts.
    pub fn new(hits: u64, misses: u64) -> Self {
        Self { hits, misses, hit_rate: hits as f64 / (hits + misses).max(1) as f64 }
    }
}

/// What one process had to do, in training.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkerUse {
    /// Bytes that it sent in a step; on average.
    pub bytes_per_step: f64,
    /// Bytes of its rows of the whole graph, in memory or in files, where every step is over that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table_bytes: Option<u64>,
    /// Edges whose rows it adds up in an epoch, forwards and backwards, times the rows' columns, where every step is over the
    /// whole graph.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub edge_numbers: Option<u64>,
    /// Bytes of its learned rows, their optimizer's state and the rows of the best epoch, where rows are learned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub embedding_bytes: Option<u64>,
}

/// What became of learned rows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EmbeddingUse {
    /// Numbers in a row.
    pub dim: usize,
    /// How often a row was moved, all rows together.
    pub rows_moved: u64,
    /// How many steps had not been applied everywhere when a batch asked for its rows: the most. 0 in synchronous training.
    pub staleness_max: u64,
    /// The same, the mean over batches.
    pub staleness_mean: f64,
    /// SHA-256 of the kept rows in the order of global ids.
    pub sha256: String,
}

/// Wall-clock seconds. Stages within an epoch overlap, so that their sum may exceed the epochs'.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Seconds {
    /// Reading the dump, partitioning, writing the dataset; near 0 when it was there.
    pub prepare: f64,
    /// All epochs, with evaluation and checkpoints.
    pub train: f64,
    /// Writing predictions and embeddings.
    pub infer: f64,
    /// Training part of each epoch.
    pub per_epoch: Vec<f64>,
    /// Sampling, all epochs; the slowest process, as for the stages that follow.
    pub sample: f64,
    /// Fetching features.
    pub fetch: f64,
    /// Forward passes.
    pub forward: f64,
    /// Backward passes.
    pub backward: f64,
    /// Summing gradients over partitions.
    pub reduce: f64,
    /// The optimizer's steps.
    pub step: f64,
}

impl Summary {
    /// Name of the file in a run folder.
    pub const FILE: &'static str = "summary.json";

    /// Reads a run folder's summary.
    ///
    /// # Errors
    /// [`Error::Io`] when there is none, [`Error::Input`] when it is no summary of this schema.
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

    /// Writes the run folder's summary, whole or not at all.
    ///
    /// # Errors
    /// [`Error::Io`] when the folder cannot be written.
    pub fn write(&self, run_dir: &Path) -> Result<(), Error> {
        std::fs::create_dir_all(run_dir).map_err(Error::io("create", run_dir))?;
        let path = run_dir.join(Self::FILE);
        write_atomic(&path, self.to_json().as_bytes()).map_err(Error::io("write", &path))
    }

    /// The JSON text that goes into the file and, with `--json`, to stdout.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("a summary has no maps with other keys than strings") + "\n"
    }
}
