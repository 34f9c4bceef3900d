//! `[train]`: the task, the schedule and the batches.

use std::ops::RangeInclusive;
use std::path::PathBuf;

use super::checkpoint_every::CheckpointEvery;
use super::classes::ClassOptions;
use super::device::Device;
use super::edge::EdgeTask;
use super::fanout::Fanout;
use super::link::{Decoder, Link};
use super::metric::Metric;
use super::optimizer::{LrSchedule, Optimizer};
use super::sampler::Sampler;
use super::schedule::{Mode, RowDtype, Schedule, SeedSplit};
use super::section::{section, words};
use super::tensor_workers::Tensor;
use super::values::Bytes;
use gnnflow_dataflow::sample::edge_share::EdgeShare;

/// The largest partition's training nodes over the mean, above which seeds are split evenly by default.
const UNEVEN: f64 = 1.1;

section! {
    /// How the model is trained.
    pub struct Train {
        /// What is learned. The labels decide whether nodes have one class or several labels.
        pub task: Task = Task::NodeClassification,
        /// Link prediction: which edges are predicted, and how.
        pub link: Option<Link> = None,
        /// Edge classification: which edges are classified, and how.
        pub edge: Option<EdgeTask> = None,
        /// Classification: weights for imbalanced classes, and bounds of metrics.
        pub classes: Option<ClassOptions> = None,
        /// The folder of a finished run: training starts from its model instead of drawn parameters ([details](warm-start.md)). The model has the
        /// same `[model]`. Unset: parameters are drawn.
        #[schemars(extend("examples" = ["runs/monday"]))]
        pub from: Option<PathBuf> = None,
        /// Start from the state of that run's optimizer, too, such as the running means of Adam. The optimizer has the same `kind`, and momentum if that
        /// one has it.
        pub from_optimizer: bool = false,
        /// How the work of training is divided.
        pub schedule: Schedule = Schedule::default(),
        /// Passes over the training nodes or edges. Unset: as many as have 500 steps, but at least 10 and at most 200.
        #[schemars(range(min = 1, max = 1000000), extend("examples" = [20]))]
        pub epochs: Option<usize> = None,
        /// Seeds per partition and step; GraphSAINT samplers draw as many nodes, edges or roots. Not for `cluster`.
        /// With full-graph schedules, only for tasks on edges: edges of a partition that are scored together.
        #[schemars(range(min = 1, max = 16777216))]
        pub batch: usize = 1000,
        /// Neighbors per node and hop, the seeds' hop first; -1 takes all. As many as `model.layers`. Unset: 15, 10, then 5.
        /// A table has numbers by edge type (name or number), as in `{ cites = 10, writes = 5 }`; other types have 0.
        #[schemars(length(min = 1), extend("examples" = [[15, 10]]))]
        pub fanouts: Option<Vec<Fanout>> = None,
        /// How batches are drawn, or the name of a registered sampler.
        pub sampler: Sampler = Sampler::default(),
        /// Registered operators that each batch passes after its features are fetched, in this order.
        #[schemars(extend("examples" = [["reweigh"]]))]
        pub operators: Vec<String> = Vec::new(),
        /// The optimizer.
        pub optimizer: Optimizer = Optimizer::default(),
        /// The learning rate by epochs, starting from `optimizer.lr`.
        pub lr_schedule: LrSchedule = LrSchedule::default(),
        /// Maximum Euclidean norm of a step's gradient; a longer gradient is scaled down to it. Unset: no bound.
        #[schemars(extend("exclusiveMinimum" = 0.0), extend("examples" = [1.0]))]
        pub clip_norm: Option<f64> = None,
        /// Epochs between evaluations on validation and test data. 0: only at the end.
        #[schemars(range(max = 1000000))]
        pub evaluate_every: usize = 1,
        /// Stop after this many epochs without a better validation metric. Unset: never.
        #[schemars(range(min = 1, max = 1000000), extend("examples" = [50]))]
        pub early_stop: Option<usize> = None,
        /// The validation metric that selects the best epoch. Unset: `accuracy`; `micro-f1` for several labels per node,
        /// `rmse` for regression, `mrr` for link prediction.
        #[schemars(extend("examples" = ["accuracy"]))]
        pub metric: Option<Metric> = None,
        /// Seed of the initial parameters, the batches, the sampled neighbors and dropout.
        #[schemars(range(max = i64::MAX))]
        pub seed: u64 = 1,
        /// Threads of each process, divided between sampling and computation by the plan, and again after the first epoch.
        /// Unset: the machine's cores, divided among its processes.
        #[schemars(range(min = 1, max = 4096), extend("x-results" = false), extend("examples" = [2]))]
        pub threads: Option<usize> = None,
        /// The device that computes: `"cpu"`; `"cuda"`, the first GPU; `"cuda:1"`, the GPU with this number; `"cuda:rank"`, a GPU for each process of
        /// a host. GPUs need a build with `--features cuda`.
        #[schemars(extend("examples" = ["cuda"]))]
        pub device: Device = Device::Cpu,
        /// Steps in flight, and batches of a process with fetched features: at least 2, and one more than it computes at the same time.
        /// Unset: 2, or 3 on a GPU; with `train.memory`, as many as fit, up to 8 (3 on a GPU).
        #[schemars(range(min = 1, max = 64), extend("x-results" = false), extend("examples" = [4]))]
        pub window: Option<usize> = None,
        /// Memory of each process for training, without mapped files. A run that needs more is refused. Unset: no bound; only as many
        /// batches are computed at the same time as fit into three quarters of the machine's memory, and features, and the layers of exact
        /// inference, are in memory instead of mapped files if they fit into the other quarter, or features alone if only these do.
        #[schemars(extend("x-results" = false), extend("examples" = ["8GiB"]))]
        pub memory: Option<Bytes> = None,
        /// Read the features of the next batches from disk ahead of time, for features larger than memory.
        /// Unset: true if the features that a process maps are more than half of the machine's memory.
        #[schemars(extend("x-results" = false), extend("examples" = [true]))]
        pub read_ahead: Option<bool> = None,
        /// Tensor workers: stateless processes that compute node tasks for `full-graph` and `tensor-parallel`.
        pub tensor_workers: Option<Tensor> = None,
        /// Epochs between checkpoints; the last epoch always writes one. 0: only the last. `"500 steps"`: every 500 steps of an epoch, and at its
        /// end. `"10min"`: when this time has passed. Only `mini-batch` writes checkpoints within an epoch; other schedules wait for the end of the epoch, or
        /// of the epochs that overlap or that are averaged together. Results do not depend on it.
        #[schemars(extend("x-results" = false), extend("examples" = ["10min"]))]
        pub checkpoint_every: CheckpointEvery = CheckpointEvery::Epochs(10),
        /// At SIGINT or SIGTERM in training, write a checkpoint before the run ends. With `mini-batch`, this is after a few more steps; other schedules wait as
        /// with `checkpoint_every`. A second signal ends the run at once.
        #[schemars(extend("x-results" = false))]
        pub checkpoint_on_signal: bool = false,
        /// Number of checkpoints that are kept, from the last one back. If the last one is damaged, `--resume` continues after the one before it.
        #[schemars(range(min = 1, max = 1000), extend("x-results" = false))]
        pub keep_checkpoints: usize = 2,
        /// Number of the best epochs whose models are kept, by `metric`: `best/e12` in the run folder has the model after epoch 12, and is
        /// read by `gnnflow infer` and `train.from` like a run folder. The best model of all is also in the run folder itself.
        #[schemars(range(max = 1000), extend("x-results" = false))]
        pub keep_best: usize = 0,
        /// Record what the threads of each process do, as `trace/worker-N.json` in the run folder, for Perfetto or
        /// `chrome://tracing`. The report then has a table of times.
        #[schemars(extend("x-results" = false))]
        pub trace: bool = false,
        /// Write a histogram of each parameter into the event file for TensorBoard, with the metrics of an epoch. If several epochs are trained
        /// in one round, their last one has histograms.
        #[schemars(extend("x-results" = false))]
        pub histograms: bool = false,
        /// Check that the results of all layers and all gradients are finite. The run ends at the first one that is not; the error names the step and epoch, or in
        /// full-graph training the epoch, and the layer or parameter. It takes time, above all on a GPU. Tensor workers do not check.
        #[schemars(extend("x-results" = false))]
        pub check_values: bool = false,
        /// Compute a hash over all sampled blocks, for `blocks_sha256` in the summary.
        #[schemars(extend("x-results" = false))]
        pub hash_blocks: bool = false,
    }
}

/// Bounds of the default number of epochs.
pub(crate) const DEFAULT_EPOCHS: RangeInclusive<usize> = 10..=200;

/// Maximum number of epochs.
const MOST_EPOCHS: usize = 1_000_000;

impl Train {
    /// The number of epochs. [`Config::resolve_epochs`](super::Config::resolve_epochs) sets the default; before, this is its minimum.
    pub fn epochs(&self) -> usize {
        self.epochs.unwrap_or(*DEFAULT_EPOCHS.start())
    }

    /// The fanouts of `layers` hops, the seeds' hop first; -1 takes all neighbors.
    pub fn fanouts(&self, layers: usize) -> Vec<Fanout> {
        let default = || (0..layers).map(|hop| Fanout::Each([15, 10].get(hop).copied().unwrap_or(5))).collect();
        self.fanouts.clone().unwrap_or_else(default)
    }

    /// Multiplies all keys that count epochs. Evaluations and checkpoints of `partition-parallel` stay with its averages.
    pub(crate) fn scale_epochs(&mut self, factor: f64) {
        let scaled = |epochs: usize| match epochs {
            0 => 0,
            _ => ((epochs as f64 * factor).round() as usize).clamp(1, MOST_EPOCHS),
        };
        let scale = |epochs: &mut usize| *epochs = scaled(*epochs);
        self.epochs.iter_mut().chain(&mut self.early_stop).for_each(scale);
        self.lr_schedule.scale_epochs(scaled, factor);
        if !self.schedule.is_partition_parallel() {
            scale(&mut self.evaluate_every);
            if let CheckpointEvery::Epochs(epochs) = &mut self.checkpoint_every {
                scale(epochs);
            }
        }
    }

    /// Returns the number of a process's batches that may have their features at the same time, with `window` steps in flight, `hosted`
    /// partitions and `jobs` batches in computation: at least one is fetched meanwhile. With registered operators it is all batches of these steps: an operator that loses batches is
    /// found when all batches of a step have passed it.
    pub(crate) fn fetched_batches(&self, window: usize, hosted: usize, jobs: usize) -> usize {
        let batches = if self.operators.is_empty() || matches!(self.schedule, Schedule::PartitionParallel(_)) {
            window.max(2)
        } else {
            window.max(2) * hosted
        };
        batches.max(jobs + 1)
    }

    /// Whether partitions take equal numbers of training nodes as seeds, of any owner. `train` has the number that each owns.
    pub(crate) fn splits_evenly(&self, train: &[u64]) -> bool {
        let most = train.iter().copied().max().unwrap_or(0) as f64;
        let uneven = most * train.len() as f64 > UNEVEN * train.iter().sum::<u64>() as f64;
        match &self.schedule {
            Schedule::MiniBatch(_) if self.draws_subgraphs() => false,
            Schedule::MiniBatch(options) => options.seed_split.map_or(uneven, |split| split == SeedSplit::Even),
            _ => false,
        }
    }

    /// Returns the options of link prediction.
    pub fn link(&self) -> Link {
        self.link.clone().unwrap_or_default()
    }

    /// Whether the task is link prediction.
    pub(crate) fn predicts_links(&self) -> bool {
        self.task == Task::LinkPrediction
    }

    /// Returns the options of edge classification.
    pub fn edge(&self) -> EdgeTask {
        self.edge.clone().unwrap_or_default()
    }

    /// Returns the options of classification.
    pub fn classes(&self) -> ClassOptions {
        self.classes.clone().unwrap_or_default()
    }

    /// Whether the examples are edges. A decoder then reads the model's results.
    pub(crate) fn learns_edges(&self) -> bool {
        self.task.learns_edges()
    }

    /// The key `exclude_training_targets` of the task; `None` if unset.
    pub(crate) fn exclude_training_targets(&self) -> Option<bool> {
        match self.predicts_links() {
            true => self.link().exclude_training_targets,
            false => self.edge().exclude_training_targets,
        }
    }

    /// Whether the target edges of a batch are hidden from it.
    pub(crate) fn excludes_targets(&self) -> bool {
        self.exclude_training_targets().unwrap_or(!self.is_full_graph())
    }

    /// Returns the share of the training edges (`counts`, by partition) that an epoch takes; `None` for all.
    pub(crate) fn edge_share(&self, counts: &[u64]) -> Option<EdgeShare> {
        self.edges_per_epoch().map(|edges| EdgeShare::new(counts, edges))
    }

    /// Whether the decoder learns a vector for each edge type.
    pub(crate) fn decodes_relations(&self) -> bool {
        self.predicts_links() && self.link().decoder == Decoder::Distmult
    }

    /// Whether batches are subgraphs. All layers then read all edges of a batch.
    pub(crate) fn draws_subgraphs(&self) -> bool {
        self.sampler.draws_subgraphs()
    }

    /// How the intervals of a full-graph epoch are synchronized.
    pub fn mode(&self) -> Mode {
        self.schedule.full_graph_options().map_or(Mode::Pipe, |options| options.mode)
    }

    /// Maximum age of a neighbor's rows in epochs.
    pub fn staleness(&self) -> usize {
        self.schedule.full_graph_options().map_or(0, |options| options.staleness)
    }

    /// Type of the rows that are summed over neighbors.
    pub fn row_dtype(&self) -> RowDtype {
        self.schedule.full_graph_options().map_or(RowDtype::F32, |options| options.row_dtype)
    }

    /// Training edges of a full-graph epoch; `None` for all.
    pub fn edges_per_epoch(&self) -> Option<u64> {
        self.schedule.full_graph_options().and_then(|options| options.edges_per_epoch)
    }

    /// Bytes of the cache of other processes' features.
    pub fn cache(&self) -> Option<u64> {
        match &self.schedule {
            Schedule::MiniBatch(options) => options.cache.map(|bytes| bytes.0),
            _ => None,
        }
    }

    /// Whether the GPU samples the batches.
    pub(crate) fn samples_on_device(&self) -> bool {
        matches!(&self.schedule, Schedule::MiniBatch(options) if options.device_sampling)
    }

    /// Whether every step computes all nodes.
    pub(crate) fn is_full_graph(&self) -> bool {
        self.schedule.full_graph_options().is_some()
    }

    /// Epochs between averages of the parameters.
    pub fn average_every(&self) -> usize {
        match &self.schedule {
            Schedule::PartitionParallel(options) => options.average_every,
            _ => 1,
        }
    }

    /// Momentum of the averages of parameters.
    pub fn average_momentum(&self) -> f64 {
        match &self.schedule {
            Schedule::PartitionParallel(options) => options.average_momentum,
            _ => 0.0,
        }
    }

    /// Threads of each of `processes` processes on this machine.
    pub fn threads(&self, processes: usize) -> usize {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        self.threads.unwrap_or_else(|| (cores() / processes.max(1)).max(1))
    }
}

words! {
    /// What is learned.
    pub enum Task {
        /// Classes or labels of nodes.
        NodeClassification = "node-classification",
        /// Numbers of nodes.
        NodeRegression = "node-regression",
        /// Edges between nodes.
        LinkPrediction = "link-prediction",
        /// Classes of edges.
        EdgeClassification = "edge-classification",
    }
}

impl Task {
    /// Whether the examples are edges.
    pub fn learns_edges(self) -> bool {
        matches!(self, Self::LinkPrediction | Self::EdgeClassification)
    }

    /// Whether it predicts classes.
    pub(crate) fn has_classes(self) -> bool {
        matches!(self, Self::NodeClassification | Self::EdgeClassification)
    }
}
