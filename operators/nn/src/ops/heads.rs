//! Rows of several heads: a dot product with a vector per head, and the mean over heads.

#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{CpuStorage, CustomOp1, CustomOp2, Layout, Result, Shape, Tensor, bail};

use super::{elements, expect, gradient_of, store, with_real, zeros};
#[cfg(feature = "cuda")]
use crate::cuda;
use gnnflow_kernels::dense::heads;

/// `(x [N, H·F], a [H, F])` → `[N, H]`: `x[n, h, :] · a[h, :]`.
#[derive(Clone, Debug)]
pub(crate) struct HeadDot;

/// Gradient of [`HeadDot`] with respect to `x`: `(a [H, F], gradient [N, H])` → `[N, H·F]`.
#[derive(Clone, Debug)]
pub(crate) struct HeadDotRows;

/// Gradient of [`HeadDot`] with respect to `a`: `(x [N, H·F], gradient [N, H])` → `[H, F]`.
#[derive(Clone, Debug)]
pub(crate) struct HeadDotVectors;

/// `[N, H·F]` → `[N, F]`: the mean over heads.
#[derive(Clone, Debug)]
pub(crate) struct HeadMean {
    /// `H`
    pub heads: usize,
}

/// Gradient of [`HeadMean`]: `[N, F]` → `[N, H·F]`.
#[derive(Clone, Debug)]
pub(crate) struct HeadMeanBackward {
    /// `H`
    pub heads: usize,
}

/// `out[n, h] = x[n, h, :] · a[h, :]` for `x` of `[N, H·F]` and `a` of `[H, F]`.
///
/// # Errors
/// When shapes disagree.
pub fn head_dot(x: &Tensor, a: &Tensor) -> Result<Tensor> {
    x.contiguous()?.apply_op2(&a.contiguous()?, HeadDot)
}

/// Returns the mean over `heads` of `x [N, heads·F]`.
///
/// # Errors
/// When the columns are not a multiple of `heads`.
pub fn head_mean(x: &Tensor, heads: usize) -> Result<Tensor> {
    if heads == 1 { Ok(x.clone()) } else { x.contiguous()?.apply_op1(HeadMean { heads }) }
}

impl CustomOp2 for HeadDot {
    fn name(&self) -> &'static str {
        "head-dot"
    }

    fn cpu_fwd(&self, x: &CpuStorage, lx: &Layout, a: &CpuStorage, la: &Layout) -> Result<(CpuStorage, Shape)> {
        let ((rows, columns), (heads, width)) = (lx.shape().dims2()?, la.shape().dims2()?);
        expect(self.name(), "columns", columns, heads * width)?;
        let out = with_real!(x, self.name(), T => {
            let (x, a) = (elements::<T>(x, lx, self.name())?, elements::<T>(a, la, self.name())?);
            let mut out = zeros::<T>(rows * heads);
            heads::dot(x, a, heads, &mut out);
            store(out)
        });
        Ok((out, (rows, heads).into()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, a: &CudaStorage, la: &Layout, b: &CudaStorage, lb: &Layout) -> Result<(CudaStorage, Shape)> {
        cuda::head_dot(self, a, la, b, lb)
    }

    fn bwd(&self, x: &Tensor, a: &Tensor, _: &Tensor, g: &Tensor) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let g = g.contiguous()?;
        let dx = gradient_of(x, || a.apply_op2_no_bwd(&g, &HeadDotRows))?;
        Ok((dx, gradient_of(a, || x.apply_op2_no_bwd(&g, &HeadDotVectors))?))
    }
}

impl CustomOp2 for HeadDotRows {
    fn name(&self) -> &'static str {
        "head-dot-rows"
    }

    fn cpu_fwd(&self, a: &CpuStorage, la: &Layout, g: &CpuStorage, lg: &Layout) -> Result<(CpuStorage, Shape)> {
        let ((heads, width), (rows, _)) = (la.shape().dims2()?, lg.shape().dims2()?);
        let out = with_real!(a, self.name(), T => {
            let (a, g) = (elements::<T>(a, la, self.name())?, elements::<T>(g, lg, self.name())?);
            let mut out = zeros::<T>(rows * heads * width);
            heads::dot_backward_rows(a, g, heads, &mut out);
            store(out)
        });
        Ok((out, (rows, heads * width).into()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, a: &CudaStorage, la: &Layout, b: &CudaStorage, lb: &Layout) -> Result<(CudaStorage, Shape)> {
        cuda::head_dot_rows(self, a, la, b, lb)
    }
}

impl CustomOp2 for HeadDotVectors {
    fn name(&self) -> &'static str {
        "head-dot-vectors"
    }

    fn cpu_fwd(&self, x: &CpuStorage, lx: &Layout, g: &CpuStorage, lg: &Layout) -> Result<(CpuStorage, Shape)> {
        let ((_, columns), (_, heads)) = (lx.shape().dims2()?, lg.shape().dims2()?);
        let out = with_real!(x, self.name(), T => {
            let (x, g) = (elements::<T>(x, lx, self.name())?, elements::<T>(g, lg, self.name())?);
            let mut out = zeros::<T>(columns);
            heads::dot_backward_vectors(x, g, heads, &mut out);
            store(out)
        });
        Ok((out, (heads, columns / heads).into()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, a: &CudaStorage, la: &Layout, b: &CudaStorage, lb: &Layout) -> Result<(CudaStorage, Shape)> {
        cuda::head_dot_vectors(self, a, la, b, lb)
    }
}

impl CustomOp1 for HeadMean {
    fn name(&self) -> &'static str {
        "head-mean"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (rows, columns) = layout.shape().dims2()?;
        if columns % self.heads != 0 {
            bail!("{}: {columns} columns cannot be split among {} heads", self.name(), self.heads);
        }
        let width = columns / self.heads;
        let out = with_real!(x, self.name(), T => {
            let mut out = zeros::<T>(rows * width);
            heads::mean(elements::<T>(x, layout, self.name())?, self.heads, width, &mut out);
            store(out)
        });
        Ok((out, (rows, width).into()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, x: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        cuda::head_mean(self, x, layout)
    }

    fn bwd(&self, x: &Tensor, _: &Tensor, g: &Tensor) -> Result<Option<Tensor>> {
        gradient_of(x, || g.contiguous()?.apply_op1_no_bwd(&HeadMeanBackward { heads: self.heads }))
    }
}

impl CustomOp1 for HeadMeanBackward {
    fn name(&self) -> &'static str {
        "head-mean-backward"
    }

    fn cpu_fwd(&self, g: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (rows, width) = layout.shape().dims2()?;
        let out = with_real!(g, self.name(), T => {
            let mut out = zeros::<T>(rows * self.heads * width);
            heads::mean_backward(elements::<T>(g, layout, self.name())?, self.heads, width, &mut out);
            store(out)
        });
        Ok((out, (rows, self.heads * width).into()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, x: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        cuda::head_mean_backward(self, x, layout)
    }
}
