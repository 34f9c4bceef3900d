//! Attention with bounded staleness: each worker computes the gradients of its ghost rows and sends them to the owners.
//!
//! Without overlapping epochs, the owner of an edge's source recomputes the edge's weight from the row that the destination has read. With
//! overlapping epochs, the source may have changed, and that weight was never used. So a worker reads constant rows of ghosts during an
//! epoch; newer rows wait in [`Mirrors::latest`]. The worker computes the gradient of every ghost from its own destinations. The owner adds the
//! latest gradients of all workers, as a master adds its mirrors' sums in a vertex-cut (Gonzalez et al. 2012, PowerGraph). Gradients then
//! belong to the weights of the forward pass, from rows that may be some epochs old: Dorylus's bounded asynchrony (section 5.2) for edges.
//!
//! The own rows of a worker are of one epoch: its intervals go through the stages in lockstep.

use std::ops::Range;

use gnnflow_dataflow::ghost::Links;
use gnnflow_dataflow::ghost::scatter::{row_block, row_headers};
use gnnflow_dataflow::storage::{Place, Table};
use gnnflow_dataflow::wire::{Header, WireBlock};

use crate::engine::aggregation::attention::{AttentionState, DropoutKey, OutEdges};
use crate::engine::aggregation::transpose::HeldEdges;
use crate::engine::aggregation::transpose::reversed;
use crate::engine::stages::message::Outgoing;

/// Number of ghosts whose gradients are computed in one call.
const BLOCK: usize = 1 << 13;

/// The ghosts of a hop with attention, and the gradients that other workers have computed for own rows.
pub(crate) struct Mirrors {
    /// Columns of a sent row, and of each of a node's two scores.
    widths: [usize; 2],
    /// Own rows, which precede the ghosts in the table of activations.
    own: usize,
    /// By worker, the first of its ghosts; and the number of ghosts.
    starts: Vec<usize>,
    /// The latest rows of ghosts received.
    latest: Table,
    /// The time of the stage whose ghosts are in the table of activations.
    stage: Option<u64>,
    /// By row of the table of activations, own rows and ghosts, the destinations among own nodes.
    destinations: HeldEdges,
    /// Gradients of ghosts, `[ghosts, width + terms]`.
    gradients: Table,
    /// Number of intervals that have completed their states.
    completed: usize,
    /// By worker, the gradients that it has computed for own rows, `[_, width + terms]`.
    received: Vec<Table>,
}

impl Mirrors {
    /// Reserves the tables at `place` and arrays of edges at `edges_at`. `widths` are the columns of a sent row and of each of a node's scores,
    /// `stride` the columns of a row with the scores that are sent. `starts` are the first rows of each worker's ghosts among the activations.
    pub(crate) fn new(
        widths: [usize; 2],
        stride: usize,
        arriving: &Links,
        starts: &[usize],
        [place, edges_at]: [&Place; 2],
    ) -> std::io::Result<Self> {
        let (own, rows) = (arriving.table().len(), arriving.table_rows());
        let both = widths[0] + widths[1];
        let received = |worker: usize| Table::zeros(arriving.wanted_by(worker).len(), both, place);
        Ok(Self {
            widths,
            own,
            starts: starts.iter().map(|start| start - own).chain([rows - own]).collect(),
            latest: Table::zeros(rows - own, stride, place)?,
            stage: None,
            destinations: reversed(arriving, edges_at)?,
            gradients: Table::zeros(rows - own, both, place)?,
            completed: 0,
            received: (0..starts.len()).map(received).collect::<Result<_, _>>()?,
        })
    }

    /// Stores received rows of ghosts, given by their rows in the table of activations, for a later stage.
    pub(crate) fn put(&mut self, rows: Range<usize>, block: &WireBlock) {
        self.put_values(rows, block.rows_f32().expect("rows of attention are numbers"));
    }

    fn put_values(&mut self, rows: Range<usize>, values: &[f32]) {
        self.latest.some_mut(rows.start - self.own..rows.end - self.own).copy_from_slice(values);
    }

    /// Copies the latest ghosts to `sent` when the stage of time `time` begins. Returns whether it begins with this call.
    pub(crate) fn begin_stage(&mut self, time: u64, sent: &mut Table) -> bool {
        let begins = self.stage.replace(time) != Some(time);
        if begins {
            sent.some_mut(self.own..self.own + self.latest.rows()).copy_from_slice(self.latest.values());
        }
        begins
    }

    /// Returns the edges from some rows of the table of activations, whose node ids are `ids`, to own nodes.
    pub(crate) fn out_edges(&self, rows: Range<usize>, ids: impl Iterator<Item = u32>) -> OutEdges<'_> {
        let HeldEdges { indptr, indices } = &self.destinations;
        OutEdges { indptr: &indptr[rows.start..=rows.end], indices, ids: ids.collect() }
    }

    /// Counts an interval that has completed its states. After the last of `intervals`, computes the gradients of all ghosts from `sent` and
    /// `gradient`, and returns true.
    pub(crate) fn complete(
        &mut self,
        intervals: usize,
        attention: &AttentionState,
        arriving: &Links,
        [sent, gradient]: [&Table; 2],
        drop: DropoutKey,
    ) -> bool {
        self.completed = (self.completed + 1) % intervals;
        if self.completed > 0 {
            return false;
        }
        let (ghosts, width) = (arriving.ghosts(), self.widths[0]);
        for first in (0..ghosts.len()).step_by(BLOCK) {
            let end = (first + BLOCK).min(ghosts.len());
            let rows = self.own + first..self.own + end;
            let edges = self.out_edges(rows.clone(), ghosts[first..end].iter().copied());
            let [dx, d_left] = attention.backward_left(edges, sent.some(rows), gradient, drop);
            let places = self.gradients.some_mut(first..end).chunks_exact_mut(width + self.widths[1]);
            for ((out, dx), d_left) in places.zip(dx.chunks_exact(width)).zip(d_left.chunks_exact(self.widths[1])) {
                out[..width].copy_from_slice(dx);
                out[width..].copy_from_slice(d_left);
            }
        }
        true
    }

    /// Returns notes of the ghosts' gradients for their owners. `header` lacks the receiver and the rows.
    pub(crate) fn outgoing(&self, header: Header) -> Vec<Outgoing> {
        let to_worker = |(worker, bounds): (usize, &[usize])| {
            let header = Header { to: worker as u32, seq: 0, ..header };
            row_headers(header, bounds[1] - bounds[0], 4 * self.gradients.width())
        };
        self.starts.windows(2).enumerate().flat_map(to_worker).map(Outgoing::Note).collect()
    }

    /// Returns the message of a note of [`Mirrors::outgoing`].
    pub(crate) fn message(&self, header: Header) -> WireBlock {
        let first = self.starts[header.to as usize] + header.seq as usize;
        let rows = self.gradients.some(first..first + header.aux as usize);
        row_block(header, self.gradients.width(), |values| values.extend_from_slice(rows))
    }

    /// Stores gradients of own rows from another worker.
    pub(crate) fn receive(&mut self, header: Header, block: &WireBlock) {
        let values = block.rows_f32().expect("gradients of mirrors are numbers");
        let first = header.seq as usize;
        self.received[header.from as usize].some_mut(first..first + header.aux as usize).copy_from_slice(values);
    }

    /// Adds the gradients that other workers have computed for some own rows: to `dx` those of sent rows, to `d_left` those of scores.
    pub(crate) fn add_received(&self, arriving: &Links, rows: Range<usize>, dx: &mut [f32], d_left: &mut [f32]) {
        let [width, terms] = self.widths;
        for (worker, first, wanted) in arriving.wanted(rows.clone()) {
            let received = self.received[worker].some(first..first + wanted.len());
            for (&row, values) in wanted.iter().zip(received.chunks_exact(width + terms)) {
                let row = row as usize - rows.start;
                let add = |sum: &mut [f32], values: &[f32]| sum.iter_mut().zip(values).for_each(|(sum, x)| *sum += x);
                add(&mut dx[row * width..][..width], &values[..width]);
                add(&mut d_left[row * terms..][..terms], &values[width..]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use gnnflow_dataflow::ghost::Ends;
    use gnnflow_dataflow::graph::local_graph::{InEdges, OwnedInEdges};

    use super::*;

    #[test]
    fn ghosts_are_constant_within_a_stage() {
        let edges = OwnedInEdges { indptr: vec![0, 2], indices: vec![0, 1], ..Default::default() };
        let parts: [Arc<dyn InEdges>; 1] = [Arc::new(edges)];
        let links = Links::new(Ends::nodes(0..1, 2), &parts, Default::default(), &Place::Memory).unwrap();
        let mut sent = Table::zeros(2, 3, &Place::Memory).unwrap();
        let mut mirrors = Mirrors::new([2, 1], 3, &links, &[1, 1], [&Place::Memory; 2]).unwrap();
        mirrors.put_values(1..2, &[1.0; 3]);
        assert!(mirrors.begin_stage(7, &mut sent));
        mirrors.put_values(1..2, &[2.0; 3]);
        assert!(!mirrors.begin_stage(7, &mut sent));
        assert_eq!(sent.values(), [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]);
        assert!(mirrors.begin_stage(9, &mut sent));
        assert_eq!(sent.some(1..2), [2.0; 3]);
    }
}
