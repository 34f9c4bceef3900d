//! Training on pairs of nodes: the results of all nodes, and the backward pass through the last node task.
//!
//! Between the two, [`score_pairs`](super::score_pairs) sends rows of the results to the workers with the pairs, and their gradients back.

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
use gnnflow_nn::node_task::{NodeGradient, NodeTask, Work, matrix};

/// The store of results for the loss of pairs.
#[derive(Clone)]
pub(crate) struct PairTargets {
    /// The results of own nodes.
    pub(crate) rows: Arc<RowStore>,
    /// Number of chunks of an epoch: the maximum over partitions.
    pub(crate) chunks: u32,
}

impl PairTargets {
    /// Reserves the results of own nodes, `width` columns, on disk, and counts the chunks of an epoch.
    pub(crate) fn open(context: &WorkerContext, train: &config::Train, width: usize) -> Result<Self, Error> {
        let place = Place::Folder(context.scratch.clone());
        let rows = RowStore::create(&place, &context.graph, context.worker, width)
            .map_err(Error::io("reserve scratch space in", &context.scratch))?;
        let chunks = match train.edge_share(&context.train_nodes) {
            Some(share) => share.most().div_ceil(train.batch as u64) as u32,
            None => context.steps(train.batch),
        };
        Ok(Self { rows: Arc::new(rows), chunks })
    }
}

/// The results of own nodes and their gradients.
pub(crate) struct PairResults {
    rows: Arc<RowStore>,
    /// The sums of gradients so far, by own row.
    gradient: Table,
    /// An epoch, and the examples of all partitions in its chunks so far.
    examples: (u32, u64),
}

impl PairResults {
    /// Reserves the gradients of `own` rows.
    pub(crate) fn new(rows: Arc<RowStore>, own: usize, place: &Place) -> std::io::Result<Self> {
        let gradient = Table::zeros(own, rows.width(), place)?;
        Ok(Self { rows, gradient, examples: (0, 0) })
    }

    /// Returns the examples of an epoch, after its last chunk.
    pub(crate) fn examples(&self, epoch: u32) -> u64 {
        if self.examples.0 == epoch { self.examples.1 } else { 0 }
    }
}

impl EpochState {
    /// Returns the last node task of an interval.
    pub(super) fn embed(
        &mut self,
        compute: &mut ComputeState,
        token: Token,
        interval: &Interval,
        key: Key,
    ) -> NodeTask {
        self.aggregate(compute, token, self.hops - 1, interval);
        self.task(self.hops, Selection::Range(interval.rows.clone()), Some(key), Work::Forward)
    }

    /// Stores the results of an interval and sets their gradients to zero.
    pub(super) fn end_embed(&mut self, interval: &Interval, outputs: &NodeOutputs) -> Result<(), Error> {
        self.nodes.clear_gradients(&interval.rows);
        let nodes: Vec<u32> = self.nodes.nodes(&interval.rows).collect();
        let results = self.pairs.as_mut().ok_or_else(no_pairs)?;
        results.gradient.some_mut(interval.rows.clone()).fill(0.0);
        let mut into = results.rows.write()?;
        Ok(read(&outputs.held, |found| into.set(&nodes, found))?)
    }

    /// Adds the parameter gradient of a chunk of a partition's pairs, and returns the gradients of rows.
    pub(crate) fn add_pair_gradients(&mut self, epoch: u32, gradients: PairGradients) -> RowGradients {
        let PairGradients { rows, flat, loss } = gradients;
        let gradient = StageGradient { flat, loss, examples: rows.examples };
        self.gradients.add_first(epoch, rows.partition, gradient);
        rows
    }

    /// Adds gradients of own nodes' results, in the order of `pushed`.
    ///
    /// # Errors
    /// [`Error::Bug`] when the run has no pairs.
    pub(crate) fn add_row_gradients(&mut self, pushed: &PushedRows) -> Result<(), Error> {
        let nodes = &self.nodes;
        let results = self.pairs.as_mut().ok_or_else(no_pairs)?;
        let epoch = time::epoch(pushed.timestamp);
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

    /// Returns the backward task of the last node task of an interval.
    pub(super) fn embed_backward(&mut self, interval: &Interval, key: Key) -> Result<NodeTask, Error> {
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
