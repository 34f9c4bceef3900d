//! The links of a hop, and the trait of its aggregation.

use std::ops::Range;
use std::sync::Arc;

use gnnflow_dataflow::ghost::Links;
use gnnflow_dataflow::wire::{Header, WireBlock};
use gnnflow_nn::model::NodeOutputs;

use super::evaluation_hop::EvaluationLinks;
use super::ghost_rows::{first_rows, rows_at};
use super::topology::{LinkPair, Topology};
use crate::engine::aggregation::row_table::WireRows;
use crate::engine::stages::exchange::{SentGradient, StageCx};
use crate::engine::stages::intervals::slots_of;
use crate::engine::stages::message::{Channel, Outgoing};
use crate::error::Error;

/// The edges of a hop, and the positions of ghosts in its tables.
pub(crate) struct HopLinks {
    /// The hop, from 0.
    pub(crate) index: usize,
    /// Columns of a sent row, and of an aggregated row of each slot; 0 if the hop has no edges.
    pub(crate) width: usize,
    /// Number of sums per node.
    pub(crate) slots: u32,
    /// The worker's first node.
    pub(crate) first: u32,
    /// Forward links: rows are receivers' slots, the table holds senders.
    pub(crate) arriving: Arc<Links>,
    /// Backward links: rows are senders, the table holds receivers' slots.
    pub(crate) leaving: Arc<Links>,
    /// By worker, the first row of its ghosts in the table of activations.
    pub(crate) activation_ghosts: Vec<usize>,
    /// By worker, the first row of its ghosts in the table of gradients.
    gradient_ghosts: Vec<usize>,
}

impl HopLinks {
    pub(super) fn new(index: usize, width: usize, graph: &Topology, pair: &LinkPair) -> Self {
        let LinkPair { arriving, leaving } = pair.clone();
        let (slots, first) = (graph.slots, graph.own.start);
        let activation_ghosts = first_rows(&arriving, &graph.starts, 1);
        let gradient_ghosts = first_rows(&leaving, &graph.starts, slots);
        Self { index, width, slots, first, arriving, leaving, activation_ghosts, gradient_ghosts }
    }

    /// Returns the rows of the slots of these own nodes that are receivers.
    pub(crate) fn receivers(&self, nodes: &Range<u32>) -> Range<usize> {
        self.arriving.rows().between(&slots_of(nodes, self.slots))
    }

    /// Returns the worker's first slot.
    pub(crate) fn first_slot(&self) -> u32 {
        self.first * self.slots
    }

    /// Returns the rows of a message of activations in their table.
    pub(crate) fn activation_rows(&self, header: Header) -> Range<usize> {
        rows_at(&self.activation_ghosts, header)
    }

    /// Returns the rows of a message of gradients in their table.
    pub(crate) fn gradient_rows(&self, header: Header) -> Range<usize> {
        rows_at(&self.gradient_ghosts, header)
    }
}

/// The storage of a hop's gradients.
pub(crate) enum Gradient<T> {
    /// The hop needs no gradient.
    None,
    /// The table of activations, after all workers have aggregated these for the last time.
    InPlace,
    /// A separate table.
    Own(T),
}

impl<T> Gradient<T> {
    pub(crate) fn table<'a>(&'a self, sent: &'a T) -> Option<&'a T> {
        match self {
            Self::None => None,
            Self::InPlace => Some(sent),
            Self::Own(table) => Some(table),
        }
    }

    pub(crate) fn table_mut<'a>(&'a mut self, sent: &'a mut T) -> Option<&'a mut T> {
        match self {
            Self::None => None,
            Self::InPlace => Some(sent),
            Self::Own(table) => Some(table),
        }
    }
}

/// The rows to send after the gradients of an interval's receivers are complete.
pub(crate) enum Completed {
    /// The gradients of the receivers.
    Rows,
    /// The gradients of ghosts, after the last interval.
    Mirrors(Vec<Outgoing>),
}

/// The tables and operations of one aggregation: sum, maximum or attention.
pub(crate) trait GhostHop: Send {
    /// Aggregates the edges of rows `rows` of `links.arriving` into `out`, `[rows, width]`.
    fn forward(&mut self, cx: &mut StageCx<'_>, links: &HopLinks, rows: Range<usize>, out: &mut [f32]);

    /// Returns the links of evaluation, if they differ from those of training.
    fn evaluation(&self) -> Option<&EvaluationLinks>;

    /// Aggregates these slots over the links of evaluation, `[slots, width]`; `None` if these are the links of training.
    fn forward_all(&mut self, cx: &mut StageCx<'_>, links: &HopLinks, slots: &Range<u32>) -> Option<Vec<f32>>;

    /// Stores the rows that own nodes send: `nodes`, which are the own rows `rows`. With `for_all`, in evaluation, all nodes are receivers.
    ///
    /// # Errors
    /// When the device fails.
    fn write_sent(
        &mut self,
        links: &HopLinks,
        nodes: &Range<u32>,
        rows: &Range<usize>,
        outputs: &NodeOutputs,
        for_all: bool,
    ) -> Result<(), Error>;

    /// Sets some rows of gradients to zero.
    fn clear_gradient(&mut self, rows: Range<usize>);

    /// Stores the gradient of a receiver's slot in row `row`.
    fn write_gradient(&mut self, row: usize, slot: usize, values: &[f32]);

    /// Completes the gradients of an interval's receivers with the values that senders also need. `of_mirrors` is the number of intervals of this
    /// worker, and the header of messages of mirrors.
    fn complete(
        &mut self,
        cx: &mut StageCx<'_>,
        links: &HopLinks,
        receivers: Range<usize>,
        of_mirrors: (usize, Header),
    ) -> Completed;

    /// Returns the gradient of the rows that own nodes sent.
    ///
    /// # Errors
    /// [`Error::Bug`] when the hop computes no gradient.
    fn backward(&mut self, cx: &mut StageCx<'_>, links: &HopLinks, nodes: &Range<u32>) -> Result<SentGradient, Error>;

    /// Returns the table of a channel, and the links with its ghosts.
    fn table<'a>(&'a self, links: &'a HopLinks, channel: Channel) -> Option<(&'a Links, &'a dyn WireRows)>;

    /// Stores the rows of a message.
    fn receive(&mut self, links: &HopLinks, channel: Channel, block: &WireBlock);

    /// Returns the message of the ghosts' gradients of a note.
    ///
    /// # Panics
    /// When this hop has no mirrors.
    fn mirror_message(&self, _note: Header) -> WireBlock {
        unreachable!("only attention has mirrors")
    }
}

/// Returns the error of a gradient that is requested and not computed.
pub(super) fn no_gradient() -> Error {
    Error::Bug("a gradient is requested that this hop does not compute".into())
}
