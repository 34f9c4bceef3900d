//! Attention over column shards (NeutronTP, section 4.1: coefficients are computed from whole rows, then shared).
//!
//! The owner computes the scores of a node from its whole row and sends them with the shards: a source and a destination score for each head
//! with columns in the shard. Every worker computes the edge weights from them, so no value is stored or sent per edge; the paper shares
//! one number per edge. In the backward pass, the gradient of an edge's weight is a sum over all columns of a head. All later steps are linear
//! in it, so each head part computes its part of the gradients of the scores, and the owner adds the parts. If scores are as wide as rows
//! (GATv2), destination scores travel with the shards, which are whole heads.
//!
//! In a chain of hops without whole rows in between (section 4.1, decoupled training), all hops use the scores of the first one. Their gradients
//! are added here, from the last hop to the first. This differs from the paper, which stores coefficients per edge and no shards between
//! propagations: here, weights are recomputed for each chunk, forward and backward, and the shards of each hop are kept, because the gradients of
//! the weights need them.

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

use super::head_shards::{HeadPart, HeadShards};
use crate::engine::aggregation::attention::DropoutKey;
use crate::engine::aggregation::rows::put_columns;

/// The inputs of a hop with attention: the propagated shards, and the source and destination scores, which follow the columns of the first hop's
/// shards.
#[derive(Clone, Copy)]
pub(crate) struct AttendedRows<'a> {
    pub(crate) rows: &'a Table,
    pub(crate) terms: &'a Table,
    /// The attention vectors (GATv2).
    pub(crate) vectors: Option<&'a [f32]>,
}

/// The attention of a chain of hops, for the head parts of one worker.
pub(crate) struct ChainAttention {
    pub(crate) heads: HeadShards,
    worker: usize,
    slope: f64,
    share: f64,
    /// By head part, `[nodes, terms + SOFTMAX_STATE · heads]`.
    states: Vec<Table>,
    /// Gradients of destination scores, `[nodes, entries]`.
    d_right: Table,
    /// Gradients of source scores, if the chain has several hops.
    d_left: Option<Table>,
    /// All nodes, if weights are dropped.
    nodes: Vec<u32>,
}

impl ChainAttention {
    /// Reserves the tables of `nodes` nodes. `is_chain` tells whether several hops use the same scores.
    pub(crate) fn new(
        heads: HeadShards,
        worker: usize,
        [slope, share]: [f64; 2],
        (nodes, is_chain): (usize, bool),
        place: &Place,
    ) -> std::io::Result<Self> {
        let state = |part: &HeadPart| Table::zeros(nodes, part.terms.len() + SOFTMAX_STATE * part.heads.len(), place);
        Ok(Self {
            states: heads.parts(worker).iter().map(state).collect::<Result<_, _>>()?,
            d_right: Table::zeros(nodes, heads.entries(worker).len(), place)?,
            d_left: match is_chain {
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

    /// Returns the ranges of a whole row, of `width` columns and the scores, that make a row of a worker's shards.
    pub(crate) fn ranges(heads: &HeadShards, worker: usize, width: usize) -> Vec<Range<usize>> {
        let [columns, touched] = heads.of(worker);
        let behind = |first: usize| first + touched.start..first + touched.end;
        match heads.per_column() {
            true => vec![columns, behind(width)],
            false => vec![columns, behind(width), behind(width + heads.terms())],
        }
    }

    /// Returns the first column of a part's destination scores in a row of shards.
    fn right_of(&self, part: &HeadPart) -> usize {
        let [columns, touched] = self.heads.of(self.worker);
        let lefts = if self.heads.per_column() { 0 } else { touched.len() };
        columns.len() + lefts + part.terms.start - touched.start
    }

    fn dropout<'a>(&'a self, drop: DropoutKey, rows: Range<usize>, part: &HeadPart) -> Option<EdgeDropout<'a>> {
        let words = [u64::MAX, u64::from(drop.epoch), drop.hop as u64];
        let key = words.into_iter().fold(Key::new(drop.seed, Purpose::Dropout), Key::fold);
        let dropout = Dropout::new(self.share, key);
        (self.share > 0.0 && !drop.nothing).then(|| EdgeDropout {
            dropout,
            rows: &self.nodes[rows],
            neighbors: &self.nodes,
            heads: self.heads.heads(),
            first_head: part.heads.start,
        })
    }

    fn job<'a>(
        &'a self,
        links: &'a Links,
        rows: Range<usize>,
        of: AttendedRows<'a>,
        part: &HeadPart,
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
            x: from(of.rows, part.columns.start - columns.start),
            left: from(of.terms, columns.len() + part.terms.start - touched.start),
            heads: part.heads.len(),
            width: part.columns.len() / part.heads.len(),
            slope: self.slope,
            dropout: self.dropout(drop, rows, part),
        }
    }

    /// Returns the kernel of attention with `vectors` (GATv2).
    fn dynamic<'a>(
        &'a self,
        links: &'a Links,
        rows: Range<usize>,
        (of, vectors): (AttendedRows<'a>, &'a [f32]),
        part: &HeadPart,
        drop: DropoutKey,
    ) -> DynamicAttention<'a, i64, f32> {
        let first = part.columns.start - self.heads.of(self.worker)[0].start;
        let (indptr, indices) = links.edges(rows.clone());
        DynamicAttention {
            indptr,
            indices,
            x: Sources::new(of.rows.values().get(first..).unwrap_or_default(), of.rows.width()),
            vectors: &vectors[part.columns.clone()],
            heads: part.heads.len(),
            width: part.columns.len() / part.heads.len(),
            slope: self.slope,
            dropout: self.dropout(drop, rows, part),
        }
    }

    /// Aggregates the neighbors of the nodes `rows` into `out`, `[rows, columns]`.
    pub(crate) fn forward(
        &mut self,
        links: &Links,
        rows: Range<usize>,
        of: AttendedRows<'_>,
        drop: DropoutKey,
        out: &mut [f32],
    ) {
        let [columns, _] = self.heads.of(self.worker);
        let parts = self.heads.parts(self.worker).to_vec();
        for (index, part) in parts.iter().enumerate() {
            let first = self.right_of(part);
            let right = of.terms.columns(rows.clone(), first..first + part.terms.len());
            let stride = self.states[index].width();
            let mut states = vec![0.0; rows.len() * stride];
            put_columns(&mut states, stride, 0, &right, part.terms.len());
            let mut made = vec![0.0; rows.len() * part.columns.len()];
            match of.vectors {
                Some(vectors) => {
                    self.dynamic(links, rows.clone(), (of, vectors), part, drop).forward(&mut states, &mut made);
                }
                None => self.job(links, rows.clone(), of, part, drop).forward(&mut states, &mut made),
            }
            self.states[index].some_mut(rows.clone()).copy_from_slice(&states);
            put_columns(out, columns.len(), part.columns.start - columns.start, &made, part.columns.len());
        }
    }

    /// Completes the states of the nodes `rows` and the gradients of their destination scores, from the gradients of aggregated rows. If it
    /// `adds`, the sums of later hops are included.
    pub(crate) fn complete(
        &mut self,
        links: &Links,
        rows: Range<usize>,
        of: AttendedRows<'_>,
        (gradients, adds): (&Table, bool),
        drop: DropoutKey,
    ) {
        let [columns, _] = self.heads.of(self.worker);
        let entries = self.heads.entries(self.worker);
        let parts = self.heads.parts(self.worker).to_vec();
        for (index, part) in parts.iter().enumerate() {
            let first = part.columns.start - columns.start;
            let gradient = gradients.columns(rows.clone(), first..first + part.columns.len());
            let mut states = self.states[index].some(rows.clone()).to_vec();
            let mut d_right = vec![0.0; rows.len() * part.terms.len()];
            match of.vectors {
                Some(vectors) => self.dynamic(links, rows.clone(), (of, vectors), part, drop).backward_right(
                    &gradient,
                    &mut states,
                    &mut d_right,
                ),
                None => {
                    self.job(links, rows.clone(), of, part, drop).backward_right(&gradient, &mut states, &mut d_right)
                }
            }
            self.states[index].some_mut(rows.clone()).copy_from_slice(&states);
            let (stride, first) = (self.d_right.width(), part.first - entries.start);
            let d_right = &mut d_right[..];
            add_columns(self.d_right.some_mut(rows.clone()), stride, first, d_right, part.terms.len(), adds);
        }
    }

    /// Returns the gradients of the rows of the nodes `rows`, and by head part of their source scores. If it `adds`, the sums of later hops are
    /// included.
    pub(crate) fn backward(
        &mut self,
        links: &Links,
        rows: Range<usize>,
        of: AttendedRows<'_>,
        (gradients, adds): (&Table, bool),
        drop: DropoutKey,
    ) -> [Vec<f32>; 2] {
        let [columns, touched] = self.heads.of(self.worker);
        let entries = self.heads.entries(self.worker);
        let mut out = vec![0.0; rows.len() * columns.len()];
        let mut terms = vec![0.0; rows.len() * entries.len()];
        let (indptr, indices) = links.edges(rows.clone());
        for (part, states) in self.heads.parts(self.worker).iter().zip(&self.states) {
            let (first, count) = (part.columns.start - columns.start, part.terms.len());
            let x = of.rows.columns(rows.clone(), first..first + part.columns.len());
            let (heads, width) = (part.heads.len(), part.columns.len() / part.heads.len());
            let (mut dx, mut d_left) = (vec![0.0; x.len()], vec![0.0; rows.len() * count]);
            let gradient = Sources::new(gradients.values().get(first..).unwrap_or_default(), gradients.width());
            let states = Sources::new(states.values(), states.width());
            let (slope, dropout) = (self.slope, self.dropout(drop, rows.clone(), part));
            match of.vectors {
                Some(vectors) => {
                    let (x, vectors) = (&x[..], &vectors[part.columns.clone()]);
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
                    let term = columns.len() + part.terms.start - touched.start;
                    let (x, left) = (&x[..], &of.terms.columns(rows.clone(), term..term + count)[..]);
                    AttentionBackward { indptr, indices, gradient, states, x, left, heads, width, slope, dropout }
                        .run(&mut dx, &mut d_left);
                }
            }
            put_columns(&mut out, columns.len(), first, &dx, part.columns.len());
            put_columns(&mut terms, entries.len(), part.first - entries.start, &d_left, count);
        }
        if let Some(d_left) = self.d_left.as_mut().filter(|_| !entries.is_empty()) {
            add_columns(d_left.some_mut(rows), entries.len(), 0, &mut terms, entries.len(), adds);
        }
        [out, terms]
    }

    /// Joins, row by row, the results of [`ChainAttention::backward`] of the first hop and the gradients of destination scores.
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

/// Writes rows of `width` numbers to columns `first..` of rows of `stride`. If it `adds`, it first adds the present values to `rows`.
fn add_columns(out: &mut [f32], stride: usize, first: usize, rows: &mut [f32], width: usize, adds: bool) {
    if adds {
        for (out, row) in out.chunks_exact(stride).zip(rows.chunks_exact_mut(width)) {
            row.iter_mut().zip(&out[first..]).for_each(|(x, sum)| *x += sum);
        }
    }
    put_columns(out, stride, first, rows, width);
}
