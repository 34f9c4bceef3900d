//! Full-graph training with the whole graph on a GPU.
//!
//! ```text
//! epochs → step (compute thread)    forward and backward pass over all nodes, and an optimizer step
//! ```
//!
//! Edges, features and the rows of all layers stay on the device. Only the gradient of the parameters is copied to the CPU, and results of
//! evaluations. This takes a dataset of one partition; otherwise [`full_graph`](super::full_graph) trains, and adds rows on the CPU.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use gnnflow_dataflow::flow::compute_thread::{ComputeThread, OnThread};
use gnnflow_dataflow::storage::RowStore;
use gnnflow_dataflow::time;
use gnnflow_kernels::block::Block;
use gnnflow_nn::layers::Aggregation;
use gnnflow_nn::model::Hop;
use gnnflow_nn::{GraphBlock, ModelProfile};
use timely::container::CapacityContainerBuilder;
use timely::dataflow::InputHandle;
use timely::dataflow::operators::vec::Map;
use timely::dataflow::operators::{Input, Probe, core::Inspect, probe};
use timely::worker::Worker;

use super::stages::intervals::{PREPARING_EDGES, training_nodes};
use super::{BlocksHash, Engine, EpochSums, Round};
use crate::collectives::{Driver, FirstError};
use crate::compute::{ComputeState, StepReport, WholeGraph};
use crate::config::schedule::FullGraph;
use crate::config::{Config, Model, Norm, Schedule, Train, is_builtin_layer};
use crate::context::WorkerContext;
use crate::error::Error;
use crate::runtime::job::Job;
use crate::runtime::stage::Stage;

/// Returns whether full-graph training of this pipeline computes on a GPU, and why the graph cannot stay there.
pub(crate) fn on_device(config: &Config, parts: usize) -> Option<Result<(), String>> {
    let (Some(model), Some(train)) = (&config.model, &config.train) else { return None };
    match &train.schedule {
        Schedule::FullGraph(options) if train.device.is_gpu() || config.debug.graph_on_device => {
            Some(fits(model, train, options, parts))
        }
        _ => None,
    }
}

/// Returns the first reason why the graph cannot stay on a GPU.
fn fits(model: &Model, train: &Train, options: &FullGraph, parts: usize) -> Result<(), String> {
    let FullGraph { mode, row_dtype, intervals, .. } = options;
    let given = FullGraph::default();
    let reason = if parts != 1 {
        format!("the dataset has {parts} partitions; prepare it with partition.parts = 1")
    } else if *mode != given.mode {
        format!("train.schedule.mode = \"{mode}\" orders intervals of nodes; remove this key")
    } else if *row_dtype != given.row_dtype {
        format!("train.schedule.row_dtype = \"{row_dtype}\" rounds the rows that the CPU adds; remove this key")
    } else if intervals.is_some() {
        "train.schedule.intervals cuts the nodes into intervals; remove this key".to_owned()
    } else if train.tensor_workers.is_some() {
        "tensor workers compute tasks on intervals of nodes; remove train.tensor_workers".to_owned()
    } else if train.learns_edges() {
        "the task is on edges".to_owned()
    } else if model.embedding.is_some() {
        "the rows of nodes are learned".to_owned()
    } else if model.reads_edge_features() {
        "the model reads edge features".to_owned()
    } else if model.reads_edge_types() {
        "the model reads edge types".to_owned()
    } else if !is_builtin_layer(&model.kind) {
        "the layer is registered, and may read edge types".to_owned()
    } else if model.norm == Norm::Batch {
        "model.norm = \"batch\" normalizes each interval of nodes".to_owned()
    } else {
        return Ok(());
    };
    Err(reason)
}

/// What the compute thread does at one time.
#[derive(Clone)]
enum Work {
    Train { epoch: u32, lr: f64 },
    Evaluate(Arc<RowStore>),
}

/// The dataflow of the only worker.
pub(crate) struct DeviceGraphTraining {
    input: InputHandle<u64, CapacityContainerBuilder<Vec<Work>>>,
    probe: probe::Handle<u64>,
    errors: FirstError,
    /// The report of the last step.
    done: Rc<RefCell<Option<StepReport>>>,
    edge_columns: u64,
    blocks: BlocksHash,
}

impl DeviceGraphTraining {
    /// Copies the graph to the device, and builds the dataflow.
    ///
    /// # Errors
    /// When the device is out of memory, or the graph has too many edges.
    pub(crate) fn build(
        worker: &mut Worker,
        job: &Job,
        context: &WorkerContext,
        degrees: bool,
        compute_thread: &ComputeThread<ComputeState>,
    ) -> Result<Self, Error> {
        let busy = job.runtime.busy(PREPARING_EDGES);
        let graph = whole_graph(job, context, degrees)?;
        let edges = graph.all.num_edges() as u64;
        let of_seeds = graph.of_seeds.num_edges() as u64;
        let (graph, profile) = compute_thread
            .call(|compute: &mut ComputeState| Ok::<_, Error>((compute.copy_graph(graph)?, compute.profile()?)))?;
        drop(busy);
        let (mut input, probe, errors) = (InputHandle::new_with_builder(), probe::Handle::new(), FirstError::default());
        let done: Rc<RefCell<Option<StepReport>>> = Rc::default();
        worker.dataflow::<u64, _, _>(|scope| {
            let (errors, done) = (errors.clone(), Rc::clone(&done));
            let graph = Arc::new(graph);
            scope
                .input_from(&mut input)
                .on_thread("step", compute_thread.clone(), move |compute: &mut ComputeState, work| match work {
                    Work::Train { epoch, lr } => {
                        compute.set_learning_rate(lr);
                        compute.step_on(&graph, epoch).map(Some)
                    }
                    Work::Evaluate(results) => compute.results_on(&graph, &results).map(|()| None),
                })
                .flat_map(move |report| errors.capture(report))
                .inspect(move |report| *done.borrow_mut() = *report)
                .probe_with(&probe);
        });
        let edge_columns = edge_columns(&profile, edges, of_seeds);
        Ok(Self { input, probe, errors, done, edge_columns, blocks: BlocksHash::default() })
    }

    /// Lets the compute thread do `work` at `time`, and waits for it.
    fn run(&mut self, driver: &mut Driver<'_>, time: u64, work: Work) -> Result<(), Error> {
        self.input.advance_to(time);
        self.input.send(work);
        let next = time + 1;
        self.input.advance_to(next);
        self.input.flush();
        driver.run_until(&self.probe, next, &self.errors)
    }
}

/// Returns the edges times columns that are added in an epoch, forward and backward.
fn edge_columns(profile: &ModelProfile, all: u64, of_seeds: u64) -> u64 {
    let hops = profile.hops.len();
    let of_hop = |(index, hop): (usize, &Hop)| {
        let edges = match hop.aggregation {
            Aggregation::Nothing => 0,
            _ if index + 1 == hops => of_seeds,
            _ => all,
        };
        let passes = if index > 0 || profile.tasks[0].learns { 2 } else { 1 };
        passes * edges * hop.width as u64
    };
    profile.hops.iter().enumerate().map(of_hop).sum()
}

/// Reads the graph of the only partition. Rows are its nodes, those with a loss first.
fn whole_graph(job: &Job, context: &WorkerContext, degrees: bool) -> Result<WholeGraph, Error> {
    let (graph, edges) = (&context.graph, context.graph.in_edges(0));
    let trains = training_nodes(job)?;
    let is_seed = |node: &u32| trains[*node as usize / 64] >> (node % 64) & 1 == 1;
    let (mut nodes, others): (Vec<u32>, Vec<u32>) = graph.range(0).partition(is_seed);
    let seeds = nodes.len();
    nodes.extend(others);
    let mut rows = vec![0u32; nodes.len()];
    (0..).zip(&nodes).for_each(|(row, &node)| rows[node as usize] = row);
    // With self-loops, and as counts of kernels.
    if edges.indices().len() + nodes.len() > i32::MAX as usize {
        let message =
            "a GPU keeps graphs of at most 2,147,483,647 edges and nodes; use train.schedule = \"mini-batch\"";
        return Err(Error::Usage(message.into()));
    }
    let (mut indptr, mut indices) = (Vec::with_capacity(nodes.len() + 1), Vec::with_capacity(edges.indices().len()));
    indptr.push(0);
    for &node in &nodes {
        let [begin, end] = [node, node + 1].map(|at| edges.indptr()[at as usize] as usize);
        indices.extend(edges.indices()[begin..end].iter().map(|&source| rows[source as usize]));
        indptr.push(indices.len() as u32);
    }
    let all = nodes.len() as u32;
    let of_seeds = (indptr[..=seeds].to_vec(), indices[..indptr[seeds] as usize].to_vec());
    Ok(WholeGraph {
        seeds,
        all: GraphBlock::new(Block::new(all, all, indptr, indices)),
        of_seeds: GraphBlock::new(Block::new(seeds as u32, all, of_seeds.0, of_seeds.1)),
        features: context.features.clone(),
        degrees: degrees.then(|| nodes.iter().map(|&node| graph.degree(node)).collect()),
        nodes,
    })
}

impl Engine for DeviceGraphTraining {
    fn train_round(&mut self, driver: &mut Driver<'_>, epoch: u32, lr: &dyn Fn(u32) -> f64) -> Result<Round, Error> {
        let start = Instant::now();
        driver.runtime.stage(Stage::Training { epoch: epoch as usize + 1 });
        let progress = driver.runtime.progress();
        progress.brief_stage(&format!("epoch {}", epoch + 1), 1, "steps");
        self.run(driver, time::at(epoch, 0), Work::Train { epoch, lr: lr(epoch) })?;
        progress.done();
        let report = self.done.borrow_mut().take();
        let report = report.ok_or_else(|| Error::Bug("an epoch ended without a report".into()))?;
        let seconds = start.elapsed().as_secs_f64();
        Ok(Round::Epochs(vec![EpochSums {
            examples: report.examples,
            loss: report.loss,
            rounds: 0,
            steps: 1,
            seconds,
        }]))
    }

    fn evaluate_into(&mut self, driver: &mut Driver<'_>, results: &Arc<RowStore>) -> Result<bool, Error> {
        // After the last epoch, and before the next one.
        let time = *self.input.time();
        self.run(driver, time, Work::Evaluate(Arc::clone(results))).map(|()| true)
    }

    fn rows(&self) -> Option<[u64; 2]> {
        Some([0, self.edge_columns])
    }

    fn blocks(&mut self) -> &mut BlocksHash {
        &mut self.blocks
    }
}
