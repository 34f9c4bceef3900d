//! Rows of several heads: a dot product with a vector per head, the mean over heads, and their gradients.

use candle_core::cuda_backend::CudaStorage;
use candle_core::{CustomOp1, CustomOp2, Layout, Result, Shape};

use super::call::{Call, with_real};
use super::elementwise::sum_panels;
use super::kernels::{self, Argument};
use super::threads::{PANEL, over_panels, over_rows, sixteen_per_product};
use crate::ops::head_width;
use crate::ops::heads::{HeadDot, HeadDotRows, HeadDotVectors, HeadMean, HeadMeanBackward};

pub(crate) fn head_dot(
    op: &HeadDot,
    x: &CudaStorage,
    lx: &Layout,
    a: &CudaStorage,
    la: &Layout,
) -> Result<(CudaStorage, Shape)> {
    let call = Call::new(op.name(), x);
    let ((rows, columns), (heads, width)) = (lx.shape().dims2()?, la.shape().dims2()?);
    call.expect("columns", columns, heads * width)?;
    let [r, h, f] = [call.count(rows)?, call.count(heads)?, call.count(width)?].map(Argument::U32);
    with_real!(call, x, A => {
        let (x, a, out) = (call.input::<A>(x, lx)?, call.input::<A>(a, la)?, call.alloc::<A>(rows * heads)?);
        let arguments = [x.address, a.address, call.address(&out), r, h, f];
        // SAFETY: these are the kernel's arguments, of those shapes.
        unsafe { call.launch::<A>(kernels::HEAD_DOT, sixteen_per_product(rows * heads), &arguments)? };
        call.output(out, (rows, heads))
    })
}

pub(crate) fn head_dot_rows(
    op: &HeadDotRows,
    a: &CudaStorage,
    la: &Layout,
    g: &CudaStorage,
    lg: &Layout,
) -> Result<(CudaStorage, Shape)> {
    let call = Call::new(op.name(), a);
    let ((heads, width), (rows, g_heads)) = (la.shape().dims2()?, lg.shape().dims2()?);
    call.expect("heads", g_heads, heads)?;
    let (r, h, f) = (call.count(rows)?, call.count(heads)?, call.count(width)?);
    let (threads, shift) = over_rows(r, call.count(heads * width)?, 1);
    with_real!(call, a, A => {
        let (a, g) = (call.input::<A>(a, la)?, call.input::<A>(g, lg)?);
        let out = call.alloc::<A>(rows * heads * width)?;
        let arguments = [a.address, g.address, call.address(&out), r.into(), h.into(), f.into(), shift];
        // SAFETY: these are the kernel's arguments, of those shapes.
        unsafe { call.launch::<A>(kernels::HEAD_DOT_ROWS, threads, &arguments)? };
        call.output(out, (rows, heads * width))
    })
}

pub(crate) fn head_dot_vectors(
    op: &HeadDotVectors,
    x: &CudaStorage,
    lx: &Layout,
    g: &CudaStorage,
    lg: &Layout,
) -> Result<(CudaStorage, Shape)> {
    let call = Call::new(op.name(), x);
    let ((rows, columns), (g_rows, heads)) = (lx.shape().dims2()?, lg.shape().dims2()?);
    call.expect("rows of the gradient", g_rows, rows)?;
    let width = head_width(op.name(), columns, heads)?;
    let (r, c) = (call.count(rows)?, call.count(columns)?);
    let (h, f) = (call.count(heads)?, call.count(width)?);
    with_real!(call, x, A => {
        let (x, g) = (call.input::<A>(x, lx)?, call.input::<A>(g, lg)?);
        let sums = call.alloc::<A>(r.div_ceil(PANEL) as usize * columns)?;
        let arguments = [x.address, g.address, call.address(&sums), r.into(), h.into(), f.into()];
        // SAFETY: these are the kernel's arguments, and `sums` has a row for every panel.
        unsafe { call.launch::<A>(kernels::HEAD_DOT_VECTORS, over_panels(r, c), &arguments)? };
        let out = sum_panels::<A>(&call, call.address(&sums), r.div_ceil(PANEL), c)?;
        call.output(out, (heads, width))
    })
}

pub(crate) fn head_mean(op: &HeadMean, x: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
    let call = Call::new(op.name(), x);
    let (rows, columns) = layout.shape().dims2()?;
    let width = head_width(op.name(), columns, op.heads)?;
    let (r, h, f) = (call.count(rows)?, call.count(op.heads)?, call.count(width)?);
    let (threads, shift) = over_rows(r, f, 1);
    with_real!(call, x, A => {
        let (x, out) = (call.input::<A>(x, layout)?, call.alloc::<A>(rows * width)?);
        let arguments = [x.address, call.address(&out), r.into(), h.into(), f.into(), shift];
        // SAFETY: these are the kernel's arguments, of those shapes.
        unsafe { call.launch::<A>(kernels::HEAD_MEAN, threads, &arguments)? };
        call.output(out, (rows, width))
    })
}

pub(crate) fn head_mean_backward(
    op: &HeadMeanBackward,
    g: &CudaStorage,
    layout: &Layout,
) -> Result<(CudaStorage, Shape)> {
    let call = Call::new(op.name(), g);
    let (rows, width) = layout.shape().dims2()?;
    let columns = op.heads * width;
    let (r, h, f) = (call.count(rows)?, call.count(op.heads)?, call.count(width)?);
    let (threads, shift) = over_rows(r, f, 1);
    with_real!(call, g, A => {
        let (g, out) = (call.input::<A>(g, layout)?, call.alloc::<A>(rows * columns)?);
        let arguments = [g.address, call.address(&out), r.into(), h.into(), f.into(), shift];
        // SAFETY: these are the kernel's arguments, of those shapes.
        unsafe { call.launch::<A>(kernels::HEAD_MEAN_BACKWARD, threads, &arguments)? };
        call.output(out, (rows, columns))
    })
}
