//! Sums over the edges of every row, weighted or not; maxima.

use candle_core::cuda_backend::CudaStorage;
use candle_core::{CustomOp1, CustomOp2, Layout, Result, Shape};

use super::call::{Call, Edges, Input, Number, with_element, with_real};
use super::kernels::{self, Argument, NULL};
use super::threads::{over_rows, sixteen_per_product};
use crate::ops::max::PickBackward;
use crate::ops::max::{Argmax, Pick};
use crate::ops::segment::{SegmentReduce, SegmentReduceBackward};
use crate::ops::weighted::{WeightedSum, WeightedSumRows, WeightedSumWeights};
use crate::ops::{Reduce, head_width};

pub(crate) fn segment_reduce(op: &SegmentReduce, x: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
    let call = Call::new(op.name(), x);
    let (rows, columns) = layout.shape().dims2()?;
    call.expect("source rows", rows, op.block.num_src())?;
    let edges = call.by_destination(&op.block)?;
    let (rows, mean) = (op.block.num_dst(), op.reduce == Reduce::Mean);
    with_element!(call, x, T => sum::<T>(&call, edges, &call.input(x, layout)?, [rows, columns], mean))
}

pub(crate) fn segment_reduce_backward(
    op: &SegmentReduceBackward,
    g: &CudaStorage,
    layout: &Layout,
) -> Result<(CudaStorage, Shape)> {
    let call = Call::new(op.name(), g);
    let (rows, columns) = layout.shape().dims2()?;
    call.expect("destination rows", rows, op.block.num_dst())?;
    let (edges, rows) = (call.by_source(&op.block)?, op.block.num_src());
    with_real!(call, g, A => {
        let g = call.input::<A>(g, layout)?;
        match op.reduce {
            Reduce::Sum => sum::<A>(&call, edges, &g, [rows, columns], false),
            Reduce::Mean => {
                let degrees = [call.inverse_degrees(&op.block)?, call.by_destination(&op.block)?.indptr];
                mean_backward::<A>(&call, edges, degrees, &g, [rows, columns])
            }
        }
    })
}

/// Sums over the rows of `edges`: `[_, columns]` → `[rows, columns]`.
pub(super) fn sum<T: Number>(
    call: &Call<'_>,
    Edges { indptr, indices, long_rows }: Edges,
    x: &Input<'_, T>,
    [rows, columns]: [usize; 2],
    mean: bool,
) -> Result<(CudaStorage, Shape)> {
    let out = call.alloc::<T::Sum>(rows * columns)?;
    let (r, c) = (call.count(rows)?, call.count(columns)?);
    let by_four = x.aligned && columns.is_multiple_of(4);
    let (kernel, each) = if by_four { (kernels::SEGMENT_SUM_X4, 4) } else { (kernels::SEGMENT_SUM, 1) };
    let (threads, shift) = over_rows(r, c, each);
    let arguments = [indptr, indices, x.address, call.address(&out), r.into(), c.into(), shift, u32::from(mean).into()];
    let of_long = [long_rows.list, indptr, indices, x.address, call.address(&out), c.into(), u32::from(mean).into()];
    // SAFETY: these are the kernels' arguments; callers checked that `x` has a row for every index.
    unsafe {
        call.launch::<T>(kernel, threads, &arguments)?;
        call.launch::<T>(kernels::SEGMENT_SUM_LONG, long_rows.threads(c), &of_long)?;
    }
    call.output(out, (rows, columns))
}

/// Adds the gradients of means to their rows. `degrees` has one over the edges of each destination, and the offsets of its edges.
fn mean_backward<A: Number>(
    call: &Call<'_>,
    Edges { indptr, indices, long_rows }: Edges,
    [inverse_degrees, by_destination]: [Argument; 2],
    g: &Input<'_, A>,
    [rows, columns]: [usize; 2],
) -> Result<(CudaStorage, Shape)> {
    let out = call.alloc::<A>(rows * columns)?;
    let (r, c) = (call.count(rows)?, call.count(columns)?);
    let by_four = g.aligned && columns.is_multiple_of(4);
    let (kernel, each) =
        if by_four { (kernels::SEGMENT_MEAN_BACKWARD_X4, 4) } else { (kernels::SEGMENT_MEAN_BACKWARD, 1) };
    let (threads, shift) = over_rows(r, c, each);
    let out_address = call.address(&out);
    let arguments =
        [indptr, indices, g.address, inverse_degrees, by_destination, out_address, r.into(), c.into(), shift];
    let of_long = [long_rows.list, indptr, indices, g.address, inverse_degrees, by_destination, out_address, c.into()];
    // SAFETY: these are the kernels' arguments; the caller checked that `g` has a row for every destination.
    unsafe {
        call.launch::<A>(kernel, threads, &arguments)?;
        call.launch::<A>(kernels::SEGMENT_MEAN_BACKWARD_LONG, long_rows.threads(c), &of_long)?;
    }
    call.output(out, (rows, columns))
}

pub(crate) fn weighted_sum(
    op: &WeightedSum,
    x: &CudaStorage,
    lx: &Layout,
    w: &CudaStorage,
    lw: &Layout,
) -> Result<(CudaStorage, Shape)> {
    let call = Call::new(op.name(), x);
    let ((rows, columns), (edges, heads)) = (lx.shape().dims2()?, lw.shape().dims2()?);
    call.expect("source rows", rows, op.block.num_src())?;
    call.expect("edges' weights", edges, op.block.num_edges())?;
    let width = head_width(op.name(), columns, heads)?;
    let (edges, rows) = (call.by_destination(&op.block)?, op.block.num_dst());
    with_element!(call, x, T => {
        let w = call.input::<<T as Number>::Sum>(w, lw)?;
        weighted::<T>(&call, edges, (&w, NULL), &call.input(x, lx)?, rows, [heads, width])
    })
}

pub(crate) fn weighted_sum_rows(
    op: &WeightedSumRows,
    g: &CudaStorage,
    lg: &Layout,
    w: &CudaStorage,
    lw: &Layout,
) -> Result<(CudaStorage, Shape)> {
    let call = Call::new(op.name(), g);
    let ((rows, columns), (edges, heads)) = (lg.shape().dims2()?, lw.shape().dims2()?);
    call.expect("destination rows", rows, op.block.num_dst())?;
    call.expect("edges' weights", edges, op.block.num_edges())?;
    let width = head_width(op.name(), columns, heads)?;
    let (edges, positions) = (call.by_source(&op.block)?, call.edges_by_source(&op.block)?);
    let rows = op.block.num_src();
    with_real!(call, g, A => {
        let w = call.input::<A>(w, lw)?;
        weighted::<A>(&call, edges, (&w, positions), &call.input(g, lg)?, rows, [heads, width])
    })
}

/// Weighted sums over the rows of `edges`. Null positions of weights: those of the edges.
pub(super) fn weighted<T: Number>(
    call: &Call<'_>,
    Edges { indptr, indices, long_rows }: Edges,
    (w, positions): (&Input<'_, T::Sum>, Argument),
    x: &Input<'_, T>,
    rows: usize,
    [heads, width]: [usize; 2],
) -> Result<(CudaStorage, Shape)> {
    let columns = heads * width;
    let out = call.alloc::<T::Sum>(rows * columns)?;
    let (r, c) = (call.count(rows)?, call.count(columns)?);
    let by_four = x.aligned && width.is_multiple_of(4);
    let (kernel, each) = if by_four { (kernels::WEIGHTED_SUM_X4, 4) } else { (kernels::WEIGHTED_SUM, 1) };
    let (threads, shift) = over_rows(r, c, each);
    let out_address = call.address(&out);
    let (h, f) = (call.count(heads)?, call.count(width)?);
    let arguments =
        [indptr, indices, positions, w.address, x.address, out_address, r.into(), h.into(), f.into(), shift];
    let of_long = [long_rows.list, indptr, indices, positions, w.address, x.address, out_address, h.into(), f.into()];
    // SAFETY: these are the kernels' arguments; callers checked that each index has a row and each edge a weight.
    unsafe {
        call.launch::<T>(kernel, threads, &arguments)?;
        call.launch::<T>(kernels::WEIGHTED_SUM_LONG, long_rows.threads(call.count(columns)?), &of_long)?;
    }
    call.output(out, (rows, columns))
}

pub(crate) fn weighted_sum_weights(
    op: &WeightedSumWeights,
    x: &CudaStorage,
    lx: &Layout,
    g: &CudaStorage,
    lg: &Layout,
) -> Result<(CudaStorage, Shape)> {
    let call = Call::new(op.name(), x);
    let ((rows, columns), (g_rows, g_columns)) = (lx.shape().dims2()?, lg.shape().dims2()?);
    call.expect("source rows", rows, op.block.num_src())?;
    call.expect("destination rows", g_rows, op.block.num_dst())?;
    call.expect("columns", g_columns, columns)?;
    let (heads, edges) = (op.heads, op.block.num_edges());
    let width = head_width(op.name(), columns, heads)?;
    let (sources, destinations) = (call.by_destination(&op.block)?.indices, call.destinations(&op.block)?);
    with_element!(call, x, T => {
        let (x, g) = (call.input::<T>(x, lx)?, call.input::<<T as Number>::Sum>(g, lg)?);
        let out = call.alloc::<<T as Number>::Sum>(edges * heads)?;
        let [e, h, f] = [call.count(edges)?, call.count(heads)?, call.count(width)?].map(Argument::U32);
        let arguments = [sources, destinations, g.address, x.address, call.address(&out), e, h, f];
        // SAFETY: these are the kernel's arguments; `x` and `g` have a row for every source and destination.
        unsafe { call.launch::<T>(kernels::EDGE_DOT, sixteen_per_product(edges * heads), &arguments)? };
        call.output(out, (edges, heads))
    })
}

pub(crate) fn argmax(op: &Argmax, x: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
    let call = Call::new(op.name(), x);
    let (rows, columns) = layout.shape().dims2()?;
    call.expect("source rows", rows, op.block.num_src())?;
    let (edges, rows) = (call.by_destination(&op.block)?, op.block.num_dst());
    let (r, c) = (call.count(rows)?, call.count(columns)?);
    let (threads, shift) = over_rows(r, c, 1);
    let out = call.alloc::<u32>(rows * columns)?;
    with_element!(call, x, T => {
        let x = call.input::<T>(x, layout)?;
        let arguments =
            [edges.indptr, edges.indices, x.address, call.address(&out), r.into(), c.into(), shift];
        // SAFETY: these are the kernel's arguments, and `x` has a row for every source.
        unsafe { call.launch::<T>(kernels::SEGMENT_ARGMAX, threads, &arguments)? };
    });
    call.output(out, (rows, columns))
}

pub(crate) fn pick(
    op: &Pick,
    x: &CudaStorage,
    lx: &Layout,
    arg: &CudaStorage,
    la: &Layout,
) -> Result<(CudaStorage, Shape)> {
    let call = Call::new(op.name(), x);
    let ((sources, columns), (rows, arg_columns)) = (lx.shape().dims2()?, la.shape().dims2()?);
    call.expect("source rows", sources, op.block.num_src())?;
    call.expect("columns", arg_columns, columns)?;
    let sources = call.by_destination(&op.block)?.indices;
    let (r, c) = (call.count(rows)?, call.count(columns)?);
    let (threads, shift) = over_rows(r, c, 1);
    let arg = call.indices(arg, la)?;
    with_element!(call, x, T => {
        let (x, out) = (call.input::<T>(x, lx)?, call.alloc::<<T as Number>::Sum>(rows * columns)?);
        let arguments =
            [sources, arg.address, x.address, call.address(&out), r.into(), c.into(), shift];
        // SAFETY: these are the kernel's arguments; `arg` is the result of `argmax` on this block.
        unsafe { call.launch::<T>(kernels::SEGMENT_PICK, threads, &arguments)? };
        call.output(out, (rows, columns))
    })
}

pub(crate) fn pick_backward(
    op: &PickBackward,
    g: &CudaStorage,
    lg: &Layout,
    arg: &CudaStorage,
    la: &Layout,
) -> Result<(CudaStorage, Shape)> {
    let call = Call::new(op.name(), g);
    let ((g_rows, columns), (rows, arg_columns)) = (lg.shape().dims2()?, la.shape().dims2()?);
    call.expect("destination rows", g_rows, op.block.num_dst())?;
    call.expect("rows picked", rows, g_rows)?;
    call.expect("columns", arg_columns, columns)?;
    let Edges { indptr, indices, .. } = call.by_source(&op.block)?;
    let (edges, rows) = (call.edges_by_source(&op.block)?, op.block.num_src());
    let (r, c) = (call.count(rows)?, call.count(columns)?);
    let (threads, shift) = over_rows(r, c, 1);
    let arg = call.indices(arg, la)?;
    with_real!(call, g, A => {
        let (g, out) = (call.input::<A>(g, lg)?, call.alloc::<A>(rows * columns)?);
        let out_address = call.address(&out);
        let arguments = [
            indptr,
            indices,
            edges,
            arg.address,
            g.address,
            out_address,
            r.into(),
            c.into(),
            shift,
        ];
        // SAFETY: these are the kernel's arguments; `arg` and `g` have a row for every destination.
        unsafe { call.launch::<A>(kernels::SEGMENT_PICK_BACKWARD, threads, &arguments)? };
        call.output(out, (rows, columns))
    })
}
