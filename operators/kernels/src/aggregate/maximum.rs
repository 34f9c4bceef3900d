//! Column-wise maxima over all in-neighbors, and their gradient, which belongs to the source of each maximum.
//!
//! The backward pass needs only the id of the source of each maximum, one number per destination and column. These are
//! ids, not positions, so that a process can find its own rows among them.

use std::ops::Range;

use super::pieces::{pieces, split};
use super::sources::Sources;
use crate::aggregate::offsets::Offset;
use crate::parallel;
use crate::simd::dispatch::multiversion;

/// The source of the maximum of a destination without edges.
pub const NO_SOURCE: u32 = u32::MAX;

/// The in-edges of an interval of destinations.
///
/// ```
/// use gnnflow_kernels::aggregate::Sources;
/// use gnnflow_kernels::aggregate::maximum::{Maximum, NO_SOURCE};
///
/// // Destination 0 has in-edges from 1 and 2, destination 1 none.
/// let job = Maximum { indptr: &[0u32, 2, 2], indices: &[1, 2], x: Sources::new(&[0f32, 3., 3.], 1), width: 1 };
/// let (mut out, mut largest) = ([0f32; 2], [0; 2]);
/// job.run(&mut out, &mut largest);
/// assert_eq!((out, largest), ([3., 0.], [1, NO_SOURCE]));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Maximum<'a, P> {
    /// The edges of row `r` of the interval are `indptr[r]..indptr[r + 1]`. An interval is a window of a longer
    /// `indptr`.
    pub indptr: &'a [P],
    /// The source of each edge; includes the edges of other intervals.
    pub indices: &'a [u32],
    /// Source rows.
    pub x: Sources<'a, f32>,
    /// Columns.
    pub width: usize,
}

impl<P: Offset> Maximum<'_, P> {
    /// Fills `out`, `[rows, width]`, with the column-wise maxima, 0 without edges. Fills `largest` with their sources,
    /// the first of equals in the order of edges, or [`NO_SOURCE`].
    ///
    /// # Panics
    /// If lengths do not match or a source is past the last.
    pub fn run(&self, out: &mut [f32], largest: &mut [u32]) {
        let (rows, width) = (self.indptr.len() - 1, self.width);
        assert!(out.len() == rows * width && largest.len() == rows * width, "one output row per row of edges");
        if rows == 0 || width == 0 {
            return;
        }
        let pieces = pieces(self.indptr);
        let parts = split(&pieces, width, out).into_iter().zip(split(&pieces, width, largest));
        let parts = pieces.into_iter().zip(parts).collect();
        parallel::each(parts, &|(rows, (out, largest)): (Range<usize>, (&mut [f32], &mut [u32]))| {
            for ((r, out), largest) in rows.zip(out.chunks_exact_mut(width)).zip(largest.chunks_exact_mut(width)) {
                let edges = self.indptr[r].at()..self.indptr[r + 1].at();
                out.fill(0.0);
                largest.fill(NO_SOURCE);
                for (k, &source) in self.indices[edges].iter().enumerate() {
                    update_maxima(self.x.row(source as usize, width), source, k == 0, out, largest);
                }
            }
        });
    }
}

multiversion! {
    fn update_maxima(row: &[f32], source: u32, first: bool, out: &mut [f32], largest: &mut [u32]) {
        for ((&x, out), largest) in row.iter().zip(out).zip(largest) {
            let larger = first | (x > *out);
            *out = if larger { x } else { *out };
            *largest = if larger { source } else { *largest };
        }
    }
}

/// The out-edges of an interval of sources, and the data of their destinations.
///
/// ```
/// use gnnflow_kernels::aggregate::Sources;
/// use gnnflow_kernels::aggregate::maximum::MaximumBackward;
///
/// // Sources with ids 7 and 8 have edges to destination 0, whose maximum is from 8.
/// let (gradient, largest) = ([5f32], [f32::from_bits(8)]);
/// let job = MaximumBackward {
///     indptr: &[0u32, 1, 2],
///     indices: &[0, 0],
///     gradient: Sources::new(&gradient, 1),
///     largest: Sources::new(&largest, 1),
///     ids: &[7, 8],
///     width: 1,
/// };
/// let mut dx = [0f32; 2];
/// job.run(&mut dx);
/// assert_eq!(dx, [0., 5.]);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct MaximumBackward<'a, P> {
    /// The out-edges of row `r` of the interval are `indptr[r]..indptr[r + 1]`. An interval is a window.
    pub indptr: &'a [P],
    /// The destination of each edge, sorted per row: parallel edges are adjacent.
    pub indices: &'a [u32],
    /// The gradient of each destination's aggregate, `[destinations, width]`.
    pub gradient: Sources<'a, f32>,
    /// The ids of the sources of the maxima, `[destinations, width]`, stored as the bits of `f32`, like other tables.
    pub largest: Sources<'a, f32>,
    /// The id of each row of the interval.
    pub ids: &'a [u32],
    /// Columns.
    pub width: usize,
}

impl<P: Offset> MaximumBackward<'_, P> {
    /// Fills `dx` with the gradient of the interval's rows, `[rows, width]`.
    ///
    /// # Panics
    /// If lengths do not match or a destination is past the last.
    pub fn run(&self, dx: &mut [f32]) {
        let (rows, width) = (self.indptr.len() - 1, self.width);
        assert!(dx.len() == rows * width && self.ids.len() == rows, "one output row and one id per row of edges");
        if rows == 0 || width == 0 {
            return;
        }
        let pieces = pieces(self.indptr);
        let parts = split(&pieces, width, dx);
        let parts = pieces.into_iter().zip(parts).collect();
        parallel::each(parts, &|(rows, dx): (Range<usize>, &mut [f32])| {
            for (r, dx) in rows.zip(dx.chunks_exact_mut(width)) {
                dx.fill(0.0);
                let mut previous = None;
                for &destination in &self.indices[self.indptr[r].at()..self.indptr[r + 1].at()] {
                    // Of edges between the same two nodes one has been picked.
                    if previous.replace(destination) != Some(destination) {
                        let destination = destination as usize;
                        let largest = self.largest.row(destination, width);
                        add_own_maxima(self.gradient.row(destination, width), largest, self.ids[r], dx);
                    }
                }
            }
        });
    }
}

multiversion! {
    fn add_own_maxima(gradient: &[f32], largest: &[f32], id: u32, dx: &mut [f32]) {
        for ((&g, largest), dx) in gradient.iter().zip(largest).zip(dx) {
            *dx += if largest.to_bits() == id { g } else { 0.0 };
        }
    }
}
