//! The memory of each process.

use std::ops::Range;

use serde::Serialize;

use super::device_needs::DeviceNeeds;
use super::inference::InferencePlan;
use super::model::aggregates_features;
use super::training::edge_bytes;
use super::{Layer, PartSize, Sizes, Training, batch, embedding};
use crate::config::{Config, Infer, Schedule, Task, Topology};

/// Memory of the program: code, stacks of threads, socket buffers, and small blocks. If the system has transparent large pages, the allocator asks
/// for them, and takes about 30 MiB more.
pub(super) const PROGRAM_BYTES: u64 = 96 << 20;

/// One process of the run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Process {
    /// Its rank.
    pub rank: usize,
    /// Its partitions.
    pub parts: Range<usize>,
    /// Nodes of its partitions.
    pub nodes: u64,
    /// Edges of its partitions.
    pub edges: u64,
    /// Compute threads.
    pub threads: usize,
    /// Memory for training and inference.
    pub memory: Memory,
    /// Memory on its GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceNeeds>,
}

/// What a process computes at the same time.
#[derive(Clone, Copy, Debug)]
pub(super) struct InFlight {
    /// Maximum number of steps.
    pub(super) window: usize,
    /// Maximum number of jobs.
    pub(super) jobs: usize,
    /// Whether batches have no copies of features.
    pub(super) in_place: bool,
}

/// The memory of a process, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Mapped structure of its partitions, or of all if replicated.
    pub topology: u64,
    /// Features of its partitions: in memory, or mapped ([`RowsInMemory`]).
    pub features: u64,
    /// With several processes, mapped features of halo nodes if they are stored, and 24 bytes for each of these nodes.
    pub halo: u64,
    /// Learned rows of its nodes with optimizer state, and those of the best epoch, in mapped scratch files.
    pub embeddings: u64,
    /// Layers of exact inference, in memory or mapped like features: own nodes × 4 × (the hidden width, twice for three layers or more, and
    /// the classes).
    pub layers: u64,
    /// Other mapped scratch files. With `infer.scores`, probabilities of classified edges: edges × classes × 4. Full-graph tables that do not
    /// fit into memory, results of nodes in full-graph training on edges, and GraphSAINT's counts in `partition-parallel`: 4 per own node and
    /// edge.
    pub scratch: u64,
    /// State of a sampler: distributions, clusters, counts.
    pub sampler: u64,
    /// `train.schedule.cache`, with several processes. In mini-batch training on a GPU, 4 bytes for each node of the graph.
    pub cache: u64,
    /// Features of `train.window` batches (at least 2, and one more than jobs at the same time; all in computation but one count as activations; of each partition with
    /// `train.operators`): nodes × (width × 4 + 8) and
    /// edges × 8 each, and edges × (edge width + 1) × 4 if the model reads edge features. Lists and blocks of partitions ×
    /// `train.window` batches: nodes × 4 and edges × 8 each. Gradients of learned rows in flight: 2 × partitions × nodes ×
    /// (width + 1) × 4. In full-graph training on edges: 3 chunks per partition, nodes × (width × 8 + 12) each.
    pub batches: u64,
    /// Forward and backward of a batch, for each job at the same time (on a GPU: none): three times (values, inputs, gradients) the sum over layers of
    /// nodes × width × 4. Of features that `gcn` and `sage` aggregate as they are, each job counts one copy and the aggregated rows,
    /// and the process one more copy; none of features that are summed where they lie, and then the process counts all else once more. For `rgcn` with `num_bases` also nodes × bases × input width × 4. In full-graph training,
    /// for each job: an interval's nodes × 4 × six times the widest rows of a task, or eight times the sums of all relations, if more;
    /// the rows of one stage in flight, at most 16 MiB per process; in `tensor-parallel` also a chunk's sums, at most
    /// `train.schedule.chunk_memory`, and as much in flight per process.
    pub activations: u64,
    /// Tables of full-graph training, by hop: sent and aggregated rows, and their gradients. 0 if they are scratch files.
    pub tables: u64,
    /// The edges of full-graph training with the graph on a GPU, where they are, too: 40 bytes for each edge and 72 for each node.
    pub edges: u64,
    /// Rows and results of tasks with tensor workers or in flight: 4 (`tensor-parallel`: 2) + 4 × workers tasks (instead of workers,
    /// with several jobs at the same time, + their number), or more if they are smaller than 256 KiB; and the messages of 2 × workers calls.
    pub tensor_rows: u64,
    /// Exact inference for evaluation and outputs: 3 chunks in flight, or one more than jobs at the same time, and twice the chunks in computation. A chunk has
    /// `infer.batch` nodes or 2¹⁴ edges: its sources × the widest input of a layer × 4.
    pub inference: u64,
    /// Parameters, their gradients of each partition, and optimizer state. In `partition-parallel`: twice parameters and state,
    /// and once more for each partition of the process and for the average.
    pub parameters: u64,
    /// The program, stacks of threads, socket buffers, small blocks.
    pub program: u64,
}

impl Memory {
    /// Returns all memory.
    pub fn total(&self) -> u64 {
        self.heap() + self.mapped() + self.features + self.layers
    }

    /// Returns the memory without mapped files. Training and inference alternate; the tables and edges of full-graph training are freed before inference.
    pub(crate) fn heap(&self) -> u64 {
        (self.batches + self.activations + self.tables + self.edges + self.tensor_rows).max(self.inference)
            + self.cache
            + self.sampler
            + self.parameters
            + self.program
    }

    /// Returns the memory of files that are always mapped. The system may drop it when memory is short.
    pub fn mapped(&self) -> u64 {
        self.topology + self.halo + self.embeddings + self.scratch
    }

    /// Returns the memory of the rows that are mapped files.
    pub fn mapped_rows(&self, in_memory: RowsInMemory) -> u64 {
        match in_memory {
            RowsInMemory::None => self.features + self.layers,
            RowsInMemory::Features => self.layers,
            RowsInMemory::All => 0,
        }
    }

    /// Returns which rows are in memory, if there is room for `quarter` of them, and for three times as much of everything else.
    pub(super) fn rows_in_memory(&self, quarter: u64) -> RowsInMemory {
        match quarter {
            _ if self.heap() > 3 * quarter || self.features > quarter => RowsInMemory::None,
            _ if self.features + self.layers > quarter => RowsInMemory::Features,
            _ => RowsInMemory::All,
        }
    }
}

/// Which rows of a process are in memory, in large pages: own features that are read for batches or exact inference, and the layers of exact
/// inference of all nodes. These are in memory if they take at most a quarter of the machine's memory in each process, divided by the processes of
/// the machine, and everything else at most three quarters. None are with `train.memory`, and if features are read ahead. The others are mapped
/// files, which the system reads and writes in pages of 4 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RowsInMemory {
    /// No rows.
    None,
    /// Features.
    Features,
    /// Features and layers.
    All,
}

impl Process {
    #[expect(clippy::too_many_arguments, reason = "the memory of a process depends on all of the plan so far")]
    pub(super) fn new(
        config: &Config,
        graph: &Sizes,
        rank: usize,
        parts: Range<usize>,
        (layers, inference): (&[Layer], &InferencePlan),
        parameters: Option<u64>,
        training: &Option<Training>,
        local: usize,
        InFlight { window, jobs, in_place }: InFlight,
        others: bool,
    ) -> Self {
        let own = &graph.parts[parts.clone()];
        let sum = |of: fn(&PartSize) -> u64, parts: &[PartSize]| parts.iter().map(of).sum::<u64>();
        let replicated = config.partition.topology == Topology::Replicated;
        let mut memory = Memory {
            topology: sum(|part| part.topology_bytes, if replicated { &graph.parts } else { own }),
            features: sum(|part| part.feature_bytes, own),
            embeddings: embedding::bytes(config, sum(|part| part.nodes, own)),
            program: PROGRAM_BYTES,
            ..Memory::default()
        };
        if others && config.stores_halo_features() {
            let row = graph.features * graph.feature_bytes;
            memory.halo = sum(|part| part.halo, own) * (row as u64 + 24);
        }
        if let (Some(training), Some(train)) = (training, &config.train) {
            let nodes = &training.batch_nodes;
            let all = nodes.last().copied().unwrap_or(0);
            let edges = training.batch_edges.iter().sum::<u64>();
            let edge_bytes = config.model.as_ref().map_or(0, |model| edge_bytes(model, graph));
            let edge_rows = if edge_bytes > 0 { edges * (edge_bytes + 4) } else { 0 };
            let (input, _) = embedding::input(config, graph);
            let row = if in_place { 0 } else { input as u64 * 4 };
            let one = all * (row + 8) + edges * 8 + edge_rows;
            // Features of the batches that may have them; blocks of all steps in flight.
            let lists = all * 4 + training.batch_edges.iter().sum::<u64>() * 8;
            // Those of all batches in computation but one count as activations.
            let fetched = (train.fetched_batches(window, own.len(), jobs) - (jobs - 1)) as u64;
            memory.batches = fetched * one + own.len() as u64 * window as u64 * lists;
            // Gradients of learned rows: those of own batches, and about as many received.
            memory.batches += 2 * own.len() as u64 * embedding::push(config, all);
            memory.batches += training.rows_bytes;
            memory.sampler = batch::sampler_bytes(train, graph, own);
            memory.cache = train.cache().filter(|_| others).unwrap_or(0);
            if train.device.is_gpu() && matches!(train.schedule, Schedule::MiniBatch(_)) {
                // The numbers of rows that are on the GPU.
                memory.cache += 4 * graph.nodes;
            }
            // Layer l of L reads the list after hop L - l and writes the list before this hop.
            let rows = |layer: usize| match training.subgraph {
                true => all,
                false => nodes.iter().rev().nth(layer + 1).or(nodes.first()).copied().unwrap_or(0),
            };
            let outputs = layers.iter().enumerate().map(|(l, layer)| rows(l) * layer.output as u64 * 4);
            // Features of edges, and a layer's activations of each edge.
            let widest = layers.iter().map(|layer| layer.input.max(layer.output) as u64 * 4).max().unwrap_or(0);
            let on_edges = if edge_bytes > 0 { edges * (edge_bytes + widest) } else { 0 };
            // R-GCN with bases first combines its neighbors' rows for each basis.
            let bases = config.model.as_ref().filter(|model| model.kind == "rgcn").and_then(|model| model.num_bases);
            let mixed = |(l, layer): (usize, &Layer)| rows(l) * (bases.unwrap_or(0) * layer.input) as u64 * 4;
            let mixed = layers.iter().enumerate().map(mixed).sum::<u64>();
            // The allocator keeps freed memory for a second: that of a batch.
            let (jobs, kept) = (jobs as u64, jobs as u64 + 1);
            let (inputs, at_once) = match config.model.as_ref().is_some_and(|model| aggregates_features(model, layers))
            {
                // Own rows and aggregated rows.
                _ if in_place => (2 * kept * rows(0), kept),
                // Each job has the rows and the aggregated rows.
                true => (kept * all + jobs * rows(0), jobs),
                false => (3 * jobs * all, jobs),
            };
            let computed = 3 * at_once * (outputs.sum::<u64>() + on_edges + mixed);
            // Otherwise they are on the GPU.
            if !train.device.is_gpu() {
                memory.activations = computed + inputs * input as u64 * 4;
            }
            let own_nodes = sum(|part| part.nodes, own);
            (memory.inference, memory.layers) = (inference.memory(jobs as usize), inference.layers(own_nodes));
            if train.schedule.is_partition_parallel() {
                memory.scratch += batch::count_bytes(train, own);
            }
            if train.task == Task::EdgeClassification && config.infer.as_ref().is_some_and(Infer::writes_scores) {
                memory.scratch += sum(|part| part.edges, own) * 4 * graph.edge_classes.unwrap_or(0);
            }
            let (replica, parts) = (1 + train.optimizer.state(), graph.parts.len() as u64);
            let vectors = if train.schedule.is_partition_parallel() {
                // The current and the initial replica, a gradient, the replicas of own partitions, and their average.
                replica * (2 + own.len() as u64 + 1) + 1
            } else {
                replica + parts
            };
            memory.parameters = parameters.unwrap_or(0) * 4 * vectors;
        }
        Self {
            rank,
            nodes: sum(|part| part.nodes, own),
            edges: sum(|part| part.edges, own),
            threads: config.train.as_ref().map_or(1, |train| train.threads(local)),
            parts,
            memory,
            device: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_alone_are_in_memory_if_layers_do_not_fit() {
        let memory = |features, layers, batches| Memory { features, layers, batches, ..Memory::default() };
        for (memory, expected) in [
            (memory(4, 6, 30), RowsInMemory::All),
            (memory(4, 7, 30), RowsInMemory::Features),
            (memory(10, 100, 30), RowsInMemory::Features),
            (memory(11, 0, 30), RowsInMemory::None),
            (memory(4, 6, 31), RowsInMemory::None),
        ] {
            assert_eq!(memory.rows_in_memory(10), expected, "{memory:?}");
        }
        let [all, features, none] = [RowsInMemory::All, RowsInMemory::Features, RowsInMemory::None]
            .map(|in_memory| memory(4, 7, 30).mapped_rows(in_memory));
        assert_eq!([all, features, none], [0, 7, 11]);
    }
}
