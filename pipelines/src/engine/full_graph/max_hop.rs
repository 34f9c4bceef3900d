//! A hop with the maximum of each column.
//!
//! A receiver stores the node of each maximum, by column. In the table of gradients, these nodes follow the gradients, so a sender finds the
//! gradients that belong to it.

use std::ops::Range;

use gnnflow_dataflow::ghost::Links;
use gnnflow_dataflow::storage::{Place, Table};
use gnnflow_dataflow::wire::{Header, WireBlock};
use gnnflow_nn::model::NodeOutputs;
use gnnflow_nn::tensors::read;

use super::evaluation_hop::{EvaluationHop, EvaluationLinks};
use super::hop::{Completed, GhostHop, HopLinks, no_gradient};
use crate::engine::aggregation::max::Argmax;
use crate::engine::aggregation::row_table::WireRows;
use crate::engine::stages::exchange::{SentGradient, StageCx};
use crate::engine::stages::message::Channel;
use crate::error::Error;
use gnnflow_nn::node_task::matrix;

/// The tables of a hop with maxima.
pub(crate) struct MaxHop {
    /// Rows that own nodes and ghosts send.
    sent: Table,
    /// By receiver and column, the node of the maximum.
    argmax: Argmax,
    /// Gradients of the maxima, followed by the nodes of the maxima.
    gradient: Option<Table>,
    evaluation: Option<EvaluationHop<Table, Argmax>>,
}

impl MaxHop {
    /// Reserves the tables, with gradients if the hop needs them.
    pub(super) fn new(
        links: &HopLinks,
        has_gradient: bool,
        evaluation: Option<EvaluationLinks>,
        place: &Place,
    ) -> std::io::Result<Self> {
        let zeros = |rows: usize| Table::zeros(rows, links.width, place);
        let evaluation = match evaluation {
            Some(all) => {
                let argmax = Argmax::new(all.links.rows().len(), links.width, place)?;
                Some(EvaluationHop::new(all, argmax, zeros)?)
            }
            None => None,
        };
        let gradient = has_gradient.then(|| Table::zeros(links.leaving.table_rows(), 2 * links.width, place));
        Ok(Self {
            sent: zeros(links.arriving.table_rows())?,
            argmax: Argmax::new(links.arriving.rows().len(), links.width, place)?,
            gradient: gradient.transpose()?,
            evaluation,
        })
    }
}

impl GhostHop for MaxHop {
    fn forward(&mut self, cx: &mut StageCx<'_>, links: &HopLinks, rows: Range<usize>, out: &mut [f32]) {
        cx.compute.timed_forward(|| self.argmax.forward(&links.arriving, rows, &self.sent, out));
    }

    fn evaluation(&self) -> Option<&EvaluationLinks> {
        self.evaluation.as_ref().map(|evaluation| &evaluation.links)
    }

    fn forward_all(&mut self, cx: &mut StageCx<'_>, links: &HopLinks, slots: &Range<u32>) -> Option<Vec<f32>> {
        let Self { sent, evaluation, .. } = self;
        let (table, all, argmax) = evaluation.as_mut()?.parts(sent);
        let rows = all.rows().between(slots);
        let mut out = vec![0.0; rows.len() * links.width];
        cx.compute.timed_forward(|| argmax.forward(all, rows, table, &mut out));
        Some(out)
    }

    fn write_sent(
        &mut self,
        links: &HopLinks,
        nodes: &Range<u32>,
        _: &Range<usize>,
        outputs: &NodeOutputs,
        for_all: bool,
    ) -> Result<(), Error> {
        let Some(found) = &outputs.sent else { return Ok(()) };
        let (table, to) = match self.evaluation.as_mut().filter(|_| for_all) {
            Some(evaluation) => {
                let (table, links, _) = evaluation.parts(&mut self.sent);
                (table, links)
            }
            None => (&mut self.sent, &*links.arriving),
        };
        Ok(read(found, |found| table.some_mut(to.table().between(nodes)).copy_from_slice(found))?)
    }

    fn clear_gradient(&mut self, rows: Range<usize>) {
        if let Some(table) = &mut self.gradient {
            table.some_mut(rows).fill(0.0);
        }
    }

    fn write_gradient(&mut self, row: usize, _: usize, values: &[f32]) {
        if let Some(table) = &mut self.gradient {
            table.some_mut(row..row + 1)[..values.len()].copy_from_slice(values);
        }
    }

    fn complete(
        &mut self,
        _: &mut StageCx<'_>,
        links: &HopLinks,
        receivers: Range<usize>,
        _: (usize, Header),
    ) -> Completed {
        // Receivers have equal numbers among rows of links and rows of gradients.
        if let Some(gradient) = &mut self.gradient {
            self.argmax.append(receivers, links.width, gradient);
        }
        Completed::Rows
    }

    fn backward(&mut self, cx: &mut StageCx<'_>, links: &HopLinks, nodes: &Range<u32>) -> Result<SentGradient, Error> {
        let gradient = self.gradient.as_ref().ok_or_else(no_gradient)?;
        let senders = links.leaving.rows().between(nodes);
        let mut sent = vec![0.0; nodes.len() * links.width];
        cx.compute.timed_backward(|| Argmax::backward(&links.leaving, senders, gradient, &mut sent));
        Ok(SentGradient { sent: Some(matrix(sent, links.width)), terms: None })
    }

    fn table<'a>(&'a self, links: &'a HopLinks, channel: Channel) -> Option<(&'a Links, &'a dyn WireRows)> {
        match (channel, &self.evaluation) {
            (Channel::EvaluationActivations, Some(all)) => Some((&all.links.links, all.sent(&self.sent))),
            (Channel::Gradients, _) => Some((&links.leaving, self.gradient.as_ref()?)),
            _ => Some((&links.arriving, &self.sent)),
        }
    }

    fn receive(&mut self, links: &HopLinks, channel: Channel, block: &WireBlock) {
        let header = block.header();
        match (channel, &mut self.evaluation) {
            (Channel::EvaluationActivations, Some(evaluation)) => evaluation.receive(block),
            (Channel::Gradients, _) => {
                let table = self.gradient.as_mut().expect("gradients are sent only where they are computed");
                table.put(links.gradient_rows(header), block);
            }
            _ => self.sent.put(links.activation_rows(header), block),
        }
    }
}
