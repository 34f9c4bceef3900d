//! The largest of each column, forwards and backwards.
//!
//! A receiver remembers whose number it has taken, column by column. In the table of gradients that stands behind the gradients
//! ([`Argmax::append`]), so that senders, who have all their receivers' rows there, find themselves in it.

use std::ops::Range;

use gnnflow_dataflow::ghost::Links;
use gnnflow_dataflow::storage::{Place, Table};
use gnnflow_kernels::aggregate::Sources;
use gnnflow_kernels::aggregate::maximum::{Maximum, MaximumBackward, NO_SOURCE};

use super::rows::put_columns;

/// Who was the largest, by receiver and column: ids, as the bits of numbers.
pub(crate) struct Argmax(Table);

impl Argmax {
    pub(crate) fn new(receivers: usize, width: usize, place: &Place) -> std::io::Result<Self> {
        Ok(Self(Table::zeros(receivers, width, place)?))
    }

    /// What arrives at `rows` of `links`, into `out`, and who is remembered for it.
    pub(crate) fn forward(&mut self, links: &Links, rows: Range<usize>, sent: &Table, out: &mut [f32]) {
        let width = sent.width();
        if rows.is_empty() || width == 0 {
            return;
        }
        let (indptr, indices) = links.edges(rows.clone());
        let mut largest = vec![0; out.len()];
        Maximum { indptr, indices, x: Sources::new(sent.values(), width), width }.run(out, &mut largest);
        let id = |row: u32| match (row as usize).checked_sub(links.table().len()) {
            _ if row == NO_SOURCE => NO_SOURCE,
            None => links.table().node(row as usize),
            Some(ghost) => links.ghosts()[ghost],
        };
        self.0.some_mut(rows).iter_mut().zip(largest).for_each(|(known, row)| *known = f32::from_bits(id(row)));
    }

    /// Writes who was the largest at `rows` behind their gradients, of `width` columns.
    pub(crate) fn append(&self, rows: Range<usize>, width: usize, back: &mut Table) {
        let stride = back.width();
        put_columns(back.some_mut(rows.clone()), stride, width, self.0.some(rows), stride - width);
    }

    /// The gradients of what the senders `rows` send, where receivers' rows in `back` are as [`Argmax::append`] leaves them.
    pub(crate) fn backward(links: &Links, rows: Range<usize>, back: &Table, out: &mut [f32]) {
        let width = back.width() / 2;
        let ids = back.values().get(width..).unwrap_or_default();
        go_back(links, rows, [back.values(), ids], back.width(), width, out);
    }

    /// The same where receivers' gradients are rows by themselves, of all nodes.
    pub(crate) fn backward_apart(&self, links: &Links, rows: Range<usize>, back: &Table, out: &mut [f32]) {
        go_back(links, rows, [back.values(), self.0.values()], back.width(), back.width(), out);
    }
}

fn go_back(
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
