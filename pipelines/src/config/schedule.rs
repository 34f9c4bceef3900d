//! `train.schedule`: how the work of training is divided, with the options of each schedule.

use super::section::{choice, section, words};
use super::values::Bytes;

choice! {
    /// How the work of training is divided.
    pub enum Schedule {
        /// Sampled batches of all partitions; each step sums their gradients (DistDGL).
        MiniBatch(MiniBatch) = "mini-batch",
        /// Each partition trains on its own sampled batches; parameters are averaged between epochs (SDT-GNN).
        PartitionParallel(PartitionParallel) = "partition-parallel",
        /// Each step computes all nodes. Nodes are divided among partitions and computed in intervals (Dorylus).
        FullGraph(FullGraph) = "full-graph",
        /// Each step computes all nodes. Neighbor sums are column-parallel (NeutronTP).
        TensorParallel(TensorParallel) = "tensor-parallel",
        /// The fastest of several schedules, according to the plan's formulas ([details](choosing-a-schedule.md#let-the-program-choose)).
        Auto(Auto) = "auto",
    }
}

choice! {
    /// A schedule that `auto` may choose.
    pub enum AutoCandidate {
        /// Sampled batches.
        MiniBatch(MiniBatch) = "mini-batch",
        /// Sampled batches inside each partition; parameters are averaged.
        PartitionParallel(PartitionParallel) = "partition-parallel",
        /// All nodes in each step, node-parallel.
        FullGraph(FullGraph) = "full-graph",
        /// All nodes in each step; neighbor sums are column-parallel.
        TensorParallel(TensorParallel) = "tensor-parallel",
    }
}

section! {
    /// Options of `mini-batch`.
    pub struct MiniBatch {
        /// Memory of each process for a cache of other processes' features. Unset: no cache.
        #[schemars(extend("x-results" = false), extend("examples" = ["512MiB"]))]
        pub cache: Option<Bytes> = None,
        /// Which features `cache` keeps.
        #[schemars(extend("x-results" = false))]
        pub cache_policy: CachePolicy = CachePolicy::Degree,
        /// Memory of each process on its GPU for features: those of the nodes with most edges into the process's partitions. The others are copied with each batch.
        /// 0: none. Unset: half of the free memory, divided among the processes that share the GPU.
        #[schemars(extend("x-results" = false), extend("examples" = ["8GiB"]))]
        pub device_cache: Option<Bytes> = None,
        /// Whether the GPU samples the batches, from the edges of the whole graph, which it then holds ([what it needs](gpu.md#sampling-on-the-gpu)).
        #[schemars(extend("x-results" = false))]
        pub device_sampling: bool = false,
        /// Which training nodes a partition takes as seeds. Unset: `even` if a partition has more than 1.1 times the mean.
        /// Subgraph samplers and tasks on edges always use `partition`.
        #[schemars(extend("examples" = ["partition"]))]
        pub seed_split: Option<SeedSplit> = None,
    }
}

section! {
    /// Options of `partition-parallel`.
    pub struct PartitionParallel {
        /// Epochs between averages of the parameters. Evaluation, checkpoints and early stopping follow an average.
        #[schemars(range(min = 1, max = 1000))]
        pub average_every: usize = 1,
        /// Momentum of the averages; 0 is plain averaging. 0.5 to 0.8 helps when partitions differ much.
        #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1.0))]
        pub average_momentum: f64 = 0.0,
    }
}

section! {
    /// Options of `full-graph`.
    pub struct FullGraph {
        /// How the intervals of an epoch are synchronized.
        pub mode: Mode = Mode::Pipe,
        /// Maximum age of a neighbor's rows in epochs, with `mode = "async"`. With 0, intervals overlap only within an epoch.
        #[schemars(range(max = 1000))]
        pub staleness: usize = 0,
        /// Number of intervals of each partition, each computed and sent as a unit. Unset: at most 32,768 nodes in each.
        #[schemars(range(min = 1, max = 1000000), extend("examples" = [8]))]
        pub intervals: Option<usize> = None,
        /// Type of the rows that are summed over neighbors, in memory and in messages. `bf16` halves both.
        /// Not for `gat`, `gatv2` and `sage` with `pool`. Sums and parameters are always `f32`.
        pub row_dtype: RowDtype = RowDtype::F32,
        /// Training edges of an epoch, over all partitions, drawn anew in each epoch (tasks on edges). Unset: all.
        #[schemars(range(min = 1), extend("examples" = [100_000]))]
        pub edges_per_epoch: Option<u64> = None,
    }
}

section! {
    /// Options of `tensor-parallel`.
    pub struct TensorParallel {
        /// Whether an interval is sent while the next one is computed; `false` is for measurements.
        pub pipelined: bool = true,
        /// Memory for the aggregation of a chunk of nodes, with its in-edges and its neighbors' columns.
        #[schemars(extend("x-results" = false))]
        pub chunk_memory: Bytes = Bytes(256 << 20),
        /// Number of intervals of each partition, each computed and sent as a unit. Unset: at most 32,768 nodes in each.
        #[schemars(range(min = 1, max = 1000000), extend("examples" = [8]))]
        pub intervals: Option<usize> = None,
        /// Type of the rows that are summed over neighbors, in memory and in messages that split rows. `bf16` halves both.
        /// Not for `gat`, `gatv2` and `sage` with `pool`. Sums and parameters are always `f32`.
        pub row_dtype: RowDtype = RowDtype::F32,
        /// Training edges of an epoch, over all partitions, drawn anew in each epoch (tasks on edges). Unset: all.
        #[schemars(range(min = 1), extend("examples" = [100_000]))]
        pub edges_per_epoch: Option<u64> = None,
    }
}

section! {
    /// Options of `auto`.
    pub struct Auto {
        /// The schedules to choose from, each at most once.
        #[schemars(length(min = 1), extend("examples" = [["mini-batch", { "kind": "full-graph", "row_dtype": "bf16" }]]))]
        pub candidates: Vec<AutoCandidate> = vec![
            AutoCandidate::MiniBatch(MiniBatch::default()),
            AutoCandidate::PartitionParallel(PartitionParallel::default()),
            AutoCandidate::FullGraph(FullGraph::default()),
            AutoCandidate::TensorParallel(TensorParallel::default()),
        ],
        /// Rates of a process, for the estimates. `gnnflow calibrate` measures those of a machine.
        pub rates: Rates = Rates::default(),
    }
}

section! {
    /// What a process does per second. The defaults are those of one core of a server, and of a network of 10 Gbit/s.
    pub struct Rates {
        /// Multiplications with additions per second in products of matrices.
        #[schemars(extend("exclusiveMinimum" = 0.0))]
        pub multiplications: f64 = 5e10,
        /// Values of layers' results per second whose bias, activation and dropout are computed, forward and backward.
        #[schemars(extend("exclusiveMinimum" = 0.0))]
        pub activations: f64 = 7e8,
        /// Values per second that are summed along edges, from rows at random positions.
        #[schemars(extend("exclusiveMinimum" = 0.0))]
        pub sums: f64 = 5e9,
        /// Edges per second that a thread samples from its own partition.
        #[schemars(extend("exclusiveMinimum" = 0.0))]
        pub sampled_edges: f64 = 8e7,
        /// Bytes per second of rows at random positions that are copied in memory.
        #[schemars(range(min = 1))]
        pub memory: Bytes = Bytes(4_000_000_000),
        /// Bytes per second that a process sends to others.
        #[schemars(range(min = 1), extend("examples" = ["125MB"]))]
        pub bandwidth: Bytes = Bytes(1_250_000_000),
        /// Seconds of a round of messages.
        #[schemars(extend("exclusiveMinimum" = 0.0))]
        pub latency: f64 = 3e-4,
        /// Bytes per second of scratch files that are read or written.
        #[schemars(range(min = 1))]
        pub files: Bytes = Bytes(1_000_000_000),
    }
}

impl Default for Schedule {
    fn default() -> Self {
        Self::MiniBatch(MiniBatch::default())
    }
}

impl From<AutoCandidate> for Schedule {
    fn from(candidate: AutoCandidate) -> Self {
        match candidate {
            AutoCandidate::MiniBatch(options) => Self::MiniBatch(options),
            AutoCandidate::PartitionParallel(options) => Self::PartitionParallel(options),
            AutoCandidate::FullGraph(options) => Self::FullGraph(options),
            AutoCandidate::TensorParallel(options) => Self::TensorParallel(options),
        }
    }
}

/// The common options of `full-graph` and `tensor-parallel`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FullGraphOptions {
    /// Intervals of each partition.
    pub intervals: Option<usize>,
    /// Type of the rows that are summed over neighbors.
    pub row_dtype: RowDtype,
    /// Training edges of an epoch.
    pub edges_per_epoch: Option<u64>,
    /// How intervals are synchronized; never `async` with `tensor-parallel`.
    pub mode: Mode,
    /// Maximum age of a neighbor's rows in epochs; 0 if `mode` is not `async`.
    pub staleness: usize,
}

impl Schedule {
    /// The common options of `full-graph` and `tensor-parallel`; `None` for other schedules.
    pub(crate) fn full_graph_options(&self) -> Option<FullGraphOptions> {
        match *self {
            Self::FullGraph(FullGraph { mode, staleness, intervals, row_dtype, edges_per_epoch }) => {
                Some(FullGraphOptions { intervals, row_dtype, edges_per_epoch, mode, staleness })
            }
            Self::TensorParallel(TensorParallel { pipelined, intervals, row_dtype, edges_per_epoch, .. }) => {
                let mode = if pipelined { Mode::Pipe } else { Mode::Sync };
                Some(FullGraphOptions { intervals, row_dtype, edges_per_epoch, mode, staleness: 0 })
            }
            Self::MiniBatch(_) | Self::PartitionParallel(_) | Self::Auto(_) => None,
        }
    }

    /// Whether it is `partition-parallel`.
    pub(crate) fn is_partition_parallel(&self) -> bool {
        matches!(self, Self::PartitionParallel(_))
    }

    /// Whether it is `tensor-parallel`.
    pub(crate) fn is_tensor_parallel(&self) -> bool {
        matches!(self, Self::TensorParallel(_))
    }
}

words! {
    /// How the intervals of an epoch are synchronized (Dorylus, section 7.3).
    pub enum Mode {
        /// A layer begins when the previous layer is complete; an interval is sent while the next one is computed.
        Pipe = "pipe",
        /// As `pipe`, but a layer's rows are sent after all of them are computed; for measurements.
        Sync = "sync",
        /// An interval uses the last rows received, at most `staleness` epochs old. Results depend on timing.
        Async = "async",
    }
}

words! {
    /// Type of the rows that are summed over neighbors.
    pub enum RowDtype {
        /// Not rounded.
        F32 = "f32",
        /// Rounded to 7 bits of mantissa instead of 23.
        Bf16 = "bf16",
    }
}

impl RowDtype {
    /// Bytes of a value.
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
        /// Equal numbers by ranges of ids (DistDGL). Costs two more rounds of messages per step.
        Even = "even",
        /// Its own training nodes. Partitions with few of them finish an epoch early.
        Partition = "partition",
    }
}

words! {
    /// Which rows a cache keeps.
    pub enum CachePolicy {
        /// Rows of the nodes with most edges into the process's partitions.
        Degree = "degree",
        /// Rows that the first epoch requested most often.
        Frequency = "frequency",
        /// The most recently used rows.
        Dynamic = "dynamic",
    }
}
