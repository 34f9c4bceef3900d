//! The tables and messages of an epoch of full-graph training.
//!
//! Node-parallel (Dorylus), with n own nodes and g ghosts. Each hop has activations (n + g) × width, aggregated rows n × width,
//! and gradients (n + g) × width; gradients share the memory of activations if edges have both directions. The last hop's
//! receivers are the training nodes, if these are fewer than half. Each stage but the last sends g rows.
//! - Attention with bounded staleness: ghosts have two tables, and a gradient of each row and its terms. These gradients are
//!   sent instead of the receivers' gradients, and owners store those of their rows.
//! - Maximum: n × width more for the argmax, which is also sent with the gradients, (n + g) × width.
//!
//! Column-parallel (NeutronTP), with N nodes and w of a hop's S columns in this process. Each hop has N × w, and n × S three
//! times. A chain of propagations has whole rows only before and after the chain; with attention, N × w for each of them,
//! which the gradients need, and once more for gradients. A split or a gather sends all rows except each process's own shard,
//! N × S × (1 − 1 / processes).
//!
//! With the whole graph on a GPU, there are no tables and no messages. The edges are in memory, too.
//!
//! With `bf16` rows, activations, gradients, N × w and their messages have half as many bytes. Gathered sums are f32.

use gnnflow_dataflow::graph::placement::Placement;
use gnnflow_dataflow::wire::MESSAGE_BYTES;
use gnnflow_kernels::aggregate::dynamic_attention::SOFTMAX_STATE;
use gnnflow_nn::layers::Aggregation;
use gnnflow_nn::model::Hop;
use gnnflow_nn::{ModelProfile, TaskProfile};

use super::memory::{PROGRAM_BYTES, Process};
use super::pairs::Pairs;
use super::{Sizes, Training, embedding, model};
use crate::config::{Config, Mode, Schedule};
use crate::engine::device_graph::on_device;
use crate::engine::stages::dataflow::permits;
use crate::engine::stages::intervals::INTERVAL_NODES;
use crate::engine::stages::message::window;
use crate::engine::stages::program::{Program, Propagated, Stage};
use crate::engine::tensor_parallel::device_sums::PIECE_EDGES;
use crate::engine::tensor_parallel::head_shards::HeadShards;
use crate::runtime::task_sizes::{CALL_BYTES, CALLS_PER_WORKER, task_bytes, tasks_in_flight};

/// Values of a cache line: an edge never reads less.
pub(super) const LINE: usize = 16;

/// Bytes of an edge and of a node, if the graph is on a GPU: it stays in memory in both directions, with and without self-loops, for all nodes
/// and for those with a loss.
const DEVICE_EDGE: u64 = 40;
const DEVICE_NODE: u64 = 72;

/// Versions of the parameters that a tensor worker stores.
const WORKER_VERSIONS: u64 = 8;

/// The model's hops and the stages of its epochs.
pub(super) struct FullGraphPlan {
    hops: Vec<Hop>,
    program: Program,
    /// Whether the whole graph is on the device.
    pub(super) on_device: bool,
    /// Whether node tasks and the sums of chunks are computed on a GPU.
    on_gpu: bool,
    /// Column-parallel, not node-parallel.
    column_parallel: bool,
    /// Input width.
    input: usize,
    /// Hidden width of a perceptron within a node task; 0 without one.
    perceptron: usize,
    intervals: Option<usize>,
    /// Maximum bytes of a chunk.
    chunk_memory: u64,
    /// Whether gradients may overwrite activations: edges have both directions, and epochs do not overlap.
    may_share: bool,
    /// Bytes of a value in rows that are summed over neighbors.
    value_bytes: u64,
    /// Whether ghosts send gradients of hops with attention (PowerGraph mirrors): epochs overlap.
    mirrored: bool,
    /// By node task: whether it is element-wise, so that it runs on column shards.
    element_wise: Vec<bool>,
    /// Whether an element-wise task reads the initial rows.
    keeps_initial: bool,
    /// Pairs of nodes in tasks on edges.
    pairs: Option<Pairs>,
    /// Whether the first task has equal results in every epoch, so that the first hop is summed and sent once.
    constant: bool,
    /// Length of the flat vector of parameters.
    pub(super) parameters: u64,
    /// Tensor workers that each process plans memory for, and whether processes share them.
    tensor: Option<(usize, bool)>,
    /// Columns of the first task's rows and of the last task's results.
    ends: [usize; 2],
    /// By node task: whether it reads the rows of nodes before the first layer.
    reads_initial: Vec<bool>,
    /// By node task: whether the layer that it ends fuses ReLU, so that it holds one row less.
    fuses_relu: Vec<bool>,
}

impl FullGraphPlan {
    /// Returns the plan of a pipeline with full-graph training and a built-in model; `None` for other pipelines.
    pub(super) fn of(config: &Config, graph: &Sizes) -> Option<Self> {
        let (train, model) = (config.train.as_ref()?, config.model.as_ref()?);
        let options = train.schedule.full_graph_options()?;
        let network = model.network(&train.schedule);
        let built = model::built(config, graph)?;
        let ModelProfile { hops, tasks, parameters, .. } = built.profile().ok()?;
        let column_parallel = train.schedule.is_tensor_parallel();
        let element_wise: Vec<bool> = tasks.iter().map(|task| task.element_wise.is_some()).collect();
        let first_learns = tasks[0].learns || embedding::of(config).is_some();
        let program = match column_parallel {
            true => {
                let attends: Vec<bool> = hops.iter().map(Hop::attends).collect();
                Program::column_parallel(hops.len(), first_learns, &element_wise, &attends, 1)
            }
            false => Program::node_parallel(hops.len(), first_learns, &element_wise),
        };
        let adds_initial = tasks.iter().filter_map(|task| task.element_wise).any(|[_, initial]| initial != 0.0);
        let keeps_initial = column_parallel && program.goes_back(0) && adds_initial;
        let pairs = Pairs::of(config, graph);
        let program = match &pairs {
            Some(pairs) => program.with_pairs(hops.len(), pairs.chunks()),
            None => program,
        };
        let tensor = train
            .tensor_workers
            .as_ref()
            .map(|tensor| (tensor.expected(), tensor.workers.is_none() || tensor.accept.is_some()));
        let reads_initial = tasks.iter().map(|task| task.reads_initial).collect();
        let fuses = |(index, task): (usize, &TaskProfile)| {
            let layer = index.checked_sub(1).and_then(|before| hops.get(before));
            task.ends_with_relu && layer.is_some_and(|hop| hop.aggregation == Aggregation::Symmetric)
        };
        let fuses_relu = tasks.iter().enumerate().map(fuses).collect();
        let may_share = config.graph.undirected && options.mode != Mode::Async;
        Some(Self {
            hops,
            program,
            on_device: on_device(config, graph.parts.len()).is_some_and(|kept| kept.is_ok()),
            on_gpu: train.device.is_gpu(),
            column_parallel,
            input: embedding::input(config, graph).0,
            perceptron: match network.kind.as_str() {
                "mlp" | "appnp" => model.hidden,
                _ if model.kind == "mlp" || network.decouples_attention() => model.hidden,
                _ => 0,
            },
            intervals: options.intervals,
            chunk_memory: match &train.schedule {
                Schedule::TensorParallel(options) => options.chunk_memory.0,
                _ => 0,
            },
            may_share,
            value_bytes: options.row_dtype.bytes(),
            mirrored: !column_parallel && options.mode == Mode::Async && options.staleness > 0,
            element_wise,
            keeps_initial,
            pairs,
            constant: tasks[0].constant,
            parameters: parameters as u64,
            tensor,
            ends: [built.spec().in_dim, built.spec().out_dim],
            reads_initial,
            fuses_relu,
        })
    }

    /// Returns the columns of a hop's rows; 0 if it does not aggregate.
    fn width(hop: &Hop) -> usize {
        if hop.aggregation == Aggregation::Nothing { 0 } else { hop.width }
    }

    /// Returns the columns of a hop's sent rows: of activations, and of gradients.
    fn sent_columns(hop: &Hop) -> [u64; 2] {
        let width = hop.width as u64;
        match hop.aggregation {
            Aggregation::Nothing => [0, 0],
            Aggregation::Attention { .. } => [width + hop.sent_terms() as u64, width + Self::state(hop)],
            Aggregation::Max => [width, 2 * width],
            // A ghost has gradients of at most all slots.
            _ => [width, width * hop.slots() as u64],
        }
    }

    /// Returns the columns of the gradients that mirrors send, one row per ghost; `None` if receivers send gradients.
    fn mirror_columns(&self, hop: &Hop) -> Option<u64> {
        (self.mirrored && hop.attends()).then(|| (hop.width + hop.terms()) as u64)
    }

    /// Returns the columns of the largest column shard of a hop. Attention is cut into heads.
    fn share(hop: &Hop, graph: &Sizes, processes: usize) -> usize {
        if !hop.attends_by_column() {
            return Self::width(hop).div_ceil(processes);
        }
        let cut = HeadShards::of_hop(hop, graph.parts.len(), processes);
        (0..processes).map(|worker| cut.of(worker)[0].len()).max().unwrap_or(0)
    }

    /// Returns the values per receiver of a hop with attention: its terms, and [`SOFTMAX_STATE`] for each head.
    fn state(hop: &Hop) -> u64 {
        (hop.terms() + SOFTMAX_STATE * hop.heads()) as u64
    }

    /// Returns the values that the partition with most edges sums in an epoch after the first.
    pub(super) fn added(&self, graph: &Sizes) -> f64 {
        let most = graph.parts.iter().map(|part| part.edges).max().unwrap_or(0);
        let share = graph.train.map_or(1.0, |train| train as f64 / graph.nodes.max(1) as f64);
        let hop = |(index, hop): (usize, &Hop)| {
            let (times, [sent, gradient]) = (u64::from(self.program.goes_back(index)), Self::sent_columns(hop));
            let forward = u64::from(!self.is_constant(index));
            let read = |columns: u64| if columns == 0 { 0 } else { columns.max(LINE as u64) };
            match self.column_parallel {
                true => {
                    let columns = read(Self::share(hop, graph, graph.parts.len().max(1)) as u64);
                    (graph.edges * columns * (forward + times)) as f64
                }
                false => {
                    let all = (most * (forward * read(sent) + times * read(gradient))) as f64;
                    if self.is_partial(graph, index) { share * all } else { all }
                }
            }
        };
        self.hops.iter().enumerate().map(hop).sum()
    }

    /// Returns whether the sums of a hop are those of the first epoch.
    fn is_constant(&self, hop: usize) -> bool {
        let chained = self.column_parallel && self.element_wise[1..=hop].iter().all(|&element_wise| element_wise);
        self.constant && (hop == 0 || chained)
    }

    /// Returns the bytes between all processes that are sent in the first epoch only.
    pub(super) fn constant_bytes(&self, graph: &Sizes, placement: Placement) -> u64 {
        let processes = placement.workers() as u64;
        if !self.constant || processes == 1 {
            return 0;
        }
        let columns = Self::width(&self.hops[0]) as u64;
        match self.column_parallel {
            // Split, and the sums gathered.
            true => graph.nodes * columns * (self.value_bytes + 4) * (processes - 1) / processes,
            false => {
                let hosted = (0..placement.workers()).map(|worker| placement.parts_of(worker));
                let ghosts: u64 = hosted.map(|parts| self.ghosts(graph, &parts, 0, false)).sum();
                ghosts * Self::sent_columns(&self.hops[0])[0] * self.value_bytes
            }
        }
    }

    /// Returns the work of an epoch, which is one step.
    pub(super) fn training(&self, config: &Config, graph: &Sizes, placement: Placement) -> Option<Training> {
        let (train, w) = (config.train.as_ref()?, placement.workers() as u64);
        let hosted: Vec<_> = (0..placement.workers()).map(|worker| placement.parts_of(worker)).collect();
        let gradients = 4 * self.parameters * (graph.parts.len() as u64 * (w - 1) / w + w - 1);
        let (rounds, bytes) = (self.rounds(placement.workers()), self.bytes(graph, &hosted) + gradients);
        Some(Training {
            epochs: train.epochs(),
            steps_per_epoch: 1,
            exact: graph.knows_examples(),
            seeds: self.pairs.as_ref().map_or(graph.train.unwrap_or(graph.nodes), |pairs| pairs.all()),
            batch_nodes: Vec::new(),
            batch_edges: Vec::new(),
            subgraph: false,
            rows_bytes: 0,
            rounds_per_step: rounds,
            bytes_per_step: bytes,
            messages_per_step: if w == 1 { 0 } else { w * (w - 1) * (rounds + 1) + bytes / MESSAGE_BYTES as u64 },
        })
    }

    fn rounds(&self, processes: usize) -> u64 {
        if processes == 1 { 0 } else { self.program.rounds() }
    }

    /// Returns the bytes of rows between processes in an epoch after the first. `hosted` has the partitions of each process.
    fn bytes(&self, graph: &Sizes, hosted: &[std::ops::Range<usize>]) -> u64 {
        let processes = hosted.len() as u64;
        if processes == 1 {
            return 0;
        }
        let aggregated = |hop: usize| self.hops[hop].slots() * Self::width(&self.hops[hop]);
        let mut bytes = self.pairs.as_ref().map_or(0, |pairs| pairs.bytes(graph, hosted));
        for step in 0..self.program.stages() {
            let stage = self.program.stage(step);
            if self.column_parallel {
                let (width, value_bytes) = match stage {
                    Stage::Forward(hop) => {
                        (Self::width(&self.hops[hop]) + self.terms(graph, hop, hosted.len())[0], self.value_bytes)
                    }
                    Stage::Loss if self.program.goes_back(self.hops.len() - 1) => {
                        (aggregated(self.hops.len() - 1), self.value_bytes)
                    }
                    Stage::Backward(hop) if hop > 0 && self.program.goes_back(hop - 1) => {
                        (aggregated(hop - 1), self.value_bytes)
                    }
                    // Sums are not rounded.
                    Stage::Propagate(Propagated { hop, backward: back, gather: true, .. }) => {
                        let terms = if back { self.terms(graph, hop, hosted.len())[1] } else { 0 };
                        (terms + if back { Self::width(&self.hops[hop]) } else { aggregated(hop) }, 4)
                    }
                    _ => (0, 0),
                };
                bytes += graph.nodes * width as u64 * value_bytes * (processes - 1) / processes;
                continue;
            }
            let (hop, back) = match stage {
                Stage::Forward(hop) => (hop, false),
                Stage::Loss => (self.hops.len() - 1, true),
                Stage::Backward(hop) if hop > 0 => (hop - 1, true),
                _ => continue,
            };
            if back && !self.program.goes_back(hop) {
                continue;
            }
            let [sent, gradient] = Self::sent_columns(&self.hops[hop]);
            let (back, columns) = match self.mirror_columns(&self.hops[hop]) {
                Some(mirrored) if back => (false, mirrored),
                _ => (back, if back { gradient } else { sent }),
            };
            let ghosts = hosted.iter().map(|parts| self.ghosts(graph, parts, hop, back)).sum::<u64>();
            bytes += ghosts * columns * self.value_bytes;
        }
        bytes
    }

    /// Returns, for a column-parallel hop with attention, the terms that are sent with column shards by all processes, and
    /// the terms that head parts have gradients of.
    fn terms(&self, graph: &Sizes, hop: usize, processes: usize) -> [usize; 2] {
        let hop = &self.hops[hop];
        if !hop.attends() {
            return [0, 0];
        }
        let cut = HeadShards::of_hop(hop, graph.parts.len(), processes);
        let touched: usize = (0..processes).map(|worker| cut.of(worker)[1].len()).sum();
        [if hop.attends_by_column() { touched } else { 2 * touched }, 2 * cut.count()]
    }

    /// Returns whether a hop's receivers are the training nodes only.
    fn is_partial(&self, graph: &Sizes, hop: usize) -> bool {
        hop + 1 == self.hops.len() && graph.train.is_some_and(|train| 2 * train <= graph.nodes)
    }

    /// Returns an upper bound of a process's ghost rows; exact for one partition per process if all nodes are receivers.
    fn ghosts(&self, graph: &Sizes, parts: &std::ops::Range<usize>, hop: usize, back: bool) -> u64 {
        let own = |of: fn(&super::PartSize) -> u64| graph.parts[parts.clone()].iter().map(of).sum::<u64>();
        let all = own(|part| part.halo).min(graph.nodes - own(|part| part.nodes));
        match graph.train {
            Some(train) if back && self.is_partial(graph, hop) => all.min(train - own(|part| part.train).min(train)),
            _ => all,
        }
    }

    /// Sets the memory of a process that full-graph training needs instead of batches.
    pub(super) fn set_memory(
        &self,
        process: &mut Process,
        graph: &Sizes,
        processes: usize,
        jobs: usize,
        tables_mapped: bool,
    ) {
        let (memory, parts) = (&mut process.memory, &process.parts);
        if self.on_device {
            (memory.batches, memory.activations) = (0, process.nodes * self.ends[1] as u64 * 4);
            memory.edges = process.edges * DEVICE_EDGE + process.nodes * DEVICE_NODE;
            return;
        }
        let tables = self.tables(graph, parts, processes);
        memory.tables = if tables_mapped { 0 } else { tables };
        memory.scratch += if tables_mapped { tables } else { 0 };
        memory.batches = 0;
        memory.tensor_rows = self.tensor_rows(graph, parts, jobs);
        memory.activations = self.activations(graph, parts, processes, jobs);
        if let Some(pairs) = &self.pairs {
            memory.scratch += pairs.results(process.nodes);
            memory.batches = pairs.batches(graph, parts);
            memory.activations = memory.activations.max(pairs.scores(graph, parts));
        }
    }

    fn tables(&self, graph: &Sizes, parts: &std::ops::Range<usize>, processes: usize) -> u64 {
        let of = |of: fn(&super::PartSize) -> u64| graph.parts[parts.clone()].iter().map(of).sum::<u64>();
        let (own, train) = (of(|part| part.nodes), of(|part| part.train));
        let mut values = self.pairs.as_ref().map_or(0, |pairs| pairs.results(own) / 4);
        // Values of rows that are summed over neighbors.
        let mut stored = 0;
        for (index, hop) in self.hops.iter().enumerate() {
            let back = u64::from(self.program.goes_back(index));
            let ([sent, gradient], width) = (Self::sent_columns(hop), Self::width(hop) as u64);
            // Column-parallel training has whole rows only before and after node tasks that are not element-wise.
            let whole = |task: usize| !self.column_parallel || !self.element_wise[task];
            let has_held = hop.keeps_held && (whole(index + 1) || index == 0 && self.reads_initial.contains(&true));
            let held = if has_held { hop.held as u64 * own * (1 + back) } else { 0 };
            // The argmax, by receiver and column.
            let argmax = u64::from(hop.takes_largest());
            if self.column_parallel {
                let [splits, gathers] = [whole(index), whole(index + 1)].map(u64::from);
                let shard = Self::share(hop, graph, processes) as u64;
                let [touched, entries] = self.terms(graph, index, processes).map(|terms| terms as u64);
                // Attention stores its activations, and a state and a gradient for each term, or two if several hops add to it.
                let slots = hop.slots() as u64;
                let apart = u64::from(hop.attends() || slots > 1);
                let [shared, cut, softmax] = match hop.attends_by_column() {
                    true => [shard, shard, shard * hop.heads() as u64 / width.max(1)],
                    false => {
                        let [touched, cut] = [touched, entries].map(|both| (both / 2).div_ceil(processes as u64));
                        [2 * touched, cut, cut]
                    }
                };
                let terms = splits * (shared + SOFTMAX_STATE as u64 * softmax + cut * (2 + (1 - gathers)));
                let shards = shard * (1 + apart * back * gathers * slots);
                let others = shard * argmax + terms;
                let sent = splits * (width + (hop.sent_terms() + hop.terms()) as u64);
                let sent_gradient = splits * back * (width + entries);
                // Gradients overwrite activations where possible.
                let own_back = apart.max(1 - splits);
                let aggregated = gathers * slots * width * (1 + back * own_back);
                stored += graph.nodes * shards;
                values += own * (sent + sent_gradient + aggregated) + held + graph.nodes * others;
                continue;
            }
            let receivers = if self.is_partial(graph, index) { train } else { own };
            let ghosts = |back| if processes == 1 { 0 } else { self.ghosts(graph, parts, index, back) };
            let states = match hop.attends() {
                true => receivers * (Self::state(hop) + hop.terms() as u64),
                false => receivers * width * argmax,
            };
            values += receivers * width * hop.slots() as u64 + held + states;
            stored += (own + ghosts(false)) * sent;
            if self.is_partial(graph, index) {
                // All nodes are evaluated, with separate tables for ghosts.
                let evaluation = if ghosts(false) > 0 { (own + ghosts(false)) * sent } else { 0 };
                let states = if hop.attends() { Self::state(hop) + hop.terms() as u64 } else { width * argmax };
                values += own * states;
                stored += evaluation;
            }
            if let Some(mirrored) = self.mirror_columns(hop) {
                // Two tables of ghosts, their gradients, and the gradients that other processes send of own rows.
                let theirs: u64 =
                    (0..).zip(&graph.parts).filter(|(part, _)| !parts.contains(part)).map(|(_, part)| part.halo).sum();
                let others = theirs.min(own * (processes as u64 - 1));
                values += ghosts(false) * (sent + mirrored) + back * (receivers * gradient + others * mirrored);
                continue;
            }
            // Gradients of the same width overwrite activations.
            let alike = sent == width && gradient == width;
            let over_sent = self.may_share && alike && index + 1 < self.hops.len();
            stored += if over_sent { 0 } else { back * (receivers + ghosts(true)) * gradient };
        }
        let first = self.hops.first().map_or(0, |hop| hop.width.div_ceil(processes)) as u64;
        self.value_bytes * stored + 4 * (values + if self.keeps_initial { graph.nodes * first } else { 0 })
    }

    /// Returns the number of intervals of a partition of `nodes` nodes.
    pub(super) fn intervals_of(&self, nodes: u64) -> usize {
        self.intervals.unwrap_or((nodes as usize).div_ceil(INTERVAL_NODES)).max(1)
    }

    /// Returns the nodes of the largest interval of these partitions.
    fn interval(&self, graph: &Sizes, parts: &std::ops::Range<usize>) -> u64 {
        let largest = |nodes: u64| nodes.div_ceil(self.intervals_of(nodes) as u64);
        graph.parts[parts.clone()].iter().map(|part| largest(part.nodes)).max().unwrap_or(0)
    }

    /// Returns the bytes of a task's computation: six times its widest rows, five times if these follow a fused ReLU, or eight times those of a perceptron, which
    /// drops elements of them.
    /// With sums of several relations, eight times these sums, because they are stored, have a gradient, and are summed again.
    fn task_activations(&self, nodes: u64) -> u64 {
        let columns = |(hop, fuses_relu): (&Hop, &bool)| {
            // Column-parallel training holds whole rows beside the shards.
            let held = if *fuses_relu && !self.column_parallel { 5 } else { 6 } * hop.held;
            match hop.slots() {
                1 => (6 * hop.width).max(held),
                slots => (8 * slots * hop.width).max(held),
            }
        };
        let tasks = (6 * self.input).max(8 * self.perceptron);
        let most = self.hops.iter().zip(&self.fuses_relu).map(columns).max().unwrap_or(0).max(tasks) as u64;
        nodes * most * 4
    }

    /// Returns the bytes of the largest task's computation.
    pub(super) fn task_bytes(&self, graph: &Sizes, parts: &std::ops::Range<usize>) -> u64 {
        self.task_activations(self.interval(graph, parts))
    }

    /// Returns the bytes on a GPU that sums column shards chunk by chunk: shards of all nodes, and what [`FullGraphPlan::chunk_copies`] has in memory, too;
    /// 0 for other schedules, and for attention and maxima, which the CPU computes.
    pub(super) fn chunk_sums(&self, graph: &Sizes, processes: usize) -> u64 {
        let shards = |hop: &Hop| graph.nodes * hop.slots() as u64 * Self::share(hop, graph, processes) as u64 * 4;
        let most = self.summed_on_gpu().map(shards).max();
        most.map_or(0, |shards| shards + self.chunk_copies(graph, processes))
    }

    /// Returns the bytes of what moves to and from a GPU that sums column shards: the edges of two pieces, and the sums of a chunk; 0 without such sums.
    fn chunk_copies(&self, graph: &Sizes, processes: usize) -> u64 {
        let nodes = graph.parts.iter().map(|part| part.nodes).max().unwrap_or(0);
        let of_hop = |hop: &Hop| {
            let (share, slots) = (Self::share(hop, graph, processes) as u64, hop.slots() as u64);
            let pieces = 2 * 4 * (graph.edges.min(PIECE_EDGES as u64) + nodes * slots);
            pieces + (nodes * slots * share * 4).min(self.chunk_memory)
        };
        self.summed_on_gpu().map(of_hop).max().unwrap_or(0)
    }

    /// Returns the hops whose column shards a GPU sums, if there is one.
    fn summed_on_gpu(&self) -> impl Iterator<Item = &Hop> {
        let is_sum = |hop: &&Hop| {
            self.column_parallel && hop.aggregation != Aggregation::Nothing && !hop.attends() && !hop.takes_largest()
        };
        self.hops.iter().filter(is_sum)
    }

    /// Returns the bytes of rows in flight to a process: those of the stage that sends most, up to the window.
    fn rows_in_flight(&self, graph: &Sizes, parts: &std::ops::Range<usize>, processes: usize) -> u64 {
        let own = graph.parts[parts.clone()].iter().map(|part| part.nodes).sum::<u64>();
        let of = |(index, hop): (usize, &Hop)| {
            if self.column_parallel {
                // All own rows: the column shards of all rows are not larger.
                return own * (hop.slots() * Self::width(hop)) as u64 * 4;
            }
            if processes == 1 {
                return 0;
            }
            let [sent, gradient] = Self::sent_columns(hop);
            let back = if self.program.goes_back(index) { gradient } else { 0 };
            if let Some(mirrored) = self.mirror_columns(hop) {
                return self.ghosts(graph, parts, index, false) * sent.max(mirrored) * 4;
            }
            (self.ghosts(graph, parts, index, false) * sent).max(self.ghosts(graph, parts, index, true) * back)
                * self.value_bytes
        };
        let most = self.hops.iter().enumerate().map(of).max().unwrap_or(0);
        let window = window(self.column_parallel.then_some(self.chunk_memory)) * MESSAGE_BYTES;
        most.min((window as u64).saturating_mul(processes as u64))
    }

    /// Returns the maximum bytes of a task's rows and results.
    fn task(&self, graph: &Sizes, parts: &std::ops::Range<usize>) -> u64 {
        let [features, results] = self.ends;
        task_bytes(self.interval(graph, parts), (&self.hops, &self.reads_initial), features, results, self.parameters)
    }

    /// Returns the bytes of rows and results of tasks with tensor workers or in flight, and of the messages of their calls.
    fn tensor_rows(&self, graph: &Sizes, parts: &std::ops::Range<usize>, jobs: usize) -> u64 {
        let bytes = self.task(graph, parts);
        let Some((workers, _)) = self.tensor else {
            let tasks = if jobs > 1 { permits(self.column_parallel) + jobs } else { 0 };
            return tasks as u64 * bytes;
        };
        let tasks = (permits(self.column_parallel) + tasks_in_flight(workers, bytes)) as u64;
        tasks * bytes + (CALLS_PER_WORKER * workers) as u64 * bytes.max(CALL_BYTES as u64)
    }

    /// Returns the bytes of a tensor worker: rows, results, messages and computation of its calls, and its versions of the
    /// parameters, as models and as vectors.
    pub(super) fn tensor_worker(&self, graph: &Sizes, processes: usize) -> Option<u64> {
        let (_, shared) = self.tensor?;
        let all = 0..graph.parts.len();
        let calls = (CALLS_PER_WORKER * if shared { processes } else { 1 }) as u64;
        let call =
            2 * self.task(graph, &all).max(CALL_BYTES as u64) + self.task_activations(self.interval(graph, &all));
        Some(PROGRAM_BYTES + calls * call + (WORKER_VERSIONS + calls) * 4 * self.parameters)
    }

    /// Returns the bytes of activations: the computation of `jobs` intervals (values, inputs and gradients of their widest task), rows
    /// in flight and, in column-parallel training, the sums of a chunk.
    fn activations(&self, graph: &Sizes, parts: &std::ops::Range<usize>, processes: usize, jobs: usize) -> u64 {
        let task = jobs as u64 * self.task_bytes(graph, parts);
        let largest = graph.parts.iter().map(|part| part.nodes).max().unwrap_or(0);
        let shard = self.hops.iter().map(|hop| Self::share(hop, graph, processes)).max().unwrap_or(0) as u64;
        task + self.rows_in_flight(graph, parts, processes)
            + if self.column_parallel { (largest * shard * 4).min(self.chunk_memory) } else { 0 }
            // And the numbers of all rows.
            + if self.on_gpu { self.chunk_copies(graph, processes) + graph.nodes * 4 } else { 0 }
    }
}
