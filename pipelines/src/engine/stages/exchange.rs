//! How rows move between nodes: the part of an epoch in which node-parallel and column-parallel training differ.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use gnnflow_dataflow::wire::{Header, WireBlock};
use gnnflow_kernels::matrix::Matrix;
use gnnflow_nn::model::NodeOutputs;
use gnnflow_nn::parameter_versions::{ParameterVersion, ParameterVersions};

use super::intervals::Interval;
use super::message::Outgoing;
use super::program::{Attended, Propagated};
use super::token::Token;
use crate::compute::ComputeState;
use crate::engine::aggregation::attention::DropoutKey;
use crate::engine::aggregation::rows::Selection;
use crate::error::Error;

/// What one stage of an epoch may use.
pub(crate) struct StageCx<'a> {
    /// The compute thread's state: its threads and its clock.
    pub(crate) compute: &'a mut ComputeState,
    pub(crate) token: Token,
    /// Seed of dropout's masks.
    pub(crate) seed: u64,
    pub(crate) vectors: &'a AttentionVectors,
}

impl StageCx<'_> {
    /// Returns the key of the attention weights that are dropped at hop `hop`; none in evaluation.
    pub(crate) fn dropout(&self, hop: usize) -> DropoutKey {
        DropoutKey { seed: self.seed, epoch: self.token.epoch(), hop, nothing: self.token.evaluates() }
    }

    /// Returns the attention vectors of hop `hop`, by the parameters that the token's interval keeps to.
    pub(crate) fn vectors(&self, hop: usize) -> Option<Vec<f32>> {
        self.vectors.of(hop, self.token)
    }

    /// Returns the attention vectors of hop `hop`, by the latest parameters.
    pub(crate) fn latest_vectors(&self, hop: usize) -> Option<Vec<f32>> {
        self.vectors.latest(hop)
    }
}

/// The vectors that hops attend by (GATv2), by version of the parameters.
pub(crate) struct AttentionVectors {
    /// By hop, their place among the parameters.
    places: Vec<Option<Range<usize>>>,
    parameters: Arc<ParameterVersions>,
}

impl AttentionVectors {
    pub(crate) fn new(places: Vec<Option<Range<usize>>>, parameters: Arc<ParameterVersions>) -> Self {
        Self { places, parameters }
    }

    /// Returns the versions of the parameters.
    pub(crate) fn parameters(&self) -> &ParameterVersions {
        &self.parameters
    }

    fn latest(&self, hop: usize) -> Option<Vec<f32>> {
        self.at(hop, self.parameters.latest())
    }

    fn of(&self, hop: usize, token: Token) -> Option<Vec<f32>> {
        self.places[hop].as_ref()?;
        let version = match token.evaluates() {
            false => self.parameters.choose(token.item, token.epoch(), hop),
            true => self.parameters.latest(),
        };
        self.at(hop, version)
    }

    fn at(&self, hop: usize, version: ParameterVersion) -> Option<Vec<f32>> {
        let place = self.places[hop].clone()?;
        let flat = self.parameters.get(version.version, Duration::ZERO).expect("a version that is in use is kept");
        Some(flat[place].to_vec())
    }
}

/// Gradients of what some nodes sent.
#[derive(Default)]
pub(crate) struct SentGradient {
    /// Of their rows, `[nodes, width]`.
    pub(crate) sent: Option<Matrix>,
    /// Of their attention terms, `[nodes, terms]`: as sources, and as destinations.
    pub(crate) terms: Option<[Matrix; 2]>,
}

/// What the last hop aggregates in evaluation.
pub(crate) enum Evaluated {
    /// The same as in training.
    AsInTraining,
    /// Rows of all nodes of the interval; `None` where the hop has no edges.
    Rows(Option<Matrix>),
}

/// How rows of a hop get from their senders to their receivers, and gradients back.
///
/// Implemented by [`FullGraph`](crate::engine::full_graph::FullGraph), where a worker has whole rows of some nodes, and by
/// [`TensorParallel`](crate::engine::tensor_parallel::TensorParallel), where it has some columns of all nodes. All methods are called on the compute
/// thread.
pub(crate) trait RowExchange: Send {
    /// Aggregates what arrives at the nodes of an interval. Chunk stages do so in tensor-parallel training.
    fn aggregate(&mut self, cx: &mut StageCx<'_>, hop: usize, interval: &Interval);

    /// Returns the aggregated rows of some own nodes, `[rows, slots · width]`; `None` where the hop has no edges.
    fn aggregated(&self, hop: usize, rows: &Selection<'_>) -> Option<Matrix>;

    /// Aggregates the last hop for all nodes of an interval, where training does so for fewer.
    fn evaluate_last_hop(&mut self, cx: &mut StageCx<'_>, interval: &Interval) -> Evaluated;

    /// Stores what an interval's nodes send at a hop, and returns the messages for other workers.
    ///
    /// # Errors
    /// When the device fails.
    fn send(
        &mut self,
        cx: &mut StageCx<'_>,
        hop: usize,
        interval: &Interval,
        outputs: &NodeOutputs,
    ) -> Result<Vec<Outgoing>, Error>;

    /// Returns the gradient of what an interval's nodes sent at a hop.
    ///
    /// # Errors
    /// When a gradient is missing: our bug.
    fn sent_gradient(&mut self, cx: &mut StageCx<'_>, hop: usize, interval: &Interval) -> Result<SentGradient, Error>;

    /// Stores the gradient `[rows, slots · width]` of what some nodes of an interval have aggregated, and returns the messages for other workers.
    /// Gradients of the interval's other nodes are zeros.
    fn send_gradient(
        &mut self,
        cx: &mut StageCx<'_>,
        hop: usize,
        interval: &Interval,
        rows: &Selection<'_>,
        gradient: Option<Vec<f32>>,
    ) -> Vec<Outgoing>;

    /// Sends what the next chunk needs, or aggregates one chunk.
    fn propagate(&mut self, _cx: &mut StageCx<'_>, _stage: Propagated) -> Vec<Outgoing> {
        Vec::new()
    }

    /// Sends the gradients that attention needs for the next chunk, or reads those of one chunk.
    fn attend(&mut self, _cx: &mut StageCx<'_>, _stage: Attended) -> Vec<Outgoing> {
        Vec::new()
    }

    /// Copies the rows that a note names into a message.
    fn message(&self, note: Header) -> WireBlock;

    /// Stores the rows of a message.
    fn receive(&mut self, block: &WireBlock);

    /// Returns how many messages may be in flight at once.
    fn window(&self) -> usize;

    /// Returns what this worker aggregates in an epoch, forward and backward: edges times columns.
    fn edge_columns(&self, goes_back: &dyn Fn(usize) -> bool) -> u64;
}
