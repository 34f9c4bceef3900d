//! Rows of nodes that are learned, where every step is over the whole graph.
//!
//! An interval's rows are read by nobody but its first node task: neighbors are told what that makes of them. So an interval
//! moves its rows itself when it has come back to them, by the gradient that is complete there, all rows of it in every epoch. It
//! waits for nobody, and goes on with them as soon as it goes on: they are never stale, whatever the schedule lets
//! others read. What they are divided by is known before: all training nodes, or the examples that all chunks of pairs had.

use std::sync::Arc;

use gnnflow_dataflow::embed::push_rows::PushedRows;
use gnnflow_dataflow::time;

use super::tasks::Token;
use super::{Interval, WholeGraph};
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

impl WholeGraph {
    /// Moves the rows of an interval, whose gradient this is.
    ///
    /// # Errors
    /// When a task has not told it: our bug.
    pub(super) fn move_rows(
        &self,
        trainer: &mut ComputeState,
        token: Token,
        interval: &Interval,
        gradient: Option<Vec<f32>>,
    ) -> Result<(), Error> {
        let Some(learnt) = &self.learnt else { return Ok(()) };
        let gradient = gradient.ok_or_else(|| Error::Bug("learnt rows without a gradient".into()))?;
        let epoch = time::epoch(token.tick);
        let examples = self.pairs.as_ref().map_or(learnt.examples, |pairs| pairs.examples(epoch));
        let nodes = self.nodes(&interval.rows).collect();
        learnt.rows.set_learning_rate(learnt.rate(epoch));
        let pushed = PushedRows::at_home(token.tick, examples, nodes, Arc::new(gradient));
        // SAFETY: while an epoch is under way, rows are read and written on the compute thread alone, which this is. Others are
        // asked for rows when its last token is done everywhere.
        unsafe { trainer.move_rows(&learnt.rows, &pushed) };
        Ok(())
    }
}
