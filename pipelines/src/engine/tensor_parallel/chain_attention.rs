//! Attention over slices of rows (NeutronTP, section 4.1: coefficients from whole rows, where these are; then shared).
//!
//! The terms of a node's attention come from its whole row, at its owner, and travel with the slices: two numbers for each head
//! that the slice has columns of. So every worker finds by itself what an edge weighs, and nothing is held, or sent, for an edge;
//! the paper shares a number for each edge. On the way back, what an edge's weight should have been is a product over all
//! columns of a head, and everything that follows from it is linear in it: each piece of a head's columns gives its part of the
//! gradients of the terms, and the owner adds the parts up. Where terms are as wide as rows (GATv2), those of in-edges travel with the
//! slices, which are whole heads then.
//!
//! Where hops follow one another without whole rows between them (section 4.1, decoupled training), all of them attend by the terms
//! that came with the first one's slices, and what they say of the terms is added up here, from the last hop to the first. Here we leave
//! the paper: its coefficients are numbers of each edge that are held, and it keeps no slices from propagation to propagation; ours are
//! computed again for each chunk, forwards and backwards, and as their gradients ask for what was propagated, each hop's slices are kept.

use std::ops::Range;

use gnnflow_data::rng::{Key, Purpose};
use gnnflow_dataflow::ghost::Links;
use gnnflow_dataflow::storage::{Place, Table};
use gnnflow_kernels::aggregate::Sources;
use gnnflow_kernels::aggregate::attention::{Attention, EdgeDropout};
use gnnflow_kernels::aggregate::attention_backward::AttentionBackward;
use gnnflow_kernels::aggregate::dynamic_attention::{DynamicAttention, SOFTMAX_STATE};
use gnnflow_kernels::aggregate::dynamic_attention_backward::DynamicAttentionBackward;
use gnnflow_kernels::dense::elementwise::Dropout;

use super::head_shards::{HeadShards, Piece};
use crate::engine::aggregation::attention::DropoutKey;
use crate::engine::aggregation::rows::put_columns;

/// What hops that attend by the same terms read of nodes: what is propagated, and, behind the columns of the first hop's slices, the terms
/// of out-edges and of in-edges.
#[derive(Clone, Copy)]
pub(crate) struct AttendedRows<'a> {
    pub(crate) rows: &'a Table,
    pub(crate) terms: &'a Table,
    /// The vectors that the attention is by, where it is by any.
    pub(crate) vectors: Option<&'a [f32]>,
}

/// One worker's pieces of a hop that attends, and of those that follow it with the same attention.
pub(crate) struct ChainAttention {
    pub(crate) heads: HeadShards,
    worker: usize,
    slope: f64,
    share: f64,
    /// By piece, `[nodes, terms + SOFTMAX_STATE · heads]`.
    states: Vec<Table>,
    /// Gradients of the terms of in-edges, `[nodes, entries]`; and of those of out-edges, where several hops add to them.
    d_right: Table,
    d_left: Option<Table>,
    /// All nodes, where weights are dropped.
    nodes: Vec<u32>,
}

impl ChainAttention {
    /// Room for `nodes` nodes; `again`, where more hops attend by the same terms.
    pub(crate) fn new(
        heads: HeadShards,
        worker: usize,
        [slope, share]: [f64; 2],
        (nodes, again): (usize, bool),
        place: &Place,
    ) -> std::io::Result<Self> {
        let state = |piece: &Piece| Table::zeros(nodes, piece.terms.len() + SOFTMAX_STATE * piece.heads.len(), place);
        Ok(Self {
            states: heads.pieces(worker).iter().map(state).collect::<Result<_, _>>()?,
            d_right: Table::zeros(nodes, heads.entries(worker).len(), place)?,
            d_left: match again {
                true => Some(Table::zeros(nodes, heads.entries(worker).len(), place)?),
                false => None,
            },
            nodes: if share > 0.0 { (0..nodes as u32).collect() } else { Vec::new() },
            heads,
            worker,
            slope,
            share,
        })
    }

    /// The ranges of a whole row of `width` columns, which the terms follow, that make a row of a worker's slices.
    pub(crate) fn ranges(heads: &HeadShards, worker: usize, width: usize) -> Vec<Range<usize>> {
        let [columns, touched] = heads.of(worker);
        let behind = |first: usize| first + touched.start..first + touched.end;
        match heads.by_column() {
            true => vec![columns, behind(width)],
            false => vec![columns, behind(width), behind(width + heads.terms())],
        }
    }

    /// In a row of slices, where the terms of in-edges begin that a piece reads.
    fn right_of(&self, piece: &Piece) -> usize {
        let [columns, touched] = self.heads.of(self.worker);
        let lefts = if self.heads.by_column() { 0 } else { touched.len() };
        columns.len() + lefts + piece.terms.start - touched.start
    }

    fn dropout<'a>(&'a self, drop: DropoutKey, rows: Range<usize>, piece: &Piece) -> Option<EdgeDropout<'a>> {
        let words = [u64::MAX, u64::from(drop.epoch), drop.hop as u64];
        let key = words.into_iter().fold(Key::new(drop.seed, Purpose::Dropout), Key::fold);
        let dropout = Dropout::new(self.share, key);
        (self.share > 0.0 && !drop.nothing).then(|| EdgeDropout {
            dropout,
            rows: &self.nodes[rows],
            neighbors: &self.nodes,
            heads: self.heads.heads(),
            first_head: piece.heads.start,
        })
    }

    fn job<'a>(
        &'a self,
        links: &'a Links,
        rows: Range<usize>,
        of: AttendedRows<'a>,
        piece: &Piece,
        drop: DropoutKey,
    ) -> Attention<'a, i64, f32> {
        let [columns, touched] = self.heads.of(self.worker);
        let (indptr, indices) = links.edges(rows.clone());
        let from = |table: &'a Table, first: usize| {
            Sources::new(table.values().get(first..).unwrap_or_default(), table.width())
        };
        Attention {
            indptr,
            indices,
            x: from(of.rows, piece.columns.start - columns.start),
            left: from(of.terms, columns.len() + piece.terms.start - touched.start),
            heads: piece.heads.len(),
            width: piece.columns.len() / piece.heads.len(),
            slope: self.slope,
            dropout: self.dropout(drop, rows, piece),
        }
    }

    /// The same where the attention is by `vectors`.
    fn dynamic<'a>(
        &'a self,
        links: &'a Links,
        rows: Range<usize>,
        (of, vectors): (AttendedRows<'a>, &'a [f32]),
        piece: &Piece,
        drop: DropoutKey,
    ) -> DynamicAttention<'a, i64, f32> {
        let first = piece.columns.start - self.heads.of(self.worker)[0].start;
        let (indptr, indices) = links.edges(rows.clone());
        DynamicAttention {
            indptr,
            indices,
            x: Sources::new(of.rows.values().get(first..).unwrap_or_default(), of.rows.width()),
            vectors: &vectors[piece.columns.clone()],
            heads: piece.heads.len(),
            width: piece.columns.len() / piece.heads.len(),
            slope: self.slope,
            dropout: self.dropout(drop, rows, piece),
        }
    }

    /// What arrives at the nodes `rows`, `[rows, columns]`, into `out`.
    pub(crate) fn forward(
        &mut self,
        links: &Links,
        rows: Range<usize>,
        of: AttendedRows<'_>,
        drop: DropoutKey,
        out: &mut [f32],
    ) {
        let [columns, _] = self.heads.of(self.worker);
        let pieces = self.heads.pieces(self.worker).to_vec();
        for (index, piece) in pieces.iter().enumerate() {
            let first = self.right_of(piece);
            let right = of.terms.columns(rows.clone(), first..first + piece.terms.len());
            let stride = self.states[index].width();
            let mut states = vec![0.0; rows.len() * stride];
            put_columns(&mut states, stride, 0, &right, piece.terms.len());
            let mut made = vec![0.0; rows.len() * piece.columns.len()];
            match of.vectors {
                Some(vectors) => {
                    self.dynamic(links, rows.clone(), (of, vectors), piece, drop).forward(&mut states, &mut made);
                }
                None => self.job(links, rows.clone(), of, piece, drop).forward(&mut states, &mut made),
            }
            self.states[index].some_mut(rows.clone()).copy_from_slice(&states);
            put_columns(out, columns.len(), piece.columns.start - columns.start, &made, piece.columns.len());
        }
    }

    /// From the gradients of what has arrived at the nodes `rows`, what is missing of their states; `adds`, where a later hop has told of
    /// the terms already.
    pub(crate) fn complete(
        &mut self,
        links: &Links,
        rows: Range<usize>,
        of: AttendedRows<'_>,
        (back, adds): (&Table, bool),
        drop: DropoutKey,
    ) {
        let [columns, _] = self.heads.of(self.worker);
        let entries = self.heads.entries(self.worker);
        let pieces = self.heads.pieces(self.worker).to_vec();
        for (index, piece) in pieces.iter().enumerate() {
            let first = piece.columns.start - columns.start;
            let gradient = back.columns(rows.clone(), first..first + piece.columns.len());
            let mut states = self.states[index].some(rows.clone()).to_vec();
            let mut d_right = vec![0.0; rows.len() * piece.terms.len()];
            match of.vectors {
                Some(vectors) => self.dynamic(links, rows.clone(), (of, vectors), piece, drop).backward_right(
                    &gradient,
                    &mut states,
                    &mut d_right,
                ),
                None => {
                    self.job(links, rows.clone(), of, piece, drop).backward_right(&gradient, &mut states, &mut d_right)
                }
            }
            self.states[index].some_mut(rows.clone()).copy_from_slice(&states);
            let (stride, first) = (self.d_right.width(), piece.first - entries.start);
            let d_right = &mut d_right[..];
            add_columns(self.d_right.some_mut(rows.clone()), stride, first, d_right, piece.terms.len(), adds);
        }
    }

    /// The gradients of the nodes `rows`: of their columns, and, piece by piece, of the terms of out-edges, by this hop and, where it
    /// `adds`, the later ones.
    pub(crate) fn backward(
        &mut self,
        links: &Links,
        rows: Range<usize>,
        of: AttendedRows<'_>,
        (back, adds): (&Table, bool),
        drop: DropoutKey,
    ) -> [Vec<f32>; 2] {
        let [columns, touched] = self.heads.of(self.worker);
        let entries = self.heads.entries(self.worker);
        let mut out = vec![0.0; rows.len() * columns.len()];
        let mut terms = vec![0.0; rows.len() * entries.len()];
        let (indptr, indices) = links.edges(rows.clone());
        for (piece, states) in self.heads.pieces(self.worker).iter().zip(&self.states) {
            let (first, count) = (piece.columns.start - columns.start, piece.terms.len());
            let x = of.rows.columns(rows.clone(), first..first + piece.columns.len());
            let (heads, width) = (piece.heads.len(), piece.columns.len() / piece.heads.len());
            let (mut dx, mut d_left) = (vec![0.0; x.len()], vec![0.0; rows.len() * count]);
            let gradient = Sources::new(back.values().get(first..).unwrap_or_default(), back.width());
            let states = Sources::new(states.values(), states.width());
            let (slope, dropout) = (self.slope, self.dropout(drop, rows.clone(), piece));
            match of.vectors {
                Some(vectors) => {
                    let (x, vectors) = (&x[..], &vectors[piece.columns.clone()]);
                    DynamicAttentionBackward {
                        indptr,
                        indices,
                        gradient,
                        states,
                        x,
                        vectors,
                        heads,
                        width,
                        slope,
                        dropout,
                    }
                    .run(&mut dx, &mut d_left);
                }
                None => {
                    let term = columns.len() + piece.terms.start - touched.start;
                    let (x, left) = (&x[..], &of.terms.columns(rows.clone(), term..term + count)[..]);
                    AttentionBackward { indptr, indices, gradient, states, x, left, heads, width, slope, dropout }
                        .run(&mut dx, &mut d_left);
                }
            }
            put_columns(&mut out, columns.len(), first, &dx, piece.columns.len());
            put_columns(&mut terms, entries.len(), piece.first - entries.start, &d_left, count);
        }
        if let Some(d_left) = self.d_left.as_mut().filter(|_| !entries.is_empty()) {
            add_columns(d_left.some_mut(rows), entries.len(), 0, &mut terms, entries.len(), adds);
        }
        [out, terms]
    }

    /// What [`ChainAttention::backward`] of the first hop has come to, row by row, and behind it the gradients of the terms of in-edges.
    pub(crate) fn join(&self, rows: Range<usize>, dx: &[f32], d_left: &[f32]) -> Vec<f32> {
        let (columns, entries) = (self.heads.of(self.worker)[0].len(), self.heads.entries(self.worker).len());
        let stride = columns + 2 * entries;
        let mut out = vec![0.0; rows.len() * stride];
        if stride > 0 {
            put_columns(&mut out, stride, 0, dx, columns);
            put_columns(&mut out, stride, columns, d_left, entries);
            put_columns(&mut out, stride, columns + entries, self.d_right.some(rows), entries);
        }
        out
    }
}

/// Writes rows of `width` numbers into columns `first..` of rows of `stride`, or, where it `adds`, the sums with what is there; `rows` are
/// then what has been written.
fn add_columns(out: &mut [f32], stride: usize, first: usize, rows: &mut [f32], width: usize, adds: bool) {
    if adds {
        for (out, row) in out.chunks_exact(stride).zip(rows.chunks_exact_mut(width)) {
            row.iter_mut().zip(&out[first..]).for_each(|(x, sum)| *x += sum);
        }
    }
    put_columns(out, stride, first, rows, width);
}
