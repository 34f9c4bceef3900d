//! Activation and dropout in one pass, bias, column sums.

use candle_core::cuda_backend::CudaStorage;
use candle_core::{CustomOp1, CustomOp2, Layout, Result, Shape};

use super::call::{Call, Number, with_element, with_real};
use super::kernels::{self, Argument};
use super::threads::{PANEL, over_columns, over_numbers, over_panels, over_rows};
use crate::ops::activate::{Activate, ActivateBackward, AddBias, ColumnSum};
use gnnflow_kernels::dense::elementwise::Activation;

/// Returns the activation's number in `elementwise.cu`, its slope, and the mask's key, cut and scale (0: no mask).
///
/// # Errors
/// When the mask starts inside a matrix: only tensor workers split matrices, and they compute on the CPU.
fn describe(op: &Activate) -> Result<[Argument; 5]> {
    if op.dropout.is_some_and(|mask| mask.first() > 0) {
        candle_core::bail!("activate: the mask starts inside a matrix, which only the CPU supports");
    }
    let (number, slope) = match op.activation {
        Activation::Identity => (0, 0.0),
        Activation::Relu => (1, 0.0),
        Activation::LeakyRelu(slope) => (2, slope),
        Activation::Elu => (3, 0.0),
        Activation::Tanh => (4, 0.0),
        Activation::Gelu => (5, 0.0),
    };
    let (key, cut, scale) = op.dropout.map_or((0, 0, 0.0), |mask| (mask.key().bits(), mask.cut(), mask.scale()));
    Ok([Argument::U32(number), slope.into(), Argument::U64(key), Argument::U32(cut), scale.into()])
}

pub(crate) fn activate(op: &Activate, x: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
    let call = Call::new(op.name(), x);
    let n = layout.shape().elem_count();
    let [number, slope, key, cut, scale] = describe(op)?;
    with_element!(call, x, T => {
        let (x, out) = (call.input::<T>(x, layout)?, call.alloc::<<T as Number>::Sum>(n)?);
        let count = Argument::U64(n as u64);
        let arguments = [x.address, call.address(&out), count, number, slope, key, cut, scale];
        // SAFETY: these are the kernel's arguments, and both arrays have `n` numbers.
        unsafe { call.launch::<T>(kernels::ACTIVATE, over_numbers(n), &arguments)? };
        call.output(out, layout.shape().clone())
    })
}

pub(crate) fn activate_backward(
    op: &ActivateBackward,
    x: &CudaStorage,
    lx: &Layout,
    g: &CudaStorage,
    lg: &Layout,
) -> Result<(CudaStorage, Shape)> {
    let call = Call::new(op.name(), x);
    let n = lx.shape().elem_count();
    call.expect("numbers in the gradient", lg.shape().elem_count(), n)?;
    let [number, slope, key, cut, scale] = describe(&op.0)?;
    with_real!(call, x, A => {
        let (x, g, out) = (call.input::<A>(x, lx)?, call.input::<A>(g, lg)?, call.alloc::<A>(n)?);
        let count = Argument::U64(n as u64);
        let arguments = [x.address, g.address, call.address(&out), count, number, slope, key, cut, scale];
        // SAFETY: these are the kernel's arguments, and all arrays have `n` numbers.
        unsafe { call.launch::<A>(kernels::ACTIVATE_BACKWARD, over_numbers(n), &arguments)? };
        call.output(out, lx.shape().clone())
    })
}

pub(crate) fn add_bias(
    op: &AddBias,
    x: &CudaStorage,
    lx: &Layout,
    bias: &CudaStorage,
    lb: &Layout,
) -> Result<(CudaStorage, Shape)> {
    let call = Call::new(op.name(), x);
    let (rows, columns) = lx.shape().dims2()?;
    call.expect("columns", columns, lb.shape().dims1()?)?;
    let (r, c) = (call.count(rows)?, call.count(columns)?);
    let (threads, shift) = over_rows(r, c, 1);
    with_real!(call, x, A => {
        let (x, bias, out) = (call.input::<A>(x, lx)?, call.input::<A>(bias, lb)?, call.alloc::<A>(rows * columns)?);
        let arguments = [x.address, bias.address, call.address(&out), r.into(), c.into(), shift];
        // SAFETY: these are the kernel's arguments, of those shapes.
        unsafe { call.launch::<A>(kernels::ADD_BIAS, threads, &arguments)? };
        call.output(out, (rows, columns))
    })
}

pub(crate) fn column_sum(op: &ColumnSum, x: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
    let call = Call::new(op.name(), x);
    let (rows, columns) = layout.shape().dims2()?;
    let (r, c) = (call.count(rows)?, call.count(columns)?);
    with_real!(call, x, A => {
        let x = call.input::<A>(x, layout)?;
        let sums = call.alloc::<A>(r.div_ceil(PANEL) as usize * columns)?;
        let arguments = [x.address, call.address(&sums), r.into(), c.into()];
        // SAFETY: these are the kernel's arguments, and `sums` has a row for every panel.
        unsafe { call.launch::<A>(kernels::COLUMN_SUM, over_panels(r, c), &arguments)? };
        let out = sum_panels::<A>(&call, call.address(&sums), r.div_ceil(PANEL), c)?;
        call.output(out, columns)
    })
}

/// Adds the sums of `panels`.
pub(super) fn sum_panels<A: Number>(
    call: &Call<'_>,
    sums: Argument,
    panels: u32,
    columns: u32,
) -> Result<candle_core::cuda_backend::cudarc::driver::CudaSlice<A>> {
    let out = call.alloc::<A>(columns as usize)?;
    let arguments = [sums, call.address(&out), panels.into(), columns.into()];
    // SAFETY: these are the kernel's arguments, and `sums` has a row for every panel.
    unsafe { call.launch::<A>(kernels::SUM_PANELS, over_columns(columns), &arguments)? };
    Ok(out)
}
