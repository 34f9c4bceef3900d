//! Passes over the whole graph, which stays on the model's device.

use std::sync::Arc;
use std::time::Instant;

use candle_core::Tensor;
use gnnflow_data::rng::{Key, Purpose};
use gnnflow_dataflow::fetch::fetch_rows::FeatureView;
use gnnflow_dataflow::storage::RowStore;
use gnnflow_nn::device::DeviceTimer;
use gnnflow_nn::tensors::read;
use gnnflow_nn::{GraphBlock, Model};

use super::device_rows::copy_rows;
use super::passes::Pass;
use super::{ComputeState, StepReport};
use crate::error::Error;
use crate::task::objective::{Examples, Loss};

/// All nodes and edges, in memory. Rows are nodes, those with a loss first.
pub(crate) struct WholeGraph {
    /// By row, the global id of its node.
    pub(crate) nodes: Vec<u32>,
    /// Number of nodes with a loss.
    pub(crate) seeds: usize,
    /// The in-edges of all nodes.
    pub(crate) all: Arc<GraphBlock>,
    /// The in-edges of the nodes with a loss.
    pub(crate) of_seeds: Arc<GraphBlock>,
    /// The features of all nodes.
    pub(crate) features: FeatureView,
    /// By row, the in-degree without self-loops, if the model reads degrees.
    pub(crate) degrees: Option<Vec<u32>>,
}

/// A [`WholeGraph`] on the model's device.
pub(crate) struct DeviceGraph {
    nodes: Vec<u32>,
    seeds: usize,
    all: Arc<GraphBlock>,
    of_seeds: Arc<GraphBlock>,
    features: Tensor,
    degrees: Option<Vec<u32>>,
}

impl DeviceGraph {
    /// Returns the blocks of the layers in training: the last layer computes the nodes with a loss only.
    fn training_blocks(&self, model: &Model) -> Vec<Arc<GraphBlock>> {
        let mut blocks = vec![Arc::clone(&self.all); model.num_layers()];
        if let Some(last) = blocks.last_mut() {
            *last = Arc::clone(&self.of_seeds);
        }
        blocks
    }
}

impl ComputeState {
    /// Copies the graph to the model's device.
    ///
    /// # Errors
    /// When the device is out of memory.
    pub(crate) fn copy_graph(&self, graph: WholeGraph) -> Result<DeviceGraph, Error> {
        let WholeGraph { nodes, seeds, all, of_seeds, features, degrees } = graph;
        let features = self.with_model(|model| copy_rows(&features, &nodes, model))?;
        let graph = DeviceGraph { nodes, seeds, all, of_seeds, features, degrees };
        if seeds > 0 {
            let Self { all, passes, .. } = self;
            all.threads.install(|| {
                let model = &passes.read().model;
                let (blocks, degrees) = (graph.training_blocks(model), graph.degrees.as_deref());
                passes.edge_copies.copy(&blocks, degrees, None)?;
                // Operations copy what else they read, once. The results are not needed.
                model.forward(&blocks, &graph.features, degrees, None)?;
                model.device().synchronize().map_err(gnnflow_nn::Error::from)
            })?;
        }
        Ok(graph)
    }

    /// Takes one step along the gradient of the loss of all training nodes.
    ///
    /// # Errors
    /// When a node has no target, or the device fails.
    pub(crate) fn step_on(&mut self, graph: &DeviceGraph, epoch: u32) -> Result<StepReport, Error> {
        if graph.seeds == 0 {
            return Ok(StepReport::default());
        }
        let passes = Arc::clone(&self.passes);
        let key = [0, epoch, 0]
            .into_iter()
            .fold(Key::new(passes.seed, Purpose::Dropout), |key, word: u32| key.fold(u64::from(word)));
        let (flat, report) = self.all.threads.install(|| {
            let start = Instant::now();
            let model = &passes.read().model;
            let timer = DeviceTimer::start(model.device())?;
            let blocks = graph.training_blocks(model);
            let degrees = graph.degrees.as_deref();
            let (outputs, sums) = model.forward_with_sums(&blocks, &graph.features, degrees, Some(key))?;
            let seeds = &graph.nodes[..graph.seeds];
            let examples = Examples { seeds, pairs: None, relations: None, head: None };
            let Loss { sum: loss, examples } = passes.objective.loss(&examples, &outputs)?;
            let value = loss.to_scalar::<f64>().map_err(gnnflow_nn::Error::from)?;
            passes.spend(Pass::Forward, &self.all, start);
            let start = Instant::now();
            let gradients = loss.backward().map_err(gnnflow_nn::Error::from)?;
            let time = timer.map(DeviceTimer::end).transpose()?;
            let mut flat = vec![0.0; model.params().flat_len()];
            model.params().gradients(&gradients, &mut flat)?;
            flat[model.params().trained_len()..].copy_from_slice(&sums);
            passes.spend(Pass::Backward, &self.all, start);
            passes.spend_on_device(time)?;
            Ok::<_, Error>((flat, StepReport { examples, loss: value, ..StepReport::default() }))
        })?;
        self.step(flat, report.examples)?;
        Ok(report)
    }

    /// Writes the model's results of all nodes to `into`.
    ///
    /// # Errors
    /// When the device fails.
    pub(crate) fn results_on(&self, graph: &DeviceGraph, into: &RowStore) -> Result<(), Error> {
        let Self { all, passes, .. } = self;
        all.threads.install(|| {
            let model = &passes.read().model;
            let blocks = vec![Arc::clone(&graph.all); model.num_layers()];
            let outputs = model.forward(&blocks, &graph.features, graph.degrees.as_deref(), None)?;
            let mut into = into.write()?;
            Ok(read(&outputs, |rows| into.set(&graph.nodes, rows))?)
        })
    }
}
