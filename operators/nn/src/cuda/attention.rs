//! Attention over the edges of every destination, without a stored row per edge.

use candle_core::cuda_backend::CudaStorage;
use candle_core::{CustomOp2, CustomOp3, Layout, Result, Shape};

use super::call::{Call, Edges, Input, Number, with_real};
use super::elementwise::sum_panels;
use super::kernels::{self, Argument, NULL};
use super::segment::weighted;
use super::threads::{over_rows, warp_per_row_of_heads};
use crate::graph_block::GraphBlock;
use crate::ops::attention::{
    AttentionLogits, AttentionLogitsBackward, AttentionSoftmax, AttentionSoftmaxBackward, Wanted,
};

/// The edges that a thread sums, at least, for the gradient of the vectors.
const SMALLEST_PANEL: u32 = 128;
/// The maximum number of panels, which one thread per column adds.
const PANELS: u32 = 2048;

/// The inputs of [`AttentionLogits`] and their sizes.
struct Inputs<'a, A> {
    left: Input<'a, A>,
    right: Input<'a, A>,
    vectors: Input<'a, A>,
    heads: usize,
    width: usize,
}

impl<A: Number> Inputs<'_, A> {
    /// Returns `fours` and 4 if threads can read four columns of a head at once, else `ones` and 1.
    fn kernel(&self, [ones, fours]: [kernels::Kernel; 2]) -> (kernels::Kernel, u32) {
        let aligned = self.left.aligned && self.right.aligned && self.vectors.aligned;
        if aligned && self.width.is_multiple_of(4) { (fours, 4) } else { (ones, 1) }
    }
}

/// Fails unless the inputs fit the block. Returns the heads and the columns of a head.
fn check(call: &Call<'_>, block: &GraphBlock, [left, right, vectors]: [&Layout; 3]) -> Result<(usize, usize)> {
    let (heads, width) = vectors.shape().dims2()?;
    call.expect("columns", call.columns_at_ends(block, left, right)?, heads * width)?;
    Ok((heads, width))
}

pub(crate) fn attention_logits(
    op: &AttentionLogits,
    left: (&CudaStorage, &Layout),
    right: (&CudaStorage, &Layout),
    vectors: (&CudaStorage, &Layout),
) -> Result<(CudaStorage, Shape)> {
    let call = Call::new(op.name(), left.0);
    let (heads, width) = check(&call, &op.block, [left.1, right.1, vectors.1])?;
    let edges = op.block.num_edges();
    let (sources, destinations) = (call.by_destination(&op.block)?.indices, call.destinations(&op.block)?);
    let [e, h, f] = [call.count(edges)?, call.count(heads)?, call.count(width)?];
    // A product has sixteen sums.
    let sums = call.count(16 * heads)?;
    with_real!(call, left.0, A => {
        let [left, right, vectors] = [left, right, vectors].map(|(numbers, layout)| call.input::<A>(numbers, layout));
        let x = Inputs { left: left?, right: right?, vectors: vectors?, heads, width };
        let (kernel, each) = x.kernel([kernels::ATTENTION_LOGITS, kernels::ATTENTION_LOGITS_X4]);
        let (threads, shift) = over_rows(e, sums, each);
        let out = call.alloc::<A>(edges * heads)?;
        let [left, right, vectors] = [&x.left, &x.right, &x.vectors].map(|input| input.address);
        let out_address = call.address(&out);
        let arguments =
            [sources, destinations, left, right, vectors, out_address, e.into(), h.into(), f.into(), shift, op.slope.into()];
        // SAFETY: these are the kernel's arguments; there is a row for every source and destination.
        unsafe { call.launch::<A>(kernel, threads, &arguments)? };
        call.output(out, (edges, heads))
    })
}

pub(crate) fn attention_logits_backward(
    op: &AttentionLogitsBackward,
    left: &CudaStorage,
    ll: &Layout,
    right: &CudaStorage,
    lr: &Layout,
) -> Result<(CudaStorage, Shape)> {
    let call = Call::new(op.name(), left);
    let block = &op.of.block;
    let (vectors, gradient) = (op.vectors.storage_and_layout(), op.gradient.storage_and_layout());
    let (heads, width) = check(&call, block, [ll, lr, vectors.1])?;
    call.expect("numbers in the gradient", gradient.1.shape().elem_count(), block.num_edges() * heads)?;
    with_real!(call, left, A => {
        let (left, right) = (call.input::<A>(left, ll)?, call.input::<A>(right, lr)?);
        let x = Inputs { left, right, vectors: call.of_tensor::<A>(&vectors.0, vectors.1)?, heads, width };
        let gradient = call.of_tensor::<A>(&gradient.0, gradient.1)?.address;
        match op.wanted {
            Wanted::Left => {
                let edges = (call.by_source(block)?, call.edges_by_source(block)?);
                of_rows(&call, &x, edges, gradient, [&x.right, &x.left], block.num_src(), op.of.slope)
            }
            Wanted::Right => {
                let edges = (call.by_destination(block)?, NULL);
                of_rows(&call, &x, edges, gradient, [&x.left, &x.right], block.num_dst(), op.of.slope)
            }
            Wanted::Vectors => of_vectors(&call, &x, block, gradient, op.of.slope),
        }
    })
}

/// Gradient of the logits with respect to the rows `own`, which have `other` rows at the other ends of their edges. Null
/// positions of the edges' gradients: those of the edges.
fn of_rows<A: Number>(
    call: &Call<'_>,
    x: &Inputs<'_, A>,
    (Edges { indptr, indices, long_rows }, positions): (Edges, Argument),
    gradient: Argument,
    [other, own]: [&Input<'_, A>; 2],
    rows: usize,
    slope: f64,
) -> Result<(CudaStorage, Shape)> {
    let columns = x.heads * x.width;
    let out = call.alloc::<A>(rows * columns)?;
    let (r, c) = (call.count(rows)?, call.count(columns)?);
    let (kernel, each) = x.kernel([kernels::ATTENTION_ROWS, kernels::ATTENTION_ROWS_X4]);
    let (threads, shift) = over_rows(r, c, each);
    let [h, f] = [call.count(x.heads)?, call.count(x.width)?].map(Argument::U32);
    let [other, own, vectors] = [other, own, &x.vectors].map(|input| input.address);
    let (out_address, slope) = (call.address(&out), Argument::F64(slope));
    let arguments =
        [indptr, indices, positions, gradient, other, own, vectors, out_address, r.into(), h, f, shift, slope];
    let list = long_rows.list;
    let of_long = [list, indptr, indices, positions, gradient, other, own, vectors, out_address, h, f, slope];
    // SAFETY: these are the kernels' arguments; there is a row for every index and a gradient for every edge.
    unsafe {
        call.launch::<A>(kernel, threads, &arguments)?;
        call.launch::<A>(kernels::ATTENTION_ROWS_LONG, long_rows.threads(c), &of_long)?;
    }
    call.output(out, (rows, columns))
}

/// Gradient of the logits with respect to the vectors: sums over panels of edges, and over panels.
fn of_vectors<A: Number>(
    call: &Call<'_>,
    x: &Inputs<'_, A>,
    block: &GraphBlock,
    gradient: Argument,
    slope: f64,
) -> Result<(CudaStorage, Shape)> {
    let (sources, destinations) = (call.by_destination(block)?.indices, call.destinations(block)?);
    let (edges, columns) = (call.count(block.num_edges())?, call.count(x.heads * x.width)?);
    let [h, f] = [call.count(x.heads)?, call.count(x.width)?].map(Argument::U32);
    let panel = edges.div_ceil(PANELS).max(SMALLEST_PANEL);
    let panels = edges.div_ceil(panel);
    let sums = call.alloc::<A>(panels as usize * columns as usize)?;
    let (kernel, each) = x.kernel([kernels::ATTENTION_VECTORS, kernels::ATTENTION_VECTORS_X4]);
    let (threads, shift) = over_rows(panels, columns, each);
    let (left, right, sums_address) = (x.left.address, x.right.address, call.address(&sums));
    let [e, each_panel] = [edges, panel].map(Argument::U32);
    let arguments =
        [sources, destinations, gradient, left, right, sums_address, e, each_panel, h, f, shift, slope.into()];
    // SAFETY: these are the kernel's arguments; there is a row for every source, destination and panel.
    unsafe { call.launch::<A>(kernel, threads, &arguments)? };
    let out = sum_panels::<A>(call, sums_address, panels, columns)?;
    call.output(out, (x.heads, x.width))
}

pub(crate) fn attention_softmax(
    op: &AttentionSoftmax,
    left: &CudaStorage,
    ll: &Layout,
    right: &CudaStorage,
    lr: &Layout,
) -> Result<(CudaStorage, Shape)> {
    let call = Call::new(op.name(), left);
    let heads = call.columns_at_ends(&op.block, ll, lr)?;
    let Edges { indptr, indices, .. } = call.by_destination(&op.block)?;
    let (r, h) = (call.count(op.block.num_dst())?, call.count(heads)?);
    let (threads, shift) = warp_per_row_of_heads(r, h);
    let edges = op.block.num_edges();
    with_real!(call, left, A => {
        let (left, right) = (call.input::<A>(left, ll)?.address, call.input::<A>(right, lr)?.address);
        let out = call.alloc::<A>(edges * heads)?;
        let arguments =
            [indptr, indices, left, right, call.address(&out), r.into(), h.into(), shift, op.slope.into()];
        // SAFETY: these are the kernel's arguments; there is a row for every source and destination.
        unsafe { call.launch::<A>(kernels::ATTENTION_SOFTMAX, threads, &arguments)? };
        call.output(out, (edges, heads))
    })
}

pub(crate) fn attention_softmax_backward(
    op: &AttentionSoftmaxBackward,
    left: (&CudaStorage, &Layout),
    right: (&CudaStorage, &Layout),
    alpha: (&CudaStorage, &Layout),
) -> Result<(CudaStorage, Shape)> {
    let call = Call::new(op.name(), left.0);
    let block = &op.of.block;
    let (edges, heads) = alpha.1.shape().dims2()?;
    let gradient = op.gradient.storage_and_layout();
    call.expect("numbers in the gradient", gradient.1.shape().elem_count(), edges * heads)?;
    let (by_destination, by_source) = (call.by_destination(block)?, call.by_source(block)?);
    let (sources, destinations, positions) = (block.num_src(), block.num_dst(), call.edges_by_source(block)?);
    let (h, slope) = (call.count(heads)?, Argument::F64(op.of.slope));
    with_real!(call, left.0, A => {
        let (left, right) = (call.input::<A>(left.0, left.1)?.address, call.input::<A>(right.0, right.1)?.address);
        let (alpha, g) = (call.input::<A>(alpha.0, alpha.1)?, call.of_tensor::<A>(&gradient.0, gradient.1)?);
        let out = call.alloc::<A>((sources + destinations) * heads)?;
        // The total of a destination is a sum of the rows alpha, one per edge, weighted by the gradient.
        let numbers = Edges { indices: NULL, ..by_destination };
        let (totals, _) = weighted::<A>(&call, numbers, (&g, NULL), &alpha, destinations, [heads, 1])?;
        let totals = call.address(totals.as_cuda_slice::<A>()?);
        let of_right = call.address(&out.slice(sources * heads..));
        let sides = [
            (by_source, positions, [right, left, call.address(&out)], sources),
            (by_destination, NULL, [left, right, of_right], destinations),
        ];
        for (Edges { indptr, indices, long_rows }, positions, [other, own, out], rows) in sides {
            let (r, list, alpha, g) = (call.count(rows)?, long_rows.list, alpha.address, g.address);
            let (threads, shift) = over_rows(r, h, 1);
            let arguments = [
                indptr, indices, positions, alpha, g, totals, other, own, out, r.into(), h.into(), shift, slope,
            ];
            let of_long =
                [list, indptr, indices, positions, alpha, g, totals, other, own, out, h.into(), slope];
            // SAFETY: these are the kernels' arguments; there is a row for every index, and numbers for every edge.
            unsafe {
                call.launch::<A>(kernels::ATTENTION_SCORES, threads, &arguments)?;
                call.launch::<A>(kernels::ATTENTION_SCORES_LONG, long_rows.threads(h), &of_long)?;
            }
        }
        call.output(out, (sources + destinations, heads))
    })
}
