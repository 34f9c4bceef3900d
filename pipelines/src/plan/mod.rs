//! What a run will do and need, before it does anything: stages, who works on what, memory, disk, messages.
//!
//! Everything is arithmetic over the pipeline file and the graph's sizes. The formulas are upper bounds where a bound can be
//! had (fanouts bound a batch), and say "about" where only an average can (all neighbours of a skewed graph).

mod auto_parts;
mod batch;
mod embedding;
mod model;
mod sizes;
mod text;
mod whole_graph;

pub use auto_parts::AutoParts;
pub use embedding::LearntRows;
pub use model::{Layer, layers};
pub use sizes::{PartSize, Sizes};

use self::batch::Batch;
use self::whole_graph::Whole;
use crate::Error;
use crate::schedule::inference::{CHUNK_EDGES, WINDOW};
use crate::spec::{Bytes, Infer, JumpingKnowledge, Model, OptimizerKind, Schedule, Spec, Task, Topology, Train};
use gnnflow_operators::placement::Placement;
use serde::Serialize;
use std::ops::Range;
use std::path::PathBuf;

/// What a run will do and need. `Display` prints it as text, serde as JSON.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    /// The pipeline's name.
    pub name: String,
    /// The stages that will run, in order.
    pub stages: Vec<String>,
    /// The graph.
    pub graph: Sizes,
    /// Partition method.
    pub method: String,
    /// How the number of partitions was found, when it was asked to be.
    pub auto_parts: Option<AutoParts>,
    /// Where the structure is kept.
    pub topology: String,
    /// The folder of the prepared dataset.
    pub dataset: PathBuf,
    /// Each process.
    pub processes: Vec<Process>,
    /// The layers of the model.
    pub layers: Vec<Layer>,
    /// Parameters of all layers; `None` while the number of classes (`rgcn`: of edge types) is unknown, or for a registered layer.
    pub parameters: Option<u64>,
    /// Learnt rows of nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub embedding: Option<LearntRows>,
    /// Training.
    pub training: Option<Training>,
    /// Steps that may be under way at once.
    pub window: usize,
    /// Whether rows of the whole graph lie in mapped scratch files, as they do not fit into `train.memory`.
    pub tables_mapped: bool,
}

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
    /// Learnt rows of its partitions' nodes with the optimiser's state, and those of the best epoch, in mapped scratch files.
    pub embeddings: u64,
    /// Layers of exact inference (and rows of the whole graph that do not fit into memory), in mapped scratch files: own nodes × 4 × (the hidden width, twice when three layers or more,
    /// and the classes).
    pub scratch: u64,
    /// What a sampler keeps from batch to batch: distributions, clusters, counts.
    pub sampler: u64,
    /// `train.cache`, with several processes: features of other processes' nodes.
    pub cache: u64,
    /// Features of `train.window` batches (at least 2), one batch being nodes × (width × 4 + 8) + edges × 8, and where
    /// the model reads edges' features edges × (their width × 4 + 4); and lists and
    /// blocks of partitions × `train.window` batches, nodes × 4 + edges × 8 each. Where rows of nodes are learnt, twice partitions × nodes ×
    /// (width × 4 + 4) more, for gradients on their way.
    pub batches: u64,
    /// Forward and backward of one batch: three times (values, kept inputs, gradients) the sum over layers of
    /// nodes × width × 4.
    pub activations: u64,
    /// Rows of the whole graph (`full-graph`, `tensor-parallel`), by hop: what is sent, what arrives, and their gradients. Where they
    /// do not fit into `train.memory`, they are among the scratch files.
    pub tables: u64,
    /// Exact inference, for evaluation and outputs: 3 chunks under way, and twice one more being computed. A chunk
    /// is `infer.batch` nodes, or as many as have 2¹⁸ edges; its sources × the widest input of a layer × 4.
    pub inference: u64,
    /// Parameters, their gradients of each partition, and the optimiser's state. Where partitions train by themselves: two
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

/// The work of an epoch.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Training {
    /// Epochs, unless stopped early.
    pub epochs: usize,
    /// Steps in an epoch: the most seeds of any partition over `train.batch`; its clusters over those of a batch.
    pub steps_per_epoch: u64,
    /// Whether the number of train nodes is known; if not, all nodes are assumed, and steps are at most these.
    pub exact: bool,
    /// Seeds in a step, all partitions together; at most.
    pub seeds: u64,
    /// Nodes of the largest batch (none where steps are over the whole graph): first its seeds, then the list after each hop.
    pub batch_nodes: Vec<u64>,
    /// Edges of the largest batch in each hop.
    pub batch_edges: Vec<u64>,
    /// Whether a batch is a subgraph, of so many seeds and so many nodes, and all layers read its edges.
    pub subgraph: bool,
    /// Bytes of whole rows that a hop is chosen from (`ladies`).
    pub rows_bytes: u64,
    /// Rounds of messages in a step: 2 (L − 1) to sample and 2 to fetch with several processes, none with one or where batches stay
    /// in their partition; 2 for each step of a walk but the first, and 2 for the edges of a subgraph that may leave it. A replicated
    /// topology leaves the 2; partitions that train by themselves ask nothing.
    pub rounds_per_step: u64,
    /// Bytes between processes in a step: requests, replies, features, gradients; at most.
    pub bytes_per_step: u64,
    /// Messages between processes in a step; about.
    pub messages_per_step: u64,
}

/// Messages are at most this large.
const MESSAGE_BYTES: u64 = 256 << 10;
const PROGRAM_BYTES: u64 = 64 << 20;

impl Plan {
    /// Plans `spec` on `processes` processes, `local` of which share this machine.
    ///
    /// # Errors
    /// More processes than partitions; input that is missing or unreadable.
    pub fn new(spec: &Spec, processes: usize, local: usize) -> Result<Self, Error> {
        let graph = Sizes::of(spec)?;
        spec.check_processes(processes, graph.parts.len())?;
        let learnt = learnt(spec, &graph);
        let classes = learnt.classes.unwrap_or(0) as usize;
        let (input, _) = embedding::input(spec, &graph);
        let of = |model| model::layers(model, input, classes, graph.relations, graph.edge_features);
        let layers = spec.model.as_ref().map_or_else(Vec::new, of);
        let known = learnt.classes.is_some();
        let parameters = layers.iter().map(|layer| layer.parameters.filter(|_| known)).sum::<Option<u64>>();
        let decoded = match &spec.train {
            Some(train) if train.decodes_relations() => graph.relations.map(|relations| (relations * classes) as u64),
            Some(train) if train.task == Task::EdgeClassification => {
                let (width, inner) = (classes as u64, train.edge().num_decoder_layers as u64 - 1);
                let head = |outputs: u64| match inner {
                    0 => (2 * width + 1) * outputs,
                    _ => (2 * width + 1) * width + (inner - 1) * (width + 1) * width + (width + 1) * outputs,
                };
                graph.edge_classes.map(head)
            }
            _ => Some(0),
        };
        let parameters = parameters.zip(decoded).map(|(layers, decoded)| layers + decoded);
        let parameters = parameters.filter(|_| spec.model.is_some());
        let placement = Placement::new(graph.parts.len(), processes);
        let whole = Whole::of(spec, &learnt);
        let parameters = whole.as_ref().map(|whole| whole.parameters).filter(|_| known).or(parameters);
        let training = match &whole {
            Some(whole) => Training::of_whole(spec, &learnt, whole, placement),
            None => Training::new(spec, &learnt, processes, parameters.unwrap_or(0)),
        };
        let memory = spec.train.as_ref().and_then(|train| train.memory).map_or(u64::MAX, |memory| memory.0);
        let plan = |window, tables_mapped: bool| -> Vec<Process> {
            let process = |rank| {
                let parts = placement.parts_of(rank);
                let others = processes > 1;
                let mut process =
                    Process::new(spec, &learnt, rank, parts, &layers, parameters, &training, local, window, others);
                if let Some(whole) = &whole {
                    let tables = whole.tables(&learnt, &process.parts, processes);
                    process.memory.tables = if tables_mapped { 0 } else { tables };
                    process.memory.scratch += if tables_mapped { tables } else { 0 };
                    process.memory.batches = 0;
                    process.memory.activations = whole.interval(&learnt, &process.parts);
                }
                process
            };
            (0..processes).map(process).collect()
        };
        let most = |processes: Vec<Process>| processes.iter().map(|process| process.memory.heap()).max().unwrap_or(0);
        let tables_mapped = whole.is_some() && most(plan(1, false)) > memory;
        let window = window(spec, |window| most(plan(window, tables_mapped)))?;
        let processes = plan(window, tables_mapped);
        Ok(Self {
            name: spec.name.clone(),
            stages: stages(spec, &graph),
            method: spec.partition.method.clone(),
            auto_parts: spec.auto_parts(),
            topology: spec.partition.topology.to_string(),
            dataset: spec.dataset_folder().to_owned(),
            embedding: LearntRows::new(spec, &graph),
            graph,
            processes,
            layers,
            parameters,
            training,
            window,
            tables_mapped,
        })
    }
}

/// Most steps that are under way when nobody has said how many: more than hide a round trip and a slow step.
const MOST_WINDOW: usize = 8;

/// How many steps may be under way, by what each number of them needs.
fn window(spec: &Spec, needs: impl Fn(usize) -> u64) -> Result<usize, Error> {
    let Some(train) = &spec.train else { return Ok(2) };
    // Rows may be so far behind only if so many steps are under way.
    let usual = embedding::of(spec).map_or(2, |embedding| (embedding.staleness() + 1).max(2));
    let Some(memory) = train.memory else { return Ok(train.window.unwrap_or(usual)) };
    let fits = |window: &usize| needs(*window) <= memory.0;
    let most = (1..=train.window.unwrap_or(MOST_WINDOW)).rev().find(fits);
    match (most, train.window) {
        (Some(most), None) => Ok(most),
        (Some(most), Some(window)) if most == window => Ok(window),
        (most, window) => {
            let (window, cache) = (window.unwrap_or(1), train.cache.map_or(0, |cache| cache.0));
            let needed = needs(window);
            let spare = |needed: u64| Bytes(memory.0.saturating_sub(needed));
            let hint = match most {
                Some(most) => format!("train.window = {most} fits"),
                None if cache > 0 && needs(1) - cache <= memory.0 => {
                    format!("train.cache = \"{}\" fits with a window of 1", spare(needs(1) - cache))
                }
                None => "smaller batches or fanouts, or more processes, take less".into(),
            };
            let message = format!(
                "train.memory is {memory}, but a process would need about {} with {window} steps under way{}; {hint}",
                Bytes(needed),
                if cache > 0 { format!(" and a cache of {}", Bytes(cache)) } else { String::new() },
            );
            Err(Error::Usage(message))
        }
    }
}

fn stages(spec: &Spec, graph: &Sizes) -> Vec<String> {
    let mut stages = Vec::new();
    match &spec.graph.generate {
        Some(generate) if !graph.prepared && !generate.generator().is_written(generate.folder()) => {
            stages.push(format!("generate ({})", generate.kind));
        }
        _ => {}
    }
    stages.push(if graph.prepared { "open the prepared dataset".into() } else { "prepare".into() });
    stages.extend(spec.train.as_ref().map(|train| format!("train ({})", train.schedule)));
    if let Some(infer) = &spec.infer {
        let named = [(infer.predictions, "predictions"), (infer.embeddings, "embeddings")];
        let outputs: Vec<&str> = named.into_iter().filter(|(wanted, _)| *wanted).map(|(_, name)| name).collect();
        if !outputs.is_empty() {
            stages.push(format!("infer ({})", outputs.join(", ")));
        }
    }
    stages
}

/// The graph as the task sees it: where something is learnt of edges, the model's results are as wide as its layers, and examples are
/// edges, of which no more than all are trained on.
fn learnt(spec: &Spec, graph: &Sizes) -> Sizes {
    let mut learnt = graph.clone();
    if let (Some(train), Some(model)) = (&spec.train, &spec.model)
        && train.learns_edges()
    {
        (learnt.classes, learnt.train) = (Some(model.hidden as u64), None);
        learnt.parts.iter_mut().for_each(|part| part.train = part.edges);
    }
    learnt
}

impl Training {
    /// Of epochs that are one step over the whole graph.
    fn of_whole(spec: &Spec, graph: &Sizes, whole: &Whole, placement: Placement) -> Option<Self> {
        let (train, w) = (spec.train.as_ref()?, placement.workers() as u64);
        let hosted: Vec<Range<usize>> = (0..placement.workers()).map(|worker| placement.parts_of(worker)).collect();
        let rows = whole.bytes(graph, &hosted);
        let gradients = 4 * whole.parameters * (graph.parts.len() as u64 * (w - 1) / w + w - 1);
        let (rounds, bytes) = (whole.rounds(placement.workers()), rows + gradients);
        Some(Self {
            epochs: train.epochs,
            steps_per_epoch: 1,
            exact: graph.train.is_some(),
            seeds: graph.train.unwrap_or(graph.nodes),
            batch_nodes: Vec::new(),
            batch_edges: Vec::new(),
            subgraph: false,
            rows_bytes: 0,
            rounds_per_step: rounds,
            bytes_per_step: bytes,
            messages_per_step: if w == 1 { 0 } else { w * (w - 1) * (rounds + 1) + bytes / MESSAGE_BYTES },
        })
    }

    fn new(spec: &Spec, graph: &Sizes, processes: usize, parameters: u64) -> Option<Self> {
        let (train, model) = (spec.train.as_ref()?, spec.model.as_ref()?);
        let batch = Batch::of(train, model, graph);
        let partitioned = spec.partition.topology == Topology::Partitioned;
        let alone = train.schedule == Schedule::PartitionParallel;
        let edge_bytes = edge_bytes(model, graph);
        // Edges of other partitions' nodes are asked for apart, where their rows are not here.
        let far_edges = batch.edges.iter().skip(usize::from(!batch.subgraph)).sum::<u64>();
        let asks_edges = edge_bytes > 0 && partitioned && batch.leaves && far_edges > 0;
        let place = usize::from(!partitioned);
        let rounds_per_step = match processes {
            1 => 0,
            _ if !batch.leaves || alone => 0,
            _ => batch.rounds[place] + 2 + if asks_edges { 2 } else { 0 },
        };
        let w = processes as u64;
        // With w processes, (w - 1) / w of what a batch touches lives elsewhere.
        let remote = |bytes: u64| bytes * (w - 1) / w * graph.parts.len() as u64;
        let all_nodes = batch.nodes.last().copied().unwrap_or(0);
        let (input, input_bytes) = embedding::input(spec, graph);
        let fetch = all_nodes * (8 + (input * input_bytes) as u64) + embedding::push(spec, all_nodes);
        let fetch = if batch.leaves { fetch } else { 0 };
        let fetch = fetch + if asks_edges { far_edges * (4 + edge_bytes) } else { 0 };
        // Every partition's piece goes to whoever sums it, the sums to everybody.
        let gradients = remote(parameters * 4) + parameters * 4 * (w - 1);
        let steps = batch.steps;
        let bytes_per_step = if alone {
            // Parameters and the optimiser's state, once in all the steps from one average to the next.
            gradients * (1 + state(train)) / (steps * train.average_every() as u64).max(1)
        } else {
            remote(batch.moved[place] + fetch) + gradients
        };
        let pairs = w * (w - 1);
        Some(Self {
            epochs: train.epochs,
            steps_per_epoch: steps,
            exact: graph.train.is_some(),
            seeds: batch.seeds,
            batch_nodes: batch.nodes,
            batch_edges: batch.edges,
            subgraph: batch.subgraph,
            rows_bytes: batch.rows,
            rounds_per_step,
            bytes_per_step,
            messages_per_step: if w == 1 { 0 } else { pairs * (rounds_per_step + 1) + bytes_per_step / MESSAGE_BYTES },
        })
    }
}

impl Process {
    #[expect(clippy::too_many_arguments, reason = "what a process needs depends on all of the plan so far")]
    fn new(
        spec: &Spec,
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
        let replicated = spec.partition.topology == Topology::Replicated;
        let mut memory = Memory {
            topology: sum(|part| part.topology_bytes, if replicated { &graph.parts } else { own }),
            features: sum(|part| part.feature_bytes, own),
            embeddings: embedding::bytes(spec, sum(|part| part.nodes, own)),
            program: PROGRAM_BYTES,
            ..Memory::default()
        };
        if let (Some(training), Some(train)) = (training, &spec.train) {
            let nodes = &training.batch_nodes;
            let all = nodes.last().copied().unwrap_or(0);
            let edges = training.batch_edges.iter().sum::<u64>();
            let edge_bytes = spec.model.as_ref().map_or(0, |model| edge_bytes(model, graph));
            let edge_rows = if edge_bytes > 0 { edges * (edge_bytes + 4) } else { 0 };
            let (input, _) = embedding::input(spec, graph);
            let one = all * (input as u64 * 4 + 8) + edges * 8 + edge_rows;
            // Features of as many batches as may have them; the blocks of all steps under way.
            let lists = all * 4 + training.batch_edges.iter().sum::<u64>() * 8;
            memory.batches = window.max(2) as u64 * one + own.len() as u64 * window as u64 * lists;
            // Gradients of learnt rows: those of own batches, and about as many that come.
            memory.batches += 2 * own.len() as u64 * embedding::push(spec, all);
            memory.batches += training.rows_bytes;
            memory.sampler = batch::kept(train, graph, own);
            memory.cache = train.cache.filter(|_| others).map_or(0, |cache| cache.0);
            // Layer l reads the list after hop L - l and writes the one before.
            let rows = |layer: usize| match training.subgraph {
                true => all,
                false => nodes.iter().rev().nth(layer + 1).or(nodes.first()).copied().unwrap_or(0),
            };
            let outputs = layers.iter().enumerate().map(|(l, layer)| rows(l) * layer.output as u64 * 4);
            // Edges' features, and what a layer makes of each.
            let widest = layers.iter().map(|layer| layer.input.max(layer.output) as u64 * 4).max().unwrap_or(0);
            let on_edges = if edge_bytes > 0 { edges * (edge_bytes + widest) } else { 0 };
            memory.activations = 3 * (outputs.sum::<u64>() + all * input as u64 * 4 + on_edges);
            let own_nodes = sum(|part| part.nodes, own);
            (memory.inference, memory.scratch) = inference(spec, graph, layers, own_nodes);
            let (replica, parts) = (1 + state(train), graph.parts.len() as u64);
            let vectors = if train.schedule == Schedule::PartitionParallel {
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
            threads: spec.train.as_ref().map_or(1, |train| train.threads(local)),
            parts,
            memory,
        }
    }
}

/// Bytes of an edge's features as computed on; 0 where the model reads none, or nothing is known of them.
fn edge_bytes(model: &Model, graph: &Sizes) -> u64 {
    if model.reads_edge_features() { graph.edge_features.unwrap_or(0) as u64 * 4 } else { 0 }
}

/// Vectors as long as the parameters that the optimiser keeps.
fn state(train: &Train) -> u64 {
    match train.optimizer.kind {
        OptimizerKind::Sgd => u64::from(train.optimizer.momentum() > 0.0),
        OptimizerKind::Adam | OptimizerKind::Adamw => 2,
    }
}

/// What exact inference keeps in memory, and in scratch files.
fn inference(spec: &Spec, graph: &Sizes, layers: &[Layer], own_nodes: u64) -> (u64, u64) {
    let mean_degree = graph.edges as f64 / graph.nodes.max(1) as f64;
    let most = spec.infer.as_ref().map_or_else(|| Infer::default().batch, |infer| infer.batch) as f64;
    let nodes = most.min(CHUNK_EDGES as f64 / mean_degree.max(1e-9)).max(1.0);
    let reads = spec.model.as_ref().is_some_and(Model::uses_edges);
    let sources = if reads { (nodes * (1.0 + mean_degree)).min(graph.nodes as f64) } else { nodes };
    let widest = layers.iter().map(|layer| layer.input).max().unwrap_or(0);
    let chunk = (sources * widest as f64 * 4.0) as u64;
    // A layer is overwritten once it has been read, unless the output reads all of them.
    let jumps = spec.model.as_ref().is_some_and(|model| model.jumping_knowledge != JumpingKnowledge::None);
    let kept = if jumps { layers.len() } else { 2 };
    let hidden = layers.iter().rev().skip(1).map(|layer| layer.output as u64).take(kept).sum::<u64>();
    let predicted = if spec.model.as_ref().is_some_and(|model| model.kind == "appnp") { 1 } else { 0 };
    let scratch = own_nodes * 4 * (hidden + (1 + predicted) * graph.classes.unwrap_or(0));
    (chunk * (u64::from(WINDOW) + 2), scratch)
}

#[cfg(test)]
mod tests;
