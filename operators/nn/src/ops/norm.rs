//! Batch and layer normalization.
//!
//! On a GPU, both are composed of candle's own operations.

use candle_core::{CpuStorage, CustomOp2, CustomOp3, D, Layout, Result, Shape, Tensor};

use super::{column_sum, elements, expect, gradient_of, store, with_real, zeros};
use gnnflow_kernels::dense::norm;
use gnnflow_kernels::dense::norm::Columns;
use gnnflow_kernels::simd::element::Real;

/// Mean and biased variance of every column of a batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Moments {
    /// `[D]`
    pub mean: Vec<f64>,
    /// `[D]`
    pub variance: Vec<f64>,
    /// The number of rows.
    pub rows: usize,
}

/// `(x [N, D], weight [D], bias [D])` → `[N, D]`: columns normalized by the batch's own moments.
#[derive(Clone, Debug)]
pub(crate) struct BatchNorm {
    /// The columns' means.
    pub mean: Vec<f64>,
    /// One over the columns' standard deviations.
    pub inverse: Vec<f64>,
}

/// Gradient of [`BatchNorm`] with respect to `x`: `(x [N, D], weight [D], gradient [N, D])` → `[N, D]`.
#[derive(Clone, Debug)]
pub(crate) struct BatchNormRows {
    /// The forward operation.
    pub of: BatchNorm,
    /// Gradients of bias and weight.
    pub sums: [Vec<f64>; 2],
}

/// Gradient of [`BatchNorm`] with respect to the weight: `(x [N, D], gradient [N, D])` → `[D]`.
#[derive(Clone, Debug)]
pub(crate) struct BatchNormScale(pub BatchNorm);

/// `(x [N, D], weight [D], bias [D])` → `[N, D]`: rows normalized by their own moments.
#[derive(Clone, Debug)]
pub(crate) struct LayerNorm {
    /// Added to variances.
    pub epsilon: f64,
}

/// Gradient of [`LayerNorm`] with respect to `x`: `(x [N, D], weight [D], gradient [N, D])` → `[N, D]`.
#[derive(Clone, Debug)]
pub(crate) struct LayerNormRows(pub LayerNorm);

/// Gradient of [`LayerNorm`] with respect to the weight: `(x [N, D], gradient [N, D])` → `[D]`.
#[derive(Clone, Debug)]
pub(crate) struct LayerNormScale(pub LayerNorm);

/// Normalizes the columns of `x [N, D]` by the batch's means and variances. Also returns these moments.
///
/// # Errors
/// When shapes disagree.
pub fn batch_norm(x: &Tensor, weight: &Tensor, bias: &Tensor, epsilon: f64) -> Result<(Tensor, Moments)> {
    let ((rows, width), x) = (x.dims2()?, x.contiguous()?);
    if !x.device().is_cpu() {
        let mean = x.mean_keepdim(0)?;
        let centered = x.broadcast_sub(&mean)?;
        let variance = centered.sqr()?.mean_keepdim(0)?;
        let scaled = centered.broadcast_div(&(&variance + epsilon)?.sqrt()?)?;
        let out = scaled.broadcast_mul(weight)?.broadcast_add(bias)?;
        return Ok((out, Moments { mean: numbers(&mean)?, variance: numbers(&variance)?, rows }));
    }
    let (mean, variance) = {
        let (storage, layout) = x.storage_and_layout();
        let candle_core::Storage::Cpu(storage) = &*storage else { candle_core::bail!("batch-norm: not on the CPU") };
        with_real!(storage, "batch-norm", T => norm::column_moments(elements::<T>(storage, layout, "batch-norm")?, width))
    };
    let inverse = variance.iter().map(|variance| 1.0 / (variance + epsilon).sqrt()).collect();
    let op = BatchNorm { mean: mean.clone(), inverse };
    Ok((x.apply_op3(&weight.contiguous()?, &bias.contiguous()?, op)?, Moments { mean, variance, rows }))
}

/// Normalizes the rows of `x [N, D]` to mean 0 and variance 1, multiplies by `weight` and adds `bias`.
///
/// # Errors
/// When shapes disagree.
pub fn layer_norm(x: &Tensor, weight: &Tensor, bias: &Tensor, epsilon: f64) -> Result<Tensor> {
    if !x.device().is_cpu() {
        let centered = x.broadcast_sub(&x.mean_keepdim(D::Minus1)?)?;
        let variance = centered.sqr()?.mean_keepdim(D::Minus1)?;
        let scaled = centered.broadcast_div(&(variance + epsilon)?.sqrt()?)?;
        return scaled.broadcast_mul(weight)?.broadcast_add(bias);
    }
    x.contiguous()?.apply_op3(&weight.contiguous()?, &bias.contiguous()?, LayerNorm { epsilon })
}

/// Returns all numbers of a tensor.
fn numbers(x: &Tensor) -> Result<Vec<f64>> {
    x.flatten_all()?.to_dtype(candle_core::DType::F64)?.to_vec1()
}

fn real<A: Real>(values: &[f64]) -> Vec<A> {
    values.iter().map(|&value| A::from_f64(value)).collect()
}

/// Fails unless there is one weight for each column.
fn check(op: &'static str, lx: &Layout, lw: &Layout) -> Result<()> {
    expect(op, "weights", lw.shape().dims1()?, lx.shape().dims2()?.1)
}

impl CustomOp3 for BatchNorm {
    fn name(&self) -> &'static str {
        "batch-norm"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        lx: &Layout,
        w: &CpuStorage,
        lw: &Layout,
        b: &CpuStorage,
        lb: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        check(self.name(), lx, lw)?;
        check(self.name(), lx, lb)?;
        let out = with_real!(x, self.name(), T => {
            let (x, w) = (elements::<T>(x, lx, self.name())?, elements::<T>(w, lw, self.name())?);
            let (mean, inverse) = (real::<T>(&self.mean), real::<T>(&self.inverse));
            let mut out = zeros::<T>(x.len());
            let columns = Columns { mean: &mean, inverse: &inverse };
            columns.normalize(x, w, elements::<T>(b, lb, self.name())?, &mut out);
            store(out)
        });
        Ok((out, lx.shape().clone()))
    }

    fn bwd(
        &self,
        x: &Tensor,
        w: &Tensor,
        b: &Tensor,
        _: &Tensor,
        g: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let g = g.contiguous()?;
        let (db, dw) = (column_sum(&g)?, x.apply_op2_no_bwd(&g, &BatchNormScale(self.clone()))?);
        let dx = gradient_of(x, || {
            let rows = BatchNormRows { of: self.clone(), sums: [numbers(&db)?, numbers(&dw)?] };
            x.apply_op3_no_bwd(w, &g, &rows)
        })?;
        Ok((dx, gradient_of(w, || Ok(dw))?, gradient_of(b, || Ok(db))?))
    }
}

impl CustomOp3 for BatchNormRows {
    fn name(&self) -> &'static str {
        "batch-norm-rows"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        lx: &Layout,
        w: &CpuStorage,
        lw: &Layout,
        g: &CpuStorage,
        lg: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let out = with_real!(x, self.name(), T => {
            let (x, w) = (elements::<T>(x, lx, self.name())?, elements::<T>(w, lw, self.name())?);
            let (mean, inverse) = (real::<T>(&self.of.mean), real::<T>(&self.of.inverse));
            let [bias, weight] = [real::<T>(&self.sums[0]), real::<T>(&self.sums[1])];
            let mut out = zeros::<T>(x.len());
            let columns = Columns { mean: &mean, inverse: &inverse };
            columns.backward(x, w, elements::<T>(g, lg, self.name())?, [&bias, &weight], &mut out);
            store(out)
        });
        Ok((out, lx.shape().clone()))
    }
}

impl CustomOp2 for BatchNormScale {
    fn name(&self) -> &'static str {
        "batch-norm-scale"
    }

    fn cpu_fwd(&self, x: &CpuStorage, lx: &Layout, g: &CpuStorage, lg: &Layout) -> Result<(CpuStorage, Shape)> {
        let width = lx.shape().dims2()?.1;
        let out = with_real!(x, self.name(), T => {
            let (x, g) = (elements::<T>(x, lx, self.name())?, elements::<T>(g, lg, self.name())?);
            let (mean, inverse) = (real::<T>(&self.0.mean), real::<T>(&self.0.inverse));
            let mut out = zeros::<T>(width);
            Columns { mean: &mean, inverse: &inverse }.weight_gradient(x, g, &mut out);
            store(out)
        });
        Ok((out, width.into()))
    }
}

impl CustomOp3 for LayerNorm {
    fn name(&self) -> &'static str {
        "layer-norm"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        lx: &Layout,
        w: &CpuStorage,
        lw: &Layout,
        b: &CpuStorage,
        lb: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        check(self.name(), lx, lw)?;
        check(self.name(), lx, lb)?;
        let out = with_real!(x, self.name(), T => {
            let (x, w) = (elements::<T>(x, lx, self.name())?, elements::<T>(w, lw, self.name())?);
            let mut out = zeros::<T>(x.len());
            norm::rows(x, self.epsilon, w, elements::<T>(b, lb, self.name())?, &mut out);
            store(out)
        });
        Ok((out, lx.shape().clone()))
    }

    fn bwd(
        &self,
        x: &Tensor,
        w: &Tensor,
        b: &Tensor,
        _: &Tensor,
        g: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let g = g.contiguous()?;
        let dx = gradient_of(x, || x.apply_op3_no_bwd(w, &g, &LayerNormRows(self.clone())))?;
        let dw = gradient_of(w, || x.apply_op2_no_bwd(&g, &LayerNormScale(self.clone())))?;
        Ok((dx, dw, gradient_of(b, || column_sum(&g))?))
    }
}

impl CustomOp3 for LayerNormRows {
    fn name(&self) -> &'static str {
        "layer-norm-rows"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        lx: &Layout,
        w: &CpuStorage,
        lw: &Layout,
        g: &CpuStorage,
        lg: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let out = with_real!(x, self.name(), T => {
            let (x, w) = (elements::<T>(x, lx, self.name())?, elements::<T>(w, lw, self.name())?);
            let mut out = zeros::<T>(x.len());
            norm::rows_backward(x, self.0.epsilon, w, elements::<T>(g, lg, self.name())?, &mut out);
            store(out)
        });
        Ok((out, lx.shape().clone()))
    }
}

impl CustomOp2 for LayerNormScale {
    fn name(&self) -> &'static str {
        "layer-norm-scale"
    }

    fn cpu_fwd(&self, x: &CpuStorage, lx: &Layout, g: &CpuStorage, lg: &Layout) -> Result<(CpuStorage, Shape)> {
        let width = lx.shape().dims2()?.1;
        let out = with_real!(x, self.name(), T => {
            let (x, g) = (elements::<T>(x, lx, self.name())?, elements::<T>(g, lg, self.name())?);
            let mut out = zeros::<T>(width);
            norm::rows_weight_gradient(x, self.0.epsilon, g, &mut out);
            store(out)
        });
        Ok((out, width.into()))
    }
}
