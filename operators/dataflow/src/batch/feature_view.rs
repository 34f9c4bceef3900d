//! The feature rows of one time, and how they are copied into a batch.

use std::sync::Arc;

use gnnflow_data::dataset::RowLayout;

use super::gather_buffer::GatherBuffer;
use super::halo::HaloRows;
use super::mini_batch::MiniBatch;
use crate::storage::{RowReader, RowSource};
use gnnflow_kernels::dense::gather::for_each_ahead;
use gnnflow_kernels::matrix::{Matrix, Number};

/// The feature rows that are read at one time.
///
/// If the columns of a row are stored in several types, the row is `packed` in files, in halos and in messages. Batches and
/// caches hold its numbers as `f32`.
#[derive(Clone)]
pub struct FeatureView {
    /// The rows that this worker hosts or shares.
    pub source: Arc<dyn RowSource>,
    /// The number type of rows in a batch; `f32` if rows are packed.
    pub number: Number,
    /// Numbers in a row.
    pub dim: usize,
    /// The layout of packed rows; `None` if all columns have one type.
    pub packed: Option<Arc<RowLayout>>,
    /// Rows of other workers' nodes that are stored here.
    pub halo: Option<Arc<HaloRows>>,
}

impl FeatureView {
    /// Returns the size of a row in bytes, as stored and in messages.
    pub fn row_bytes(&self) -> usize {
        self.packed.as_ref().map_or_else(|| self.number.bytes() * self.dim, |layout| layout.row_bytes())
    }

    /// Opens the rows for one gather.
    ///
    /// # Panics
    /// When they are being written, which is a bug.
    pub fn open(&self) -> Box<dyn RowReader + '_> {
        self.source.open().unwrap_or_else(|busy| panic!("gather into a batch: {busy}"))
    }

    /// Writes a row, given as stored, to row `position` of a batch.
    #[inline]
    pub(crate) fn put(&self, row: &[u8], position: usize, into: &mut GatherBuffer) {
        match &self.packed {
            None => into.put(position, row),
            Some(layout) => {
                let mut wide = vec![0.0f32; self.dim];
                layout.widen(row, &mut wide);
                into.put(position, bytemuck::cast_slice(&wide));
            }
        }
    }

    /// Returns a matrix of the rows of `nodes`, all of which the source has.
    ///
    /// # Panics
    /// When the rows are being written, which is a bug.
    pub fn gather(&self, nodes: &[u32]) -> Matrix {
        let rows = self.open();
        let row_of = |node| rows.row(node);
        if self.packed.is_none() {
            return Matrix::gather(self.number, self.dim, row_of, nodes);
        }
        let mut buffer = GatherBuffer::new(self.number, nodes.len(), self.dim);
        nodes.iter().enumerate().for_each(|(position, &node)| self.put(row_of(node), position, &mut buffer));
        buffer.finish()
    }

    /// Reads the rows that [`fetch_remote_rows`](crate::fetch::fetch_rows::FetchRows::fetch_remote_rows) has left to the receiver of a
    /// batch at `worker`, and completes the batch's features.
    ///
    /// # Panics
    /// As [`FeatureView::gather`].
    pub fn complete(&self, batch: &mut MiniBatch, worker: usize) {
        batch.features = match batch.buffer.take() {
            None => self.gather(&batch.nodes),
            Some(mut buffer) => {
                self.gather_at(&batch.nodes, &batch.positions[worker], &mut buffer);
                buffer.finish()
            }
        };
    }

    /// As [`FeatureView::complete`], but only returns the rows of the nodes at `positions`, in this order.
    ///
    /// # Panics
    /// As [`FeatureView::gather`].
    pub fn rows_at(&self, batch: &mut MiniBatch, positions: &[u32]) -> Matrix {
        let (fetched, source) = (batch.buffer.take(), self.open());
        let fetched_row = |position: u32| fetched.as_ref().and_then(|fetched| fetched.row(position as usize));
        let own_row = |position: u32| source.row(batch.nodes[position as usize]);
        let mut rows = GatherBuffer::new(self.number, positions.len(), self.dim);
        if self.packed.is_none() {
            let row_at = |i: usize| fetched_row(positions[i]).unwrap_or_else(|| own_row(positions[i]));
            for_each_ahead(self.row_bytes(), positions.len(), row_at, |i, row| rows.put(i, row));
            return rows.finish();
        }
        for (i, &position) in positions.iter().enumerate() {
            match fetched_row(position) {
                Some(row) => rows.put(i, row),
                None => self.put(own_row(position), i, &mut rows),
            }
        }
        rows.finish()
    }

    /// Copies the rows of `nodes[position]` to row `position`, for each of `positions`.
    pub(crate) fn gather_at(&self, nodes: &[u32], positions: &[u32], into: &mut GatherBuffer) {
        let rows = self.open();
        let row_of = |node| rows.row(node);
        match self.packed {
            None => into.gather(row_of, nodes, positions),
            Some(_) => {
                let positions = positions.iter().map(|&position| position as usize);
                positions.for_each(|position| self.put(row_of(nodes[position]), position, into));
            }
        }
    }

    /// Copies received `rows`, given as stored, to the rows `positions` of a batch.
    pub(crate) fn scatter(&self, rows: &[u8], positions: &[u32], into: &mut GatherBuffer) {
        match self.packed {
            None => into.scatter(rows, positions),
            Some(_) => {
                let rows = rows.chunks_exact(self.row_bytes().max(1)).zip(positions);
                rows.for_each(|(row, &position)| self.put(row, position as usize, into));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use gnnflow_data::source::FeatureDtype::{Bf16, F32};

    use super::*;
    use crate::storage::Busy;
    use gnnflow_kernels::matrix::Values;

    /// Packed rows of three nodes.
    struct Packed(Vec<u8>, usize);

    impl RowSource for Packed {
        fn row_bytes(&self) -> usize {
            self.1
        }

        fn open(&self) -> Result<Box<dyn RowReader + '_>, Busy> {
            Ok(Box::new(self))
        }
    }

    impl RowReader for Packed {
        fn row(&self, node: u32) -> &[u8] {
            &self.0[node as usize * self.1..][..self.1]
        }
    }

    #[test]
    fn packed_rows_are_unpacked_into_a_batch() {
        let layout = RowLayout::new([(1, Bf16), (2, F32)]);
        let wide: Vec<f32> = (0..9).map(|i| i as f32 * 0.5).collect();
        let source = Arc::new(Packed(layout.narrow(&wide).unwrap(), layout.row_bytes()));
        let sent = source.0.clone();
        let rows = FeatureView { source, number: Number::F32, dim: 3, packed: Some(Arc::new(layout)), halo: None };
        assert_eq!(rows.row_bytes(), 10);
        let row = |node: usize| &wide[3 * node..3 * node + 3];
        let of = |nodes: [usize; 4]| Matrix { values: Values::F32(nodes.map(row).concat()), dim: 3 };
        assert_eq!(rows.gather(&[2, 0, 1, 2]), of([2, 0, 1, 2]));

        let mut buffer = GatherBuffer::new(Number::F32, 4, 3);
        rows.gather_at(&[0, 2, 9, 1], &[3, 1], &mut buffer);
        // From an odd address, as the network may leave them.
        let mut odd = vec![0];
        odd.extend_from_slice(&sent[..20]);
        rows.scatter(&odd[1..], &[2, 0], &mut buffer);
        // Row 3 is read here; the others have been fetched.
        let mut fetched = GatherBuffer::new(Number::F32, 4, 3);
        rows.scatter(&odd[1..], &[2, 0], &mut fetched);
        let mut batch = MiniBatch { nodes: vec![9, 9, 9, 2], buffer: Some(fetched), ..MiniBatch::default() };
        assert_eq!(rows.rows_at(&mut batch, &[3, 0, 2, 3]), of([2, 1, 0, 2]));
    }
}
