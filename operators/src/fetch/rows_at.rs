//! The rows of one time, and how they come into a batch.

use std::sync::Arc;

use gnnflow_data::dataset::RowLayout;

use super::halo::HaloRows;
use super::matrix::{Matrix, Number};
use crate::kernel::gather::{gather_places, scatter_rows};
use crate::wire::RowSource;

/// The rows of one time.
///
/// Where the columns of a row are stored in several types, the row is `packed`: as it lies in files, in halos and on the wire.
/// Batches and caches have its numbers as `f32`.
#[derive(Clone)]
pub struct RowsAt {
    /// The rows that this worker holds.
    pub source: Arc<dyn RowSource>,
    /// Their number type in a batch; `f32` where rows are packed.
    pub number: Number,
    /// Numbers in a row.
    pub dim: usize,
    /// How rows are packed, where they are.
    pub packed: Option<Arc<RowLayout>>,
    /// The same rows of nodes that other workers hold, as far as they lie here.
    pub halo: Option<Arc<HaloRows>>,
}

impl RowsAt {
    /// Bytes of a row where it lies, and on the wire.
    pub fn row_bytes(&self) -> usize {
        self.packed.as_ref().map_or_else(|| self.number.bytes() * self.dim, |layout| layout.row_bytes())
    }

    /// Writes a row as it lies into a batch's.
    #[inline]
    pub(super) fn put(&self, row: &[u8], into: &mut [u8]) {
        match &self.packed {
            None => into.copy_from_slice(row),
            Some(layout) => layout.widen(row, bytemuck::cast_slice_mut(into)),
        }
    }

    /// A new matrix of the rows of `nodes`, all of which are here.
    pub(super) fn gather(&self, nodes: &[u32]) -> Matrix {
        let row_of = |node| self.source.row(node);
        if self.packed.is_none() {
            return Matrix::gather(self.number, self.dim, row_of, nodes);
        }
        let mut matrix = Matrix::zeros(self.number, nodes.len(), self.dim);
        let width = matrix.row_bytes().max(1);
        let places = matrix.bytes_mut().chunks_exact_mut(width).zip(nodes);
        places.for_each(|(into, &node)| self.put(row_of(node), into));
        matrix
    }

    /// Writes the rows of those `nodes` that stand at `places` there.
    pub(super) fn gather_places(&self, nodes: &[u32], places: &[u32], into: &mut Matrix) {
        let row_of = |node| self.source.row(node);
        if self.packed.is_none() {
            return gather_places(self.row_bytes(), row_of, nodes, places, into.bytes_mut());
        }
        let (width, into) = (into.row_bytes(), into.bytes_mut());
        for place in places.iter().map(|&place| place as usize) {
            self.put(row_of(nodes[place]), &mut into[place * width..(place + 1) * width]);
        }
    }

    /// Writes received `rows`, one behind the other, to `places`.
    pub(super) fn scatter(&self, rows: &[u8], places: &[u32], into: &mut Matrix) {
        if self.packed.is_none() {
            return scatter_rows(self.row_bytes(), rows, places, into.bytes_mut());
        }
        let (width, into) = (into.row_bytes(), into.bytes_mut());
        for (row, place) in rows.chunks_exact(self.row_bytes().max(1)).zip(places.iter().map(|&place| place as usize)) {
            self.put(row, &mut into[place * width..(place + 1) * width]);
        }
    }
}

#[cfg(test)]
mod tests {
    use gnnflow_data::source::FeatureDtype::{Bf16, F32};

    use super::super::matrix::Values;
    use super::*;

    /// Packed rows of three nodes.
    struct Packed(Vec<u8>, usize);

    impl RowSource for Packed {
        fn row_bytes(&self) -> usize {
            self.1
        }

        fn row(&self, node: u32) -> &[u8] {
            &self.0[node as usize * self.1..][..self.1]
        }
    }

    #[test]
    fn packed_rows_come_into_a_batch_as_the_numbers_that_they_are() {
        let layout = RowLayout::new([(1, Bf16), (2, F32)]);
        let wide: Vec<f32> = (0..9).map(|i| i as f32 * 0.5).collect();
        let source = Arc::new(Packed(layout.narrow(&wide).unwrap(), layout.row_bytes()));
        let sent = source.0.clone();
        let rows = RowsAt { source, number: Number::F32, dim: 3, packed: Some(Arc::new(layout)), halo: None };
        assert_eq!(rows.row_bytes(), 10);
        let row = |node: usize| &wide[3 * node..3 * node + 3];
        let of = |nodes: [usize; 4]| Matrix { values: Values::F32(nodes.map(row).concat()), dim: 3 };
        assert_eq!(rows.gather(&[2, 0, 1, 2]), of([2, 0, 1, 2]));

        let mut matrix = of([0; 4]);
        rows.gather_places(&[0, 2, 9, 1], &[3, 1], &mut matrix);
        assert_eq!(matrix, of([0, 2, 0, 1]));
        // From an odd address, as the network may leave them.
        let mut odd = vec![0];
        odd.extend_from_slice(&sent);
        rows.scatter(&odd[1..], &[3, 0, 1], &mut matrix);
        assert_eq!(matrix, of([1, 2, 0, 0]));
    }
}
