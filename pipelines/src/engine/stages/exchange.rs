//! How rows move between nodes. Node-parallel and column-parallel training differ in this part only.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use gnnflow_dataflow::wire::{Header, WireBlock};
use gnnflow_kernels::matrix::Matrix;
use gnnflow_nn::model::NodeOutputs;
use gnnflow_nn::parameter_versions::{ParameterVersion, ParameterVersions};

use super::intervals::Interval;
use super::message::Outgoing;
use super::program::{AttentionStage, Propagated};
use super::token::Token;
use crate::compute::ComputeState;
use crate::engine::aggregation::attention::DropoutKey;
use crate::engine::aggregation::rows::Selection;
use crate::error::Error;

/// The context of one stage of an epoch.
pub(crate) struct StageCx<'a> {
    /// The compute thread's state: its threads and its clock.
    pub(crate) compute: &'a mut ComputeState,
    pub(crate) token: Token,
    /// Seed of dropout's masks.
    pub(crate) seed: u64,
    pub(crate) vectors: &'a AttentionVectors,
}

impl StageCx<'_> {
    /// Returns the key that decides which attention weights of hop `hop` are dropped; evaluation drops none.
    pub(crate) fn dropout(&self, hop: usize) -> DropoutKey {
        DropoutKey { seed: self.seed, epoch: self.token.epoch(), hop, nothing: self.token.evaluates() }
    }

    /// Returns the attention vectors of hop `hop` in the parameter version of the token's interval.
    pub(crate) fn vectors(&self, hop: usize) -> Option<Vec<f32>> {
        self.vectors.of_token(hop, self.token)
    }

    /// Returns the attention vectors of hop `hop` in the latest parameters.
    pub(crate) fn latest_vectors(&self, hop: usize) -> Option<Vec<f32>> {
        self.vectors.latest(hop)
    }
}

/// The attention vectors of all hops (GATv2), by version of the parameters.
pub(crate) struct AttentionVectors {
    /// By hop, the range among the parameters.
    places: Vec<Option<Range<usize>>>,
    parameters: Arc<ParameterVersions>,
}

impl AttentionVectors {
    pub(crate) fn new(places: Vec<Option<Range<usize>>>, parameters: Arc<ParameterVersions>) -> Self {
        Self { places, parameters }
    }

    pub(crate) fn parameters(&self) -> &ParameterVersions {
        &self.parameters
    }

    fn latest(&self, hop: usize) -> Option<Vec<f32>> {
        self.at(hop, self.parameters.latest())
    }

    fn of_token(&self, hop: usize, token: Token) -> Option<Vec<f32>> {
        self.places[hop].as_ref()?;
        let version = match token.evaluates() {
            false => self.parameters.choose(token.item, token.epoch(), hop),
            true => self.parameters.latest(),
        };
        self.at(hop, version)
    }

    fn at(&self, hop: usize, version: ParameterVersion) -> Option<Vec<f32>> {
        let place = self.places[hop].clone()?;
        let flat = self.parameters.get(version.version, Duration::ZERO).expect("a version in use is not released");
        Some(flat[place].to_vec())
    }
}

/// Gradients of the rows that some nodes sent.
#[derive(Default)]
pub(crate) struct SentGradient {
    /// Gradients of the rows, `[nodes, width]`.
    pub(crate) sent: Option<Matrix>,
    /// Gradients of the attention scores, `[nodes, terms]`: as sources, and as destinations.
    pub(crate) terms: Option<[Matrix; 2]>,
}

/// The aggregation of the last hop in evaluation.
pub(crate) enum Evaluated {
    /// Equal to that of training.
    AsInTraining,
    /// Aggregated rows of all nodes of the interval; `None` if the hop has no edges.
    Rows(Option<Matrix>),
}

/// Moves the rows of a hop from senders to receivers, and gradients back.
///
/// With [`FullGraph`](crate::engine::full_graph::FullGraph), a worker has whole rows of some nodes. With
/// [`TensorParallel`](crate::engine::tensor_parallel::TensorParallel), it has some columns of all nodes. All methods run on the compute thread.
pub(crate) trait RowExchange: Send {
    /// Aggregates the neighbors' rows of the nodes of an interval. In tensor-parallel training, chunk stages do so.
    fn aggregate(&mut self, cx: &mut StageCx<'_>, hop: usize, interval: &Interval);

    /// Returns the aggregated rows of some own nodes, `[rows, slots · width]`; `None` if the hop has no edges.
    fn aggregated(&self, hop: usize, rows: &Selection<'_>) -> Option<Matrix>;

    /// Aggregates the last hop for all nodes of an interval, if training does so for fewer.
    fn evaluate_last_hop(&mut self, cx: &mut StageCx<'_>, interval: &Interval) -> Evaluated;

    /// Stores the rows that the nodes of an interval send at a hop, and returns the messages for other workers.
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

    /// Returns the gradient of the rows that the nodes of an interval sent at a hop.
    ///
    /// # Errors
    /// [`Error::Bug`] when a gradient is missing.
    fn sent_gradient(&mut self, cx: &mut StageCx<'_>, hop: usize, interval: &Interval) -> Result<SentGradient, Error>;

    /// Stores the gradient `[rows, slots · width]` of the aggregated rows `rows` of an interval, and returns the messages for other workers.
    /// Gradients of the interval's other rows are zeros.
    fn send_gradient(
        &mut self,
        cx: &mut StageCx<'_>,
        hop: usize,
        interval: &Interval,
        rows: &Selection<'_>,
        gradient: Option<Vec<f32>>,
    ) -> Vec<Outgoing>;

    /// Sends the rows that the next chunk needs (item 0 of the stage), or aggregates one chunk (item 1).
    ///
    /// # Errors
    /// When the device fails.
    fn propagate(&mut self, _cx: &mut StageCx<'_>, _stage: Propagated) -> Result<Vec<Outgoing>, Error> {
        Ok(Vec::new())
    }

    /// Sends the gradients that attention needs for the next chunk (item 0), or reads those of one chunk (item 1).
    fn attention_backward(&mut self, _cx: &mut StageCx<'_>, _stage: AttentionStage) -> Vec<Outgoing> {
        Vec::new()
    }

    /// Copies the rows of a note into a message.
    fn message(&self, note: Header) -> WireBlock;

    /// Stores the rows of a message.
    fn receive(&mut self, block: &WireBlock);

    /// Returns the maximum number of messages in flight.
    fn window(&self) -> usize;

    /// Returns the edges times columns that this worker aggregates per epoch, forward and backward.
    fn edge_columns(&self, goes_back: &dyn Fn(usize) -> bool) -> u64;
}
