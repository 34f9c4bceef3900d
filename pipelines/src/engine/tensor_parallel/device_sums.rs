//! Sums over the edges of chunks on a GPU (NeutronTP, section 4.2).
//!
//! The GPU has the column shards of all nodes that one pass over the chunks reads, and the edges of two pieces of chunks: those of the next piece are
//! copied while one is summed. A shard is copied before the first chunk that needs it. Sums return to the memory of the host, because the GPU may have no
//! room for those of all hops.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use candle_core::{DType, Device, Tensor};
use gnnflow_dataflow::ghost::Links;
use gnnflow_kernels::block::Block;
use gnnflow_kernels::matrix::{Matrix, Values};
use gnnflow_nn::device::{DeviceTime, DeviceTimer};
use gnnflow_nn::ops::{RowNumbers, put_rows, segment_sum};
use gnnflow_nn::tensors::read;
use gnnflow_nn::{GraphBlock, Upload, Uploaded};
use rayon::prelude::*;

use crate::engine::aggregation::row_table::RowTable;
use crate::engine::aggregation::scales::Scales;
use crate::error::Error;

/// Rows that are copied at a time.
const ROWS: usize = 1 << 16;

/// Maximum edges of a piece with several receivers. A chunk bounds its in-edges, and so not the edges of the backward pass.
pub(crate) const PIECE_EDGES: i64 = 1 << 24;

/// A pass over all chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pass {
    pub(super) hop: usize,
    pub(super) backward: bool,
}

/// The sums of one chunk: `out[v] = after[v] · (Σ before[u] · rows[u] + own[v] · before[v] · rows[v])`; for gradients, `before` and `after` are
/// exchanged.
pub(super) struct ChunkSums<'a> {
    pub(super) pass: Pass,
    pub(super) links: &'a Links,
    /// The rows of `links` that receive.
    pub(super) receivers: Range<usize>,
    /// Those of the next chunk; `None` after the last one.
    pub(super) next: Option<Range<usize>>,
    /// The shards that are summed.
    pub(super) rows: &'a RowTable,
    /// Those of them that no earlier chunk of the pass has needed. They must be all shards that this chunk needs besides.
    pub(super) new: Vec<u32>,
    pub(super) scales: &'a Scales,
}

/// Sums on a GPU.
pub(super) struct DeviceSums {
    device: Device,
    upload: Upload,
    /// The pass that has begun, and its shards on the GPU: `[rows, columns]`.
    shards: Option<(Pass, Tensor)>,
    /// The edges of the next piece.
    next: Option<PieceEdges>,
    /// Time of sums, by the GPU's clock.
    spent: Duration,
    piece_edges: i64,
}

/// The edges of a piece, on their way to the GPU.
struct PieceEdges {
    backward: bool,
    receivers: Range<usize>,
    edges: Arc<GraphBlock>,
    uploaded: Uploaded,
}

impl DeviceSums {
    /// Prepares sums on `device`.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) fn new(device: Device) -> Result<Self, Error> {
        let (shards, next, spent) = (None, None, Duration::ZERO);
        Ok(Self { upload: Upload::new(&device)?, device, shards, next, spent, piece_edges: PIECE_EDGES })
    }

    /// Returns the time that the GPU has summed since the last call.
    pub(super) fn take_spent(&mut self) -> Duration {
        std::mem::take(&mut self.spent)
    }

    /// Writes the sums of a chunk to `out`, `[receivers, columns]`. The chunks of a pass follow one another.
    ///
    /// # Errors
    /// When the device fails or is out of memory, or a node has too many edges.
    pub(super) fn sum(&mut self, chunk: &ChunkSums<'_>, out: &mut [f32]) -> Result<(), Error> {
        let ChunkSums { pass, links, receivers, next, rows, .. } = chunk;
        let width = rows.width();
        if receivers.is_empty() || width == 0 {
            return Ok(());
        }
        let shards = self.shards(chunk)?;
        let pieces = self.pieces(links, receivers);
        let after = next.as_ref().and_then(|next| self.pieces(links, next).into_iter().next());
        let following = pieces.iter().skip(1).cloned().map(Some).chain([after]);
        for (piece, following) in pieces.iter().zip(following) {
            let edges = match self.next.take().filter(|next| (next.backward, &next.receivers) == (pass.backward, piece))
            {
                Some(next) => next,
                None => self.copy_edges(links, pass.backward, piece, rows.rows())?,
            };
            edges.uploaded.wait()?;
            let timer = DeviceTimer::start(&self.device)?;
            let sums = segment_sum(&edges.edges, &shards).map_err(gnnflow_nn::Error::from)?;
            let time = timer.map(DeviceTimer::end).transpose()?;
            // While the GPU sums.
            self.next = following.map(|next| self.copy_edges(links, pass.backward, &next, rows.rows())).transpose()?;
            let first = piece.start - receivers.start;
            let out = &mut out[first * width..(first + piece.len()) * width];
            read(&sums, |sums| chunk.scale(piece.clone(), sums, out))?;
            self.spent += time.map(DeviceTime::elapsed).transpose()?.unwrap_or_default();
        }
        self.shards = next.is_some().then_some((*pass, shards));
        Ok(())
    }

    /// Cuts receivers into pieces of at most as many edges as a piece may have.
    fn pieces(&self, links: &Links, receivers: &Range<usize>) -> Vec<Range<usize>> {
        let (bounds, _) = links.edges(receivers.clone());
        let (mut pieces, mut start) = (Vec::new(), 0);
        while start < receivers.len() {
            let fitting = bounds[start + 1..].partition_point(|bound| bound - bounds[start] <= self.piece_edges);
            let end = start + fitting.max(1);
            pieces.push(receivers.start + start..receivers.start + end);
            start = end;
        }
        pieces
    }

    /// Copies the new shards to the GPU. Returns all shards of the pass there.
    fn shards(&mut self, chunk: &ChunkSums<'_>) -> Result<Tensor, Error> {
        let ChunkSums { pass, rows, new, .. } = chunk;
        let shards = match self.shards.take() {
            Some((begun, shards)) if begun == *pass => shards,
            _ => {
                let rounded = matches!(rows, RowTable::Bf16(_)) && chunk.before().is_none();
                let dtype = if rounded { DType::BF16 } else { DType::F32 };
                let shape = (rows.rows(), rows.width());
                Tensor::zeros(shape, dtype, &self.device).map_err(gnnflow_nn::Error::from)?
            }
        };
        for part in new.chunks(ROWS) {
            let values = self.upload.rows(&chunk.selected(part), part.len())?;
            let numbers = RowNumbers::new(part, &self.device, Some(&self.upload))?;
            self.upload.end()?.wait()?;
            put_rows(&shards, &values, &numbers).map_err(gnnflow_nn::Error::from)?;
        }
        Ok(shards)
    }

    /// Begins to copy the edges of some receivers to the GPU. `sources` is the number of shards.
    fn copy_edges(
        &self,
        links: &Links,
        backward: bool,
        receivers: &Range<usize>,
        sources: usize,
    ) -> Result<PieceEdges, Error> {
        let (bounds, indices) = links.edges(receivers.clone());
        let (first, end) = (bounds[0], bounds[bounds.len() - 1]);
        let indptr = bounds.iter().map(|bound| u32::try_from(bound - first)).collect::<Result<_, _>>();
        let indptr = indptr.map_err(|_| {
            Error::Usage(format!(
                "a node has {} edges, which are too many for a GPU; use train.device = \"cpu\"",
                end - first
            ))
        })?;
        let indices = indices[first as usize..end as usize].to_vec();
        let edges = GraphBlock::new(Block::rectangular(receivers.len() as u32, sources as u32, indptr, indices));
        edges.copy_to(&self.device, Some(&self.upload))?;
        Ok(PieceEdges { backward, receivers: receivers.clone(), edges, uploaded: self.upload.end()? })
    }
}

impl ChunkSums<'_> {
    /// Returns the factors of rows before the sum.
    fn before(&self) -> Option<&[f32]> {
        let Scales { before, after, .. } = self.scales;
        if self.pass.backward { after.as_deref() } else { before.as_deref() }
    }

    /// Returns the factors of sums.
    fn after(&self) -> Option<&[f32]> {
        let Scales { before, after, .. } = self.scales;
        if self.pass.backward { before.as_deref() } else { after.as_deref() }
    }

    /// Returns some shards, times their factors.
    fn selected(&self, wanted: &[u32]) -> Matrix {
        let (dim, before) = (self.rows.width(), self.before());
        let row = |&row: &u32| row as usize..row as usize + 1;
        let values = match (self.rows, before) {
            (RowTable::Bf16(table), None) => {
                let mut values = Vec::with_capacity(wanted.len() * dim);
                wanted.iter().for_each(|wanted| values.extend_from_slice(table.some(row(wanted))));
                Values::Bf16(values)
            }
            (rows, before) => {
                let mut values = vec![0.0; wanted.len() * dim];
                values.par_chunks_exact_mut(dim).zip(wanted).for_each(|(out, wanted)| {
                    let factor = before.map_or(1.0, |before| before[*wanted as usize]);
                    out.iter_mut().zip(&*rows.read(row(wanted))).for_each(|(out, x)| *out = factor * x);
                });
                Values::F32(values)
            }
        };
        Matrix { dim, values }
    }

    /// Multiplies the sums of some receivers by their factors, and adds these receivers' own rows.
    fn scale(&self, receivers: Range<usize>, sums: &[f32], out: &mut [f32]) {
        let (width, rows, own) = (self.rows.width(), self.rows, self.scales.own.as_deref());
        let factor = |scale: Option<&[f32]>, row: usize| scale.map_or(1.0, |scale| scale[row]);
        let (before, after) = (self.before(), self.after());
        let sums = sums.par_chunks_exact(width).zip(receivers);
        out.par_chunks_exact_mut(width).zip(sums).for_each(|(out, (sums, row))| {
            let scale = factor(after, row);
            out.iter_mut().zip(sums).for_each(|(out, sum)| *out = sum * scale);
            if let Some(own) = own {
                let share = own[row] * factor(before, row) * scale;
                out.iter_mut().zip(&*rows.read(row..row + 1)).for_each(|(out, x)| *out += share * x);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use gnnflow_dataflow::ghost::Ends;
    use gnnflow_dataflow::graph::local_graph::{InEdges, OwnedInEdges};
    use gnnflow_dataflow::storage::Place;
    use gnnflow_nn::layers::Aggregation;

    use super::*;
    use crate::config::RowDtype;

    /// Sums two chunks of four nodes, on the CPU as on a GPU, and compares them with plain loops.
    #[test]
    fn sums_of_chunks_equal_plain_loops() {
        let edges = OwnedInEdges { indptr: vec![0, 2, 3, 3, 6], indices: vec![1, 3, 0, 0, 1, 2], ..Default::default() };
        let parts: [Arc<dyn InEdges>; 1] = [Arc::new(edges)];
        let links = Links::new(Ends::nodes(0..4, 4), &parts, Default::default(), &Place::Memory).unwrap();
        let values: Vec<f32> = (0..12).map(|i| 1.0 + (i as f32).sin()).collect();
        for aggregation in [Aggregation::Sum, Aggregation::Mean, Aggregation::Symmetric, Aggregation::MeanWithSelf] {
            let scales = Scales::of_parts(aggregation, 0, &parts);
            for dtype in [RowDtype::F32, RowDtype::Bf16] {
                let mut rows = RowTable::zeros(dtype, 4, 3, &Place::Memory).unwrap();
                rows.write(0..4, &values, None);
                let mut device = DeviceSums::new(Device::Cpu).unwrap();
                for (backward, piece_edges) in [(false, 1 << 24), (true, 1 << 24), (false, 2), (true, 1)] {
                    device.piece_edges = piece_edges;
                    let pass = Pass { hop: 0, backward };
                    let mut found = [0.0; 12];
                    for (receivers, next, new) in [(0..3, Some(3..4), vec![3, 1, 0]), (3..4, None, vec![2])] {
                        let out = &mut found[3 * receivers.start..3 * receivers.end];
                        let chunk =
                            ChunkSums { pass, links: &links, receivers, next, rows: &rows, new, scales: &scales };
                        device.sum(&chunk, out).unwrap();
                    }
                    assert!(device.shards.is_none() && device.next.is_none(), "the last chunk frees the memory");
                    let (before, after) =
                        if backward { (&scales.after, &scales.before) } else { (&scales.before, &scales.after) };
                    let factor = |scale: &Option<Vec<f32>>, row: usize| scale.as_ref().map_or(1.0, |scale| scale[row]);
                    for (place, found) in found.iter().enumerate() {
                        let (row, column) = (place / 3, place % 3);
                        let x = |row: usize| rows.read(row..row + 1)[column];
                        let (bounds, sources) = links.edges(row..row + 1);
                        let of_edges: f32 = sources[bounds[0] as usize..bounds[1] as usize]
                            .iter()
                            .map(|&source| factor(before, source as usize) * x(source as usize))
                            .sum();
                        let own = scales.own.as_ref().map_or(0.0, |own| own[row] * factor(before, row) * x(row));
                        let expected = factor(after, row) * (of_edges + own);
                        assert!((found - expected).abs() < 1e-5, "{aggregation:?}: {found} instead of {expected}");
                    }
                }
            }
        }
    }
}
