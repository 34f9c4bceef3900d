//! Ghosts as mirrors, where epochs overlap and rows are weighed by attention: who receives computes what senders are told.
//!
//! Elsewhere an edge's weight is computed again by whoever has its source, from the row that its destination has read. Where the source may
//! have moved on since, nobody has ever used that weight. So a worker reads the same rows of ghosts for all of an epoch: what comes
//! meanwhile waits in [`Mirrors::latest`]. And it is that worker which computes, for every ghost, what the own destinations
//! have to say of its gradient; the ghost's owner adds up what each worker has told last, as a master does with its mirrors' sums in a
//! vertex-cut (Gonzalez et al. 2012, PowerGraph). Gradients are then those of the attention that was paid, of rows that may be some
//! epochs old: Dorylus's bounded asynchrony (section 5.2) for edges, too.
//!
//! A worker's own rows are of one epoch: its intervals go through stages one after another.

use std::ops::Range;

use gnnflow_dataflow::ghost::Links;
use gnnflow_dataflow::ghost::scatter::{row_block, row_headers};
use gnnflow_dataflow::storage::{Place, Table};
use gnnflow_dataflow::wire::{Header, WireBlock};

use crate::engine::aggregation::attention::{AttentionState, DropoutKey, OutEdges};
use crate::engine::aggregation::transpose::HeldEdges;
use crate::engine::aggregation::transpose::turned_round;
use crate::engine::stages::message::Outgoing;

/// Ghosts whose gradients are computed at once.
const TOGETHER: usize = 1 << 13;

/// What a hop that attends has of other workers' rows, and they of its own.
pub(crate) struct Mirrors {
    /// Columns of what is sent, and of each of a node's terms.
    widths: [usize; 2],
    /// Rows of the table of activations before the ghosts.
    own: usize,
    /// Where each worker's ghosts begin among them, and where they end.
    starts: Vec<usize>,
    /// Ghosts' rows as they have come last.
    latest: Table,
    /// The stage whose ghosts are read now.
    taken_at: Option<u64>,
    /// By row of the table of activations, own ones and ghosts, its destinations here.
    destinations: HeldEdges,
    /// What ghosts' owners are told, `[ghosts, width + terms]`.
    gradients: Table,
    /// Intervals that have completed their states for that.
    completed: usize,
    /// What was told of own rows: by worker, those that it has as ghosts, `[_, width + terms]`.
    received: Vec<Table>,
}

impl Mirrors {
    /// Of a hop whose rows have so many columns (`widths`: of what is sent, and of each of a node's terms), `stride` with those terms that
    /// are sent; `starts` says where each worker's ghosts begin in the table of activations. Tables lie at `place`, numbers of edges at
    /// `edges_at`.
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
            taken_at: None,
            destinations: turned_round(arriving, edges_at)?,
            gradients: Table::zeros(rows - own, both, place)?,
            completed: 0,
            received: (0..starts.len()).map(received).collect::<Result<_, _>>()?,
        })
    }

    /// Where ghosts wait, by row of the table of activations.
    pub(crate) fn put(&mut self, rows: Range<usize>, block: &WireBlock) {
        self.put_values(rows, block.rows_f32().expect("rows of attention are numbers"));
    }

    fn put_values(&mut self, rows: Range<usize>, values: &[f32]) {
        self.latest.some_mut(rows.start - self.own..rows.end - self.own).copy_from_slice(values);
    }

    /// Takes ghosts as they are now, for all of an epoch, when stage `tick` begins; whether it does.
    pub(crate) fn take(&mut self, tick: u64, sent: &mut Table) -> bool {
        let begins = self.taken_at.replace(tick) != Some(tick);
        if begins {
            sent.some_mut(self.own..self.own + self.latest.rows()).copy_from_slice(self.latest.values());
        }
        begins
    }

    /// The destinations here of some rows of the table of activations, own ones or ghosts, whose ids are these.
    pub(crate) fn out_edges(&self, rows: Range<usize>, ids: impl Iterator<Item = u32>) -> OutEdges<'_> {
        let HeldEdges { indptr, indices } = &self.destinations;
        OutEdges { indptr: &indptr[rows.start..=rows.end], indices, ids: ids.collect() }
    }

    /// Another of so many intervals has completed its states; behind the last one, what ghosts' owners are told is computed, from `sent` and
    /// `back`. Whether it is there.
    pub(crate) fn complete(
        &mut self,
        intervals: usize,
        attention: &AttentionState,
        arriving: &Links,
        [sent, back]: [&Table; 2],
        drop: DropoutKey,
    ) -> bool {
        self.completed = (self.completed + 1) % intervals;
        if self.completed > 0 {
            return false;
        }
        let (ghosts, width) = (arriving.ghosts(), self.widths[0]);
        for first in (0..ghosts.len()).step_by(TOGETHER) {
            let end = (first + TOGETHER).min(ghosts.len());
            let rows = self.own + first..self.own + end;
            let edges = self.out_edges(rows.clone(), ghosts[first..end].iter().copied());
            let [dx, d_left] = attention.backward_left(edges, sent.some(rows), back, drop);
            let places = self.gradients.some_mut(first..end).chunks_exact_mut(width + self.widths[1]);
            for ((out, dx), d_left) in places.zip(dx.chunks_exact(width)).zip(d_left.chunks_exact(self.widths[1])) {
                out[..width].copy_from_slice(dx);
                out[width..].copy_from_slice(d_left);
            }
        }
        true
    }

    /// What ghosts' owners are told, as notes of messages; `header` has all but who, and which rows.
    pub(crate) fn outgoing(&self, header: Header) -> Vec<Outgoing> {
        let to_worker = |(worker, bounds): (usize, &[usize])| {
            let header = Header { to: worker as u32, seq: 0, ..header };
            row_headers(header, bounds[1] - bounds[0], 4 * self.gradients.width())
        };
        self.starts.windows(2).enumerate().flat_map(to_worker).map(Outgoing::Note).collect()
    }

    /// The message of a header of [`Mirrors::outgoing`].
    pub(crate) fn message(&self, header: Header) -> WireBlock {
        let first = self.starts[header.to as usize] + header.seq as usize;
        let rows = self.gradients.some(first..first + header.aux as usize);
        row_block(header, self.gradients.width(), |values| values.extend_from_slice(rows))
    }

    /// Stores the gradients of own rows that another worker has computed.
    pub(crate) fn receive(&mut self, header: Header, block: &WireBlock) {
        let values = block.rows_f32().expect("gradients of mirrors are numbers");
        let first = header.seq as usize;
        self.received[header.from as usize].some_mut(first..first + header.aux as usize).copy_from_slice(values);
    }

    /// Adds what others have told of some own rows to the gradients of what they send, and of their terms.
    pub(crate) fn add_received(&self, arriving: &Links, rows: Range<usize>, dx: &mut [f32], d_left: &mut [f32]) {
        let [width, terms] = self.widths;
        for (worker, first, wanted) in arriving.wanted(rows.clone()) {
            let told = self.received[worker].some(first..first + wanted.len());
            for (&row, told) in wanted.iter().zip(told.chunks_exact(width + terms)) {
                let row = row as usize - rows.start;
                let add = |sum: &mut [f32], told: &[f32]| sum.iter_mut().zip(told).for_each(|(sum, x)| *sum += x);
                add(&mut dx[row * width..][..width], &told[..width]);
                add(&mut d_left[row * terms..][..terms], &told[width..]);
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
    fn ghosts_stay_as_they_are_until_another_stage_begins() {
        let edges = OwnedInEdges { indptr: vec![0, 2], indices: vec![0, 1], ..Default::default() };
        let parts: [Arc<dyn InEdges>; 1] = [Arc::new(edges)];
        let links = Links::new(Ends::nodes(0..1, 2), &parts, Default::default(), &Place::Memory).unwrap();
        let mut sent = Table::zeros(2, 3, &Place::Memory).unwrap();
        let mut mirrors = Mirrors::new([2, 1], 3, &links, &[1, 1], [&Place::Memory; 2]).unwrap();
        mirrors.put_values(1..2, &[1.0; 3]);
        assert!(mirrors.take(7, &mut sent));
        mirrors.put_values(1..2, &[2.0; 3]);
        assert!(!mirrors.take(7, &mut sent));
        assert_eq!(sent.values(), [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]);
        assert!(mirrors.take(9, &mut sent));
        assert_eq!(sent.some(1..2), [2.0; 3]);
    }
}
