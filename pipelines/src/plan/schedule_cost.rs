//! The estimated time of an epoch by schedule, for `train.schedule = "auto"`.
//!
//! ```text
//! computing   multiplications / rate + 6 · activations / rate + values summed along edges / rate + 4 · sampled edges / rate + bytes of rows / rate
//! moving      bytes that a process sends / bandwidth + rounds · latency + 2 · bytes of rows in files / files
//! ```
//!
//! All numbers are those of the slowest partition, which counts as a process. Rates are those of `train.schedule.rates`.
//!
//! With batches, a layer of i → o columns multiplies 3 · rows · parameters (forward, and both gradients; 2 if its input does not learn), and
//! sums 2 · edges · i values per step, for the expected sizes of the largest batch ([`super::expected_batch`]). Training on the full graph
//! multiplies 4 · nodes · parameters, because the backward pass repeats the forward pass, and reads all feature rows for each product of the first layer. It
//! sums edges · columns of the partition with most
//! edges (node-parallel), or all edges · columns / partitions (column-parallel). An edge counts at least [`LINE`] columns.

use gnnflow_data::prepare::Quality;
use gnnflow_dataflow::graph::placement::Placement;

use super::batch::Batch;
use super::expected_batch::Degrees;
use super::full_graph::{FullGraphPlan, LINE};
use super::training::gradient_bytes;
use super::{Layer, Plan, Process, Sizes, embedding, training_sizes};
use crate::config::schedule::Rates;
use crate::config::{Candidate, Config, Fanout, Schedule, is_builtin_layer};
use crate::error::Error;

/// Time of a value of a layer's result, relative to its bias, activation and dropout: it is also copied from and to tables, scaled and summed.
const PER_ACTIVATION: f64 = 6.0;

/// Time of a sampled edge, relative to sampling it in its own partition: it also passes through messages, its block and the block's transpose.
const PER_SAMPLED_EDGE: f64 = 4.0;

/// Rounds of messages to average the parameters of all partitions.
const ROUNDS_OF_AVERAGE: u64 = 2;

/// The graph and the rates by which schedules are compared.
pub(super) struct CostModel<'a> {
    pub(super) graph: &'a Sizes,
    pub(super) rates: Rates,
    /// Of the prepared dataset.
    pub(super) quality: Option<&'a Quality>,
}

/// A schedule with its estimated cost.
pub(super) struct Estimate {
    /// `counts` is 1.
    pub(super) candidate: Candidate,
    pub(super) steps_per_epoch: u64,
}

/// The work of the slowest partition in an epoch.
#[derive(Clone, Copy, Debug, Default)]
struct Work {
    multiplications: f64,
    /// Values of the layers' results.
    activations: f64,
    sums: f64,
    sampled_edges: f64,
    /// Bytes of feature rows that are gathered, or read by products of the full graph.
    gathered: f64,
}

impl Work {
    fn seconds(&self, rates: &Rates) -> f64 {
        self.multiplications / rates.multiplications
            + PER_ACTIVATION * self.activations / rates.activations
            + self.sums / rates.sums
            + PER_SAMPLED_EDGE * self.sampled_edges / rates.sampled_edges
            + self.gathered / rates.memory.0 as f64
    }

    fn times(self, steps: f64) -> Self {
        Self {
            multiplications: steps * self.multiplications,
            activations: steps * self.activations,
            sums: steps * self.sums,
            sampled_edges: steps * self.sampled_edges,
            gathered: steps * self.gathered,
        }
    }
}

impl CostModel<'_> {
    /// Estimates one schedule for `config`. A schedule that needs more than `train.memory` is refused.
    ///
    /// # Errors
    /// Other errors of [`Plan::new`].
    pub(super) fn estimate(&self, config: &Config, schedule: Schedule) -> Result<Estimate, Error> {
        let word = schedule.to_string();
        let refused = |why: String| {
            let candidate =
                Candidate { schedule: word.clone(), refused: Some(why), counts: 1.0, ..Candidate::default() };
            Ok(Estimate { candidate, steps_per_epoch: 1 })
        };
        if let Some(why) = config.refusal(schedule.word()) {
            return refused(why.to_owned());
        }
        if schedule.is_partition_parallel() && !self.graph.halo_features {
            return refused(
                "it needs the features of halo nodes; set partition.halo = \"features\" to allow it".into(),
            );
        }
        let averages = schedule.is_partition_parallel();
        let config = config.with_schedule(schedule);
        let parts = self.graph.parts.len();
        let plan = match Plan::of(&config, self.graph.clone(), parts, parts) {
            Ok(plan) => plan,
            // The schedule does not fit into `train.memory`.
            Err(Error::Usage(why)) => return refused(why),
            Err(other) => return Err(other),
        };
        let (Some(training), Some(model)) = (&plan.training, &config.model) else {
            return refused("there is nothing to train".into());
        };
        let sizes = training_sizes(&config, self.graph);
        let full_graph = FullGraphPlan::of(&config, &sizes);
        let (work, bytes) = match &full_graph {
            Some(full_graph) => {
                let work = self.of_full_graph(&config, &plan.layers, full_graph);
                let placement = Placement::new(parts, parts);
                (work, training.bytes_per_step.saturating_sub(full_graph.constant_bytes(&sizes, placement)))
            }
            None if config.train.as_ref().is_some_and(|train| train.is_full_graph()) => {
                let kind = &model.kind;
                return refused(match is_builtin_layer(kind) {
                    true => format!("\"{kind}\" cannot be trained on the full graph"),
                    false => format!(
                        "the costs of the registered layer \"{kind}\" are not known; to use this schedule, name it in train.schedule"
                    ),
                });
            }
            None => self.of_batches(&config, &plan, &sizes),
        };
        let of_average = if averages && parts > 1 { ROUNDS_OF_AVERAGE } else { 0 };
        let rounds = training.rounds_per_step * training.steps_per_epoch + of_average;
        let written = |process: &Process| process.memory.scratch + process.memory.layers;
        let files = if plan.tables_mapped { plan.processes.iter().map(written).max().unwrap_or(0) } else { 0 };
        let rates = &self.rates;
        let sent = bytes as f64 / parts.max(1) as f64;
        let candidate = Candidate {
            schedule: word,
            refused: None,
            memory: plan.processes.iter().map(|process| process.memory.heap()).max().unwrap_or(0),
            bytes,
            rounds,
            compute: work.seconds(rates),
            moving: sent / rates.bandwidth.0 as f64
                + rounds as f64 * rates.latency
                + 2.0 * files as f64 / rates.files.0 as f64,
            counts: 1.0,
        };
        Ok(Estimate { candidate, steps_per_epoch: training.steps_per_epoch })
    }

    fn of_full_graph(&self, config: &Config, layers: &[Layer], full_graph: &FullGraphPlan) -> Work {
        let nodes = self.graph.parts.iter().map(|part| part.nodes).max().unwrap_or(0) as f64;
        let learns = embedding::of(config).is_some();
        let parameters = |layer: &Layer| layer.parameters.unwrap_or((layer.input * layer.output) as u64) as f64;
        let multiplied = |(index, layer): (usize, &Layer)| {
            let times = if index == 0 && !learns { 3.0 } else { 4.0 };
            times * nodes * parameters(layer)
        };
        let features = if learns { 0.0 } else { 3.0 * nodes * 4.0 * self.graph.features as f64 };
        Work {
            multiplications: layers.iter().enumerate().map(multiplied).sum(),
            activations: nodes * layers.iter().map(|layer| layer.output as f64).sum::<f64>(),
            sums: full_graph.added(self.graph),
            gathered: features,
            ..Work::default()
        }
    }

    /// Returns the work and the bytes between all processes.
    fn of_batches(&self, config: &Config, plan: &Plan, sizes: &Sizes) -> (Work, u64) {
        let (Some(train), Some(model), Some(training)) = (&config.train, &config.model, &plan.training) else {
            return (Work::default(), 0);
        };
        let fanouts: Vec<i64> = match model.uses_edges() {
            true => train.fanouts(model.layers).iter().map(Fanout::most).collect(),
            false => Vec::new(),
        };
        let batch = Degrees::new(self.graph, self.quality).batch(&Batch::of(train, model, sizes), &fanouts);
        let all = batch.nodes.last().copied().unwrap_or(0.0);
        let (input, _) = embedding::input(config, self.graph);
        let learns = embedding::of(config).is_some();
        let mut work = Work {
            sampled_edges: batch.edges.iter().sum(),
            // Rows are f32 in a batch.
            gathered: all * (4 * input) as f64,
            ..Work::default()
        };
        for (l, layer) in plan.layers.iter().enumerate() {
            // Layer l reads the list after the last but l hops, and writes the one before.
            let list = |hops: usize| {
                let found = if training.subgraph { batch.nodes.last() } else { batch.nodes.iter().rev().nth(hops) };
                found.or(batch.nodes.first()).copied().unwrap_or(0.0)
            };
            let edges = if training.subgraph { batch.edges.first() } else { batch.edges.iter().rev().nth(l) };
            let edges = edges.copied().unwrap_or(0.0);
            let transforms_first = transforms_first(&model.kind, layer);
            let rows = if transforms_first { list(l) } else { list(l + 1) };
            let summed = if transforms_first { layer.output } else { layer.input };
            let times = if l == 0 && !learns { 2.0 } else { 3.0 };
            let parameters = layer.parameters.unwrap_or((layer.input * layer.output) as u64);
            work.multiplications += times * rows * parameters as f64;
            work.activations += list(l + 1) * layer.output as f64;
            let passes = if l == 0 && !learns && !transforms_first { 1.0 } else { 2.0 };
            work.sums += passes * edges * summed.max(LINE) as f64;
        }
        let steps = training.steps_per_epoch as f64;
        // The plan bounds the bytes of a batch. Here, only rows across the cut are sent, and only those of expected nodes.
        let bound = training.batch_nodes.last().copied().unwrap_or(0).max(1) as f64;
        let parts = self.graph.parts.len() as f64;
        let remote = (parts - 1.0) / parts;
        let cut = self.quality.map_or(remote, |quality| (quality.edge_cut * fanouts.len() as f64).min(remote));
        let share = (all / bound).min(1.0) * if remote > 0.0 { cut / remote } else { 0.0 };
        let processes = self.graph.parts.len() as u64;
        let gradients = gradient_bytes(plan.parameters.unwrap_or(0), processes, processes).min(training.bytes_per_step);
        let bytes = steps * ((training.bytes_per_step - gradients) as f64 * share + gradients as f64);
        (work.times(steps), bytes as u64)
    }
}

/// Tells whether a layer multiplies its rows before they are summed.
fn transforms_first(kind: &str, layer: &Layer) -> bool {
    matches!(kind, "gat" | "gatv2") || kind == "gcn" && layer.output < layer.input
}
