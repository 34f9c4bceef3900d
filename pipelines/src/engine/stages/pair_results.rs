//! What is learned of pairs of nodes: every node's result for them, and back through the last node task when its gradient is there.
//!
//! Between the two, chunks of pairs are scored ([`score_pairs`](crate::engine::stages::score_pairs)): rows of the results go where a pair is,
//! and their gradients come back here.

use std::sync::Arc;

use gnnflow_data::rng::Key;
use gnnflow_dataflow::embed::push_rows::{PushedRows, RowGradients};
use gnnflow_dataflow::storage::{Place, Table};
use gnnflow_dataflow::time;
use gnnflow_nn::model::NodeOutputs;

use super::gradient_sums::Share;
use super::rows::Selection;
use super::tasks::Token;
use super::{Interval, WholeGraph};
use crate::compute::{ComputeState, PairGradients};
use crate::error::Error;
use crate::runtime::tensor_task::{NodeGradient, TensorTask, Work, matrix};
use gnnflow_dataflow::storage::RowStore;
use gnnflow_nn::tensors::read;

/// Pairs that are learned from.
#[derive(Clone)]
pub(crate) struct Scored {
    /// Where results of own nodes are written.
    pub(crate) rows: Arc<RowStore>,
    /// How many chunks an epoch has: as many as the partition with most pairs needs.
    pub(crate) chunks: u32,
}

/// The results that pairs are scored by.
pub(super) struct Results {
    rows: Arc<RowStore>,
    /// Their gradients so far, by own row.
    back: Table,
    /// An epoch, and the examples that all partitions' chunks had in it so far.
    examples: (u32, u64),
}

impl Results {
    /// Room for gradients of `own` rows.
    ///
    /// # Errors
    /// When there is none.
    pub(super) fn new(rows: Arc<RowStore>, own: usize, place: &Place) -> std::io::Result<Self> {
        let back = Table::zeros(own, rows.width(), place)?;
        Ok(Self { rows, back, examples: (0, 0) })
    }

    /// Examples of an epoch's chunks, all of which have been scored.
    pub(super) fn examples(&self, epoch: u32) -> u64 {
        if self.examples.0 == epoch { self.examples.1 } else { 0 }
    }
}

impl WholeGraph {
    /// The last node task of an interval, whose results pairs are scored by; without any gradient yet.
    pub(super) fn embed(
        &mut self,
        trainer: &mut ComputeState,
        token: Token,
        interval: &Interval,
        key: Key,
    ) -> TensorTask {
        let (last, rows) = (self.hops.len(), interval.rows.clone());
        if self.slices.is_none() {
            self.gather_rows(trainer, token, last - 1, interval);
        }
        let (count, rows) = (rows.len(), self.inputs(last, Selection::Range(rows)));
        TensorTask { index: last, count, rows, key: Some(key), work: Work::Forward }
    }

    /// Writes the results of an interval.
    pub(super) fn end_embed(&mut self, interval: &Interval, outputs: &NodeOutputs) -> Result<(), Error> {
        for state in &mut self.hops {
            if let Some([_, back]) = &mut state.held
                && back.rows() > 0
            {
                back.some_mut(interval.rows.clone()).fill(0.0);
            }
        }
        let nodes: Vec<u32> = self.nodes(&interval.rows).collect();
        let results = self.pairs.as_mut().ok_or_else(no_pairs)?;
        results.back.some_mut(interval.rows.clone()).fill(0.0);
        let mut into = results.rows.write()?;
        Ok(read(&outputs.held, |found| into.set(&nodes, found))?)
    }

    /// Takes what a chunk of a partition's pairs says, but for the gradients of rows, which it returns.
    pub(crate) fn scored(&mut self, epoch: u32, gradients: PairGradients) -> RowGradients {
        let PairGradients { rows, flat, loss } = gradients;
        let share = Share { flat, loss, examples: rows.examples };
        self.sums.entry((epoch, rows.partition)).or_default().add_first(share);
        rows
    }

    /// Adds gradients of own nodes' results, in their order.
    pub(crate) fn pushed(&mut self, pushed: &PushedRows) -> Result<(), Error> {
        let own = self.own.start;
        let results = self.pairs.as_mut().ok_or_else(no_pairs)?;
        let epoch = time::epoch(pushed.tick);
        results.examples = (epoch, results.examples(epoch) + pushed.examples);
        let back = &mut results.back;
        let width = back.width();
        for (nodes, rows) in pushed.pieces() {
            for (&node, row) in nodes.iter().zip(rows.chunks_exact(width)) {
                let row_of = (node - own) as usize;
                let sum = back.some_mut(row_of..row_of + 1);
                sum.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
            }
        }
        Ok(())
    }

    /// The task of going back through the last node task of an interval.
    pub(super) fn embed_back(&mut self, interval: &Interval, key: Key) -> Result<TensorTask, Error> {
        let (last, rows) = (self.hops.len(), interval.rows.clone());
        let results = self.pairs.as_ref().ok_or_else(no_pairs)?;
        let gradient = matrix(results.back.some(rows.clone()).to_vec(), results.back.width());
        let gradient = NodeGradient { held: Some(gradient), ..NodeGradient::default() };
        let (count, rows) = (rows.len(), self.inputs(last, Selection::Range(rows)));
        Ok(TensorTask { index: last, count, rows, key: Some(key), work: Work::Backward { gradient, of_rows: true } })
    }
}

fn no_pairs() -> Error {
    Error::Bug("no pairs are learnt from".into())
}
