//! `[train]`: the task, the schedule and the batches.

use super::edge::EdgeTask;
use super::fanout::Fanout;
use super::link::{Decoder, Link};
use super::metric::Metric;
use super::optimizer::{LrSchedule, Optimizer};
use super::sampler::{Sampler, Take};
use super::schedule::{Mode, RowDtype, Schedule, SeedSplit};
use super::section::{section, words};
use super::tensor_workers::Tensor;
use super::values::Bytes;
use gnnflow_dataflow::sample::edge_share::EdgeShare;

/// Training nodes of the largest partition over the mean beyond which seeds are split evenly unless the pipeline says.
const UNEVEN: f64 = 1.1;

section! {
    /// How the model is trained.
    pub struct Train {
        /// What is learned. Whether nodes have one class or several labels is seen from the data.
        pub task: Task = Task::NodeClassification,
        /// Link prediction: which edges are predicted, and how.
        pub link: Option<Link> = None,
        /// Edge classification: which edges are classified, and how.
        pub edge: Option<EdgeTask> = None,
        /// How training is arranged.
        pub schedule: Schedule = Schedule::default(),
        /// Passes over the training nodes or edges.
        #[schemars(range(min = 1, max = 1000000))]
        pub epochs: usize = 10,
        /// Seeds per partition and step; GraphSAINT samplers draw as many nodes, edges or roots. Not for `cluster`.
        /// With schedules over the whole graph, only for tasks on edges: edges of a partition that are scored at once.
        #[schemars(range(min = 1, max = 16777216))]
        pub batch: usize = 1000,
        /// Neighbors per node and hop, the seeds' hop first; -1 takes all. As many as `model.layers`. Unset: 15, 10, then 5.
        /// A table gives numbers by edge type (name or number): `{ cites = 10, writes = 5 }`, and 0 to the others.
        #[schemars(length(min = 1), extend("examples" = [[15, 10]]))]
        pub fanouts: Option<Vec<Fanout>> = None,
        /// How batches are drawn, or the name of a registered sampler.
        pub sampler: Sampler = Sampler::default(),
        /// Registered operators that each batch passes after its features are fetched, in this order.
        #[schemars(extend("examples" = [["reweigh"]]))]
        pub operators: Vec<String> = Vec::new(),
        /// The optimizer.
        pub optimizer: Optimizer = Optimizer::default(),
        /// How the learning rate continues from `optimizer.lr`.
        pub lr_schedule: LrSchedule = LrSchedule::default(),
        /// Largest Euclidean norm of a step's gradient; longer ones are scaled down to it. Unset: no bound.
        #[schemars(extend("exclusiveMinimum" = 0.0), extend("examples" = [1.0]))]
        pub clip_norm: Option<f64> = None,
        /// Epochs from one evaluation on validation and test data to the next. 0: only at the end.
        #[schemars(range(max = 1000000))]
        pub evaluate_every: usize = 1,
        /// Stop after this many epochs without a better validation metric. Unset: never.
        #[schemars(range(min = 1, max = 1000000), extend("examples" = [50]))]
        pub early_stop: Option<usize> = None,
        /// The validation metric that chooses the best epoch. Unset: `accuracy`, `micro-f1` where nodes have several labels,
        /// `rmse` in regression, `mrr` for links.
        #[schemars(extend("examples" = ["accuracy"]))]
        pub metric: Option<Metric> = None,
        /// Seed of the initial parameters, the batches, the sampled neighbors and dropout.
        #[schemars(range(max = i64::MAX))]
        pub seed: u64 = 1,
        /// Threads of each process, divided between sampling and arithmetic by the plan and by what the first epoch measures.
        /// Unset: the machine's cores, divided among its processes.
        #[schemars(range(min = 1, max = 4096), extend("x-results" = false), extend("examples" = [2]))]
        pub threads: Option<usize> = None,
        /// Where the arithmetic is done.
        pub device: Device = Device::Cpu,
        /// Steps in flight at once, and batches of a process that may have their features (at least 2).
        /// Unset: 2, or as many up to 8 as fit `train.memory`.
        #[schemars(range(min = 1, max = 64), extend("x-results" = false), extend("examples" = [4]))]
        pub window: Option<usize> = None,
        /// Memory of each process for training, mapped files not counted. A run that needs more is refused. Unset: no bound.
        #[schemars(extend("x-results" = false), extend("examples" = ["8GiB"]))]
        pub memory: Option<Bytes> = None,
        /// Read a waiting batch's features from disk ahead of time, for features larger than memory.
        /// Unset: where a process's features are more than half of the machine's memory.
        #[schemars(extend("x-results" = false), extend("examples" = [true]))]
        pub read_ahead: Option<bool> = None,
        /// Tensor workers, which do the arithmetic on nodes for schedules over the whole graph.
        pub tensor_workers: Option<Tensor> = None,
        /// Epochs from one checkpoint to the next; the last epoch always writes one. 0: only the last.
        #[schemars(range(max = 1000000), extend("x-results" = false))]
        pub checkpoint_every: usize = 10,
        /// Compute a hash over all sampled blocks, for `blocks_sha256` in the summary.
        #[schemars(extend("x-results" = false))]
        pub hash_blocks: bool = false,
    }
}

impl Train {
    /// The neighbors per node of each of `layers` hops, the seeds' own first; -1 is all of them.
    pub fn fanouts(&self, layers: usize) -> Vec<Fanout> {
        let default = || (0..layers).map(|hop| Fanout::Each([15, 10].get(hop).copied().unwrap_or(5))).collect();
        self.fanouts.clone().unwrap_or_else(default)
    }

    /// Returns the number of a process's batches that may have their features at the same time, with `window` steps in flight
    /// and `hosted` partitions. With registered operators it is all batches of these steps: an operator that loses batches is
    /// found when all batches of a step have passed it.
    pub(crate) fn fetched_batches(&self, window: usize, hosted: usize) -> usize {
        if self.operators.is_empty() || matches!(self.schedule, Schedule::PartitionParallel(_)) {
            window.max(2)
        } else {
            window.max(2) * hosted
        }
    }

    /// Whether every partition takes as many training nodes as any other, whoever owns them, when they own `train` each.
    pub fn splits_evenly(&self, train: &[u64]) -> bool {
        let most = train.iter().copied().max().unwrap_or(0) as f64;
        let uneven = most * train.len() as f64 > UNEVEN * train.iter().sum::<u64>() as f64;
        match &self.schedule {
            Schedule::MiniBatch(_) if self.draws_subgraphs() => false,
            Schedule::MiniBatch(options) => options.seed_split.map_or(uneven, |split| split == SeedSplit::Even),
            _ => false,
        }
    }

    /// How links are predicted.
    pub fn link(&self) -> Link {
        self.link.clone().unwrap_or_default()
    }

    /// Whether it is links that are predicted.
    pub fn predicts_links(&self) -> bool {
        self.task == Task::LinkPrediction
    }

    /// How edges are classified.
    pub fn edge(&self) -> EdgeTask {
        self.edge.clone().unwrap_or_default()
    }

    /// Whether batches are of edges: examples are edges, and the model's results are rows that something behind it reads.
    pub fn learns_edges(&self) -> bool {
        [Task::LinkPrediction, Task::EdgeClassification].contains(&self.task)
    }

    /// Whether the pipeline says whether batches of edges see them, and what.
    pub fn asks_to_exclude_targets(&self) -> Option<bool> {
        match self.predicts_links() {
            true => self.link().exclude_training_targets,
            false => self.edge().exclude_training_targets,
        }
    }

    /// Whether a batch of edges must not see them.
    pub fn excludes_targets(&self) -> bool {
        self.asks_to_exclude_targets().unwrap_or(!self.is_whole_graph())
    }

    /// How many of these training edges, by partition, an epoch takes, where not all.
    pub(crate) fn edge_share(&self, counts: &[u64]) -> Option<EdgeShare> {
        self.edges_per_epoch().map(|edges| EdgeShare::new(counts, edges))
    }

    /// Whether a vector is learned for each edge type behind the model.
    pub fn decodes_relations(&self) -> bool {
        self.predicts_links() && self.link().decoder == Decoder::Distmult
    }

    /// Whether `temporal` takes the latest of the older edges.
    pub fn takes_latest(&self) -> bool {
        matches!(&self.sampler, Sampler::Temporal(options) if options.take == Take::Last)
    }

    /// Whether batches are subgraphs, whose edges all layers read.
    pub fn draws_subgraphs(&self) -> bool {
        self.sampler.draws_subgraphs()
    }

    /// How the intervals of an epoch over the whole graph follow one another.
    pub fn mode(&self) -> Mode {
        self.schedule.whole_graph().map_or(Mode::Pipe, |options| options.mode)
    }

    /// How many epochs old a neighbor's rows may be.
    pub fn staleness(&self) -> usize {
        self.schedule.whole_graph().map_or(0, |options| options.staleness)
    }

    /// Type of the rows that neighbors add up.
    pub fn row_dtype(&self) -> RowDtype {
        self.schedule.whole_graph().map_or(RowDtype::F32, |options| options.row_dtype)
    }

    /// Training edges of an epoch over the whole graph; `None` for all.
    pub fn edges_per_epoch(&self) -> Option<u64> {
        self.schedule.whole_graph().and_then(|options| options.edges_per_epoch)
    }

    /// Bytes for other processes' features.
    pub fn cache(&self) -> Option<u64> {
        match &self.schedule {
            Schedule::MiniBatch(options) => options.cache.map(|bytes| bytes.0),
            _ => None,
        }
    }

    /// Whether every step is over the whole graph.
    pub fn is_whole_graph(&self) -> bool {
        self.schedule.whole_graph().is_some()
    }

    /// Epochs from one average of the parameters to the next.
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

    /// Threads of one of `processes` processes on this machine.
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
        /// A number for each node.
        NodeRegression = "node-regression",
        /// Which pairs of nodes have an edge.
        LinkPrediction = "link-prediction",
        /// Classes of edges.
        EdgeClassification = "edge-classification",
    }
}

words! {
    /// Where the arithmetic is done.
    pub enum Device {
        /// The processor.
        Cpu = "cpu",
        /// The first CUDA device; needs a build with `--features cuda`.
        Cuda = "cuda",
    }
}
