//! Rows that neighbors sum, stored and sent as `f32` or rounded to `bf16`.
//!
//! In an epoch, a row is written once and read once per edge. So `row_dtype` may round these rows only; sums, inputs of node tasks and parameters
//! are `f32`. The owner of a row rounds it once, so all workers read equal bits.

use std::borrow::Cow;
use std::ops::Range;

use gnnflow_dataflow::ghost::scatter::row_block;
use gnnflow_dataflow::storage::{Place, Table};
use gnnflow_dataflow::wire::{Header, Rows, WireBlock};
use gnnflow_kernels::dense::to_bf16::to_bf16;
use half::bf16;
use rayon::prelude::*;

use super::scales::scale_rows;
use crate::config::RowDtype;

/// A table of rows with copies at other workers.
pub(crate) trait WireRows {
    fn rows(&self) -> usize;
    fn row_bytes(&self) -> usize;
    /// Returns the message of a header of `row_headers` with the rows `wanted`.
    fn message(&self, header: Header, wanted: &[u32]) -> WireBlock;
    /// Stores the rows of such a message.
    ///
    /// # Panics
    /// When the message does not have `rows` rows.
    fn put(&mut self, rows: Range<usize>, block: &WireBlock);
}

impl WireRows for Table {
    fn rows(&self) -> usize {
        Table::rows(self)
    }

    fn row_bytes(&self) -> usize {
        self.width() * size_of::<f32>()
    }

    fn message(&self, header: Header, wanted: &[u32]) -> WireBlock {
        row_block(header, self.width(), |values| {
            wanted.iter().for_each(|&row| values.extend_from_slice(self.some(row as usize..row as usize + 1)));
        })
    }

    fn put(&mut self, rows: Range<usize>, block: &WireBlock) {
        let mut out = self.some_mut(rows);
        block.for_each_row_bytes(|bytes| {
            let (here, rest) = std::mem::take(&mut out).split_at_mut(bytes.len() / size_of::<f32>());
            bytemuck::cast_slice_mut(here).copy_from_slice(bytes);
            out = rest;
        });
        assert!(out.is_empty(), "the message has fewer rows than its header names");
    }
}

impl WireRows for RowTable {
    fn rows(&self) -> usize {
        self.rows()
    }

    fn row_bytes(&self) -> usize {
        self.row_bytes()
    }

    fn message(&self, header: Header, wanted: &[u32]) -> WireBlock {
        match self {
            Self::F32(table) => table.message(header, wanted),
            Self::Bf16(table) => {
                let mut bytes = Vec::with_capacity(wanted.len() * self.row_bytes());
                let row = |&row: &u32| row as usize..row as usize + 1;
                wanted.iter().for_each(|wanted| bytes.extend_from_slice(bytemuck::cast_slice(table.some(row(wanted)))));
                WireBlock::new(header, Vec::new(), Vec::new(), Rows::Bytes(bytes))
            }
        }
    }

    fn put(&mut self, rows: Range<usize>, block: &WireBlock) {
        self.put_at(1, rows, block);
    }
}

/// A table of rows that neighbors sum.
pub(crate) enum RowTable {
    F32(Table),
    Bf16(Table<bf16>),
}

impl RowTable {
    pub(crate) fn zeros(dtype: RowDtype, rows: usize, width: usize, place: &Place) -> std::io::Result<Self> {
        Ok(match dtype {
            RowDtype::F32 => Self::F32(Table::zeros(rows, width, place)?),
            RowDtype::Bf16 => Self::Bf16(Table::zeros(rows, width, place)?),
        })
    }

    pub(crate) fn rows(&self) -> usize {
        match self {
            Self::F32(table) => table.rows(),
            Self::Bf16(table) => table.rows(),
        }
    }

    pub(crate) fn width(&self) -> usize {
        match self {
            Self::F32(table) => table.width(),
            Self::Bf16(table) => table.width(),
        }
    }

    pub(crate) fn row_bytes(&self) -> usize {
        self.width()
            * match self {
                Self::F32(_) => size_of::<f32>(),
                Self::Bf16(_) => size_of::<bf16>(),
            }
    }

    /// Returns the table of `f32`, for aggregations that do not support rounded rows.
    ///
    /// # Panics
    /// When rows are rounded.
    pub(crate) fn as_f32(&self) -> &Table {
        match self {
            Self::F32(table) => table,
            Self::Bf16(_) => unreachable!("only rows of sums are rounded"),
        }
    }

    /// Sets some rows to zero.
    pub(crate) fn clear(&mut self, rows: Range<usize>) {
        match self {
            Self::F32(table) => table.some_mut(rows).fill(0.0),
            Self::Bf16(table) => table.some_mut(rows).fill(bf16::ZERO),
        }
    }

    /// Writes some rows, each times its factor of `scale`.
    ///
    /// # Panics
    /// When the lengths differ.
    pub(crate) fn write(&mut self, rows: Range<usize>, values: &[f32], scale: Option<&[f32]>) {
        match self {
            Self::F32(table) => {
                let (width, place) = (table.width(), table.some_mut(rows));
                place.copy_from_slice(values);
                scale_rows(place, width, scale);
            }
            Self::Bf16(table) => {
                assert!(scale.is_none_or(|scale| scale.len() == rows.len()), "one factor per row");
                let (width, place) = (table.width().max(1), table.some_mut(rows));
                assert_eq!(place.len(), values.len(), "as many rows");
                place
                    .par_chunks_exact_mut(width)
                    .zip(values.par_chunks_exact(width))
                    .enumerate()
                    .for_each(|(row, (out, values))| to_bf16(values, scale.map_or(1.0, |scale| scale[row]), out));
            }
        }
    }

    /// Writes some rows times `scale`.
    ///
    /// # Panics
    /// When the lengths differ.
    pub(crate) fn write_times(&mut self, rows: Range<usize>, values: &[f32], scale: f32) {
        match self {
            Self::F32(table) => {
                let place = table.some_mut(rows);
                assert_eq!(place.len(), values.len(), "as many rows");
                place.iter_mut().zip(values).for_each(|(out, x)| *out = scale * x);
            }
            Self::Bf16(table) => to_bf16(values, scale, table.some_mut(rows)),
        }
    }

    /// Returns some rows as `f32`.
    pub(crate) fn read(&self, rows: Range<usize>) -> Cow<'_, [f32]> {
        match self {
            Self::F32(table) => Cow::Borrowed(table.some(rows)),
            Self::Bf16(table) => Cow::Owned(table.some(rows).iter().map(|x| x.to_f32()).collect()),
        }
    }

    /// Writes the first columns of a row, times `scale`.
    ///
    /// # Panics
    /// When the row has fewer.
    pub(crate) fn write_row(&mut self, row: usize, values: &[f32], scale: f32) {
        match self {
            Self::F32(table) => {
                let out = &mut table.some_mut(row..row + 1)[..values.len()];
                out.iter_mut().zip(values).for_each(|(out, x)| *out = scale * x);
            }
            Self::Bf16(table) => to_bf16(values, scale, &mut table.some_mut(row..row + 1)[..values.len()]),
        }
    }

    /// Stores the rows of a message: `each` consecutive rows from each of `positions`.
    ///
    /// # Panics
    /// When the numbers of rows differ.
    pub(crate) fn put_at(&mut self, each: usize, positions: impl Iterator<Item = usize>, block: &WireBlock) {
        let row_bytes = each * self.row_bytes();
        let all: &mut [u8] = match self {
            Self::F32(table) => bytemuck::cast_slice_mut(table.some_mut(0..table.rows())),
            Self::Bf16(table) => bytemuck::cast_slice_mut(table.some_mut(0..table.rows())),
        };
        if row_bytes == 0 {
            return;
        }
        let mut positions = positions.map(|place| place * row_bytes / each);
        block.for_each_row_bytes(|bytes| {
            for row in bytes.chunks_exact(row_bytes) {
                let first = positions.next().expect("one position per row");
                all[first..first + row_bytes].copy_from_slice(row);
            }
        });
        assert!(positions.next().is_none(), "the message has fewer rows than its header names");
    }
}

/// Returns the message of a header of `row_headers` for [`RowTable::put_at`]. `fill` appends its rows, of `width` numbers.
///
/// # Panics
/// When the number of rows differs from the header's.
pub(crate) fn message_of(dtype: RowDtype, header: Header, width: usize, fill: impl FnOnce(&mut Vec<f32>)) -> WireBlock {
    if dtype == RowDtype::F32 {
        return row_block(header, width, fill);
    }
    let mut values = Vec::with_capacity(header.aux as usize * width);
    fill(&mut values);
    assert_eq!(values.len(), header.aux as usize * width, "the header names another number of rows");
    let mut bytes = vec![0; size_of::<bf16>() * values.len()];
    to_bf16(&values, 1.0, bytemuck::cast_slice_mut(&mut bytes));
    WireBlock::new(header, Vec::new(), Vec::new(), Rows::Bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_table_rounds_rows_once_and_sends_them_unchanged() {
        let (values, scale) = ((0..12).map(|i| 1.0 + i as f32 / 700.0).collect::<Vec<f32>>(), [0.5, 3.0, 1.0, -1.0]);
        for (dtype, bytes) in [(RowDtype::F32, 4), (RowDtype::Bf16, 2)] {
            let as_stored = |x: f32| if bytes == 4 { x } else { bf16::from_f32(x).to_f32() };
            let read = |stored: &RowTable| -> Vec<f32> {
                match stored {
                    RowTable::F32(table) => table.values().to_vec(),
                    RowTable::Bf16(table) => table.values().iter().map(|x| x.to_f32()).collect(),
                }
            };
            let [mut from, mut to] = [(); 2].map(|()| RowTable::zeros(dtype, 5, 3, &Place::Memory).unwrap());
            assert_eq!((from.rows(), from.width(), from.row_bytes()), (5, 3, 3 * bytes));
            from.write(1..5, &values, Some(&scale));
            let wanted = [4, 1, 2];
            let block = from.message(Header { aux: 3, ..Header::default() }, &wanted);
            assert_eq!(block.row_bytes(), 9 * bytes);
            to.put(2..5, &block);
            let row = |&row: &u32| {
                let (scale, values) = (scale[row as usize - 1], &values[3 * row as usize - 3..3 * row as usize]);
                values.iter().map(move |x| as_stored(scale * x))
            };
            let expected: Vec<f32> = [0.0; 6].into_iter().chain(wanted.iter().flat_map(row)).collect();
            assert_eq!(read(&to), expected);
            to.clear(2..4);
            to.write_row(3, &[1.002, 2.0], 0.25);
            to.write(4..5, &[1.002; 3], None);
            let expected = [&[0.0; 9][..], &[as_stored(0.25 * 1.002), 0.5, 0.0], &[as_stored(1.002); 3]].concat();
            assert_eq!(read(&to), expected);
        }
    }
}
