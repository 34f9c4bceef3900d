//! Attention over neighbor rows, forward and backward.
//!
//! In the table of activations, a sender's row is followed by its source scores, unless these follow from the row (GATv2). In the table of
//! gradients, a receiver's row is followed by its *state*: its destination scores and [`SOFTMAX_STATE`] numbers per head. The sender's owner
//! recomputes edge weights from these, so no value is stored per edge.

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
use gnnflow_nn::model::Hop;

/// The state of a hop with attention.
pub(crate) struct AttentionState {
    heads: usize,
    /// Columns of a sent row.
    columns: usize,
    /// Columns of the source scores, and of the destination scores, of a node.
    pub(crate) terms: usize,
    /// The attention vectors (GATv2).
    vectors: Option<Vec<f32>>,
    slope: f64,
    /// Share of the weights that are dropped.
    share: f64,
    /// States of receivers, `[_, terms + SOFTMAX_STATE · heads]`.
    pub(crate) states: Table,
    /// Gradients of destination scores, `[_, terms]`.
    pub(crate) d_right: Table,
    /// The node of each row of the tables of activations and of gradients, if weights are dropped.
    nodes: [Vec<u32>; 2],
}

/// The out-edges of some senders.
pub(crate) struct OutEdges<'a> {
    /// See [`AttentionBackward`]; destinations are rows of the table of gradients.
    pub(crate) indptr: &'a [i64],
    pub(crate) indices: &'a [u32],
    /// Global ids of the senders.
    pub(crate) ids: Vec<u32>,
}

impl<'a> OutEdges<'a> {
    /// Returns the edges of some rows of `links`.
    pub(crate) fn of(links: &'a Links, rows: Range<usize>) -> Self {
        let ids = ids(links, rows.clone());
        let (indptr, indices) = links.edges(rows);
        Self { indptr, indices, ids }
    }
}

/// The key that decides which attention weights an epoch drops at a hop.
#[derive(Clone, Copy)]
pub(crate) struct DropoutKey {
    pub(crate) seed: u64,
    pub(crate) epoch: u32,
    pub(crate) hop: usize,
    /// Whether no weight is dropped, in evaluation.
    pub(crate) nothing: bool,
}

impl AttentionState {
    /// Reserves the state of a hop with `receivers` receivers. `share` of the weights are dropped.
    pub(crate) fn new(
        hop: &Hop,
        [slope, share]: [f64; 2],
        receivers: usize,
        links: [&Links; 2],
        place: &Place,
    ) -> std::io::Result<Self> {
        let (heads, columns, terms) = (hop.heads(), hop.width, hop.terms());
        let nodes = |links: &Links| -> Vec<u32> {
            let own = (0..links.table().len()).map(|row| links.table().node(row));
            if share > 0.0 { own.chain(links.ghosts().iter().copied()).collect() } else { Vec::new() }
        };
        Ok(Self {
            heads,
            columns,
            terms,
            vectors: hop.attends_by_column().then(Vec::new),
            slope,
            share,
            states: Table::zeros(receivers, terms + SOFTMAX_STATE * heads, place)?,
            d_right: Table::zeros(receivers, terms, place)?,
            nodes: links.map(nodes),
        })
    }

    /// Sets the attention vectors of later calls.
    pub(crate) fn set_vectors(&mut self, vectors: Vec<f32>) {
        self.vectors = Some(vectors);
    }

    fn dropout<'a>(&'a self, drop: DropoutKey, rows: &'a [u32], table: usize) -> Option<EdgeDropout<'a>> {
        let words = [u64::MAX, u64::from(drop.epoch), drop.hop as u64];
        let key = words.into_iter().fold(Key::new(drop.seed, Purpose::Dropout), Key::fold);
        let dropout = Dropout::new(self.share, key);
        (self.share > 0.0 && !drop.nothing).then(|| EdgeDropout {
            dropout,
            rows,
            neighbors: &self.nodes[table],
            heads: self.heads,
            first_head: 0,
        })
    }

    /// Aggregates `rows` of `links` into `out`, and writes their states.
    pub(crate) fn forward(
        &mut self,
        links: &Links,
        rows: Range<usize>,
        sent: &Table,
        drop: DropoutKey,
        out: &mut [f32],
    ) {
        let ids = ids(links, rows.clone());
        let mut states = self.states.some(rows.clone()).to_vec();
        let dropout = self.dropout(drop, &ids, 0);
        match &self.vectors {
            Some(vectors) => self.dynamic(vectors, links, rows.clone(), sent, dropout).forward(&mut states, out),
            None => self.job(links, rows.clone(), sent, dropout).forward(&mut states, out),
        }
        self.states.some_mut(rows).copy_from_slice(&states);
    }

    /// Computes the gradients of the destination scores of `rows` from the gradients of their aggregated rows, and completes their states.
    pub(crate) fn backward_right(
        &mut self,
        links: &Links,
        rows: Range<usize>,
        sent: &Table,
        drop: DropoutKey,
        gradient: &[f32],
    ) {
        let ids = ids(links, rows.clone());
        let mut states = self.states.some(rows.clone()).to_vec();
        let mut d_right = vec![0.0; rows.len() * self.terms];
        let dropout = self.dropout(drop, &ids, 0);
        match &self.vectors {
            Some(vectors) => {
                let job = self.dynamic(vectors, links, rows.clone(), sent, dropout);
                job.backward_right(gradient, &mut states, &mut d_right);
            }
            None => {
                self.job(links, rows.clone(), sent, dropout).backward_right(gradient, &mut states, &mut d_right);
            }
        }
        self.states.some_mut(rows.clone()).copy_from_slice(&states);
        self.d_right.some_mut(rows).copy_from_slice(&d_right);
    }

    /// Returns the gradients of senders' rows and of their source scores. `sent` holds the senders' rows, `gradients` the rows of receivers.
    pub(crate) fn backward_left(
        &self,
        OutEdges { indptr, indices, ids }: OutEdges<'_>,
        sent: &[f32],
        gradients: &Table,
        drop: DropoutKey,
    ) -> [Vec<f32>; 2] {
        let (heads, columns, stride, rows) = (self.heads, self.columns, gradients.width(), ids.len());
        let (gradient, states) = (
            Sources::new(gradients.values(), stride),
            Sources::new(gradients.values().get(columns..).unwrap_or_default(), stride),
        );
        let (slope, dropout) = (self.slope, self.dropout(drop, &ids, 1));
        if let Some(vectors) = &self.vectors {
            let (mut dx, mut d_left) = (vec![0.0; sent.len()], vec![0.0; sent.len()]);
            let (x, width) = (sent, columns / heads);
            DynamicAttentionBackward { indptr, indices, gradient, states, x, vectors, heads, width, slope, dropout }
                .run(&mut dx, &mut d_left);
            return [dx, d_left];
        }
        let mut x = Vec::with_capacity(rows * columns);
        let mut left = Vec::with_capacity(rows * heads);
        for row in sent.chunks_exact(columns + heads) {
            x.extend_from_slice(&row[..columns]);
            left.extend_from_slice(&row[columns..]);
        }
        let (mut dx, mut d_left) = (vec![0.0; rows * columns], vec![0.0; rows * heads]);
        AttentionBackward {
            indptr,
            indices,
            gradient,
            states,
            x: &x,
            left: &left,
            heads,
            width: columns / heads,
            slope,
            dropout,
        }
        .run(&mut dx, &mut d_left);
        [dx, d_left]
    }

    fn job<'a>(
        &self,
        links: &'a Links,
        rows: Range<usize>,
        sent: &'a Table,
        dropout: Option<EdgeDropout<'a>>,
    ) -> Attention<'a, i64, f32> {
        let (heads, columns, stride) = (self.heads, self.columns, sent.width());
        let (indptr, indices) = links.edges(rows);
        Attention {
            indptr,
            indices,
            x: Sources::new(sent.values(), stride),
            left: Sources::new(sent.values().get(columns..).unwrap_or_default(), stride),
            heads,
            width: columns / heads,
            slope: self.slope,
            dropout,
        }
    }

    fn dynamic<'a>(
        &self,
        vectors: &'a [f32],
        links: &'a Links,
        rows: Range<usize>,
        sent: &'a Table,
        dropout: Option<EdgeDropout<'a>>,
    ) -> DynamicAttention<'a, i64, f32> {
        let (indptr, indices) = links.edges(rows);
        let (heads, width) = (self.heads, self.columns / self.heads);
        let x = Sources::new(sent.values(), sent.width());
        DynamicAttention { indptr, indices, x, vectors, heads, width, slope: self.slope, dropout }
    }
}

/// Returns the global ids of rows.
fn ids(links: &Links, rows: Range<usize>) -> Vec<u32> {
    rows.map(|row| links.rows().node(row)).collect()
}
