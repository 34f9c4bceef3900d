//! Values on edges: sums of the values at both ends, softmax over a destination's edges, sums over edges.

use candle_core::cuda_backend::CudaStorage;
use candle_core::{CustomOp1, CustomOp2, Layout, Result, Shape};

use super::call::{Call, Edges, with_real};
use super::kernels::NULL;
use super::threads::{over_rows, warp_per_row_of_heads};
use super::{kernels, segment};
use crate::ops::Side;
use crate::ops::edges::{EdgeAdd, EdgeSoftmax, EdgeSoftmaxBackward, EdgeSum};

pub(crate) fn edge_add(
    op: &EdgeAdd,
    left: &CudaStorage,
    ll: &Layout,
    right: &CudaStorage,
    lr: &Layout,
) -> Result<(CudaStorage, Shape)> {
    let call = Call::new(op.name(), left);
    let heads = call.columns_at_ends(&op.block, ll, lr)?;
    let (sources, destinations) = (call.by_destination(&op.block)?.indices, call.destinations(&op.block)?);
    let edges = op.block.num_edges();
    let (e, h) = (call.count(edges)?, call.count(heads)?);
    let (threads, shift) = over_rows(e, h, 1);
    with_real!(call, left, A => {
        let (left, right) = (call.input::<A>(left, ll)?, call.input::<A>(right, lr)?);
        let out = call.alloc::<A>(edges * heads)?;
        let out_address = call.address(&out);
        let arguments =
            [sources, destinations, left.address, right.address, out_address, e.into(), h.into(), shift];
        // SAFETY: these are the kernel's arguments; there is a row for every source and destination.
        unsafe { call.launch::<A>(kernels::EDGE_ADD, threads, &arguments)? };
        call.output(out, (edges, heads))
    })
}

pub(crate) fn edge_softmax(op: &EdgeSoftmax, z: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
    let call = Call::new(op.name(), z);
    let (edges, heads) = layout.shape().dims2()?;
    call.expect("edges", edges, op.block.num_edges())?;
    let indptr = call.by_destination(&op.block)?.indptr;
    let (r, h) = (call.count(op.block.num_dst())?, call.count(heads)?);
    let (threads, shift) = warp_per_row_of_heads(r, h);
    with_real!(call, z, A => {
        let (z, out) = (call.input::<A>(z, layout)?, call.alloc::<A>(edges * heads)?);
        let arguments = [indptr, z.address, call.address(&out), r.into(), h.into(), shift];
        // SAFETY: these are the kernel's arguments, and there are numbers for every edge.
        unsafe { call.launch::<A>(kernels::EDGE_SOFTMAX, threads, &arguments)? };
        call.output(out, (edges, heads))
    })
}

pub(crate) fn edge_softmax_backward(
    op: &EdgeSoftmaxBackward,
    alpha: &CudaStorage,
    la: &Layout,
    g: &CudaStorage,
    lg: &Layout,
) -> Result<(CudaStorage, Shape)> {
    let call = Call::new(op.name(), alpha);
    let (edges, heads) = la.shape().dims2()?;
    call.expect("edges", edges, op.block.num_edges())?;
    call.expect("numbers in the gradient", lg.shape().elem_count(), edges * heads)?;
    let indptr = call.by_destination(&op.block)?.indptr;
    let (r, h) = (call.count(op.block.num_dst())?, call.count(heads)?);
    let (threads, shift) = warp_per_row_of_heads(r, h);
    with_real!(call, alpha, A => {
        let (alpha, g) = (call.input::<A>(alpha, la)?, call.input::<A>(g, lg)?);
        let out = call.alloc::<A>(edges * heads)?;
        let arguments =
            [indptr, alpha.address, g.address, call.address(&out), r.into(), h.into(), shift];
        // SAFETY: these are the kernel's arguments, and there are numbers for every edge.
        unsafe { call.launch::<A>(kernels::EDGE_SOFTMAX_BACKWARD, threads, &arguments)? };
        call.output(out, (edges, heads))
    })
}

pub(crate) fn edge_sum(op: &EdgeSum, values: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
    let call = Call::new(op.name(), values);
    let (count, heads) = layout.shape().dims2()?;
    call.expect("edges", count, op.block.num_edges())?;
    let (rows, edges) = match op.side {
        Side::Source => {
            let indices = call.edges_by_source(&op.block)?;
            (op.block.num_src(), Edges { indices, ..call.by_source(&op.block)? })
        }
        Side::Destination => (op.block.num_dst(), Edges { indices: NULL, ..call.by_destination(&op.block)? }),
    };
    with_real!(call, values, A => segment::sum::<A>(&call, edges, &call.input(values, layout)?, [rows, heads], false))
}
