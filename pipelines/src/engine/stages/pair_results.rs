//! Training on pairs of nodes: the results of own nodes, and their gradients.
//!
//! Between the two, [`score_pairs`](super::score_pairs) sends rows of the results to the workers with the pairs, and their gradients back.

use std::ops::Range;
use std::sync::Arc;

use gnnflow_dataflow::embed::push_rows::PushedRows;
use gnnflow_dataflow::storage::{Place, RowStore, Table};
use gnnflow_dataflow::time;
use gnnflow_kernels::matrix::Matrix;
use gnnflow_nn::model::NodeOutputs;
use gnnflow_nn::tensors::read;

use super::node_tables::NodeTables;
use crate::config;
use crate::context::WorkerContext;
use crate::error::Error;
use gnnflow_nn::node_task::matrix;

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

    /// Stores the results of own rows and sets their gradients to zero.
    pub(super) fn store(
        &mut self,
        nodes: &NodeTables,
        rows: &Range<usize>,
        outputs: &NodeOutputs,
    ) -> Result<(), Error> {
        let nodes: Vec<u32> = nodes.nodes(rows).collect();
        self.gradient.some_mut(rows.clone()).fill(0.0);
        let mut into = self.rows.write()?;
        Ok(read(outputs.held()?, |found| into.set(&nodes, found))?)
    }

    /// Adds gradients of own nodes' results, in the order of `pushed`.
    pub(super) fn add(&mut self, nodes: &NodeTables, pushed: &PushedRows) {
        let epoch = time::epoch(pushed.timestamp);
        self.examples = (epoch, self.examples(epoch) + pushed.examples);
        let width = self.gradient.width();
        for (ids, rows) in pushed.pieces() {
            for (&node, values) in ids.iter().zip(rows.chunks_exact(width)) {
                let row = nodes.row(node);
                let sum = self.gradient.some_mut(row..row + 1);
                sum.iter_mut().zip(values).for_each(|(sum, x)| *sum += x);
            }
        }
    }

    /// Returns the gradients of own rows.
    pub(super) fn gradient(&self, rows: &Range<usize>) -> Matrix {
        matrix(self.gradient.some(rows.clone()).to_vec(), self.gradient.width())
    }
}

/// Returns the error of results that this run does not have.
pub(super) fn no_pairs() -> Error {
    Error::Bug("this run has no pairs of nodes to train on".into())
}
