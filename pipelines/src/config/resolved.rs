//! Choices that [`Plan`](crate::Plan) makes for `auto`.

use serde::{Deserialize, Serialize};

/// The automatic number of partitions, and the sizes that determine it, in bytes.
///
/// q workers have M bytes each, of which training needs T. A graph of S bytes has q partitions if S ≤ q (M − T), and
/// ⌈S / (M − T)⌉ otherwise. By default T is two thirds of M, as in SDT-GNN's paper.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct AutoParts {
    /// S: structure and features of the entire graph.
    pub graph_bytes: u64,
    /// M: memory of a worker.
    pub worker_memory: u64,
    /// T: memory of a worker that training needs.
    pub reserve: u64,
    /// q: workers.
    pub workers: u64,
    /// The number of partitions.
    pub parts: u64,
}

impl AutoParts {
    /// Computes the number of partitions.
    ///
    /// ```
    /// use gnnflow_pipelines::config::AutoParts;
    /// let gib = 1 << 30;
    /// // 100 GiB on 4 workers of 24 GiB, of which training needs 16: 8 GiB each, so 13 partitions.
    /// assert_eq!(AutoParts::new(100 * gib, 24 * gib, 16 * gib, 4).parts, 13);
    /// // A graph that fits has one partition per worker.
    /// assert_eq!(AutoParts::new(20 * gib, 24 * gib, 16 * gib, 4).parts, 4);
    /// ```
    pub fn new(graph_bytes: u64, worker_memory: u64, reserve: u64, workers: u64) -> Self {
        let free = worker_memory.saturating_sub(reserve).max(1);
        let parts = if graph_bytes <= workers.saturating_mul(free) { workers } else { graph_bytes.div_ceil(free) };
        Self { graph_bytes, worker_memory, reserve, workers, parts: parts.max(1) }
    }
}

/// Estimated cost of a schedule, with one process per partition.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Candidate {
    /// The schedule.
    pub schedule: String,
    /// Why the schedule does not support the pipeline; the other fields are then empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// Maximum memory of a process in bytes, without mapped files.
    pub memory: u64,
    /// Bytes between processes in an epoch.
    pub bytes: u64,
    /// Rounds of messages in an epoch.
    pub rounds: u64,
    /// Seconds of computation in an epoch, maximum over partitions.
    pub compute: f64,
    /// Seconds of waiting for messages and files in an epoch.
    pub moving: f64,
    /// Number of its epochs that make the progress of one epoch of the file.
    pub counts: f64,
}

impl Candidate {
    /// Seconds that are compared: those of `counts` epochs.
    pub fn seconds(&self) -> f64 {
        (self.compute + self.moving) * self.counts
    }
}

/// The schedule that was chosen, and why.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AutoSchedule {
    /// The chosen schedule.
    pub chosen: String,
    /// The reason, in one line.
    pub because: String,
    /// Fraction of training nodes; absent for tasks on edges.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub train_share: Option<f64>,
    /// Mean number of partitions that a node is in, as core or halo node.
    pub replication_factor: f64,
    /// Fraction of edges between partitions; `None` before the dataset is prepared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub edge_cut: Option<f64>,
    /// Edges of the partition with most, over the mean.
    pub edge_balance: f64,
    /// The factor of all keys that count epochs, `counts` of the chosen schedule. An older summary lacks it.
    #[serde(default = "one")]
    pub epoch_factor: f64,
    /// Steps in an epoch of batches; `None` if no schedule with batches is possible, and epochs are those of the full graph.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps_per_epoch: Option<u64>,
    /// The estimated cost of each schedule.
    pub candidates: Vec<Candidate>,
}

fn one() -> f64 {
    1.0
}
