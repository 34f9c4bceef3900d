//! Learned rows (node embeddings) in full-graph training.
//!
//! Only the first node task of an interval reads its learned rows; neighbors receive the output of that task. At the end of the backward pass, the
//! gradient is complete, and the interval updates its rows: once per epoch, never from stale rows. The number of examples that gradients are
//! divided by is known before: all training nodes, or the pairs of all chunks.

use std::sync::Arc;

use gnnflow_dataflow::embed::push_rows::PushedRows;

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
        self.train.lr_schedule.at(epoch as usize, self.train.epochs(), self.rows.config().optimizer.lr())
    }

    /// Updates the rows of own nodes with their gradient. `pairs` is the number of examples of the epoch, if these are pairs.
    ///
    /// # Errors
    /// [`Error::Bug`] when the node task returned no gradient.
    pub(super) fn update(
        &self,
        compute: &mut ComputeState,
        token: Token,
        pairs: Option<u64>,
        nodes: Vec<u32>,
        gradient: Option<Vec<f32>>,
    ) -> Result<(), Error> {
        let gradient =
            gradient.ok_or_else(|| Error::Bug("the node task returned no gradient for the learned rows".into()))?;
        self.rows.set_learning_rate(self.rate(token.epoch()));
        let pushed = PushedRows::at_home(token.time, pairs.unwrap_or(self.examples), nodes, Arc::new(gradient));
        compute.update_rows(&self.rows, &pushed)
    }
}
