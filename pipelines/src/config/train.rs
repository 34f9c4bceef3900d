//! `[train]`: the task, the schedule and the batches.

use super::edge::EdgeTask;
use super::fanout::Fanout;
use super::link::{Decoder, Link};
use super::metric::Metric;
use super::optimizer::{LrSchedule, Optimizer};
use super::section::{section, words};
use super::tensor::Tensor;
use super::values::Bytes;
use gnnflow_dataflow::sample::edge_share::EdgeShare;

/// Samplers of this version.
pub(super) const SAMPLERS: &[&str] = &[
    "uniform",
    "weighted",
    "labor",
    "temporal",
    "ladies",
    "fastgcn",
    "cluster",
    "saint-node",
    "saint-edge",
    "saint-walk",
];
/// Those whose batches are subgraphs, and every layer reads the same edges.
pub(super) const SUBGRAPHS: &[&str] = &["cluster", "saint-node", "saint-edge", "saint-walk"];

/// Training nodes of the largest partition over the mean beyond which seeds are split evenly unless the pipeline says.
const UNEVEN: f64 = 1.1;

section! {
    /// How the model is trained.
    pub struct Train {
        /// What is learnt: `node-classification` (whether nodes have one class or several labels is seen from the data), `node-regression`, where labels are numbers with fractions, `link-prediction`, or `edge-classification`, where edges have labels (`graph.columns.edge_label`).
        pub task: Task = Task::NodeClassification,
        /// Link prediction: which edges are predicted, and how.
        pub link: Option<Link> = None,
        /// Edge classification: which edges are classified, and how.
        pub edge: Option<EdgeTask> = None,
        /// How the work is laid out. `auto`: by `mini-batch`, `full-graph` or `tensor-parallel`, whichever the plan's formulas find fastest for this graph, its partitions and the keys given here (the page "Choosing a schedule" of the book says how).
        pub schedule: Schedule = Schedule::MiniBatch,
        /// Passes over the train nodes.
        #[schemars(range(min = 1, max = 1000000))]
        pub epochs: usize = 10,
        /// Seeds per partition and step; a step takes one batch of every partition. Over whole graphs: edges of each partition that are scored at once, where it is edges that something is learnt of. With `saint-node`, `saint-edge` and `saint-walk`: nodes, edges or roots of walks that are drawn. `cluster` has `clusters_per_batch` in its place.
        #[schemars(range(min = 1, max = 16777216))]
        pub batch: usize = 1000,
        /// Edges that an epoch over a whole graph learns from, of all partitions together: so many of the training edges, drawn anew in every epoch, of each partition its share. Unset, or where there are no more: all.
        #[schemars(range(min = 1), extend("examples" = [100_000]))]
        pub edges_per_epoch: Option<u64> = None,
        /// Which training nodes a partition takes as seeds: `even`, as many as every other, by ranges of ids (DistDGL), which costs two more rounds of messages where a seed belongs to another process; or `partition`, its own, so that partitions with few are done early. Unset: `even` where a partition has more than 1.1 times the mean; with `partition-parallel`, and where batches are subgraphs, always its own.
        #[schemars(extend("examples" = ["partition"]))]
        pub seed_split: Option<SeedSplit> = None,
        /// Neighbours per node and hop: first of the seeds, then of their neighbours (PyG's order; DGL's is the reverse). -1 is all of them. A table gives each edge type its own, by name or number: `{ cites = 10, writes = 5 }`, and 0 to the others. As many as `model.layers`. Unset: 15, then 10, then 5 for every further hop.
        #[schemars(length(min = 1), extend("examples" = [[15, 10]]))]
        pub fanouts: Option<Vec<Fanout>> = None,
        /// Draw neighbours with replacement (`uniform`, `weighted`).
        pub replace: bool = false,
        /// The sampler: `uniform`; `weighted`, in proportion to edge weights; `labor` (LABOR-0), as many as the fanout in expectation, fewer nodes in all; `temporal`, only edges older than the seed (`graph.columns.time`, `graph.columns.node_time`); `ladies` and `fastgcn`, so many sources for the whole hop (`sage` with the mean); `cluster` (ClusterGCN), and `saint-node`, `saint-edge`, `saint-walk` (GraphSAINT, `sage` with the mean), subgraphs that all layers read, without fanouts; or the name of a registered one.
        #[schemars(extend("x-known" = SAMPLERS))]
        pub sampler: String = "uniform".into(),
        /// Which of the older edges `temporal` takes. Unset: `uniform`.
        #[schemars(extend("examples" = ["last"]))]
        pub temporal: Option<Temporal> = None,
        /// Clusters that each partition is cut into before training (`cluster`). Unset: 100, or as many as the smallest partition has nodes.
        #[schemars(range(min = 1, max = 65535), extend("examples" = [1500]))]
        pub clusters: Option<usize> = None,
        /// Clusters of a partition that make a batch (`cluster`). Unset: 10, or all.
        #[schemars(range(min = 1, max = 65535), extend("examples" = [20]))]
        pub clusters_per_batch: Option<usize> = None,
        /// Steps of a walk (`saint-walk`). Unset: 2.
        #[schemars(range(min = 1, max = 1000), extend("examples" = [2]))]
        pub walk_length: Option<usize> = None,
        /// node2vec's return parameter p (`saint-walk`): a walk goes back to where it just was 1 / p times as readily as to a neighbour of both nodes. Unset: 1.
        #[schemars(extend("exclusiveMinimum" = 0.0), extend("examples" = [4.0]))]
        pub walk_p: Option<f64> = None,
        /// node2vec's in-out parameter q (`saint-walk`): a walk goes farther from where it just was 1 / q times as readily as to a neighbour of both nodes. Unset: 1.
        #[schemars(extend("exclusiveMinimum" = 0.0), extend("examples" = [0.5]))]
        pub walk_q: Option<f64> = None,
        /// How often a node is drawn, on average, before training, to estimate how often it and its edges are in a batch (`saint-node`, `saint-edge`, `saint-walk`). Unset: 50.
        #[schemars(range(min = 1, max = 100000), extend("examples" = [50]))]
        pub sample_coverage: Option<usize> = None,
        /// The optimiser.
        pub optimizer: Optimizer = Optimizer::default(),
        /// How the learning rate goes on from `optimizer.lr`.
        pub lr_schedule: LrSchedule = LrSchedule::default(),
        /// Shrink the gradient of a step to this Euclidean length when it is longer. Unset: never.
        #[schemars(extend("exclusiveMinimum" = 0.0), extend("examples" = [1.0]))]
        pub clip_norm: Option<f64> = None,
        /// Evaluate on the validation and test nodes every so many epochs. 0: only at the end.
        #[schemars(range(max = 1000000))]
        pub evaluate_every: usize = 1,
        /// Stop after this many epochs without a better validation metric. Unset: never.
        #[schemars(range(min = 1, max = 1000000), extend("examples" = [50]))]
        pub early_stop: Option<usize> = None,
        /// The validation metric by which the best epoch is chosen. Unset: `accuracy`, `micro-f1` where nodes have several labels, `rmse` in regression, `mrr` for links.
        #[schemars(extend("examples" = ["accuracy"]))]
        pub metric: Option<Metric> = None,
        /// Seed of the initial parameters, the batches, the sampled neighbours and dropout.
        #[schemars(range(max = i64::MAX))]
        pub seed: u64 = 1,
        /// Threads of each process, split between sampling and arithmetic: by the plan, and once more after the first epoch, by what it measured. Unset: the machine's cores, shared out among its processes.
        #[schemars(range(min = 1, max = 4096), extend("x-results" = false), extend("examples" = [2]))]
        pub threads: Option<usize> = None,
        /// Where the arithmetic is done.
        pub device: Device = Device::Cpu,
        /// Steps that may be under way at once: sampled while an earlier one is computed; and batches of a process that may have their features fetched (at least 2).
        /// Unset: 2, or as many up to 8 as fit `train.memory`.
        #[schemars(range(min = 1, max = 64), extend("x-results" = false), extend("examples" = [4]))]
        pub window: Option<usize> = None,
        /// What training may take of each process's memory, mapped files not counted; a run that would need more is refused with what fits. Unset: no bound.
        #[schemars(extend("x-results" = false), extend("examples" = ["8GiB"]))]
        pub memory: Option<Bytes> = None,
        /// Room of each process for features of other processes' nodes, so that they need not be fetched again. Unset: none.
        #[schemars(extend("x-results" = false), extend("examples" = ["512MiB"]))]
        pub cache: Option<Bytes> = None,
        /// Which features `cache` keeps. Unset: `degree`.
        #[schemars(extend("x-results" = false), extend("examples" = ["frequency"]))]
        pub cache_policy: Option<CachePolicy> = None,
        /// Tell the system which rows of features a batch will want while the batch still waits, and not to read what lies around them: for
        /// features larger than memory, which stay on disk. Unset: where a process's features are more than half of the machine's memory.
        #[schemars(extend("x-results" = false), extend("examples" = [true]))]
        pub read_ahead: Option<bool> = None,
        /// Epochs that each partition trains by itself before weights are averaged (`partition-parallel`). Evaluation, checkpoints and early stopping wait for an average. Unset: 1.
        #[schemars(range(min = 1, max = 1000), extend("examples" = [1]))]
        pub average_every: Option<usize> = None,
        /// Sample and compact in one loop where all edges are here (FastSample). `false` does one after the other, as processes must between them, and is slower: for measurements.
        #[schemars(extend("x-results" = false))]
        pub fused_sampling: bool = true,
        /// How the intervals of the whole graph follow one another (`full-graph`). Unset: `pipe`.
        #[schemars(extend("examples" = ["async"]))]
        pub mode: Option<Mode> = None,
        /// How many epochs old a neighbour's rows may be (`mode = "async"`), by how far everybody has come; 0 lets intervals overtake one another within an epoch only. Unset: 0. Epochs overlap between evaluations and checkpoints, not across them.
        #[schemars(range(max = 1000), extend("examples" = [1]))]
        pub staleness: Option<usize> = None,
        /// Intervals that each partition is cut into: what is computed and sent at once (`full-graph`, `tensor-parallel`). Unset: so many that none has more than 32,768 nodes.
        #[schemars(range(min = 1, max = 1000000), extend("examples" = [8]))]
        pub intervals: Option<usize> = None,
        /// How rows that neighbours add up are stored, and travel (`full-graph`, `tensor-parallel`): `bf16` rounds activations and their gradients to half as many bits, which takes half the memory and half the messages (`tensor-parallel`: of those that split rows; sums travel as they are). Sums are `f32` all the same, and so are parameters and what nodes are computed of. Not for `gat`, `gatv2` and `sage` with `pool`, which do more with neighbours' rows than to add them up. Unset: `f32`.
        #[schemars(extend("examples" = ["bf16"]))]
        pub row_dtype: Option<RowDtype> = None,
        /// Tensor workers, which do the arithmetic on nodes for whole graphs.
        pub tensor: Option<Tensor> = None,
        /// What a chunk of nodes may take while its rows are added up, their in-edges and neighbours' slices counted, and what may be on its way from each process then (`tensor-parallel`). Unset: 256MiB.
        #[schemars(extend("x-results" = false), extend("examples" = ["64MiB"]))]
        pub chunk_memory: Option<Bytes> = None,
        /// Momentum of the averages (`partition-parallel`): how much of the way that earlier ones went the next one goes on. Where partitions differ much in what they teach, 0.5 to 0.8 makes up for it; too much is unstable. Unset: 0, plain averages.
        #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1.0), extend("examples" = [0.5]))]
        pub average_momentum: Option<f64> = None,
        /// Write a checkpoint every so many epochs, and always after the last. 0: only after the last.
        #[schemars(range(max = 1000000), extend("x-results" = false))]
        pub checkpoint_every: usize = 10,
        /// Keep a running hash over all sampled blocks, for `blocks_sha256` in the summary.
        #[schemars(extend("x-results" = false))]
        pub hash_blocks: bool = false,
    }
}

impl Train {
    /// The neighbours per node of each of `layers` hops, the seeds' own first; -1 is all of them.
    pub fn fanouts(&self, layers: usize) -> Vec<Fanout> {
        let default = || (0..layers).map(|hop| Fanout::Each([15, 10].get(hop).copied().unwrap_or(5))).collect();
        self.fanouts.clone().unwrap_or_else(default)
    }

    /// Whether every partition takes as many training nodes as any other, whoever owns them, when they own `train` each.
    pub fn splits_evenly(&self, train: &[u64]) -> bool {
        let most = train.iter().copied().max().unwrap_or(0) as f64;
        let uneven = most * train.len() as f64 > UNEVEN * train.iter().sum::<u64>() as f64;
        let may = self.schedule == Schedule::MiniBatch && !self.draws_subgraphs();
        may && self.seed_split.map_or(uneven, |split| split == SeedSplit::Even)
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
        self.edges_per_epoch.map(|edges| EdgeShare::new(counts, edges))
    }

    /// Whether a vector is learnt for each edge type behind the model.
    pub fn decodes_relations(&self) -> bool {
        self.predicts_links() && self.link().decoder == Decoder::Distmult
    }

    /// Which of the older edges `temporal` takes.
    pub fn temporal(&self) -> Temporal {
        self.temporal.unwrap_or(Temporal::Uniform)
    }

    /// Whether batches are subgraphs, whose edges all layers read.
    pub fn draws_subgraphs(&self) -> bool {
        SUBGRAPHS.contains(&self.sampler.as_str())
    }

    /// Clusters of each partition, where partitions have so many `nodes`; those without nodes have none.
    pub fn clusters(&self, nodes: impl Iterator<Item = u64>) -> usize {
        let least = nodes.filter(|&nodes| nodes > 0).min().unwrap_or(1);
        self.clusters.unwrap_or_else(|| usize::try_from(least).unwrap_or(usize::MAX).min(100))
    }

    /// Clusters of a batch, when each partition has `clusters`.
    pub fn clusters_per_batch(&self, clusters: usize) -> usize {
        self.clusters_per_batch.unwrap_or(10).min(clusters)
    }

    /// Steps of a walk.
    pub fn walk_length(&self) -> u32 {
        self.walk_length.map_or(2, |length| u32::try_from(length).unwrap_or(u32::MAX))
    }

    /// node2vec's p and q, where walks look back.
    pub fn walk_bias(&self) -> Option<[f64; 2]> {
        let bias = [self.walk_p, self.walk_q].map(|factor| factor.unwrap_or(1.0));
        (bias != [1.0, 1.0]).then_some(bias)
    }

    /// How often a node is drawn before training.
    pub fn sample_coverage(&self) -> usize {
        self.sample_coverage.unwrap_or(50)
    }

    /// How intervals of the whole graph follow one another.
    pub fn mode(&self) -> Mode {
        self.mode.unwrap_or(Mode::Pipe)
    }

    /// How many epochs old a neighbour's rows may be.
    pub fn staleness(&self) -> usize {
        self.staleness.unwrap_or(0)
    }

    /// How rows that neighbours add up are stored.
    pub fn row_dtype(&self) -> RowDtype {
        self.row_dtype.unwrap_or(RowDtype::F32)
    }

    /// What a chunk of nodes may take.
    pub fn chunk_memory(&self) -> u64 {
        self.chunk_memory.map_or(256 << 20, |bytes| bytes.0)
    }

    /// Whether every step is over the whole graph.
    pub fn is_whole_graph(&self) -> bool {
        matches!(self.schedule, Schedule::FullGraph | Schedule::TensorParallel)
    }

    /// Epochs from one average of weights to the next.
    pub fn average_every(&self) -> usize {
        self.average_every.unwrap_or(1)
    }

    /// Threads of one of `processes` processes on this machine.
    pub fn threads(&self, processes: usize) -> usize {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        self.threads.unwrap_or_else(|| (cores() / processes.max(1)).max(1))
    }
}

words! {
    /// What is learnt.
    pub enum Task {
        /// Classes or labels of nodes.
        NodeClassification = "node-classification",
        /// A number of nodes.
        NodeRegression = "node-regression",
        /// Edges: which pairs of nodes have one.
        LinkPrediction = "link-prediction",
        /// Classes of edges.
        EdgeClassification = "edge-classification",
    }
}

words! {
    /// How the work of training is laid out.
    pub enum Schedule {
        /// Sampled batches of every partition, gradients summed over all of them.
        MiniBatch = "mini-batch",
        /// Every partition trains on its own, weights are averaged.
        PartitionParallel = "partition-parallel",
        /// The whole graph in every step.
        FullGraph = "full-graph",
        /// The whole graph in every step, cut by dimension.
        TensorParallel = "tensor-parallel",
        /// Whichever the plan finds best.
        Auto = "auto",
    }
}

words! {
    /// How the intervals of the whole graph follow one another (Dorylus, section 7.3).
    pub enum Mode {
        /// A layer begins when all of the last is there; meanwhile one interval's rows are sent while another's are computed.
        Pipe = "pipe",
        /// As `pipe`, but nothing is sent before everything of a layer is computed: for measurements.
        Sync = "sync",
        /// An interval goes on with what its neighbours last told, at most `staleness` epochs old. Results depend on timing.
        Async = "async",
    }
}

words! {
    /// How rows that neighbours add up are stored.
    pub enum RowDtype {
        /// As they were computed.
        F32 = "f32",
        /// Rounded to half as many bits: of the mantissa 7 instead of 23, with all exponents.
        Bf16 = "bf16",
    }
}

impl RowDtype {
    /// Bytes of a number.
    pub(crate) const fn bytes(self) -> u64 {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }
}

words! {
    /// Which training nodes a partition takes as seeds.
    pub enum SeedSplit {
        /// As many as every other partition.
        Even = "even",
        /// Its own.
        Partition = "partition",
    }
}

words! {
    /// Which rows a cache keeps.
    pub enum CachePolicy {
        /// Those of the foreign nodes with most edges into the process's partitions.
        Degree = "degree",
        /// Those that the first epoch asked for most often.
        Frequency = "frequency",
        /// The latest, longer if they are used again.
        Dynamic = "dynamic",
    }
}

words! {
    /// Which edges older than the seed are taken.
    pub enum Temporal {
        /// A uniform subset.
        Uniform = "uniform",
        /// The latest.
        Last = "last",
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
