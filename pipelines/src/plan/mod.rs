//! The plan of a run: stages, work of each process, memory, disk, messages.
//!
//! The plan is computed from the pipeline file and the graph's sizes. The formulas are upper bounds where possible (fanouts
//! bound a batch), and otherwise estimates from averages, marked "about" (all neighbors in a skewed graph).

mod auto_parts;
mod auto_schedule;
mod batch;
pub mod calibrate;
mod device;
mod device_needs;
mod embedding;
mod epochs;
mod expected_batch;
mod full_graph;
mod in_place;
mod inference;
mod jobs;
mod memory;
mod model;
mod pairs;
mod ranking;
mod schedule_cost;
mod sizes;
mod text;
mod training;
mod window;

pub use crate::config::{AutoParts, AutoSchedule, Candidate};
pub use device_needs::DeviceNeeds;
pub(crate) use device_needs::Fit;
pub use embedding::LearnedRows;
use memory::InFlight;
pub use memory::{Memory, Process, RowsInMemory};
pub use model::{Layer, layers};
pub use ranking::{RankingCost, RecommendationCost};
pub use sizes::{PartSize, Sizes};
pub use training::Training;

use std::path::PathBuf;

use gnnflow_data::dataset::Dataset;
use gnnflow_data::prepare::graph_settings;
use gnnflow_dataflow::graph::placement::Placement;
use serde::Serialize;

use self::device::DevicePlan;
use self::full_graph::FullGraphPlan;
use self::inference::InferencePlan;
use crate::config::{Config, Task, Train};
use crate::engine::sampling::strategies::check_types;
use crate::error::Error;
use crate::model_file::encode_like;
use crate::runtime::job::Job;
use crate::task::target_counts::TargetCounts;

/// The plan of a run. `Display` prints it as text, serde as JSON.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    /// The pipeline's name.
    pub name: String,
    /// The task of training.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<Task>,
    /// The stages that will run, in order.
    pub stages: Vec<String>,
    /// The graph.
    pub graph: Sizes,
    /// Partition method.
    pub method: String,
    /// How `partition.parts = "auto"` was resolved.
    pub auto_parts: Option<AutoParts>,
    /// How `train.schedule = "auto"` was resolved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_schedule: Option<AutoSchedule>,
    /// `partition.topology`.
    pub topology: String,
    /// The folder of the prepared dataset.
    pub dataset: PathBuf,
    /// Each process.
    pub processes: Vec<Process>,
    /// The layers of the model.
    pub layers: Vec<Layer>,
    /// Parameters of all layers; `None` for a registered layer, and before the number of classes (`rgcn`: edge types) is known.
    pub parameters: Option<u64>,
    /// Learned rows of nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub embedding: Option<LearnedRows>,
    /// Training.
    pub training: Option<Training>,
    /// The cost of each evaluation of link prediction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ranking: Option<RankingCost>,
    /// Maximum number of steps in flight.
    pub window: usize,
    /// Maximum number of jobs that a process runs at the same time.
    pub jobs: usize,
    /// Whether full-graph tables are mapped scratch files, because they do not fit into `train.memory`.
    pub tables_mapped: bool,
    /// Which rows are in memory.
    pub rows_in_memory: RowsInMemory,
    /// Bytes that each tensor worker needs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tensor_worker_bytes: Option<u64>,
}

impl Plan {
    /// Plans `config` for `processes` processes, `local` of them on this machine. Counts the target edges of a prepared dataset.
    ///
    /// # Errors
    /// If there are more processes than partitions, input is missing or unreadable, or a prepared dataset lacks a named edge type.
    pub fn new(config: &Config, processes: usize, local: usize) -> Result<Self, Error> {
        let mut graph = Sizes::of(config, processes)?;
        if graph.prepared
            && let Some(dataset) = current(config)?
        {
            check_types(config, dataset.manifest().edge_columns.edge_type.as_ref())?;
            graph.targets = TargetCounts::of(config, &dataset)?;
        }
        Self::of(config, graph, processes, local)
    }

    /// [`Plan::new`] for a job on a prepared dataset, with `local` processes on this host. Its target edges are counted already.
    pub(crate) fn of_job(
        job: &Job,
        processes: usize,
        local: usize,
        targets: Option<TargetCounts>,
    ) -> Result<Self, Error> {
        let mut graph = Sizes { targets, ..Sizes::of(&job.config, processes)? };
        // A model may be used on a dataset without labels.
        if let Some(labels) = job.labels() {
            let of_edges = job.config.train.as_ref().is_some_and(Train::learns_edges);
            let classes = if of_edges { &mut graph.edge_classes } else { &mut graph.classes };
            *classes = Some(labels.classes.into());
        }
        Self::of(&job.config, graph, processes, local)
    }

    /// [`Plan::new`] for a graph of these sizes.
    fn of(config: &Config, graph: Sizes, processes: usize, local: usize) -> Result<Self, Error> {
        config.check_processes(processes, graph.parts.len())?;
        let sizes = training_sizes(config, &graph);
        let classes = sizes.classes.unwrap_or(0) as usize;
        let (input, _) = embedding::input(config, &graph);
        let of = |model| model::layers(model, input, classes, graph.relations, graph.edge_features);
        let layers = config.model.as_ref().map_or_else(Vec::new, of);
        let known = sizes.classes.is_some();
        let parameters = layers.iter().map(|layer| layer.parameters.filter(|_| known)).sum::<Option<u64>>();
        let decoded = decoder_parameters(config, &graph, classes);
        let parameters = parameters.zip(decoded).map(|(layers, decoded)| layers + decoded);
        let parameters = parameters.filter(|_| config.model.is_some());
        let placement = Placement::new(graph.parts.len(), processes);
        let full_graph = FullGraphPlan::of(config, &sizes);
        let parameters =
            full_graph.as_ref().map(|full| full.parameters).filter(|_| known && decoded.is_some()).or(parameters);
        let training = match &full_graph {
            Some(full_graph) => full_graph.training(config, &sizes, placement),
            None => Training::new(config, &sizes, processes, parameters.unwrap_or(0)),
        };
        let inference = InferencePlan::new(config, &sizes, &layers);
        let memory = config.train.as_ref().and_then(|train| train.memory).map_or(u64::MAX, |memory| memory.0);
        let plan = |in_flight: InFlight, tables_mapped: bool| -> Vec<Process> {
            let process = |rank| {
                let parts = placement.parts_of(rank);
                let others = processes > 1;
                let mut process = Process::new(
                    config,
                    &sizes,
                    rank,
                    parts,
                    (&layers, &inference),
                    parameters,
                    &training,
                    local,
                    in_flight,
                    others,
                );
                if let Some(full_graph) = &full_graph {
                    full_graph.set_memory(&mut process, &sizes, processes, in_flight.jobs, tables_mapped);
                }
                process
            };
            (0..processes).map(process).collect()
        };
        let most = |processes: Vec<Process>| processes.iter().map(|process| process.memory.heap()).max().unwrap_or(0);
        let one = InFlight { window: 1, jobs: 1, in_place: false };
        let on_gpu = full_graph.as_ref().is_some_and(|full_graph| full_graph.on_device);
        let tables_mapped = full_graph.is_some() && !on_gpu && most(plan(one, false)) > memory;
        // More jobs at the same time are worth more than more steps in flight.
        let window = window::wanted(config);
        let jobs = jobs::most(config, full_graph.as_ref(), &sizes, placement, local);
        let jobs =
            jobs::fitting(config, jobs, local, |jobs| most(plan(InFlight { window, jobs, ..one }, tables_mapped)));
        let window =
            window::fitting(config, on_gpu, |window| most(plan(InFlight { window, jobs, ..one }, tables_mapped)))?;
        let tensor_worker_bytes = full_graph.as_ref().and_then(|full| full.tensor_worker(&sizes, processes));
        let in_flight = InFlight { window, jobs, in_place: false };
        let mut all = plan(in_flight, tables_mapped);
        let may_be_in_memory = |train: &Train| train.memory.is_none() && train.read_ahead != Some(true);
        let of_process = |process: &Process| process.memory.rows_in_memory(jobs::quarter(local));
        let rows_in_memory = match config.train.as_ref().is_some_and(may_be_in_memory) {
            true => all.iter().map(of_process).min().unwrap_or(RowsInMemory::None),
            false => RowsInMemory::None,
        };
        if processes == 1 && in_place::reads_in_place(config, &sizes, &layers, rows_in_memory) {
            all = plan(InFlight { in_place: true, ..in_flight }, tables_mapped);
        }
        let shared = [processes, local];
        if let Some(device) = DevicePlan::of(config, &sizes, training.as_ref(), full_graph.as_ref(), &inference, shared)
        {
            all.iter_mut().for_each(|process| process.device = Some(device.needs(&process.parts, window)));
        }
        Ok(Self {
            name: config.name.clone(),
            task: config.train.as_ref().map(|train| train.task),
            stages: stages(config, &graph),
            method: config.partition.method.clone(),
            auto_parts: config.auto_parts(),
            auto_schedule: config.auto_schedule().cloned(),
            topology: config.partition.topology.to_string(),
            dataset: config.dataset_name().to_owned(),
            embedding: LearnedRows::new(config, &graph),
            ranking: RankingCost::of(config, &graph),
            graph,
            processes: all,
            layers,
            parameters,
            training,
            window,
            jobs,
            tables_mapped,
            rows_in_memory,
            tensor_worker_bytes,
        })
    }
}

/// Opens the prepared dataset of `config`; `None` if it has other settings than the graph of `config`.
fn current(config: &Config) -> Result<Option<Dataset>, Error> {
    encode_like::check(config)?;
    let dataset = config.open_dataset()?;
    if config.graph.dataset.is_some() {
        return Ok(Some(dataset));
    }
    // The dump of a prepared dataset may be gone; the run reports that.
    let Ok(Some(source)) = encode_like::source(config) else { return Ok(None) };
    Ok((dataset.manifest().settings["graph"] == graph_settings(&source)?).then_some(dataset))
}

fn stages(config: &Config, graph: &Sizes) -> Vec<String> {
    let mut stages = Vec::new();
    match &config.graph.generate {
        Some(generate) if !graph.prepared && !generate.generator().is_written(generate.folder()) => {
            stages.push(format!("generate ({})", generate.kind));
        }
        _ => {}
    }
    stages.push(if graph.prepared { "open the prepared dataset".into() } else { "prepare".into() });
    stages.extend(config.train.as_ref().map(|train| format!("train ({})", train.schedule)));
    if let Some(infer) = &config.infer {
        let named = [
            (infer.predictions, "predictions"),
            (infer.embeddings, "embeddings"),
            (infer.recommendations.is_some(), "recommendations"),
        ];
        let outputs: Vec<&str> = named.into_iter().filter(|(wanted, _)| *wanted).map(|(_, name)| name).collect();
        if !outputs.is_empty() {
            stages.push(format!("infer ({})", outputs.join(", ")));
        }
    }
    stages
}

/// Returns the parameters of the decoder of pairs, for results of `width` columns; `None` if types or classes of edges are unknown.
fn decoder_parameters(config: &Config, graph: &Sizes, width: usize) -> Option<u64> {
    match &config.train {
        Some(train) if train.decodes_relations() => graph.relations.map(|relations| (relations * width) as u64),
        Some(train) if train.task == Task::EdgeClassification => {
            let (width, inner) = (width as u64, train.edge().num_decoder_layers as u64 - 1);
            let head = |outputs: u64| match inner {
                0 => (2 * width + 1) * outputs,
                _ => (2 * width + 1) * width + (inner - 1) * (width + 1) * width + (width + 1) * outputs,
            };
            graph.edge_classes.map(head)
        }
        _ => Some(0),
    }
}

/// Returns the sizes for training. In tasks on edges, the model's results have the width `hidden` instead of one column per
/// class, and the examples are edges: at most all, if they are not counted.
fn training_sizes(config: &Config, graph: &Sizes) -> Sizes {
    let mut sizes = graph.clone();
    if let (Some(train), Some(model)) = (&config.train, &config.model)
        && train.learns_edges()
    {
        (sizes.classes, sizes.train) = (Some(model.hidden as u64), None);
        for (index, part) in sizes.parts.iter_mut().enumerate() {
            part.train = graph.targets.as_ref().map_or(part.edges, |targets| targets.train[index]);
        }
    }
    sizes
}

#[cfg(test)]
mod tests;
