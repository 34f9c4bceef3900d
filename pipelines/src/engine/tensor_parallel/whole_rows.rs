//! Whole rows of own nodes: inputs and outputs of node tasks.

use std::ops::Range;

use gnnflow_dataflow::storage::{Place, Table};
use gnnflow_kernels::matrix::Matrix;
use gnnflow_nn::ModelProfile;
use gnnflow_nn::layers::Aggregation;
use gnnflow_nn::model::NodeOutputs;
use gnnflow_nn::tensors::read;

use super::head_shards::HeadShards;
use super::topology::AllEdges;
use crate::engine::aggregation::rows::{Selection, put_columns};
use crate::engine::stages::exchange::SentGradient;
use crate::engine::stages::program::Program;
use crate::error::Error;
use gnnflow_nn::node_task::matrix;

/// The storage of the gradients of aggregated rows.
enum GradientRows {
    /// The hop needs no gradient.
    None,
    /// The table of sent rows, after these have been split.
    InPlace,
    /// A separate table, by slot.
    Own(Table),
}

/// The whole rows of one hop.
pub(crate) struct WholeRows {
    /// Columns of a sent row, and of an aggregated row of each slot.
    width: usize,
    /// Columns of the source scores that follow a sent row.
    sent_terms: usize,
    slots: usize,
    /// Rows that nodes send, `[own, width + terms]`; empty if the shards follow from those of the hop before.
    sent: Table,
    /// Aggregated rows, `[own, slots · width]`.
    aggregated: Table,
    gradient: GradientRows,
    /// Gradients of sent rows, `[own, width + entries]`.
    sent_gradient: Table,
}

impl WholeRows {
    /// Reserves the tables of hop `index`.
    pub(super) fn new(
        edges: &AllEdges,
        profile: &ModelProfile,
        program: &Program,
        index: usize,
        place: &Place,
    ) -> std::io::Result<Self> {
        let hop = &profile.hops[index];
        let (own, slots) = (edges.own.len(), edges.slots);
        let is_whole = |task: usize| profile.tasks[task].element_wise.is_none();
        let (splits, gathers, goes_back) = (is_whole(index), is_whole(index + 1), program.goes_back(index));
        let (width, terms) = match hop.aggregation {
            Aggregation::Nothing => (0, 0),
            // Destination scores are sent, too: every worker aggregates columns of all nodes.
            Aggregation::Attention { .. } => (hop.width, hop.sent_terms() + hop.terms()),
            _ => (hop.width, 0),
        };
        // The backward pass of attention reads the rows again.
        let in_place = slots == 1 && !hop.attends() && splits;
        let entries = match hop.attends() && splits {
            true => 2 * HeadShards::of_hop(hop, edges.parts.len(), edges.starts.len() - 1).count(),
            false => 0,
        };
        let zeros = |rows: usize, width: usize| Table::zeros(rows, width, place);
        Ok(Self {
            width,
            sent_terms: hop.sent_terms(),
            slots,
            sent: zeros(if splits { own } else { 0 }, width + terms)?,
            aggregated: zeros(if gathers { own } else { 0 }, slots * width)?,
            gradient: match (goes_back && gathers, in_place) {
                (false, _) => GradientRows::None,
                (true, true) => GradientRows::InPlace,
                (true, false) => GradientRows::Own(zeros(own * slots, width)?),
            },
            sent_gradient: zeros(if splits && goes_back { own } else { 0 }, width + entries)?,
        })
    }

    /// Returns the table that is split into shards: of activations, or of gradients.
    pub(super) fn table(&self, is_gradient: bool) -> Option<&Table> {
        match &self.gradient {
            _ if !is_gradient => Some(&self.sent),
            GradientRows::None => None,
            GradientRows::InPlace => Some(&self.sent),
            GradientRows::Own(table) => Some(table),
        }
    }

    fn gradient_mut(&mut self) -> Option<&mut Table> {
        match &mut self.gradient {
            GradientRows::None => None,
            GradientRows::InPlace => Some(&mut self.sent),
            GradientRows::Own(table) => Some(table),
        }
    }

    /// Tells whether activations are split into shards.
    pub(super) fn sends(&self) -> bool {
        self.sent.width() > 0 && self.sent.rows() > 0
    }

    /// Tells whether gradients are split into shards.
    pub(super) fn sends_gradients(&self) -> bool {
        self.table(true).is_some_and(|table| table.width() > 0 && table.rows() > 0)
    }

    /// Returns the aggregated rows of some own nodes; `None` if the hop has no edges.
    pub(super) fn aggregated(&self, rows: &Selection<'_>) -> Option<Matrix> {
        (self.aggregated.width() > 0).then(|| rows.copy(&self.aggregated, |row| row))
    }

    /// Stores the rows that own nodes send. The source and destination scores travel with the shards.
    pub(super) fn write_sent(&mut self, rows: &Range<usize>, outputs: &NodeOutputs) -> Result<(), Error> {
        let Some(found) = outputs.sent.as_ref().filter(|_| self.width > 0) else { return Ok(()) };
        let (width, stride, sent_terms) = (self.width, self.sent.width(), self.sent_terms);
        let out = self.sent.some_mut(rows.clone());
        read(found, |found| put_columns(out, stride, 0, found, width))?;
        let Some([left, right]) = &outputs.terms else { return Ok(()) };
        if sent_terms > 0 {
            read(left, |left| put_columns(out, stride, width, left, sent_terms))?;
        }
        let first = width + sent_terms;
        Ok(read(right, |right| put_columns(out, stride, first, right, stride - first))?)
    }

    /// Sets the gradients of some own rows to zero.
    pub(super) fn clear_gradient(&mut self, rows: &Range<usize>) {
        let slots = self.slots;
        if let Some(table) = self.gradient_mut() {
            table.some_mut(rows.start * slots..rows.end * slots).fill(0.0);
        }
    }

    /// Stores the gradients of the aggregated rows of some own nodes.
    pub(super) fn write_gradient(&mut self, rows: &Selection<'_>, values: &[f32]) {
        let (slots, width) = (self.slots, self.width);
        let Some(table) = self.gradient_mut().filter(|_| width > 0) else { return };
        let places = rows.iter().flat_map(|row| row * slots..(row + 1) * slots);
        for (place, values) in places.zip(values.chunks_exact(width)) {
            table.some_mut(place..place + 1).copy_from_slice(values);
        }
    }

    /// Returns the gradients of the rows that some own nodes sent, and of their attention scores, summed over head parts.
    pub(super) fn sent_gradient(&self, rows: &Range<usize>, heads: Option<&HeadShards>) -> SentGradient {
        let width = self.width;
        if width == 0 {
            return SentGradient::default();
        }
        let sent = matrix(self.sent_gradient.columns(rows.clone(), 0..width), width);
        let terms = heads.map(|heads| {
            let count = heads.count();
            [width, width + count].map(|first| {
                let parts = self.sent_gradient.columns(rows.clone(), first..first + count);
                matrix(heads.sums(&parts), heads.terms())
            })
        });
        SentGradient { sent: Some(sent), terms }
    }

    /// Stores column shards of aggregated rows, or of the gradients of sent rows. With attention, `heads` is the range of the gradients of scores
    /// that follow, and the number of all.
    pub(super) fn gather(
        &mut self,
        is_gradient: bool,
        rows: Range<usize>,
        columns: Range<usize>,
        heads: Option<(Range<usize>, usize)>,
        values: &[f32],
    ) {
        if !is_gradient {
            let stride = self.aggregated.width() / self.slots;
            return put_columns(self.aggregated.some_mut(rows), stride, columns.start, values, columns.len());
        }
        let stride = self.sent_gradient.width();
        let out = self.sent_gradient.some_mut(rows);
        let Some((entries, count)) = heads else {
            return put_columns(out, stride, columns.start, values, columns.len());
        };
        let (width, each) = (stride - 2 * count, entries.len());
        for (out, row) in out.chunks_exact_mut(stride).zip(values.chunks_exact(columns.len() + 2 * each)) {
            out[columns.clone()].copy_from_slice(&row[..columns.len()]);
            for (first, terms) in [width, width + count].into_iter().zip(row[columns.len()..].chunks_exact(each)) {
                out[first + entries.start..first + entries.end].copy_from_slice(terms);
            }
        }
    }
}
