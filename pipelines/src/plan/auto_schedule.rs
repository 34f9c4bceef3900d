//! `train.schedule = "auto"`: estimates the time of each schedule, and chooses the fastest.
//!
//! The choice depends on the pipeline file, the dataset and the number of partitions, as results do, and not on the number of
//! processes: each partition counts as a process. A schedule must support the pipeline ([`rules`](crate::config)) and fit into
//! `train.memory`. Then
//!
//! ```text
//! seconds of an epoch = multiplications / 5 · 10¹⁰ + values summed / 5 · 10⁹ + edges sampled / 2 · 10⁷   (the slowest partition)
//!                     + bytes / partitions / 1.25 · 10⁹ + rounds / 10⁴                                (10 Gbit/s, 0.1 ms)
//!                     + 2 · bytes of rows in files / 10⁹
//! ```
//!
//! The rates are those of one core of an EPYC (Zen 5). On two cores, an epoch of mini-batch SAGE does 5 · 10¹² multiplications
//! in 41 s (`benches/peers/epoch.py`), and one of full-graph GCN sums 2.8 · 10¹⁰ values in 2.3 s, besides its products
//! (`benches/peers/full_graph.py`). Bytes and rounds are those of the plan.
//!
//! With batches, a layer of i → o columns multiplies 3 · rows · parameters (forward, and both gradients) and sums 2 · edges · i
//! values per step, for the largest batch. Full-graph training multiplies 4 · nodes · parameters (the backward pass repeats the
//! forward pass). It sums edges · columns of the partition with most edges (node-parallel), or all edges · columns / partitions
//! (column-parallel). An epoch of full-graph training updates the parameters once. If batches take several steps per epoch, it
//! counts as many times, but at most [`MAX_STEPS`].

use super::full_graph::FullGraphPlan;
use super::{Plan, Sizes, training_sizes};
use crate::config::schedule::AutoCandidate;
use crate::config::{AutoSchedule, Candidate, Config, Schedule, is_builtin_layer};
use crate::error::Error;
use gnnflow_data::format::bytes;

/// Multiplications (with additions) of one core per second.
const MULTIPLIED: f64 = 5e10;
/// Values per second that are summed, of rows at random positions.
const ADDED: f64 = 5e9;
/// Edges per second that are sampled, including the rows of their sources.
const SAMPLED: f64 = 2e7;
/// Bytes per second that a process sends.
const LINK: f64 = 1.25e9;
/// Seconds of a round of messages.
const ROUND: f64 = 1e-4;
/// Bytes per second of scratch files that are read or written.
const DISK: f64 = 1e9;
/// Maximum factor by which an epoch of full-graph training is compared with one of batches.
const MAX_STEPS: u64 = 4;
/// The schedule whose epochs have several steps.
const BATCHES: &str = "mini-batch";

fn allowed(config: &Config) -> Vec<AutoCandidate> {
    match config.train.as_ref().map(|train| &train.schedule) {
        Some(Schedule::Auto(auto)) => auto.candidates.clone(),
        _ => Vec::new(),
    }
}

impl AutoSchedule {
    /// Chooses the schedule of `config` for a graph of these sizes.
    ///
    /// # Errors
    /// If no schedule supports the pipeline; other errors of [`Plan::new`].
    pub fn new(config: &Config, graph: &Sizes) -> Result<Self, Error> {
        let all = allowed(config).into_iter().map(|schedule| candidate(config, graph, schedule.into()));
        let mut candidates = all.collect::<Result<Vec<_>, _>>()?;
        // An epoch of batches has several steps. A full-graph epoch has one, and counts as many times.
        let batches = |candidate: &&Candidate| candidate.schedule == BATCHES && candidate.refused.is_none();
        let steps = candidates.iter().find(batches).map_or(1, |candidate| candidate.counts.clamp(1, MAX_STEPS));
        for candidate in &mut candidates {
            candidate.counts = if candidate.schedule == BATCHES { 1 } else { steps };
        }
        let possible = candidates.iter().filter(|candidate| candidate.refused.is_none());
        let Some(best) = possible.min_by(|a, b| a.seconds().total_cmp(&b.seconds())).cloned() else {
            let reasons: Vec<String> = candidates.iter().map(refusal).collect();
            let message = format!("no candidate supports this pipeline: {}", reasons.join("; "));
            return Err(config.problem("train.schedule", message));
        };
        let on_edges = config.train.as_ref().is_some_and(|train| train.learns_edges());
        let nodes = graph.nodes.max(1) as f64;
        let parts = graph.parts.len().max(1) as f64;
        let most_edges = graph.parts.iter().map(|part| part.edges).max().unwrap_or(0) as f64;
        let mut auto = Self {
            chosen: best.schedule.clone(),
            because: String::new(),
            train_share: (!on_edges).then(|| graph.train.map_or(1.0, |train| train as f64 / nodes)),
            replication_factor: 1.0 + graph.parts.iter().map(|part| part.halo).sum::<u64>() as f64 / nodes,
            edge_cut: None,
            edge_balance: most_edges * parts / graph.edges.max(1) as f64,
            candidates,
        };
        auto.because = auto.reason(&best);
        Ok(auto)
    }

    fn reason(&self, best: &Candidate) -> String {
        let others = self.candidates.iter().filter(|other| other.schedule != best.schedule);
        let mut text = vec![format!("about {} per epoch", seconds(best.compute + best.moving))];
        for other in others {
            text.push(match &other.refused {
                Some(_) => refusal(other),
                None => self.disadvantage(best, other),
            });
        }
        text.join("; ")
    }

    /// Returns the share of training nodes after a `word`; nothing for tasks on edges.
    fn share(&self, word: &str) -> String {
        self.train_share.map_or_else(String::new, |share| format!("{word} {:.0} % train nodes", 100.0 * share))
    }

    /// Returns the main reason why `other` is slower than `best`.
    fn disadvantage(&self, best: &Candidate, other: &Candidate) -> String {
        let [compute, moving] = [|c: &Candidate| c.compute, |c: &Candidate| c.moving]
            .map(|of| of(other) * other.counts as f64 - of(best) * best.counts as f64);
        let what = match (other.schedule.as_str(), moving > compute) {
            (_, true) => {
                let quality = format!("a replication factor of {:.2}", self.replication_factor);
                format!("it sends {} in {} rounds, with {quality}", bytes(other.bytes), other.rounds)
            }
            ("mini-batch", false) => format!("batches recompute overlapping neighborhoods{}", self.share(", with")),
            ("full-graph", false) if self.edge_balance > 1.1 => {
                format!("the partition with most edges has {:.2} times the mean", self.edge_balance)
            }
            _ => format!("it computes all nodes{}", self.share(" for")),
        };
        let counts = if other.counts > 1 { format!(", counted {} times", other.counts) } else { String::new() };
        format!("\"{}\" {}{counts}: {what}", other.schedule, seconds(other.compute + other.moving))
    }
}

fn refusal(candidate: &Candidate) -> String {
    format!("not \"{}\": {}", candidate.schedule, candidate.refused.as_deref().unwrap_or_default())
}

pub(super) fn seconds(seconds: f64) -> String {
    match seconds {
        s if s >= 100.0 => format!("{s:.0} s"),
        s if s >= 0.1 => format!("{s:.1} s"),
        s => format!("{:.2} ms", 1e3 * s),
    }
}

/// Estimates one schedule for `config`. `counts` has the steps of an epoch.
fn candidate(config: &Config, graph: &Sizes, schedule: Schedule) -> Result<Candidate, Error> {
    let word = schedule.to_string();
    let refused = |why: String| Ok(Candidate { schedule: word.clone(), refused: Some(why), ..Candidate::default() });
    if let Some(why) = config.refusal(schedule.word()) {
        return refused(why.to_owned());
    }
    let config = config.with_schedule(schedule);
    let parts = graph.parts.len();
    let plan = match Plan::of(&config, graph.clone(), parts, parts) {
        Ok(plan) => plan,
        // The schedule does not fit into `train.memory`.
        Err(Error::Usage(why)) => return refused(why),
        Err(other) => return Err(other),
    };
    let (Some(training), Some(model)) = (&plan.training, &config.model) else {
        return refused("there is nothing to train".into());
    };
    let full_graph = FullGraphPlan::of(&config, &training_sizes(&config, graph));
    let [multiplied, added, sampled] = match &full_graph {
        Some(full_graph) => {
            let nodes = graph.parts.iter().map(|part| part.nodes).max().unwrap_or(0);
            [4.0 * nodes as f64 * full_graph.parameters as f64, full_graph.added(graph), 0.0]
        }
        None if config.train.as_ref().is_some_and(|train| train.is_full_graph()) => {
            let kind = &model.kind;
            let why = match is_builtin_layer(kind) {
                true => format!("\"{kind}\" cannot be trained on the full graph"),
                false => format!(
                    "the costs of the registered layer \"{kind}\" are not known; to use this schedule, name it in train.schedule"
                ),
            };
            return refused(why);
        }
        None => batches(&plan),
    };
    let sent = training.bytes_per_step * training.steps_per_epoch;
    let rounds = training.rounds_per_step * training.steps_per_epoch;
    let files = if plan.tables_mapped { plan.processes.iter().map(|p| p.memory.scratch).max().unwrap_or(0) } else { 0 };
    Ok(Candidate {
        schedule: word,
        refused: None,
        memory: plan.processes.iter().map(|process| process.memory.heap()).max().unwrap_or(0),
        bytes: sent,
        rounds,
        compute: multiplied / MULTIPLIED + added / ADDED + sampled / SAMPLED,
        moving: sent as f64 / parts.max(1) as f64 / LINK + rounds as f64 * ROUND + 2.0 * files as f64 / DISK,
        counts: training.steps_per_epoch,
    })
}

/// Returns multiplications, values summed, and edges sampled by one partition in an epoch of batches.
fn batches(plan: &Plan) -> [f64; 3] {
    let Some(training) = &plan.training else { return [0.0; 3] };
    let (nodes, edges) = (&training.batch_nodes, &training.batch_edges);
    let all = nodes.last().copied().unwrap_or(0);
    let (mut multiplied, mut added) = (0.0, 0.0);
    for (l, layer) in plan.layers.iter().enumerate() {
        // Layer l writes the list before the last l + 1 hops.
        let rows = if training.subgraph { Some(&all) } else { nodes.iter().rev().nth(l + 1).or(nodes.first()) };
        let edges = if training.subgraph { edges.first() } else { edges.iter().rev().nth(l) };
        let [rows, edges] = [rows, edges].map(|number| number.copied().unwrap_or(0) as f64);
        multiplied += 3.0 * rows * layer.parameters.unwrap_or((layer.input * layer.output) as u64) as f64;
        added += 2.0 * edges * layer.input as f64;
    }
    added += all as f64 * plan.layers.first().map_or(0, |layer| layer.input) as f64;
    [multiplied, added, edges.iter().sum::<u64>() as f64].map(|of_step| of_step * training.steps_per_epoch as f64)
}

impl Config {
    /// Replaces `train.schedule = "auto"` by a schedule.
    ///
    /// Processes choose equally if they have the same prepared dataset. Before preparation the choice may differ.
    ///
    /// # Errors
    /// If no schedule supports the pipeline, or the size of the input cannot be read.
    pub fn resolve_schedule(&mut self) -> Result<(), Error> {
        if self.train.as_ref().is_none_or(|train| !matches!(train.schedule, Schedule::Auto(_))) {
            return Ok(());
        }
        let graph = Sizes::of(self, 1)?;
        let mut auto = AutoSchedule::new(self, &graph)?;
        if graph.prepared {
            let quality = gnnflow_data::prepare::Quality::read(self.dataset_folder()).ok();
            auto.edge_cut = quality.map(|quality| quality.edge_cut);
        }
        if let Some(chosen) = allowed(self).into_iter().find(|known| known.word() == auto.chosen) {
            *self = self.with_schedule(chosen.into());
        }
        self.source.auto_schedule = Some(auto);
        Ok(())
    }

    /// Returns how `train.schedule = "auto"` was resolved.
    pub fn auto_schedule(&self) -> Option<&AutoSchedule> {
        self.source.auto_schedule.as_ref()
    }

    /// Returns the pipeline with another schedule and the same model: `tensor-parallel` does not decouple a `gcn` here.
    pub(crate) fn with_schedule(&self, schedule: Schedule) -> Self {
        let mut config = self.clone();
        if let (Some(train), Some(model)) = (&mut config.train, &mut config.model) {
            train.schedule = schedule;
            if train.is_full_graph() {
                train.fanouts = None;
            }
            if train.schedule.is_tensor_parallel() && model.kind == "gcn" && model.decoupled.is_none() {
                model.decoupled = Some(false);
            }
        }
        config
    }

    /// Returns why a schedule does not support the pipeline, if so.
    fn refusal(&self, schedule: &str) -> Option<&str> {
        self.source.refusals.iter().find(|(refused, _)| refused == schedule).map(|(_, why)| why.as_str())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::Registered;
    use crate::config::schedule::TensorParallel;
    use crate::plan::PartSize;

    /// A prepared graph of 4 partitions.
    fn graph(train: u64, halo: u64, edges: [u64; 4]) -> Sizes {
        let part = |edges| PartSize { nodes: 250_000, edges, train: train / 4, halo, ..PartSize::default() };
        Sizes {
            prepared: true,
            nodes: 1_000_000,
            edges: edges.iter().sum(),
            features: 128,
            feature_bytes: 4,
            classes: Some(16),
            relations: Some(0),
            edge_classes: None,
            edge_features: Some(0),
            train: Some(train),
            targets: None,
            prepare_bytes: 0,
            disk_bytes: 0,
            parts: edges.map(part).to_vec(),
        }
    }

    fn config(model: &str, train: &str) -> Result<Config, Error> {
        let text = format!(
            "[graph]\nnodes = 'n.parquet'\nedges = 'e.parquet'\nundirected = true\n[partition]\nparts = 4\n\
             [model]\n{model}\n[train]\nschedule.kind = 'auto'\n{train}"
        );
        Config::parse(&text, Path::new("/nowhere/p.toml"), &[], &Registered::default())
    }

    fn chosen(model: &str, train: &str, graph: &Sizes) -> AutoSchedule {
        AutoSchedule::new(&config(model, train).unwrap(), graph).unwrap()
    }

    const SAGE: &str = "kind = 'sage'\nlayers = 3\nhidden = 128";

    #[test]
    fn each_schedule_is_chosen_for_some_graph() {
        let even = [5_000_000; 4];
        // Few train nodes: batches read a small part of the graph.
        let few = chosen(SAGE, "", &graph(4_000, 20_000, even));
        assert_eq!(few.chosen, "mini-batch", "{few:#?}");
        assert!(few.because.contains("0 % train nodes"), "{}", few.because);
        // Many train nodes, and few edges between partitions.
        let local = chosen(SAGE, "", &graph(700_000, 20_000, even));
        assert_eq!(local.chosen, "full-graph", "{local:#?}");
        assert!((local.replication_factor, local.edge_balance) == (1.08, 1.0));
        // Many train nodes, many edges between partitions, and one partition with most edges.
        let skewed = chosen(SAGE, "", &graph(700_000, 700_000, [2_000_000, 2_000_000, 2_000_000, 14_000_000]));
        assert_eq!(skewed.chosen, "tensor-parallel", "{skewed:#?}");
        assert!(skewed.because.contains("\"full-graph\""), "{}", skewed.because);
        for auto in [few, local, skewed] {
            let best = auto.candidates.iter().find(|candidate| candidate.schedule == auto.chosen).unwrap();
            assert!(auto.candidates.iter().all(|other| other.seconds() >= best.seconds()), "{auto:#?}");
        }
    }

    #[test]
    fn the_only_possible_schedule_is_chosen() {
        let graph = graph(700_000, 20_000, [5_000_000; 4]);
        for (model, train, only) in [
            (SAGE, "fanouts = [5, 5, 5]", "mini-batch"),
            (SAGE, "sampler = 'labor'", "mini-batch"),
            ("kind = 'gine'", "", "mini-batch"),
            (SAGE, "task = 'link-prediction'", "mini-batch"),
        ] {
            let auto = chosen(model, train, &graph);
            assert_eq!(auto.chosen, only, "{model} {train}: {auto:#?}");
            let refused = auto.candidates.iter().filter(|candidate| candidate.refused.is_some()).count();
            assert_eq!(refused, 2, "{auto:#?}");
            assert_eq!(auto.because.matches("not \"").count(), 2, "{}", auto.because);
        }
        for (options, only) in [
            ("{ kind = 'full-graph', mode = 'async', staleness = 1 }", "full-graph"),
            ("{ kind = 'tensor-parallel', chunk_memory = '1MiB' }", "tensor-parallel"),
        ] {
            let auto = chosen(SAGE, &format!("schedule.candidates = [{options}]"), &graph);
            assert_eq!((auto.chosen.as_str(), auto.candidates.len()), (only, 1), "{auto:#?}");
        }
        let candidates = "schedule.candidates = ['tensor-parallel', { kind = 'full-graph', mode = 'async' }]\n";
        let error = config(SAGE, &format!("{candidates}fanouts = [5, 5, 5]")).unwrap_err().to_string();
        assert!(error.contains("train.fanouts") && error.contains("samples nothing"), "{error}");
        let error =
            config(SAGE, "schedule.candidates = ['full-graph', { kind = 'full-graph', intervals = 2 }]").unwrap_err();
        assert!(error.to_string().contains("train.schedule.candidates[1]: `full-graph` is listed twice"), "{error}");
        let error = config(SAGE, "sampler = 'nope'").unwrap_err().to_string();
        assert!(error.contains("train.sampler: expected one of"), "{error}");
    }

    #[test]
    fn schedules_that_do_not_fit_into_memory_are_not_chosen() {
        // Full-graph tables may be in files; batches must be in memory.
        let sizes = graph(4_000, 20_000, [5_000_000; 4]);
        let free = chosen(SAGE, "", &sizes);
        let needs = free.candidates[0].memory;
        let fits = chosen(SAGE, &format!("memory = '{}B'", needs * 2), &sizes);
        assert_eq!(fits.chosen, "mini-batch", "{fits:#?}");
        let scarce = chosen(SAGE, &format!("memory = '{}B'\n", needs / 2), &sizes);
        assert!(scarce.candidates[0].refused.as_ref().is_some_and(|why| why.contains("train.memory")), "{scarce:#?}");
        assert_ne!(scarce.chosen, "mini-batch");
    }

    #[test]
    fn with_schedule_keeps_the_model_and_resolves_to_a_valid_pipeline() {
        let config = config("kind = 'gcn'", "").unwrap();
        let column_parallel = config.with_schedule(Schedule::TensorParallel(TensorParallel::default()));
        assert_eq!(column_parallel.model.as_ref().and_then(|model| model.decoupled), Some(false));
        for schedule in allowed(&config).into_iter().map(Schedule::from) {
            let resolved = config.with_schedule(schedule.clone()).resolved_toml();
            let again = Config::parse(&resolved, Path::new("/nowhere/p.toml"), &[], &Registered::default()).unwrap();
            assert_eq!(again.train.as_ref().map(|train| &train.schedule), Some(&schedule), "{resolved}");
            assert_eq!(again.resolved_toml(), resolved);
        }
    }
}
