//! The maximum of each column over neighbor rows, forward and backward.
//!
//! A receiver stores the node of each maximum, by column. In the table of gradients, these nodes follow the gradients ([`Argmax::append`]), so a
//! sender finds the gradients that belong to it.

use std::ops::Range;

use gnnflow_dataflow::ghost::Links;
use gnnflow_dataflow::storage::{Place, Table};
use gnnflow_kernels::aggregate::Sources;
use gnnflow_kernels::aggregate::maximum::{Maximum, MaximumBackward, NO_SOURCE};

use super::rows::put_columns;

/// The node of each maximum, by receiver and column: ids, stored as the bits of `f32`.
pub(crate) struct Argmax(Table);

impl Argmax {
    pub(crate) fn new(receivers: usize, width: usize, place: &Place) -> std::io::Result<Self> {
        Ok(Self(Table::zeros(receivers, width, place)?))
    }

    /// Writes the maxima of `rows` of `links` to `out`, and stores their nodes.
    pub(crate) fn forward(&mut self, links: &Links, rows: Range<usize>, sent: &Table, out: &mut [f32]) {
        let width = sent.width();
        if rows.is_empty() || width == 0 {
            return;
        }
        let (indptr, indices) = links.edges(rows.clone());
        let mut sources = vec![0; out.len()];
        Maximum { indptr, indices, x: Sources::new(sent.values(), width), width }.run(out, &mut sources);
        let id = |row: u32| match (row as usize).checked_sub(links.table().len()) {
            _ if row == NO_SOURCE => NO_SOURCE,
            None => links.table().node(row as usize),
            Some(ghost) => links.ghosts()[ghost],
        };
        self.0.some_mut(rows).iter_mut().zip(sources).for_each(|(out, row)| *out = f32::from_bits(id(row)));
    }

    /// Writes the nodes of the maxima of `rows` after their gradients, of `width` columns.
    pub(crate) fn append(&self, rows: Range<usize>, width: usize, gradients: &mut Table) {
        let stride = gradients.width();
        put_columns(gradients.some_mut(rows.clone()), stride, width, self.0.some(rows), stride - width);
    }

    /// Writes the gradients of the senders `rows` to `out`. [`Argmax::append`] has completed the rows of `gradients`.
    pub(crate) fn backward(links: &Links, rows: Range<usize>, gradients: &Table, out: &mut [f32]) {
        let width = gradients.width() / 2;
        let ids = gradients.values().get(width..).unwrap_or_default();
        backward(links, rows, [gradients.values(), ids], gradients.width(), width, out);
    }

    /// Writes the gradients of the senders `rows` to `out`, if `gradients` holds gradients only, of all nodes.
    pub(crate) fn backward_separate(&self, links: &Links, rows: Range<usize>, gradients: &Table, out: &mut [f32]) {
        let width = gradients.width();
        backward(links, rows, [gradients.values(), self.0.values()], width, width, out);
    }
}

fn backward(
    links: &Links,
    rows: Range<usize>,
    [gradient, largest]: [&[f32]; 2],
    stride: usize,
    width: usize,
    out: &mut [f32],
) {
    if rows.is_empty() || width == 0 {
        return;
    }
    let (indptr, indices) = links.edges(rows.clone());
    let ids: Vec<u32> = rows.map(|row| links.rows().node(row)).collect();
    let [gradient, largest] = [gradient, largest].map(|values| Sources::new(values, stride));
    MaximumBackward { indptr, indices, gradient, largest, ids: &ids, width }.run(out);
}
