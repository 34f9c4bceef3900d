//! Learning from pairs of nodes: every node's result for them, and the way back through the last node task.
//!
//! Between the two, chunks of pairs are scored ([`score_pairs`](super::score_pairs)): rows of the results go where a pair is, and their
//! gradients come back here.

use std::sync::Arc;

use gnnflow_data::rng::Key;
use gnnflow_dataflow::embed::push_rows::{PushedRows, RowGradients};
use gnnflow_dataflow::storage::{Place, RowStore, Table};
use gnnflow_dataflow::time;
use gnnflow_nn::model::NodeOutputs;
use gnnflow_nn::tensors::read;

use super::gradient_sums::StageGradient;
use super::intervals::Interval;
use super::state::EpochState;
use super::token::Token;
use crate::compute::{ComputeState, PairGradients};
use crate::config;
use crate::context::WorkerContext;
use crate::engine::aggregation::rows::Selection;
use crate::error::Error;
use crate::runtime::tensor_task::{NodeGradient, TensorTask, Work, matrix};

/// Pairs that are learned from.
#[derive(Clone)]
pub(crate) struct Scored {
    /// Where results of own nodes are written.
    pub(crate) rows: Arc<RowStore>,
    /// How many chunks an epoch has: as many as the partition with most pairs needs.
    pub(crate) chunks: u32,
}

impl Scored {
    /// Reserves the results of own nodes on disk, and counts an epoch's chunks.
    ///
    /// # Errors
    /// When there is no room.
    pub(crate) fn open(context: &WorkerContext, train: &config::Train) -> Result<Self, Error> {
        let (width, place) = (context.task.objective().width(), Place::Folder(context.scratch.clone()));
        let rows = RowStore::create(&place, &context.graph, context.worker, width)
            .map_err(Error::io("reserve scratch space in", &context.scratch))?;
        let chunks = match train.edge_share(&context.train_nodes) {
            Some(share) => share.most().div_ceil(train.batch as u64) as u32,
            None => context.steps(train.batch),
        };
        Ok(Self { rows: Arc::new(rows), chunks })
    }
}

/// The results that pairs are scored by.
pub(crate) struct PairResults {
    rows: Arc<RowStore>,
    /// Their gradients so far, by own row.
    gradient: Table,
    /// An epoch, and the examples that all partitions' chunks had in it so far.
    examples: (u32, u64),
}

impl PairResults {
    /// Reserves gradients of `own` rows.
    ///
    /// # Errors
    /// When there is no room.
    pub(crate) fn new(rows: Arc<RowStore>, own: usize, place: &Place) -> std::io::Result<Self> {
        let gradient = Table::zeros(own, rows.width(), place)?;
        Ok(Self { rows, gradient, examples: (0, 0) })
    }

    /// Returns the examples of an epoch's chunks, all of which have been scored.
    pub(crate) fn examples(&self, epoch: u32) -> u64 {
        if self.examples.0 == epoch { self.examples.1 } else { 0 }
    }
}

impl EpochState {
    /// The last node task of an interval, whose results pairs are scored by.
    pub(super) fn embed(
        &mut self,
        compute: &mut ComputeState,
        token: Token,
        interval: &Interval,
        key: Key,
    ) -> TensorTask {
        self.aggregate(compute, token, self.hops - 1, interval);
        self.task(self.hops, Selection::Range(interval.rows.clone()), Some(key), Work::Forward)
    }

    /// Stores the results of an interval. Their gradients begin at zero.
    pub(super) fn end_embed(&mut self, interval: &Interval, outputs: &NodeOutputs) -> Result<(), Error> {
        self.nodes.clear_gradients(&interval.rows);
        let nodes: Vec<u32> = self.nodes.nodes(&interval.rows).collect();
        let results = self.pairs.as_mut().ok_or_else(no_pairs)?;
        results.gradient.some_mut(interval.rows.clone()).fill(0.0);
        let mut into = results.rows.write()?;
        Ok(read(&outputs.held, |found| into.set(&nodes, found))?)
    }

    /// Takes what a chunk of a partition's pairs says of the parameters, and returns the gradients of rows.
    pub(crate) fn scored(&mut self, epoch: u32, gradients: PairGradients) -> RowGradients {
        let PairGradients { rows, flat, loss } = gradients;
        let share = StageGradient { flat, loss, examples: rows.examples };
        self.gradients.add_first(epoch, rows.partition, share);
        rows
    }

    /// Adds gradients of own nodes' results, in their order.
    ///
    /// # Errors
    /// When no pairs are learned from: our bug.
    pub(crate) fn add_row_gradients(&mut self, pushed: &PushedRows) -> Result<(), Error> {
        let nodes = &self.nodes;
        let results = self.pairs.as_mut().ok_or_else(no_pairs)?;
        let epoch = time::epoch(pushed.tick);
        results.examples = (epoch, results.examples(epoch) + pushed.examples);
        let width = results.gradient.width();
        for (ids, rows) in pushed.pieces() {
            for (&node, values) in ids.iter().zip(rows.chunks_exact(width)) {
                let row = nodes.row(node);
                let sum = results.gradient.some_mut(row..row + 1);
                sum.iter_mut().zip(values).for_each(|(sum, x)| *sum += x);
            }
        }
        Ok(())
    }

    /// The way back through the last node task of an interval.
    pub(super) fn embed_back(&mut self, interval: &Interval, key: Key) -> Result<TensorTask, Error> {
        let rows = interval.rows.clone();
        let results = self.pairs.as_ref().ok_or_else(no_pairs)?;
        let held = matrix(results.gradient.some(rows.clone()).to_vec(), results.gradient.width());
        let gradient = NodeGradient { held: Some(held), ..NodeGradient::default() };
        let work = Work::Backward { gradient, of_rows: true };
        Ok(self.task(self.hops, Selection::Range(rows), Some(key), work))
    }
}

fn no_pairs() -> Error {
    Error::Bug("this run has no pairs of nodes to train on".into())
}
