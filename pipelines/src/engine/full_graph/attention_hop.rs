//! A hop with attention (GAT, GATv2).
//!
//! A sent row is followed by the node's source scores, unless these follow from the row (GATv2). A gradient row is followed by the receiver's
//! *state*, from which a sender recomputes the weights of its out-edges. No value is stored per edge.

use std::ops::Range;

use gnnflow_dataflow::ghost::Links;
use gnnflow_dataflow::storage::{Place, Table};
use gnnflow_dataflow::wire::{Header, WireBlock};
use gnnflow_kernels::aggregate::dynamic_attention::SOFTMAX_STATE;
use gnnflow_nn::layers::Aggregation;
use gnnflow_nn::model::{Hop, NodeOutputs};
use gnnflow_nn::tensors::read;

use super::evaluation_hop::{EvaluationHop, EvaluationLinks};
use super::hop::{Completed, GhostHop, HopLinks, no_gradient};
use super::mirrors::Mirrors;
use crate::engine::aggregation::attention::{AttentionState, OutEdges};
use crate::engine::aggregation::row_table::WireRows;
use crate::engine::aggregation::rows::put_columns;
use crate::engine::stages::exchange::{SentGradient, StageCx};
use crate::engine::stages::message::Channel;
use crate::error::Error;
use gnnflow_nn::node_task::matrix;

/// The tables of a hop with attention.
pub(crate) struct AttentionHop {
    /// Columns of a node's scores that are sent after its row.
    sent_terms: usize,
    /// Rows that own nodes and ghosts send, `[_, width + sent_terms]`.
    sent: Table,
    state: AttentionState,
    /// Gradients of aggregated rows, followed by the receivers' states.
    gradient: Option<Table>,
    /// With overlapping epochs.
    mirrors: Option<Mirrors>,
    evaluation: Option<EvaluationHop<Table, AttentionState>>,
}

impl AttentionHop {
    /// Reserves the tables, with gradients if the hop needs them. With overlapping epochs, `mirrors` is the place of arrays of edges.
    pub(super) fn new(
        hop: &Hop,
        links: &HopLinks,
        has_gradient: bool,
        mirrors: Option<&Place>,
        evaluation: Option<EvaluationLinks>,
        place: &Place,
    ) -> std::io::Result<Self> {
        let (slope, dropout) = match hop.aggregation {
            Aggregation::Attention { slope, dropout, .. } => (slope, dropout),
            _ => (0.0, 0.0),
        };
        let HopLinks { arriving, leaving, width, .. } = links;
        let stride = width + hop.sent_terms();
        let zeros = |rows: usize| Table::zeros(rows, stride, place);
        let evaluation = match evaluation {
            Some(all) => {
                // Evaluation drops no weights.
                let state = AttentionState::new(hop, [slope, 0.0], all.links.rows().len(), [&all.links; 2], place)?;
                Some(EvaluationHop::new(all, state, zeros)?)
            }
            None => None,
        };
        let mirrors = match mirrors {
            Some(edges_at) => {
                let places = [place, edges_at];
                Some(Mirrors::new([*width, hop.terms()], stride, arriving, &links.activation_ghosts, places)?)
            }
            None => None,
        };
        // With mirrors, own gradient rows are read here only: their ghosts are not needed.
        let rows = if mirrors.is_some() { leaving.table().len() } else { leaving.table_rows() };
        let columns = width + hop.terms() + SOFTMAX_STATE * hop.heads();
        Ok(Self {
            sent_terms: hop.sent_terms(),
            sent: zeros(arriving.table_rows())?,
            state: AttentionState::new(hop, [slope, dropout], arriving.rows().len(), [arriving, leaving], place)?,
            gradient: has_gradient.then(|| Table::zeros(rows, columns, place)).transpose()?,
            mirrors,
            evaluation,
        })
    }

    /// Sets the attention vectors of the parameter version of the token's interval. With mirrors, the first interval of a stage has set them for the
    /// whole epoch.
    fn update_vectors(&mut self, cx: &StageCx<'_>, hop: usize) {
        if self.mirrors.is_none() {
            self.set_vectors(cx, hop);
        }
    }

    fn set_vectors(&mut self, cx: &StageCx<'_>, hop: usize) {
        if let Some(vectors) = cx.vectors(hop) {
            self.state.set_vectors(vectors);
        }
    }
}

impl GhostHop for AttentionHop {
    fn forward(&mut self, cx: &mut StageCx<'_>, links: &HopLinks, rows: Range<usize>, out: &mut [f32]) {
        let begins = self.mirrors.as_mut().is_none_or(|mirrors| mirrors.begin_stage(cx.token.time, &mut self.sent));
        if begins {
            self.set_vectors(cx, links.index);
        }
        let drop = cx.dropout(links.index);
        cx.compute.timed_forward(|| self.state.forward(&links.arriving, rows, &self.sent, drop, out));
    }

    fn evaluation(&self) -> Option<&EvaluationLinks> {
        self.evaluation.as_ref().map(|evaluation| &evaluation.links)
    }

    fn forward_all(&mut self, cx: &mut StageCx<'_>, links: &HopLinks, slots: &Range<u32>) -> Option<Vec<f32>> {
        let Self { sent, evaluation, .. } = self;
        let (table, all, state) = evaluation.as_mut()?.parts(sent);
        if let Some(vectors) = cx.latest_vectors(links.index) {
            state.set_vectors(vectors);
        }
        let rows = all.rows().between(slots);
        let mut out = vec![0.0; rows.len() * links.width];
        let drop = cx.dropout(links.index);
        cx.compute.timed_forward(|| state.forward(all, rows, table, drop, &mut out));
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
        let (Some(found), Some([left, right])) = (&outputs.sent, &outputs.terms) else { return Ok(()) };
        let Self { sent, state, evaluation, sent_terms, .. } = self;
        let (table, to, state) = match evaluation.as_mut().filter(|_| for_all) {
            Some(evaluation) => evaluation.parts(sent),
            None => (sent, &*links.arriving, state),
        };
        let (width, stride, sent_terms) = (links.width, table.width(), *sent_terms);
        let rows = table.some_mut(to.table().between(nodes));
        read(found, |found| put_columns(rows, stride, 0, found, width))?;
        // Scores as wide as the row are recomputed from it.
        if sent_terms > 0 {
            read(left, |left| put_columns(rows, stride, width, left, sent_terms))?;
        }
        let (terms, stride) = (state.terms, state.states.width());
        Ok(read(right, |right| {
            // Only receivers have a state.
            for row in to.rows().between(nodes) {
                let from = (to.rows().node(row) - nodes.start) as usize * terms;
                put_columns(state.states.some_mut(row..row + 1), stride, 0, &right[from..from + terms], terms);
            }
        })?)
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
        cx: &mut StageCx<'_>,
        links: &HopLinks,
        receivers: Range<usize>,
        (intervals, header): (usize, Header),
    ) -> Completed {
        self.update_vectors(cx, links.index);
        let drop = cx.dropout(links.index);
        let Self { sent, state, gradient: Some(table), mirrors, .. } = self else { return Completed::Rows };
        let (width, stride) = (links.width, table.width());
        // Receivers have equal numbers among rows of links and rows of gradients.
        let gradient = table.columns(receivers.clone(), 0..width);
        let arriving = &*links.arriving;
        cx.compute.timed_backward(|| state.backward_right(arriving, receivers.clone(), sent, drop, &gradient));
        put_columns(table.some_mut(receivers.clone()), stride, width, state.states.some(receivers), stride - width);
        let Some(mirrors) = mirrors else { return Completed::Rows };
        let mut complete = false;
        cx.compute.timed_backward(|| complete = mirrors.complete(intervals, state, arriving, [sent, table], drop));
        Completed::Mirrors(if complete { mirrors.outgoing(header) } else { Vec::new() })
    }

    fn backward(&mut self, cx: &mut StageCx<'_>, links: &HopLinks, nodes: &Range<u32>) -> Result<SentGradient, Error> {
        self.update_vectors(cx, links.index);
        let drop = cx.dropout(links.index);
        let Self { sent, state, gradient, mirrors, .. } = self;
        let gradient = gradient.as_ref().ok_or_else(no_gradient)?;
        let HopLinks { arriving, leaving, width, .. } = links;
        let rows = arriving.table().between(nodes);
        let own = sent.some(rows.clone());
        let mut made = Default::default();
        cx.compute.timed_backward(|| {
            made = match mirrors {
                None => {
                    let edges = OutEdges::of(leaving, leaving.rows().between(nodes));
                    state.backward_left(edges, own, gradient, drop)
                }
                Some(mirrors) => {
                    let edges = mirrors.out_edges(rows.clone(), nodes.clone());
                    let [mut dx, mut d_left] = state.backward_left(edges, own, gradient, drop);
                    mirrors.add_received(arriving, rows, &mut dx, &mut d_left);
                    [dx, d_left]
                }
            }
        });
        let [dx, d_left] = made;
        // The destination scores of a node without in-edges are in no weight.
        let (columns, mut d_right) = (state.terms, vec![0.0; nodes.len() * state.terms]);
        for row in arriving.rows().between(nodes) {
            let to = (arriving.rows().node(row) - nodes.start) as usize * columns;
            d_right[to..to + columns].copy_from_slice(state.d_right.some(row..row + 1));
        }
        let terms = [matrix(d_left, columns), matrix(d_right, columns)];
        Ok(SentGradient { sent: Some(matrix(dx, *width)), terms: Some(terms) })
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
        match (channel, &mut self.mirrors, &mut self.evaluation) {
            (Channel::EvaluationActivations, _, Some(evaluation)) => evaluation.receive(block),
            (Channel::MirrorGradients, Some(mirrors), _) => mirrors.receive(header, block),
            (Channel::Activations, Some(mirrors), _) => mirrors.put(links.activation_rows(header), block),
            (Channel::Gradients, _, _) => {
                let table = self.gradient.as_mut().expect("gradients are sent only where they are computed");
                table.put(links.gradient_rows(header), block);
            }
            _ => self.sent.put(links.activation_rows(header), block),
        }
    }

    fn mirror_message(&self, note: Header) -> WireBlock {
        self.mirrors.as_ref().expect("only hops with mirrors have such notes").message(note)
    }
}
