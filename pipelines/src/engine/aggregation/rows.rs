//! Copies of rows and columns of tables.

use std::ops::Range;

use gnnflow_dataflow::storage::Table;
use gnnflow_kernels::matrix::Matrix;

use gnnflow_nn::node_task::matrix;

/// Copies rows of `width` numbers to columns `first..` of rows of `stride`.
pub(crate) fn put_columns(out: &mut [f32], stride: usize, first: usize, rows: &[f32], width: usize) {
    assert_eq!(out.len() * width, rows.len() * stride, "the numbers of rows differ");
    for (out, row) in out.chunks_exact_mut(stride).zip(rows.chunks_exact(width)) {
        out[first..first + width].copy_from_slice(row);
    }
}

/// A selection of own rows.
#[derive(Clone)]
pub(crate) enum Selection<'a> {
    Range(Range<usize>),
    Rows(&'a [usize]),
}

impl Selection<'_> {
    pub(crate) fn iter(&self) -> Box<dyn Iterator<Item = usize> + '_> {
        match self {
            Self::Range(range) => Box::new(range.clone()),
            Self::Rows(rows) => Box::new(rows.iter().copied()),
        }
    }

    /// Copies the selected rows of `table`. `place` maps an own row to its row in `table`; a range is contiguous there.
    pub(crate) fn copy(&self, table: &Table, place: impl Fn(usize) -> usize) -> Matrix {
        let values = match self {
            Self::Range(range) if range.is_empty() => Vec::new(),
            Self::Range(range) => table.some(place(range.start)..place(range.end - 1) + 1).to_vec(),
            Self::Rows(rows) => {
                let mut values = Vec::with_capacity(rows.len() * table.width());
                for &row in *rows {
                    let place = place(row);
                    values.extend_from_slice(table.some(place..place + 1));
                }
                values
            }
        };
        matrix(values, table.width())
    }
}
