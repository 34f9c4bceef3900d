//! Losses, summed over rows to an `f64` scalar; and log-softmax.

use candle_core::cuda_backend::CudaStorage;
use candle_core::cuda_backend::cudarc::driver::{CudaSlice, LaunchConfig};
use candle_core::{CustomOp1, CustomOp2, CustomOp3, Layout, Result, Shape};

use super::call::{Call, with_real};
use super::kernels::{self, Argument, Kernel};
use super::threads::{block_per_piece, over_numbers, warp_per_row};
use crate::ops::softmax_loss::{
    BinaryCrossEntropy, BinaryCrossEntropyBackward, CrossEntropy, CrossEntropyBackward, LogSoftmax, LogSoftmaxBackward,
    SigmoidFocalLoss, SigmoidFocalLossBackward,
};

/// Numbers that one block sums: `PIECE` of `loss.cu`.
const PIECE: usize = 4096;

pub(crate) fn cross_entropy(
    op: &CrossEntropy,
    x: &CudaStorage,
    lx: &Layout,
    y: &CudaStorage,
    ly: &Layout,
) -> Result<(CudaStorage, Shape)> {
    let call = Call::new(op.name(), x);
    let (rows, classes) = lx.shape().dims2()?;
    call.expect("labels", ly.shape().dims1()?, rows)?;
    let (r, c) = (call.count(rows)?, call.count(classes)?);
    let (y, each) = (call.indices(y, ly)?, call.alloc::<f64>(rows)?);
    with_real!(call, x, A => {
        let x = call.input::<A>(x, lx)?;
        let arguments = [x.address, y.address, call.address(&each), r.into(), c.into()];
        // SAFETY: these are the kernel's arguments; the loss's callers check that labels are classes.
        unsafe { call.launch::<A>(kernels::CROSS_ENTROPY, warp_per_row(r), &arguments)? };
    });
    total(&call, &each, rows)
}

/// Returns the sum of the first `n` numbers of `each`.
fn total(call: &Call<'_>, each: &CudaSlice<f64>, n: usize) -> Result<(CudaStorage, Shape)> {
    let out = call.alloc::<f64>(1)?;
    let arguments = [call.address(each), call.address(&out), Argument::U64(n as u64)];
    let one_block = LaunchConfig { grid_dim: (1, 1, 1), ..block_per_piece(1, 1) };
    // SAFETY: these are the kernel's arguments.
    unsafe { kernels::SUM_OF_EACH.launch(call.device, "", one_block, &arguments)? };
    call.output(out, Shape::from(()))
}

pub(crate) fn cross_entropy_backward(
    op: &CrossEntropyBackward,
    (x, lx): (&CudaStorage, &Layout),
    (y, ly): (&CudaStorage, &Layout),
    (g, lg): (&CudaStorage, &Layout),
) -> Result<(CudaStorage, Shape)> {
    let call = Call::new(op.name(), x);
    let (rows, classes) = lx.shape().dims2()?;
    call.expect("labels", ly.shape().dims1()?, rows)?;
    call.expect("numbers in the gradient", lg.shape().elem_count(), 1)?;
    let (r, c) = (call.count(rows)?, call.count(classes)?);
    let (y, g) = (call.indices(y, ly)?, call.input::<f64>(g, lg)?);
    with_real!(call, x, A => {
        let (x, out) = (call.input::<A>(x, lx)?, call.alloc::<A>(rows * classes)?);
        let arguments = [x.address, y.address, g.address, call.address(&out), r.into(), c.into()];
        // SAFETY: these are the kernel's arguments, of those shapes.
        unsafe { call.launch::<A>(kernels::CROSS_ENTROPY_BACKWARD, warp_per_row(r), &arguments)? };
        call.output(out, (rows, classes))
    })
}

pub(crate) fn binary_cross_entropy(
    op: &BinaryCrossEntropy,
    x: &CudaStorage,
    lx: &Layout,
    y: &CudaStorage,
    ly: &Layout,
) -> Result<(CudaStorage, Shape)> {
    of_labels(&Call::new(op.name(), x), kernels::BINARY_CROSS_ENTROPY, (x, lx), (y, ly), None)
}

pub(crate) fn binary_cross_entropy_backward(
    op: &BinaryCrossEntropyBackward,
    x: (&CudaStorage, &Layout),
    y: (&CudaStorage, &Layout),
    g: (&CudaStorage, &Layout),
) -> Result<(CudaStorage, Shape)> {
    of_labels_backward(&Call::new(op.name(), x.0), kernels::BINARY_CROSS_ENTROPY_BACKWARD, x, y, g, None)
}

pub(crate) fn sigmoid_focal_loss(
    op: &SigmoidFocalLoss,
    x: &CudaStorage,
    lx: &Layout,
    w: &CudaStorage,
    lw: &Layout,
) -> Result<(CudaStorage, Shape)> {
    of_labels(&Call::new(op.name(), x), kernels::SIGMOID_FOCAL_LOSS, (x, lx), (w, lw), Some(op.gamma))
}

pub(crate) fn sigmoid_focal_loss_backward(
    op: &SigmoidFocalLossBackward,
    x: (&CudaStorage, &Layout),
    w: (&CudaStorage, &Layout),
    g: (&CudaStorage, &Layout),
) -> Result<(CudaStorage, Shape)> {
    of_labels_backward(&Call::new(op.name(), x.0), kernels::SIGMOID_FOCAL_LOSS_BACKWARD, x, w, g, Some(op.gamma))
}

/// Returns a loss of logits, with one target or weight each. `gamma` is the kernel's last argument, if it has one.
fn of_labels(
    call: &Call<'_>,
    kernel: Kernel,
    (x, lx): (&CudaStorage, &Layout),
    (y, ly): (&CudaStorage, &Layout),
    gamma: Option<f64>,
) -> Result<(CudaStorage, Shape)> {
    let n = lx.shape().elem_count();
    call.expect("targets", ly.shape().elem_count(), n)?;
    let each = call.alloc::<f64>(n.div_ceil(PIECE))?;
    with_real!(call, x, A => {
        let (x, y) = (call.input::<A>(x, lx)?, call.input::<A>(y, ly)?);
        let mut arguments = vec![x.address, y.address, call.address(&each), Argument::U64(n as u64)];
        arguments.extend(gamma.map(Argument::F64));
        // SAFETY: these are the kernel's arguments, and `each` has a number for every block.
        unsafe { call.launch::<A>(kernel, block_per_piece(n, PIECE), &arguments)? };
    });
    total(call, &each, n.div_ceil(PIECE))
}

/// Returns the gradient of [`of_labels`].
fn of_labels_backward(
    call: &Call<'_>,
    kernel: Kernel,
    (x, lx): (&CudaStorage, &Layout),
    (y, ly): (&CudaStorage, &Layout),
    (g, lg): (&CudaStorage, &Layout),
    gamma: Option<f64>,
) -> Result<(CudaStorage, Shape)> {
    let n = lx.shape().elem_count();
    call.expect("targets", ly.shape().elem_count(), n)?;
    call.expect("numbers in the gradient", lg.shape().elem_count(), 1)?;
    let g = call.input::<f64>(g, lg)?;
    with_real!(call, x, A => {
        let (x, y, out) = (call.input::<A>(x, lx)?, call.input::<A>(y, ly)?, call.alloc::<A>(n)?);
        let mut arguments = vec![x.address, y.address, g.address, call.address(&out), Argument::U64(n as u64)];
        arguments.extend(gamma.map(Argument::F64));
        // SAFETY: these are the kernel's arguments, of those shapes.
        unsafe { call.launch::<A>(kernel, over_numbers(n), &arguments)? };
        call.output(out, lx.shape().clone())
    })
}

pub(crate) fn log_softmax(op: &LogSoftmax, x: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
    let call = Call::new(op.name(), x);
    let (rows, classes) = layout.shape().dims2()?;
    let (r, c) = (call.count(rows)?, call.count(classes)?);
    with_real!(call, x, A => {
        let (x, out) = (call.input::<A>(x, layout)?, call.alloc::<A>(rows * classes)?);
        let arguments = [x.address, call.address(&out), r.into(), c.into()];
        // SAFETY: these are the kernel's arguments, of those shapes.
        unsafe { call.launch::<A>(kernels::LOG_SOFTMAX, warp_per_row(r), &arguments)? };
        call.output(out, (rows, classes))
    })
}

pub(crate) fn log_softmax_backward(
    op: &LogSoftmaxBackward,
    result: &CudaStorage,
    lr: &Layout,
    g: &CudaStorage,
    lg: &Layout,
) -> Result<(CudaStorage, Shape)> {
    let call = Call::new(op.name(), result);
    let (rows, classes) = lr.shape().dims2()?;
    call.expect("numbers in the gradient", lg.shape().elem_count(), rows * classes)?;
    let (r, c) = (call.count(rows)?, call.count(classes)?);
    with_real!(call, result, A => {
        let (result, g) = (call.input::<A>(result, lr)?, call.input::<A>(g, lg)?);
        let out = call.alloc::<A>(rows * classes)?;
        let arguments = [result.address, g.address, call.address(&out), r.into(), c.into()];
        // SAFETY: these are the kernel's arguments, of those shapes.
        unsafe { call.launch::<A>(kernels::LOG_SOFTMAX_BACKWARD, warp_per_row(r), &arguments)? };
        call.output(out, (rows, classes))
    })
}
