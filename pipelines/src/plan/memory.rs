//! What each process needs.

use std::ops::Range;

use serde::Serialize;

use super::training::edge_bytes;
use super::{Layer, PartSize, Sizes, Training, batch, embedding};
use crate::config::{Config, Infer, JumpingKnowledge, Model, Optimizer, Topology, Train};
use crate::engine::inference::{CHUNK_EDGES, WINDOW};

pub(super) const PROGRAM_BYTES: u64 = 64 << 20;

/// One process of the run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Process {
    /// Its number.
    pub rank: usize,
    /// The partitions that it hosts.
    pub parts: Range<usize>,
    /// Nodes of those.
    pub nodes: u64,
    /// Edges of those.
    pub edges: u64,
    /// Compute threads.
    pub threads: usize,
    /// What it needs to train and to infer.
    pub memory: Memory,
}

/// What a process needs, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Structure, mapped: of its partitions, or of all when replicated. The system may drop and re-read it.
    pub topology: u64,
    /// Features of its partitions, mapped.
    pub features: u64,
    /// Learnt rows of its partitions' nodes with the optimizer's state, and those of the best epoch, in mapped scratch files.
    pub embeddings: u64,
    /// Layers of exact inference (and rows of the whole graph that do not fit into memory), in mapped scratch files: own nodes × 4 × (the hidden width, twice when three layers or more,
    /// and the classes).
    pub scratch: u64,
    /// What a sampler keeps from batch to batch: distributions, clusters, counts.
    pub sampler: u64,
    /// `train.schedule.cache`, with several processes: features of other processes' nodes.
    pub cache: u64,
    /// Features of `train.window` batches (at least 2; of each partition with `train.operators`), one batch being nodes × (width × 4 + 8) + edges × 8, and where
    /// the model reads edges' features edges × (their width × 4 + 4); and lists and
    /// blocks of partitions × `train.window` batches, nodes × 4 + edges × 8 each. Where rows of nodes are learned, twice partitions × nodes ×
    /// (width × 4 + 4) more, for gradients on their way. Where edges are learned from by passes over the whole graph: 3 chunks of each
    /// partition, nodes × (width × 8 + 12) each.
    pub batches: u64,
    /// Forward and backward of one batch: three times (values, kept inputs, gradients) the sum over layers of
    /// nodes × width × 4; of `rgcn` with `num_bases` also nodes × bases × the input's width × 4. Over whole graphs: an interval's nodes × 4 ×
    /// six times the widest rows of a task (or eight times the sums of all relations side by side, if that is more); the rows on their
    /// way, those of one stage, and at most 16 MiB of each process; and in `tensor-parallel` a chunk's sums, no more than
    /// `train.schedule.chunk_memory`, and of each process as much on its way.
    pub activations: u64,
    /// Rows of the whole graph (`full-graph`, `tensor-parallel`), by hop: what is sent, what arrives, and their gradients. Where they
    /// do not fit into `train.memory`, they are among the scratch files.
    pub tables: u64,
    /// Where there are tensor workers: rows and results of the tasks that are with them, or on the way. A process has
    /// 4 (`tensor-parallel`: 2) + 4 × workers tasks under way, more of those that are smaller than 256 KiB; and one more, as messages, of each of 2 × workers calls.
    pub tensor_rows: u64,
    /// Exact inference, for evaluation and outputs: 3 chunks under way, and twice one more being computed. A chunk
    /// is `infer.batch` nodes, or as many as have 2¹⁸ edges; its sources × the widest input of a layer × 4. Nothing where whole
    /// graphs are evaluated as they are trained.
    pub inference: u64,
    /// Parameters, their gradients of each partition, and the optimizer's state. Where partitions train by themselves: two
    /// times parameters and state, and once more for each partition hosted here and for their average.
    pub parameters: u64,
    /// The program, its threads' stacks, buffers of sockets.
    pub program: u64,
}

impl Memory {
    /// All of it. Training and inference take turns.
    pub fn total(&self) -> u64 {
        self.heap() + self.mapped()
    }

    /// What is not backed by files.
    pub fn heap(&self) -> u64 {
        (self.batches + self.activations).max(self.inference)
            + self.tables
            + self.tensor_rows
            + self.cache
            + self.sampler
            + self.parameters
            + self.program
    }

    /// What is backed by files, and may be dropped by the system when memory is short.
    pub fn mapped(&self) -> u64 {
        self.topology + self.features + self.embeddings + self.scratch
    }
}

impl Process {
    #[expect(clippy::too_many_arguments, reason = "what a process needs depends on all of the plan so far")]
    pub(super) fn new(
        config: &Config,
        graph: &Sizes,
        rank: usize,
        parts: Range<usize>,
        layers: &[Layer],
        parameters: Option<u64>,
        training: &Option<Training>,
        local: usize,
        window: usize,
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
        if let (Some(training), Some(train)) = (training, &config.train) {
            let nodes = &training.batch_nodes;
            let all = nodes.last().copied().unwrap_or(0);
            let edges = training.batch_edges.iter().sum::<u64>();
            let edge_bytes = config.model.as_ref().map_or(0, |model| edge_bytes(model, graph));
            let edge_rows = if edge_bytes > 0 { edges * (edge_bytes + 4) } else { 0 };
            let (input, _) = embedding::input(config, graph);
            let one = all * (input as u64 * 4 + 8) + edges * 8 + edge_rows;
            // Features of as many batches as may have them; the blocks of all steps under way.
            let lists = all * 4 + training.batch_edges.iter().sum::<u64>() * 8;
            let fetched = train.fetched_batches(window, own.len()) as u64;
            memory.batches = fetched * one + own.len() as u64 * window as u64 * lists;
            // Gradients of learned rows: those of own batches, and about as many that come.
            memory.batches += 2 * own.len() as u64 * embedding::push(config, all);
            memory.batches += training.rows_bytes;
            memory.sampler = batch::kept(train, graph, own);
            memory.cache = train.cache().filter(|_| others).unwrap_or(0);
            // Layer l reads the list after hop L - l and writes the one before.
            let rows = |layer: usize| match training.subgraph {
                true => all,
                false => nodes.iter().rev().nth(layer + 1).or(nodes.first()).copied().unwrap_or(0),
            };
            let outputs = layers.iter().enumerate().map(|(l, layer)| rows(l) * layer.output as u64 * 4);
            // Edges' features, and what a layer makes of each.
            let widest = layers.iter().map(|layer| layer.input.max(layer.output) as u64 * 4).max().unwrap_or(0);
            let on_edges = if edge_bytes > 0 { edges * (edge_bytes + widest) } else { 0 };
            // R-GCN whose relations share bases mixes its neighbors' rows for each of them first.
            let bases = config.model.as_ref().filter(|model| model.kind == "rgcn").and_then(|model| model.num_bases);
            let mixed = |(l, layer): (usize, &Layer)| rows(l) * (bases.unwrap_or(0) * layer.input) as u64 * 4;
            let mixed = layers.iter().enumerate().map(mixed).sum::<u64>();
            memory.activations = 3 * (outputs.sum::<u64>() + all * input as u64 * 4 + on_edges + mixed);
            let own_nodes = sum(|part| part.nodes, own);
            (memory.inference, memory.scratch) = inference(config, graph, layers, own_nodes);
            // Whole graphs are evaluated as they are trained; only rows that never lie whole are computed once more, to be written.
            let embeddings = config.infer.as_ref().is_some_and(|infer| infer.embeddings);
            if train.is_whole_graph() && !(embeddings && train.schedule.is_tensor_parallel()) {
                memory.inference = 0;
            }
            let (replica, parts) = (1 + state(train), graph.parts.len() as u64);
            let vectors = if train.schedule.is_partition_parallel() {
                // The one trained and what it began with, a gradient, what own partitions have become, and their average.
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
        }
    }
}

/// Vectors as long as the parameters that the optimizer keeps.
pub(super) fn state(train: &Train) -> u64 {
    match &train.optimizer {
        Optimizer::Sgd(options) => u64::from(options.momentum > 0.0),
        Optimizer::Adam(_) | Optimizer::Adamw(_) => 2,
    }
}

/// What exact inference keeps in memory, and in scratch files.
fn inference(config: &Config, graph: &Sizes, layers: &[Layer], own_nodes: u64) -> (u64, u64) {
    let mean_degree = graph.edges as f64 / graph.nodes.max(1) as f64;
    let most = config.infer.as_ref().map_or_else(|| Infer::default().batch, |infer| infer.batch) as f64;
    let nodes = most.min(CHUNK_EDGES as f64 / mean_degree.max(1e-9)).max(1.0);
    let reads = config.model.as_ref().is_some_and(Model::uses_edges);
    let sources = if reads { (nodes * (1.0 + mean_degree)).min(graph.nodes as f64) } else { nodes };
    let widest = layers.iter().map(|layer| layer.input).max().unwrap_or(0);
    let chunk = (sources * widest as f64 * 4.0) as u64;
    // A layer is overwritten once it has been read, unless the output reads all of them.
    let jumps = config.model.as_ref().is_some_and(|model| model.jumping_knowledge != JumpingKnowledge::None);
    let kept = if jumps { layers.len() } else { 2 };
    let hidden = layers.iter().rev().skip(1).map(|layer| layer.output as u64).take(kept).sum::<u64>();
    let classes = graph.classes.unwrap_or(0);
    let predicted = match &config.model {
        Some(model) if model.kind == "appnp" => classes,
        Some(model) if model.decouples_attention() => model.output_heads() as u64 * classes,
        _ => 0,
    };
    let scratch = own_nodes * 4 * (hidden + predicted + classes);
    (chunk * (u64::from(WINDOW) + 2), scratch)
}
