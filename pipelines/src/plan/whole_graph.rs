//! What an epoch over the whole graph takes: tables of rows, and the rows that move.
//!
//! By nodes, with n own nodes and g ghosts (Dorylus): activations (n + g) × width, what has arrived n × width, its gradients (n +
//! g) × width (where edges go both ways, in the activations' place), of each hop; the last hop's receivers are the training nodes,
//! where these are fewer than half. Each stage but the last sends g rows to everybody who has them as ghosts. Where rows are
//! weighed by attention and epochs overlap, ghosts are there twice, with a gradient of a row and its terms each, which goes back
//! instead of receivers' gradients; and what others tell of own rows. Where the largest arrive, n × width more say whose, and go
//! with the gradients, (n + g) × width of them. By columns (NeutronTP), with N nodes and w of a hop's S columns here: N × w, n × S
//! three times; where propagations follow one another, whole rows only before and behind all of them, and with attention, N × w for
//! each of them (its gradients ask for what was propagated) and once more for gradients. A split or a gather moves all rows but
//! each process's own part, N × S × (1 − 1 / processes). Where rows that neighbors add up are rounded, activations and gradients,
//! and N × w, have half as many bytes, and so has what is sent of them; by columns, what is gathered has all.

use gnnflow_dataflow::wire::MESSAGE_BYTES;
use gnnflow_kernels::aggregate::dynamic_attention::SOFTMAX_STATE;
use gnnflow_nn::layers::Aggregation;
use gnnflow_nn::model::{Hop, ModelSpec};
use gnnflow_nn::{Model, Registry};

use super::memory::PROGRAM_BYTES;
use super::pairs::{Pairs, decoder};
use super::{Sizes, embedding};
use crate::config::{Config, Mode, Schedule};
use crate::engine::stages::dataflow::permits;
use crate::engine::stages::intervals::INTERVAL_NODES;
use crate::engine::stages::message::window;
use crate::engine::stages::program::{Program, Propagated, Stage};
use crate::engine::tensor_parallel::head_shards::HeadShards;
use crate::runtime::task_sizes::{CALL_BYTES, CALLS_PER_WORKER, task_bytes, tasks_in_flight};

/// Versions of the parameters that a tensor worker keeps.
const WORKER_KEEPS: u64 = 8;

/// The model's hops and the stages of its epochs.
pub(super) struct Whole {
    hops: Vec<Hop>,
    program: Program,
    by_columns: bool,
    /// Columns of features or learned rows, or of what is hidden in a node task, where that has more.
    inside: usize,
    intervals: Option<usize>,
    /// What a chunk may take.
    chunk_memory: u64,
    /// Whether gradients may lie where activations were: edges go both ways, and epochs do not overlap.
    may_share: bool,
    /// Bytes of a number of rows that neighbors add up.
    number: u64,
    /// Whether mirrors tell of the gradients of hops that attend: epochs overlap.
    mirrored: bool,
    /// By node task, whether it is done on slices; and whether one of those reads what nodes held before the first layer.
    chained: Vec<bool>,
    keeps_initial: bool,
    /// Where it is pairs of nodes that are learned from.
    pub(super) pairs: Option<Pairs>,
    /// Numbers in the flat vector of parameters.
    pub(super) parameters: u64,
    /// Tensor workers that each process makes room for, where it has any; and whether others have the same.
    tensor: Option<(usize, bool)>,
    /// Columns of the first task's rows and of the last one's results; and which tasks read what nodes held before the first layer.
    ends: [usize; 2],
    reads_initial: Vec<bool>,
}

impl Whole {
    /// Of a pipeline that trains over the whole graph, with a model that comes with gnnflow; `None` for any other.
    pub(super) fn of(config: &Config, graph: &Sizes) -> Option<Self> {
        let (train, model) = (config.train.as_ref()?, config.model.as_ref()?);
        let options = train.schedule.whole_graph()?;
        let (classes, relations) = (graph.classes.unwrap_or(1).max(1) as usize, graph.relations.unwrap_or(0));
        let network = model.network(&train.schedule);
        let (input, _) = embedding::input(config, graph);
        let described = network.describe(input.max(1), classes, relations, graph.edge_features.unwrap_or(0));
        let described = ModelSpec { decoder: decoder(train, graph), ..described };
        let built = Model::build(&described, &Registry::default(), &candle_core::Device::Cpu, train.seed).ok()?;
        let (hops, by_columns) = (built.hops().ok()?, train.schedule.is_tensor_parallel());
        let chained: Vec<bool> = (0..=hops.len()).map(|index| built.task_by_column(index).is_some()).collect();
        let first_learns = built.first_task_learns() || embedding::of(config).is_some();
        let program = match by_columns {
            true => {
                let attends: Vec<bool> = hops.iter().map(Hop::attends).collect();
                Program::column_parallel(hops.len(), first_learns, &chained, &attends, 1)
            }
            false => Program::node_parallel(hops.len(), first_learns, &chained),
        };
        let on_slices = (0..=hops.len()).filter_map(|index| built.task_by_column(index));
        let keeps_initial = by_columns && program.goes_back(0) && on_slices.into_iter().any(|[_, kept]| kept != 0.0);
        let pairs = Pairs::of(config, graph);
        let program = match &pairs {
            Some(pairs) => program.with_pairs(hops.len(), pairs.chunks(graph)),
            None => program,
        };
        let parameters = built.params().flat_len() as u64;
        let tensor = train
            .tensor_workers
            .as_ref()
            .map(|tensor| (tensor.expected(), tensor.workers.is_none() || tensor.accept.is_some()));
        let reads_initial = (0..=hops.len()).map(|index| built.task_reads_initial(index)).collect();
        let may_share = config.graph.undirected && options.mode != Mode::Async;
        Some(Self {
            hops,
            program,
            by_columns,
            inside: input.max(match network.kind.as_str() {
                "mlp" | "appnp" => model.hidden,
                _ if model.kind == "mlp" || network.decouples_attention() => model.hidden,
                _ => 0,
            }),
            intervals: options.intervals,
            chunk_memory: match &train.schedule {
                Schedule::TensorParallel(options) => options.chunk_memory.0,
                _ => 0,
            },
            may_share,
            number: options.row_dtype.bytes(),
            mirrored: !by_columns && options.mode == Mode::Async && options.staleness > 0,
            chained,
            keeps_initial,
            pairs,
            parameters,
            tensor,
            ends: [described.in_dim, described.out_dim],
            reads_initial,
        })
    }

    /// Columns of a hop's rows, where it has edges to add them up along.
    fn width(hop: &Hop) -> usize {
        if hop.aggregation == Aggregation::Nothing { 0 } else { hop.width }
    }

    /// Columns of a hop's rows as they move: of activations, and of gradients.
    fn moved(hop: &Hop) -> [u64; 2] {
        let width = hop.width as u64;
        match hop.aggregation {
            Aggregation::Nothing => [0, 0],
            Aggregation::Attention { .. } => [width + hop.sent_terms() as u64, width + Self::state(hop)],
            Aggregation::Max => [width, 2 * width],
            // A ghost has gradients of those slots that it is asked for: at most all.
            _ => [width, width * hop.slots() as u64],
        }
    }

    /// Whether what leaves of a hop's gradients is what mirrors tell: a row for each ghost of its activations, and how many columns then.
    fn told(&self, hop: &Hop) -> Option<u64> {
        (self.mirrored && hop.attends()).then(|| (hop.width + hop.terms()) as u64)
    }

    /// Columns of slices of the process that has most of a hop's: whole heads, where one is not cut.
    fn share(hop: &Hop, graph: &Sizes, processes: usize) -> usize {
        if !hop.attends_by_column() {
            return Self::width(hop).div_ceil(processes);
        }
        let cut = HeadShards::of_hop(hop, graph.parts.len(), processes);
        (0..processes).map(|worker| cut.of(worker)[0].len()).max().unwrap_or(0)
    }

    /// Numbers that receivers keep where a hop attends: their terms, and [`SOFTMAX_STATE`] for each head.
    fn state(hop: &Hop) -> u64 {
        (hop.terms() + SOFTMAX_STATE * hop.heads()) as u64
    }

    /// Numbers that the partition with most edges adds up in an epoch.
    pub(super) fn added(&self, graph: &Sizes) -> f64 {
        let most = graph.parts.iter().map(|part| part.edges).max().unwrap_or(0);
        let share = graph.train.map_or(1.0, |train| train as f64 / graph.nodes.max(1) as f64);
        let hop = |(index, hop): (usize, &Hop)| {
            let (times, [sent, gradient]) = (u64::from(self.program.goes_back(index)), Self::moved(hop));
            match self.by_columns {
                true => (graph.edges * Self::share(hop, graph, graph.parts.len().max(1)) as u64 * (1 + times)) as f64,
                false if self.leaves_out(graph, index) => share * (most * (sent + times * gradient)) as f64,
                false => (most * (sent + times * gradient)) as f64,
            }
        };
        self.hops.iter().enumerate().map(hop).sum()
    }

    /// Columns of the narrowest rows that are cut among `processes`, where those are fewer.
    pub(super) fn fewer_columns_than(&self, processes: usize) -> Option<usize> {
        let cut = self.hops.iter().filter(|hop| hop.aggregation != Aggregation::Nothing).map(|hop| hop.width);
        cut.min().filter(|&width| self.by_columns && width < processes)
    }

    /// Rounds of messages of an epoch.
    pub(super) fn rounds(&self, processes: usize) -> u64 {
        if processes == 1 { 0 } else { self.program.rounds() }
    }

    /// Bytes of rows between processes in an epoch after the first, for processes that host these partitions.
    pub(super) fn bytes(&self, graph: &Sizes, hosted: &[std::ops::Range<usize>]) -> u64 {
        let processes = hosted.len() as u64;
        if processes == 1 {
            return 0;
        }
        let arrives = |hop: usize| self.hops[hop].slots() * Self::width(&self.hops[hop]);
        let mut bytes = self.pairs.as_ref().map_or(0, |pairs| pairs.bytes(graph, hosted));
        for step in 0..self.program.stages() {
            let stage = self.program.stage(step);
            if self.by_columns {
                let (width, number) = match stage {
                    Stage::Forward(hop) => {
                        (Self::width(&self.hops[hop]) + self.terms(graph, hop, hosted.len())[0], self.number)
                    }
                    Stage::Loss if self.program.goes_back(self.hops.len() - 1) => {
                        (arrives(self.hops.len() - 1), self.number)
                    }
                    Stage::Backward(hop) if hop > 0 && self.program.goes_back(hop - 1) => {
                        (arrives(hop - 1), self.number)
                    }
                    // Sums are not rounded.
                    Stage::Propagate(Propagated { hop, backward: back, gather: true, .. }) => {
                        let terms = if back { self.terms(graph, hop, hosted.len())[1] } else { 0 };
                        (terms + if back { Self::width(&self.hops[hop]) } else { arrives(hop) }, 4)
                    }
                    _ => (0, 0),
                };
                bytes += graph.nodes * width as u64 * number * (processes - 1) / processes;
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
            let [sent, gradient] = Self::moved(&self.hops[hop]);
            let (back, columns) = match self.told(&self.hops[hop]) {
                Some(told) if back => (false, told),
                _ => (back, if back { gradient } else { sent }),
            };
            let ghosts = hosted.iter().map(|parts| self.ghosts(graph, parts, hop, back)).sum::<u64>();
            bytes += ghosts * columns * self.number;
        }
        bytes
    }

    /// Where a hop attends by columns: terms that travel with slices, of all processes together; and those that pieces of columns have
    /// gradients of.
    fn terms(&self, graph: &Sizes, hop: usize, processes: usize) -> [usize; 2] {
        let hop = &self.hops[hop];
        if !hop.attends() {
            return [0, 0];
        }
        let cut = HeadShards::of_hop(hop, graph.parts.len(), processes);
        let touched: usize = (0..processes).map(|worker| cut.of(worker)[1].len()).sum();
        [if hop.attends_by_column() { touched } else { 2 * touched }, 2 * cut.count()]
    }

    /// Whether the last hop's receivers are fewer than all nodes.
    fn leaves_out(&self, graph: &Sizes, hop: usize) -> bool {
        hop + 1 == self.hops.len() && graph.train.is_some_and(|train| 2 * train <= graph.nodes)
    }

    /// Rows that a process has of others' nodes; at most, and exactly those where it hosts one partition and nobody is left out.
    fn ghosts(&self, graph: &Sizes, parts: &std::ops::Range<usize>, hop: usize, back: bool) -> u64 {
        let own = |of: fn(&super::PartSize) -> u64| graph.parts[parts.clone()].iter().map(of).sum::<u64>();
        let all = own(|part| part.halo).min(graph.nodes - own(|part| part.nodes));
        match graph.train {
            Some(train) if back && self.leaves_out(graph, hop) => all.min(train - own(|part| part.train).min(train)),
            _ => all,
        }
    }

    /// Bytes of a process's tables.
    pub(super) fn tables(&self, graph: &Sizes, parts: &std::ops::Range<usize>, processes: usize) -> u64 {
        let of = |of: fn(&super::PartSize) -> u64| graph.parts[parts.clone()].iter().map(of).sum::<u64>();
        let (own, train) = (of(|part| part.nodes), of(|part| part.train));
        let mut numbers = self.pairs.as_ref().map_or(0, |pairs| pairs.results(own) / 4);
        // Of rows that neighbors add up.
        let mut stored = 0;
        for (index, hop) in self.hops.iter().enumerate() {
            let back = u64::from(self.program.goes_back(index));
            let ([sent, gradient], width) = (Self::moved(hop), Self::width(hop) as u64);
            // By columns, whole rows are only where a node task reads or makes them.
            let whole = |task: usize| !self.by_columns || !self.chained[task];
            let keeps = hop.keeps_held && (whole(index + 1) || index == 0 && self.reads_initial.contains(&true));
            let held = if keeps { hop.held as u64 * own * (1 + back) } else { 0 };
            // Who was the largest, by receiver and column.
            let largest = u64::from(hop.takes_largest());
            if self.by_columns {
                let [splits, gathers] = [whole(index), whole(index + 1)].map(u64::from);
                let slice = Self::share(hop, graph, processes) as u64;
                let [touched, entries] = self.terms(graph, index, processes).map(|terms| terms as u64);
                // Attention keeps its activations, and a state and a gradient for each term, or two where several hops add to it.
                let slots = hop.slots() as u64;
                let apart = u64::from(hop.attends() || slots > 1);
                let [shared, cut, kept] = match hop.attends_by_column() {
                    true => [slice, slice, slice * hop.heads() as u64 / width.max(1)],
                    false => {
                        let [touched, cut] = [touched, entries].map(|both| (both / 2).div_ceil(processes as u64));
                        [2 * touched, cut, cut]
                    }
                };
                let terms = splits * (shared + SOFTMAX_STATE as u64 * kept + cut * (2 + (1 - gathers)));
                let slices = slice * (1 + apart * back * gathers * slots);
                let others = slice * largest + terms;
                let sent = splits * (width + (hop.sent_terms() + hop.terms()) as u64);
                let sent_back = splits * back * (width + entries);
                // Where nothing is in the way, gradients lie where activations were.
                let own_back = apart.max(1 - splits);
                let arrived = gathers * slots * width * (1 + back * own_back);
                stored += graph.nodes * slices;
                numbers += own * (sent + sent_back + arrived) + held + graph.nodes * others;
                continue;
            }
            let receivers = if self.leaves_out(graph, index) { train } else { own };
            let ghosts = |back| if processes == 1 { 0 } else { self.ghosts(graph, parts, index, back) };
            let states = match hop.attends() {
                true => receivers * (Self::state(hop) + hop.terms() as u64),
                false => receivers * width * largest,
            };
            numbers += receivers * width * hop.slots() as u64 + held + states;
            stored += (own + ghosts(false)) * sent;
            if self.leaves_out(graph, index) {
                // All nodes are evaluated, and rows of others lie elsewhere then.
                let elsewhere = if ghosts(false) > 0 { (own + ghosts(false)) * sent } else { 0 };
                let states = if hop.attends() { Self::state(hop) + hop.terms() as u64 } else { width * largest };
                numbers += own * states;
                stored += elsewhere;
            }
            if let Some(told) = self.told(hop) {
                // Ghosts twice, their gradients, and what others tell of those own rows that they have as ghosts.
                let theirs: u64 =
                    (0..).zip(&graph.parts).filter(|(part, _)| !parts.contains(part)).map(|(_, part)| part.halo).sum();
                let others = theirs.min(own * (processes as u64 - 1));
                numbers += ghosts(false) * (sent + told) + back * (receivers * gradient + others * told);
                continue;
            }
            // Gradients alone have room where activations were.
            let alike = sent == width && gradient == width;
            let over_sent = self.may_share && alike && index + 1 < self.hops.len();
            stored += if over_sent { 0 } else { back * (receivers + ghosts(true)) * gradient };
        }
        let first = self.hops.first().map_or(0, |hop| hop.width.div_ceil(processes)) as u64;
        self.number * stored + 4 * (numbers + if self.keeps_initial { graph.nodes * first } else { 0 })
    }

    /// Nodes of the largest interval of these partitions.
    fn interval(&self, graph: &Sizes, parts: &std::ops::Range<usize>) -> u64 {
        let most = graph.parts[parts.clone()].iter().map(|part| part.nodes).max().unwrap_or(0);
        self.intervals.map_or(most.min(INTERVAL_NODES as u64), |count| most.div_ceil(count as u64))
    }

    /// What a task computes on: six times its widest rows; where sums of several relations arrive side by side, eight times those,
    /// which are kept, have a gradient, and are added up once more.
    fn arithmetic(&self, nodes: u64) -> u64 {
        let columns = |hop: &Hop| match hop.slots() {
            1 => 6 * hop.width.max(hop.held),
            slots => (8 * slots * hop.width).max(6 * hop.held),
        };
        let most = self.hops.iter().map(columns).max().unwrap_or(0).max(6 * self.inside) as u64;
        nodes * most * 4
    }

    /// Bytes of rows that are on their way to a process at once: those of the stage that moves most, if so many have room on the way.
    fn on_their_way(&self, graph: &Sizes, parts: &std::ops::Range<usize>, processes: usize) -> u64 {
        let own = graph.parts[parts.clone()].iter().map(|part| part.nodes).sum::<u64>();
        let of = |(index, hop): (usize, &Hop)| {
            if self.by_columns {
                // As many as a process has of its own rows: slices of all rows take no more.
                return own * (hop.slots() * Self::width(hop)) as u64 * 4;
            }
            if processes == 1 {
                return 0;
            }
            let [sent, gradient] = Self::moved(hop);
            let back = if self.program.goes_back(index) { gradient } else { 0 };
            if let Some(told) = self.told(hop) {
                return self.ghosts(graph, parts, index, false) * sent.max(told) * 4;
            }
            (self.ghosts(graph, parts, index, false) * sent).max(self.ghosts(graph, parts, index, true) * back)
                * self.number
        };
        let most = self.hops.iter().enumerate().map(of).max().unwrap_or(0);
        let window = window(self.by_columns.then_some(self.chunk_memory)) * MESSAGE_BYTES;
        most.min((window as u64).saturating_mul(processes as u64))
    }

    /// Bytes of a task's rows and results, at most.
    fn task(&self, graph: &Sizes, parts: &std::ops::Range<usize>) -> u64 {
        let [features, results] = self.ends;
        task_bytes(self.interval(graph, parts), (&self.hops, &self.reads_initial), features, results, self.parameters)
    }

    /// Bytes of rows and results of tasks that are with tensor workers, or on the way to them and back: as many as may be under way, and one
    /// more, as messages, of each call.
    pub(super) fn elsewhere(&self, graph: &Sizes, parts: &std::ops::Range<usize>) -> u64 {
        let Some((workers, _)) = self.tensor else { return 0 };
        let bytes = self.task(graph, parts);
        let tasks = (permits(self.by_columns) + tasks_in_flight(workers, bytes)) as u64;
        tasks * bytes + (CALLS_PER_WORKER * workers) as u64 * bytes.max(CALL_BYTES as u64)
    }

    /// Bytes that a tensor worker needs: for each call that processes may have with it rows, results, messages and arithmetic; and parameters
    /// of late, in models and by themselves.
    pub(super) fn tensor_worker(&self, graph: &Sizes, processes: usize) -> Option<u64> {
        let (_, shared) = self.tensor?;
        let all = 0..graph.parts.len();
        let calls = (CALLS_PER_WORKER * if shared { processes } else { 1 }) as u64;
        let call = 2 * self.task(graph, &all).max(CALL_BYTES as u64) + self.arithmetic(self.interval(graph, &all));
        Some(PROGRAM_BYTES + calls * call + (WORKER_KEEPS + calls) * 4 * self.parameters)
    }

    /// Bytes of what is computed at once. An interval's arithmetic: its rows at the widest task, values, kept inputs and
    /// gradients; by columns a chunk's sums, of which there are no more than nodes in a partition; and the rows on their way.
    pub(super) fn at_once(&self, graph: &Sizes, parts: &std::ops::Range<usize>, processes: usize) -> u64 {
        let arithmetic = self.arithmetic(self.interval(graph, parts));
        let largest = graph.parts.iter().map(|part| part.nodes).max().unwrap_or(0);
        let slice = self.hops.iter().map(|hop| Self::share(hop, graph, processes)).max().unwrap_or(0) as u64;
        arithmetic
            + self.on_their_way(graph, parts, processes)
            + if self.by_columns { (largest * slice * 4).min(self.chunk_memory) } else { 0 }
    }
}
