//! A hop with scaled sums, means, or sums by relation. Only this aggregation supports rounded rows.

use std::ops::Range;

use gnnflow_dataflow::ghost::Links;
use gnnflow_dataflow::storage::Place;
use gnnflow_dataflow::wire::WireBlock;
use gnnflow_nn::layers::Aggregation;
use gnnflow_nn::model::NodeOutputs;
use gnnflow_nn::tensors::read;

use super::evaluation_hop::{EvaluationHop, EvaluationLinks};
use super::hop::{Completed, GhostHop, Gradient, HopLinks, no_gradient};
use super::topology::Topology;
use crate::config::RowDtype;
use crate::engine::aggregation::row_table::{RowTable, WireRows};
use crate::engine::aggregation::scales::Scales;
use crate::engine::aggregation::sum::gather;
use crate::engine::stages::exchange::{SentGradient, StageCx};
use crate::engine::stages::message::Channel;
use crate::error::Error;
use gnnflow_nn::node_task::matrix;

/// The tables of a hop that sums.
pub(crate) struct SumHop {
    /// Rows that own nodes and ghosts send, times `scales.before`.
    sent: RowTable,
    /// Gradients of the sums, times `scales.after`.
    gradient: Gradient<RowTable>,
    scales: Scales,
    /// The scales of the backward pass.
    reversed: Scales,
    evaluation: Option<EvaluationHop<RowTable, ()>>,
}

impl SumHop {
    /// Reserves the tables. `(has_gradient, in_place)`: whether the hop needs gradients, and whether they overwrite activations.
    pub(super) fn new(
        aggregation: Aggregation,
        graph: &Topology,
        links: &HopLinks,
        (has_gradient, in_place): (bool, bool),
        evaluation: Option<EvaluationLinks>,
        (dtype, place): (RowDtype, &Place),
    ) -> std::io::Result<Self> {
        let zeros = |rows: usize| RowTable::zeros(dtype, rows, links.width, place);
        let scales = Scales::of_parts(aggregation, graph.own.start, &graph.in_edges);
        Ok(Self {
            sent: zeros(links.arriving.table_rows())?,
            gradient: match (has_gradient, in_place) {
                (false, _) => Gradient::None,
                (true, true) => Gradient::InPlace,
                (true, false) => Gradient::Own(zeros(links.leaving.table_rows())?),
            },
            reversed: scales.reversed(),
            scales,
            evaluation: evaluation.map(|links| EvaluationHop::new(links, (), zeros)).transpose()?,
        })
    }
}

impl GhostHop for SumHop {
    fn forward(&mut self, cx: &mut StageCx<'_>, links: &HopLinks, rows: Range<usize>, out: &mut [f32]) {
        cx.compute.timed_forward(|| gather(&links.arriving, rows, &self.sent, &self.scales, links.first_slot(), out));
    }

    fn evaluation(&self) -> Option<&EvaluationLinks> {
        self.evaluation.as_ref().map(|evaluation| &evaluation.links)
    }

    fn forward_all(&mut self, cx: &mut StageCx<'_>, links: &HopLinks, slots: &Range<u32>) -> Option<Vec<f32>> {
        let Self { sent, scales, evaluation, .. } = self;
        let evaluation = evaluation.as_ref()?;
        let (table, all) = (evaluation.sent(sent), &evaluation.links.links);
        let rows = all.rows().between(slots);
        let mut out = vec![0.0; rows.len() * links.width];
        cx.compute.timed_forward(|| gather(all, rows, table, scales, links.first_slot(), &mut out));
        Some(out)
    }

    fn write_sent(
        &mut self,
        links: &HopLinks,
        nodes: &Range<u32>,
        rows: &Range<usize>,
        outputs: &NodeOutputs,
        for_all: bool,
    ) -> Result<(), Error> {
        let Some(found) = &outputs.sent else { return Ok(()) };
        let (table, to) = match self.evaluation.as_mut().filter(|_| for_all) {
            Some(evaluation) => {
                let (table, links, ()) = evaluation.parts(&mut self.sent);
                (table, links)
            }
            None => (&mut self.sent, &*links.arriving),
        };
        let scale = self.scales.before.as_ref().map(|before| &before[rows.clone()]);
        Ok(read(found, |found| table.write(to.table().between(nodes), found, scale))?)
    }

    fn clear_gradient(&mut self, rows: Range<usize>) {
        if let Some(table) = self.gradient.table_mut(&mut self.sent) {
            table.clear(rows);
        }
    }

    fn write_gradient(&mut self, row: usize, slot: usize, values: &[f32]) {
        let scale = self.scales.after.as_ref().map_or(1.0, |after| after[slot]);
        if let Some(table) = self.gradient.table_mut(&mut self.sent) {
            table.write_row(row, values, scale);
        }
    }

    fn complete(
        &mut self,
        _: &mut StageCx<'_>,
        _: &HopLinks,
        _: Range<usize>,
        _: (usize, gnnflow_dataflow::wire::Header),
    ) -> Completed {
        Completed::Rows
    }

    fn backward(&mut self, cx: &mut StageCx<'_>, links: &HopLinks, nodes: &Range<u32>) -> Result<SentGradient, Error> {
        let table = self.gradient.table(&self.sent).ok_or_else(no_gradient)?;
        let senders = links.leaving.rows().between(nodes);
        let mut sent = vec![0.0; nodes.len() * links.width];
        cx.compute.timed_backward(|| gather(&links.leaving, senders, table, &self.reversed, links.first, &mut sent));
        Ok(SentGradient { sent: Some(matrix(sent, links.width)), terms: None })
    }

    fn table<'a>(&'a self, links: &'a HopLinks, channel: Channel) -> Option<(&'a Links, &'a dyn WireRows)> {
        match (channel, &self.evaluation) {
            (Channel::EvaluationActivations, Some(all)) => Some((&all.links.links, all.sent(&self.sent))),
            (Channel::Gradients, _) => Some((&links.leaving, self.gradient.table(&self.sent)?)),
            _ => Some((&links.arriving, &self.sent)),
        }
    }

    fn receive(&mut self, links: &HopLinks, channel: Channel, block: &WireBlock) {
        let header = block.header();
        match (channel, &mut self.evaluation) {
            (Channel::EvaluationActivations, Some(evaluation)) => evaluation.receive(block),
            (Channel::Gradients, _) => {
                let table =
                    self.gradient.table_mut(&mut self.sent).expect("gradients are sent only where they are computed");
                table.put(links.gradient_rows(header), block);
            }
            _ => self.sent.put(links.activation_rows(header), block),
        }
    }
}
