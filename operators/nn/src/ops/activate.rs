//! Activation and dropout in one pass, bias, column sums, widening.

#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{CpuStorage, CustomOp1, CustomOp2, DType, Layout, Result, Shape, Tensor};

use super::{elements, expect, gradient_of, store, with_element, with_real, zeros};
#[cfg(feature = "cuda")]
use crate::cuda;
use gnnflow_kernels::dense::elementwise;
use gnnflow_kernels::dense::elementwise::{Activation, Dropout};
use gnnflow_kernels::simd::element::Element;

/// Element-wise `dropout(activation(x))`; half precision in, `f32` out.
#[derive(Clone, Debug)]
pub(crate) struct Activate {
    /// The activation.
    pub activation: Activation,
    /// The dropout mask, if any.
    pub dropout: Option<Dropout>,
}

/// Gradient of [`Activate`]: `(x, gradient)` → the same shape.
#[derive(Clone, Debug)]
pub(crate) struct ActivateBackward(pub Activate);

/// `(x [N, D], bias [D])` → `x + bias`.
#[derive(Clone, Debug)]
pub(crate) struct AddBias;

/// `[N, D]` → `[D]`: sums of columns, the gradient of a bias.
#[derive(Clone, Debug)]
pub(crate) struct ColumnSum;

/// Returns `dropout(activation(x))`. Half precision becomes `f32`.
///
/// # Errors
/// When `x` holds integers.
pub fn activate(x: &Tensor, activation: Activation, dropout: Option<Dropout>) -> Result<Tensor> {
    let real = matches!(x.dtype(), DType::F32 | DType::F64);
    if activation == Activation::Identity && dropout.is_none() && real {
        return Ok(x.clone());
    }
    x.contiguous()?.apply_op1(Activate { activation, dropout })
}

/// Converts half precision to `f32`; returns other types unchanged.
///
/// # Errors
/// When `x` holds integers.
pub fn widen(x: &Tensor) -> Result<Tensor> {
    activate(x, Activation::Identity, None)
}

/// Returns `x + bias` for `x [N, D]` and `bias [D]`.
///
/// # Errors
/// When shapes disagree.
pub fn add_bias(x: &Tensor, bias: &Tensor) -> Result<Tensor> {
    x.contiguous()?.apply_op2(&bias.contiguous()?, AddBias)
}

/// Returns the column sums of `x [N, D]`. Has no gradient.
///
/// # Errors
/// When `x` is not a matrix.
pub fn column_sum(x: &Tensor) -> Result<Tensor> {
    x.contiguous()?.apply_op1_no_bwd(&ColumnSum)
}

impl CustomOp1 for Activate {
    fn name(&self) -> &'static str {
        "activate"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let out = with_element!(x, self.name(), T => {
            let x = elements::<T>(x, layout, self.name())?;
            let mut out = zeros::<<T as Element>::Acc>(x.len());
            elementwise::activate(self.activation, self.dropout, x, &mut out);
            store(out)
        });
        Ok((out, layout.shape().clone()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, x: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        cuda::activate(self, x, layout)
    }

    fn bwd(&self, x: &Tensor, _: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        gradient_of(x, || x.apply_op2_no_bwd(&gradient.contiguous()?, &ActivateBackward(self.clone())))
    }
}

impl CustomOp2 for ActivateBackward {
    fn name(&self) -> &'static str {
        "activate-backward"
    }

    fn cpu_fwd(&self, x: &CpuStorage, lx: &Layout, g: &CpuStorage, lg: &Layout) -> Result<(CpuStorage, Shape)> {
        let out = with_real!(x, self.name(), T => {
            let (x, g) = (elements::<T>(x, lx, self.name())?, elements::<T>(g, lg, self.name())?);
            let mut out = zeros::<T>(x.len());
            elementwise::activate_backward(self.0.activation, self.0.dropout, x, g, &mut out);
            store(out)
        });
        Ok((out, lx.shape().clone()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, a: &CudaStorage, la: &Layout, b: &CudaStorage, lb: &Layout) -> Result<(CudaStorage, Shape)> {
        cuda::activate_backward(self, a, la, b, lb)
    }
}

impl CustomOp2 for AddBias {
    fn name(&self) -> &'static str {
        "add-bias"
    }

    fn cpu_fwd(&self, x: &CpuStorage, lx: &Layout, b: &CpuStorage, lb: &Layout) -> Result<(CpuStorage, Shape)> {
        expect(self.name(), "columns", lx.shape().dims2()?.1, lb.shape().dims1()?)?;
        let out = with_real!(x, self.name(), T => {
            let (x, b) = (elements::<T>(x, lx, self.name())?, elements::<T>(b, lb, self.name())?);
            let mut out = zeros::<T>(x.len());
            elementwise::add_bias(x, b, &mut out);
            store(out)
        });
        Ok((out, lx.shape().clone()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, a: &CudaStorage, la: &Layout, b: &CudaStorage, lb: &Layout) -> Result<(CudaStorage, Shape)> {
        cuda::add_bias(self, a, la, b, lb)
    }

    fn bwd(&self, x: &Tensor, bias: &Tensor, _: &Tensor, g: &Tensor) -> Result<(Option<Tensor>, Option<Tensor>)> {
        Ok((gradient_of(x, || Ok(g.clone()))?, gradient_of(bias, || column_sum(g))?))
    }
}

impl CustomOp1 for ColumnSum {
    fn name(&self) -> &'static str {
        "column-sum"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (_, width) = layout.shape().dims2()?;
        let out = with_real!(x, self.name(), T => {
            let mut out = zeros::<T>(width);
            elementwise::column_sum(elements::<T>(x, layout, self.name())?, &mut out);
            store(out)
        });
        Ok((out, width.into()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, x: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        cuda::column_sum(self, x, layout)
    }
}
