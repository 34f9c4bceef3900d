//! Stages of inference, and batches, that reduce the rows of neighbors where they lie.
//!
//! If a process has the rows of all nodes in one array, it need not copy those of a chunk or batch into a matrix first. Few of its edges have
//! the same source, so copying takes about as long as the reduction.

use std::sync::PoisonError;

use bytemuck::Pod;
use candle_core::Tensor;
use gnnflow_dataflow::fetch::fetch_rows::FeatureView;
use gnnflow_dataflow::graph::local_graph::LocalGraph;
use gnnflow_dataflow::storage::RowStore;
use gnnflow_kernels::aggregate::{Propagate, Scale, Sources};
use gnnflow_kernels::block::Block;
use gnnflow_kernels::dense::gather::for_each_ahead;
use gnnflow_kernels::matrix::Number;
use gnnflow_kernels::simd::element::Element;
use gnnflow_nn::Model;
use gnnflow_nn::model::Reduction;
use gnnflow_nn::ops::Reduce;
use gnnflow_nn::tensors::{read, tensor};
use half::bf16;
use rayon::prelude::*;

use super::passes::BatchRows;
use super::{ComputeState, JobThread, Passes};
use crate::error::Error;

/// Own rows that a thread copies at a time.
const OWN_ROWS: usize = 1 << 10;

/// Returns whether rows can be reduced where they lie: those of all nodes are in one array. Rows in `f16` are rare, and copied.
pub(crate) fn lie_in_place(rows: &FeatureView) -> bool {
    rows.packed.is_none() && rows.number != Number::F16 && rows.open().all().is_some()
}

impl ComputeState {
    /// Makes batches read `features` [in place](lie_in_place), if they can be and the first layer begins with a reduction. Returns whether they do.
    /// The edges of batches must have no columns.
    pub(crate) fn read_in_place(&self, features: &FeatureView) -> bool {
        let reduction = self.passes.read().model.first_reduction();
        let reads = reduction.filter(|_| !self.passes.learns_rows && self.passes.uses_edges && lie_in_place(features));
        if let Some(reduction) = reads {
            *self.passes.rows() = BatchRows::InPlace(features.clone(), reduction);
        }
        reads.is_some()
    }
}

impl Passes {
    /// As [`Passes::infer`], for a stage that begins with `reduction` of `rows`, which [lie in place](lie_in_place). `nodes` are global ids of one
    /// partition.
    pub(crate) fn infer_in_place(
        &self,
        on: &JobThread,
        (stage, reduction): (usize, Reduction),
        (graph, nodes): (&LocalGraph, &[u32]),
        (rows, own): (&FeatureView, &[FeatureView]),
        into: &RowStore,
    ) -> Result<(), Error> {
        let model = &self.read().model;
        on.threads.install(|| {
            let reduced = reduced(reduction, graph, nodes, rows)?;
            let rows = model.finish_stage(stage, &reduced, &own_rows(own, nodes, model)?)?;
            self.write_results(&rows, nodes, into)
        })
    }

    /// Writes the rows of `nodes`.
    pub(super) fn write_results(&self, rows: &Tensor, nodes: &[u32], into: &RowStore) -> Result<(), Error> {
        let _alone = self.store_rows.lock().unwrap_or_else(PoisonError::into_inner);
        let mut into = into.write()?;
        Ok(read(rows, |rows| into.set(nodes, rows))?)
    }
}

/// Returns the rows that a stage reads of its own nodes.
pub(super) fn own_rows(own: &[FeatureView], nodes: &[u32], model: &Model) -> Result<Vec<Tensor>, Error> {
    own.iter().map(|rows| Ok(tensor(rows.gather(nodes), nodes.len(), model.device())?)).collect()
}

/// Returns the reduced rows of the neighbors of `nodes`, which follow one another.
fn reduced(reduction: Reduction, graph: &LocalGraph, nodes: &[u32], rows: &FeatureView) -> Result<Tensor, Error> {
    let Some((&first, &last)) = nodes.first().zip(nodes.last()) else {
        return Err(Error::Bug("a chunk without nodes".into()));
    };
    let part = graph.partition_of(first);
    let edges = graph.in_edges(part);
    let of_part = |node: u32| (node - graph.range(part).start) as usize;
    reduce(reduction, &edges.indptr()[of_part(first)..=of_part(last) + 1], edges.indices(), nodes, rows)
}

/// Returns the reduced rows of the sources of a block, whose sources are the first of `nodes`.
pub(super) fn reduced_of_block(
    reduction: Reduction,
    block: &Block,
    nodes: &[u32],
    rows: &FeatureView,
) -> Result<Tensor, Error> {
    let indptr: Vec<i64> = block.indptr().iter().map(|&offset| i64::from(offset)).collect();
    let sources: Vec<u32> = block.indices().iter().map(|&source| nodes[source as usize]).collect();
    reduce(reduction, &indptr, &sources, &nodes[..block.num_dst()], rows)
}

/// Reduces `rows` over the edges of the nodes `own`.
fn reduce(
    reduction: Reduction,
    indptr: &[i64],
    indices: &[u32],
    own: &[u32],
    rows: &FeatureView,
) -> Result<Tensor, Error> {
    let opened = rows.open();
    let bytes = opened.all().ok_or_else(|| Error::Bug("rows that are not in place".into()))?;
    let values = match rows.number {
        Number::Bf16 => reduce_rows::<bf16>(reduction, (indptr, indices), bytemuck::cast_slice(bytes), rows.dim, own),
        _ => reduce_rows::<f32>(reduction, (indptr, indices), bytemuck::cast_slice(bytes), rows.dim, own),
    };
    let shape = (own.len(), if reduction.own_first { 2 * rows.dim } else { rows.dim });
    Ok(Tensor::from_vec(values, shape, &candle_core::Device::Cpu).map_err(gnnflow_nn::Error::from)?)
}

/// Reduces the rows of `x`, `[nodes of the graph, width]`.
fn reduce_rows<T: Element<Acc = f32> + Pod>(
    reduction: Reduction,
    (indptr, indices): (&[i64], &[u32]),
    x: &[T],
    width: usize,
    own: &[u32],
) -> Vec<f32> {
    let stride = if reduction.own_first { 2 * width } else { width };
    let mut out = vec![0.0; own.len() * stride];
    if out.is_empty() {
        return out;
    }
    let scale = match reduction.reduce {
        Reduce::Sum => Scale::One,
        Reduce::Mean => Scale::InverseDegree,
    };
    let sum = Propagate::sum(indptr, indices, Sources::new(x, width), width);
    Propagate { scale, out_stride: stride, ..sum }.run(&mut out[stride - width..]);
    if reduction.own_first {
        out.par_chunks_mut(OWN_ROWS * stride).zip(own.par_chunks(OWN_ROWS)).for_each(|(out, own)| {
            let row_at = |i: usize| bytemuck::cast_slice(&x[own[i] as usize * width..][..width]);
            for_each_ahead(width * size_of::<T>(), own.len(), row_at, |i, row| {
                let row: &[T] = bytemuck::cast_slice(row);
                out[i * stride..][..width].iter_mut().zip(row).for_each(|(out, x)| *out = x.widen());
            });
        });
    }
    out
}
