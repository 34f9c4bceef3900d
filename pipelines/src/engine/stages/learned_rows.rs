//! Node embeddings that are learned, in full-graph training.
//!
//! An interval's rows are read by its first node task alone: neighbors receive what that task makes of them. So an interval updates its rows itself
//! when the way back has reached it, by the gradient that is complete then; every row moves once an epoch. The rows are never stale, whatever the
//! schedule lets others read. The number of examples that gradients are divided by is known before: all training nodes, or the pairs of all chunks.

use std::sync::Arc;

use gnnflow_dataflow::embed::push_rows::PushedRows;

use super::intervals::Interval;
use super::state::EpochState;
use super::token::Token;
use crate::compute::ComputeState;
use crate::config::Train;
use crate::embedding::NodeEmbeddings;
use crate::error::Error;

/// The rows, and what their steps are told.
pub(crate) struct LearnedRows {
    rows: Arc<NodeEmbeddings>,
    train: Train,
    /// Examples of an epoch, where these are nodes.
    examples: u64,
}

impl LearnedRows {
    /// Of a run whose epochs have so many examples, where these are nodes.
    pub(crate) fn new(rows: &Arc<NodeEmbeddings>, train: &Train, examples: u64) -> Self {
        Self { rows: Arc::clone(rows), train: train.clone(), examples }
    }

    /// The learning rate of an epoch, of which several may be under way.
    fn rate(&self, epoch: u32) -> f64 {
        self.train.lr_schedule.at(epoch as usize, self.train.epochs, self.rows.config().optimizer.lr())
    }
}

impl EpochState {
    /// Updates the rows of an interval by their gradient.
    ///
    /// # Errors
    /// When the node task returned none: our bug.
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
