//! Learned rows (node embeddings) in full-graph training.
//!
//! Only the first node task of an interval reads its learned rows; neighbors receive the output of that task. At the end of the backward pass, the
//! gradient is complete, and the interval updates its rows: once per epoch, never from stale rows. The number of examples that gradients are
//! divided by is known before: all training nodes, or the pairs of all chunks.

use std::sync::Arc;

use gnnflow_dataflow::embed::push_rows::PushedRows;

use super::intervals::Interval;
use super::state::EpochState;
use super::token::Token;
use crate::compute::ComputeState;
use crate::config::Train;
use crate::embedding::NodeEmbeddings;
use crate::error::Error;

/// The learned rows and the options of their updates.
pub(crate) struct LearnedRows {
    rows: Arc<NodeEmbeddings>,
    train: Train,
    /// Examples of an epoch, if these are nodes.
    examples: u64,
}

impl LearnedRows {
    /// Takes the number of examples of an epoch, if these are nodes.
    pub(crate) fn new(rows: &Arc<NodeEmbeddings>, train: &Train, examples: u64) -> Self {
        Self { rows: Arc::clone(rows), train: train.clone(), examples }
    }

    /// Returns the learning rate of an epoch. Several epochs may overlap.
    fn rate(&self, epoch: u32) -> f64 {
        self.train.lr_schedule.at(epoch as usize, self.train.epochs, self.rows.config().optimizer.lr())
    }
}

impl EpochState {
    /// Updates the learned rows of an interval with their gradient.
    ///
    /// # Errors
    /// [`Error::Bug`] when the node task returned no gradient.
    pub(super) fn update_learned_rows(
        &self,
        compute: &mut ComputeState,
        token: Token,
        interval: &Interval,
        gradient: Option<Vec<f32>>,
    ) -> Result<(), Error> {
        let Some(learned) = &self.learned else { return Ok(()) };
        let gradient =
            gradient.ok_or_else(|| Error::Bug("the node task returned no gradient for the learned rows".into()))?;
        let epoch = token.epoch();
        let examples = self.pairs.as_ref().map_or(learned.examples, |pairs| pairs.examples(epoch));
        let nodes = self.nodes.nodes(&interval.rows).collect();
        learned.rows.set_learning_rate(learned.rate(epoch));
        let pushed = PushedRows::at_home(token.time, examples, nodes, Arc::new(gradient));
        compute.update_rows(&learned.rows, &pushed)
    }
}
