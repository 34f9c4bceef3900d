//! Attention over slices of rows (NeutronTP, section 4.1: coefficients from whole rows, where these are; then shared).
//!
//! The terms of a node's attention come from its whole row, at its owner, and travel with the slices: two numbers for each head
//! that the slice has columns of. So every worker finds by itself what an edge weighs, and nothing is held, or sent, for an edge;
//! the paper shares a number for each edge. On the way back, what an edge's weight should have been is a product over all
//! columns of a head, and everything that follows from it is linear in it: each piece of a head's columns gives its part of the
//! gradients of the terms, and the owner adds the parts up.

use std::ops::Range;

use gnnflow_data::rng::{Key, Purpose};
use gnnflow_operators::kernel::elementwise::Dropout;
use gnnflow_operators::kernel::propagate::Sources;
use gnnflow_operators::kernel::propagate::attention::{Attention, EdgeDropout, STATE};
use gnnflow_operators::kernel::propagate::attention_backward::AttentionBackward;
use gnnflow_operators::propagate::{Links, Place, Table};

use super::attend::Dropped;
use super::heads::{Heads, Piece};
use super::rows::put_columns;

/// One worker's pieces of a hop that attends. A row of slices has its columns, then the terms of out-edges and of in-edges.
pub(super) struct SliceAttention {
    pub(super) heads: Heads,
    worker: usize,
    slope: f64,
    share: f64,
    /// By piece, `[nodes, STATE · heads]`.
    states: Vec<Table>,
    /// Gradients of the terms of in-edges, `[nodes, entries]`.
    d_right: Table,
    /// All nodes, where weights are dropped.
    nodes: Vec<u32>,
}

impl SliceAttention {
    /// Room for `nodes` nodes.
    pub(super) fn new(
        heads: Heads,
        worker: usize,
        [slope, share]: [f64; 2],
        nodes: usize,
        place: &Place,
    ) -> std::io::Result<Self> {
        let state = |piece: &Piece| Table::zeros(nodes, STATE * piece.heads.len(), place);
        Ok(Self {
            states: heads.pieces(worker).iter().map(state).collect::<Result<_, _>>()?,
            d_right: Table::zeros(nodes, heads.entries(worker).len(), place)?,
            nodes: if share > 0.0 { (0..nodes as u32).collect() } else { Vec::new() },
            heads,
            worker,
            slope,
            share,
        })
    }

    /// The ranges of a whole row of `width` columns, which the terms follow, that make a row of a worker's slices.
    pub(super) fn ranges(heads: &Heads, worker: usize, width: usize) -> [Range<usize>; 3] {
        let [columns, touched] = heads.of(worker);
        let behind = |first: usize| first + touched.start..first + touched.end;
        [columns, behind(width), behind(width + heads.heads())]
    }

    fn dropout<'a>(&'a self, drop: Dropped, rows: Range<usize>, piece: &Piece) -> Option<EdgeDropout<'a>> {
        let words = [u64::MAX, u64::from(drop.epoch), drop.hop as u64];
        let key = words.into_iter().fold(Key::new(drop.seed, Purpose::Dropout), Key::fold);
        let dropout = Dropout::new(self.share, key);
        (self.share > 0.0 && !drop.nothing).then(|| EdgeDropout {
            dropout,
            rows: &self.nodes[rows],
            others: &self.nodes,
            heads: self.heads.heads(),
            first_head: piece.heads.start,
        })
    }

    fn job<'a>(
        &'a self,
        links: &'a Links,
        rows: Range<usize>,
        table: &'a Table,
        piece: &Piece,
        drop: Dropped,
    ) -> Attention<'a, i64, f32> {
        let [columns, touched] = self.heads.of(self.worker);
        let (indptr, indices) = links.edges(rows.clone());
        let from = |first: usize| Sources::new(table.values().get(first..).unwrap_or_default(), table.width());
        Attention {
            indptr,
            indices,
            x: from(piece.columns.start - columns.start),
            left: from(columns.len() + piece.heads.start - touched.start),
            heads: piece.heads.len(),
            width: piece.columns.len() / piece.heads.len(),
            slope: self.slope,
            dropout: self.dropout(drop, rows, piece),
        }
    }

    /// What arrives at the nodes `rows`, `[rows, columns]`, into `out`.
    pub(super) fn forward(&mut self, links: &Links, rows: Range<usize>, table: &Table, drop: Dropped, out: &mut [f32]) {
        let [columns, touched] = self.heads.of(self.worker);
        let pieces = self.heads.pieces(self.worker).to_vec();
        for (index, piece) in pieces.iter().enumerate() {
            let first = columns.len() + touched.len() + piece.heads.start - touched.start;
            let right = table.columns(rows.clone(), first..first + piece.heads.len());
            let stride = STATE * piece.heads.len();
            let mut states = vec![0.0; rows.len() * stride];
            put_columns(&mut states, stride, 0, &right, piece.heads.len());
            let mut made = vec![0.0; rows.len() * piece.columns.len()];
            self.job(links, rows.clone(), table, piece, drop).forward(&mut states, &mut made);
            self.states[index].some_mut(rows.clone()).copy_from_slice(&states);
            put_columns(out, columns.len(), piece.columns.start - columns.start, &made, piece.columns.len());
        }
    }

    /// From the gradients of what has arrived at the nodes `rows`, what is missing of their states.
    pub(super) fn complete(&mut self, links: &Links, rows: Range<usize>, table: &Table, back: &Table, drop: Dropped) {
        let [columns, _] = self.heads.of(self.worker);
        let entries = self.heads.entries(self.worker);
        let pieces = self.heads.pieces(self.worker).to_vec();
        for (index, piece) in pieces.iter().enumerate() {
            let first = piece.columns.start - columns.start;
            let gradient = back.columns(rows.clone(), first..first + piece.columns.len());
            let mut states = self.states[index].some(rows.clone()).to_vec();
            let mut d_right = vec![0.0; rows.len() * piece.heads.len()];
            self.job(links, rows.clone(), table, piece, drop).backward_right(&gradient, &mut states, &mut d_right);
            self.states[index].some_mut(rows.clone()).copy_from_slice(&states);
            let (stride, first) = (self.d_right.width(), piece.first - entries.start);
            put_columns(self.d_right.some_mut(rows.clone()), stride, first, &d_right, piece.heads.len());
        }
    }

    /// The gradients of the nodes `rows`: of their columns, and, piece by piece, of the terms of out-edges and of in-edges.
    pub(super) fn backward(
        &self,
        links: &Links,
        rows: Range<usize>,
        table: &Table,
        back: &Table,
        drop: Dropped,
    ) -> Vec<f32> {
        let [columns, touched] = self.heads.of(self.worker);
        let entries = self.heads.entries(self.worker);
        let stride = columns.len() + 2 * entries.len();
        let mut out = vec![0.0; rows.len() * stride];
        let (indptr, indices) = links.edges(rows.clone());
        for (piece, states) in self.heads.pieces(self.worker).iter().zip(&self.states) {
            let (first, count) = (piece.columns.start - columns.start, piece.heads.len());
            let term = columns.len() + piece.heads.start - touched.start;
            let x = table.columns(rows.clone(), first..first + piece.columns.len());
            let left = table.columns(rows.clone(), term..term + count);
            let (mut dx, mut d_left) = (vec![0.0; x.len()], vec![0.0; left.len()]);
            AttentionBackward {
                indptr,
                indices,
                gradient: Sources::new(back.values().get(first..).unwrap_or_default(), back.width()),
                states: Sources::new(states.values(), states.width()),
                x: &x,
                left: &left,
                heads: count,
                width: piece.columns.len() / count,
                slope: self.slope,
                dropout: self.dropout(drop, rows.clone(), piece),
            }
            .run(&mut dx, &mut d_left);
            put_columns(&mut out, stride, first, &dx, piece.columns.len());
            put_columns(&mut out, stride, columns.len() + piece.first - entries.start, &d_left, count);
        }
        if !entries.is_empty() {
            put_columns(&mut out, stride, columns.len() + entries.len(), self.d_right.some(rows), entries.len());
        }
        out
    }
}
