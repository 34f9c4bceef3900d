//! What `auto` stands for, once it is decided. [`Plan`](crate::Plan) decides it.

use serde::{Deserialize, Serialize};

/// The numbers behind an automatic number of partitions. All of them in bytes, but `workers` and `parts`.
///
/// With q workers of M bytes each, of which training needs T, a graph of S bytes is cut into q partitions when S ≤ q (M − T), and
/// into ⌈S / (M − T)⌉ otherwise. By default T is two thirds of M, as in the paper.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct AutoParts {
    /// S: structure and features of the whole graph.
    pub graph_bytes: u64,
    /// M: memory of a worker.
    pub worker_memory: u64,
    /// T: what a worker keeps for training.
    pub reserve: u64,
    /// q: workers.
    pub workers: u64,
    /// The number of partitions.
    pub parts: u64,
}

impl AutoParts {
    /// The rule.
    ///
    /// ```
    /// use gnnflow_pipelines::config::AutoParts;
    /// let gib = 1 << 30;
    /// // 100 GiB on 4 workers of 24 GiB that keep 16 for training: 8 GiB each, so 13 partitions.
    /// assert_eq!(AutoParts::new(100 * gib, 24 * gib, 16 * gib, 4).parts, 13);
    /// // A graph that fits is cut into one for each worker.
    /// assert_eq!(AutoParts::new(20 * gib, 24 * gib, 16 * gib, 4).parts, 4);
    /// ```
    pub fn new(graph_bytes: u64, worker_memory: u64, reserve: u64, workers: u64) -> Self {
        let room = worker_memory.saturating_sub(reserve).max(1);
        let parts = if graph_bytes <= workers.saturating_mul(room) { workers } else { graph_bytes.div_ceil(room) };
        Self { graph_bytes, worker_memory, reserve, workers, parts: parts.max(1) }
    }
}

/// What a schedule would take, were every partition a process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Candidate {
    /// The schedule.
    pub schedule: String,
    /// Why it cannot be; nothing else is known then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// Memory of the process that needs most, in bytes, mapped files aside.
    pub memory: u64,
    /// Bytes between processes in an epoch.
    pub bytes: u64,
    /// Rounds of messages in an epoch.
    pub rounds: u64,
    /// Seconds of arithmetic in an epoch, of the partition with most to do.
    pub compute: f64,
    /// Seconds of waiting for messages and files.
    pub moving: f64,
    /// How often it counts: the steps that batches would take meanwhile, where it takes one.
    pub counts: u64,
}

impl Candidate {
    /// Seconds that are compared.
    pub fn seconds(&self) -> f64 {
        (self.compute + self.moving) * self.counts as f64
    }
}

/// The schedule that was chosen, and why.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AutoSchedule {
    /// The one that was chosen.
    pub chosen: String,
    /// Why, in a line.
    pub because: String,
    /// Share of the nodes that are trained on.
    pub train_share: f64,
    /// In how many partitions a node is on average, itself or as a neighbour.
    pub replication_factor: f64,
    /// Share of the edges between partitions, where the dataset is prepared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub edge_cut: Option<f64>,
    /// Edges of the partition with most, over the mean.
    pub edge_balance: f64,
    /// What each would take.
    pub candidates: Vec<Candidate>,
}
