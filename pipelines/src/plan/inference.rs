//! The memory of exact inference.

use gnnflow_nn::model::{Stage, StageRows};

use super::{Layer, Sizes, embedding, model};
use crate::config::{self, Config, Infer};
use crate::engine::inference::{CHUNK_EDGES, scratch_width, window};

/// The stages of a pipeline's model, and what a chunk of nodes reads.
pub(super) struct InferencePlan {
    stages: Vec<Stage>,
    /// Columns of the model's input.
    input: usize,
    /// Columns of hidden rows within a stage: those of a perceptron.
    hidden: usize,
    /// Nodes whose rows a chunk reads: its own, and in a stage with edges also their neighbors.
    own: f64,
    sources: f64,
}

impl InferencePlan {
    /// Returns the plan of a pipeline whose model has these layers.
    pub(super) fn new(config: &Config, graph: &Sizes, layers: &[Layer]) -> Self {
        let mean_degree = graph.edges as f64 / graph.nodes.max(1) as f64;
        let most = config.infer.as_ref().map_or_else(|| Infer::default().batch, |infer| infer.batch) as f64;
        let own = most.min(CHUNK_EDGES as f64 / mean_degree.max(1e-9)).max(1.0);
        let reads = config.model.as_ref().is_some_and(config::Model::uses_edges);
        let sources = if reads { (own * (1.0 + mean_degree)).min(graph.nodes as f64) } else { own };
        let input = embedding::input(config, graph).0;
        let stages = stages(config, graph).unwrap_or_else(|| {
            // Those of a registered model are known when it is built.
            let stage = |layer: &Layer| Stage { width: layer.output, edges: true, own: Vec::new(), reduction: None };
            layers.iter().map(stage).collect()
        });
        let hidden = config.model.as_ref().map_or(0, |model| model.hidden);
        Self { stages, input, hidden, own, sources }
    }

    /// Returns the bytes of a process in memory, with `jobs` chunks in computation.
    pub(super) fn memory(&self, jobs: usize) -> u64 {
        let [read, computed] = self.parts_of_chunk();
        read * (u64::from(window(jobs)) + 2 * jobs as u64) + computed * jobs as u64
    }

    /// Returns the bytes of the largest chunk on a GPU: the rows that it reads, and those that it computes, which need no copy.
    pub(super) fn chunk(&self) -> u64 {
        let [read, computed] = self.parts_of_chunk();
        read + computed / 2
    }

    /// Returns the bytes of the rows that a chunk reads, and of those that it computes; of the largest chunk.
    fn parts_of_chunk(&self) -> [u64; 2] {
        let width = |rows: StageRows| match rows {
            StageRows::Features => self.input,
            StageRows::Of(stage) => self.stages[stage].width,
        };
        let chunks = self.stages.iter().enumerate().map(|(at, stage)| {
            let input = width(at.checked_sub(1).map_or(StageRows::Features, StageRows::Of));
            let read = if stage.edges { self.sources } else { self.own } * input as f64;
            // Own rows beside sums of neighbors or, in a readout, joined; hidden rows; and the result with a copy.
            let own = input + stage.own.iter().map(|&own| width(own)).sum::<usize>();
            let computed = self.own * 2.0 * (own + self.hidden + stage.width) as f64;
            [read, computed].map(|numbers| (4.0 * numbers) as u64)
        });
        chunks.reduce(|[a, b], [c, d]| [a.max(c), b.max(d)]).unwrap_or_default()
    }

    /// Returns the bytes of the rows of layers in a process with `nodes` nodes.
    pub(super) fn layers(&self, nodes: u64) -> u64 {
        nodes * 4 * scratch_width(&self.stages) as u64
    }
}

/// Returns the stages of a built-in model.
fn stages(config: &Config, graph: &Sizes) -> Option<Vec<Stage>> {
    Some(model::built(config, graph)?.stages())
}
