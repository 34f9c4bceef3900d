//! Losses as operations, summed over rows to an `f64` scalar; and log-softmax.

#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{CpuStorage, CustomOp1, CustomOp2, CustomOp3, Layout, Result, Shape, Tensor};

use super::{elements, expect, gradient_of, store, with_real, zeros};
#[cfg(feature = "cuda")]
use crate::cuda;
use gnnflow_kernels::dense::loss;

/// `(logits [N, C], labels u32 [N])` → `f64` scalar: `Σ −log softmax(logits)[label]`.
#[derive(Clone, Debug)]
pub(crate) struct CrossEntropy;

/// Gradient of [`CrossEntropy`]: `(logits [N, C], labels u32 [N], gradient f64 scalar)` → `[N, C]`.
#[derive(Clone, Debug)]
pub(crate) struct CrossEntropyBackward;

/// `(logits [N, L], targets [N, L])` → `f64` scalar: the sum of binary cross-entropies.
#[derive(Clone, Debug)]
pub(crate) struct BinaryCrossEntropy;

/// Gradient of [`BinaryCrossEntropy`]: `(logits [N, L], targets [N, L], gradient f64 scalar)` → `[N, L]`.
#[derive(Clone, Debug)]
pub(crate) struct BinaryCrossEntropyBackward;

/// `(logits [N, L], weights [N, L])` → `f64` scalar: the sigmoid focal loss. Weights of labels that a row does not have are negative.
#[derive(Clone, Debug)]
pub(crate) struct SigmoidFocalLoss {
    pub(crate) gamma: f64,
}

/// Gradient of [`SigmoidFocalLoss`]: `(logits [N, L], weights [N, L], gradient f64 scalar)` → `[N, L]`.
#[derive(Clone, Debug)]
pub(crate) struct SigmoidFocalLossBackward {
    pub(crate) gamma: f64,
}

/// `[N, C]` → `[N, C]`: the logarithm of each row's softmax.
#[derive(Clone, Debug)]
pub(crate) struct LogSoftmax;

/// Gradient of [`LogSoftmax`]: `(result [N, C], gradient [N, C])` → `[N, C]`.
#[derive(Clone, Debug)]
pub(crate) struct LogSoftmaxBackward;

/// Returns the logarithm of the softmax of every row of `x`.
///
/// # Errors
/// When `x` is not a matrix.
pub fn log_softmax(x: &Tensor) -> Result<Tensor> {
    x.contiguous()?.apply_op1(LogSoftmax)
}

fn scalar(loss: f64) -> (CpuStorage, Shape) {
    (store(vec![loss]), Shape::from(()))
}

impl CustomOp2 for CrossEntropy {
    fn name(&self) -> &'static str {
        "cross-entropy"
    }

    fn cpu_fwd(&self, x: &CpuStorage, lx: &Layout, y: &CpuStorage, ly: &Layout) -> Result<(CpuStorage, Shape)> {
        let (rows, classes) = lx.shape().dims2()?;
        expect(self.name(), "labels", ly.shape().dims1()?, rows)?;
        let y = elements::<u32>(y, ly, self.name())?;
        Ok(scalar(with_real!(x, self.name(), T => {
            loss::cross_entropy(elements::<T>(x, lx, self.name())?, y, classes)
        })))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, a: &CudaStorage, la: &Layout, b: &CudaStorage, lb: &Layout) -> Result<(CudaStorage, Shape)> {
        cuda::cross_entropy(self, a, la, b, lb)
    }

    fn bwd(&self, x: &Tensor, y: &Tensor, _: &Tensor, g: &Tensor) -> Result<(Option<Tensor>, Option<Tensor>)> {
        Ok((gradient_of(x, || x.apply_op3_no_bwd(y, g, &CrossEntropyBackward))?, None))
    }
}

impl CustomOp3 for CrossEntropyBackward {
    fn name(&self) -> &'static str {
        "cross-entropy-backward"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        lx: &Layout,
        y: &CpuStorage,
        ly: &Layout,
        g: &CpuStorage,
        lg: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (_, classes) = lx.shape().dims2()?;
        let (y, g) = (elements::<u32>(y, ly, self.name())?, elements::<f64>(g, lg, self.name())?[0]);
        let out = with_real!(x, self.name(), T => {
            let x = elements::<T>(x, lx, self.name())?;
            let mut out = zeros::<T>(x.len());
            loss::cross_entropy_backward(x, y, classes, g, &mut out);
            store(out)
        });
        Ok((out, lx.shape().clone()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        a: &CudaStorage,
        la: &Layout,
        b: &CudaStorage,
        lb: &Layout,
        c: &CudaStorage,
        lc: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        cuda::cross_entropy_backward(self, (a, la), (b, lb), (c, lc))
    }
}

impl CustomOp2 for BinaryCrossEntropy {
    fn name(&self) -> &'static str {
        "binary-cross-entropy"
    }

    fn cpu_fwd(&self, x: &CpuStorage, lx: &Layout, y: &CpuStorage, ly: &Layout) -> Result<(CpuStorage, Shape)> {
        let (_, labels) = lx.shape().dims2()?;
        expect(self.name(), "targets", ly.shape().elem_count(), lx.shape().elem_count())?;
        Ok(scalar(with_real!(x, self.name(), T => {
            let (x, y) = (elements::<T>(x, lx, self.name())?, elements::<T>(y, ly, self.name())?);
            loss::binary_cross_entropy(x, y, labels)
        })))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, a: &CudaStorage, la: &Layout, b: &CudaStorage, lb: &Layout) -> Result<(CudaStorage, Shape)> {
        cuda::binary_cross_entropy(self, a, la, b, lb)
    }

    fn bwd(&self, x: &Tensor, y: &Tensor, _: &Tensor, g: &Tensor) -> Result<(Option<Tensor>, Option<Tensor>)> {
        Ok((gradient_of(x, || x.apply_op3_no_bwd(y, g, &BinaryCrossEntropyBackward))?, None))
    }
}

impl CustomOp3 for BinaryCrossEntropyBackward {
    fn name(&self) -> &'static str {
        "binary-cross-entropy-backward"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        lx: &Layout,
        y: &CpuStorage,
        ly: &Layout,
        g: &CpuStorage,
        lg: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (_, labels) = lx.shape().dims2()?;
        let g = elements::<f64>(g, lg, self.name())?[0];
        let out = with_real!(x, self.name(), T => {
            let (x, y) = (elements::<T>(x, lx, self.name())?, elements::<T>(y, ly, self.name())?);
            let mut out = zeros::<T>(x.len());
            loss::binary_cross_entropy_backward(x, y, labels, g, &mut out);
            store(out)
        });
        Ok((out, lx.shape().clone()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        a: &CudaStorage,
        la: &Layout,
        b: &CudaStorage,
        lb: &Layout,
        c: &CudaStorage,
        lc: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        cuda::binary_cross_entropy_backward(self, (a, la), (b, lb), (c, lc))
    }
}

impl CustomOp2 for SigmoidFocalLoss {
    fn name(&self) -> &'static str {
        "sigmoid-focal-loss"
    }

    fn cpu_fwd(&self, x: &CpuStorage, lx: &Layout, w: &CpuStorage, lw: &Layout) -> Result<(CpuStorage, Shape)> {
        let (_, labels) = lx.shape().dims2()?;
        expect(self.name(), "weights", lw.shape().elem_count(), lx.shape().elem_count())?;
        Ok(scalar(with_real!(x, self.name(), T => {
            let (x, w) = (elements::<T>(x, lx, self.name())?, elements::<T>(w, lw, self.name())?);
            loss::sigmoid_focal_loss(x, w, self.gamma, labels)
        })))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, a: &CudaStorage, la: &Layout, b: &CudaStorage, lb: &Layout) -> Result<(CudaStorage, Shape)> {
        cuda::sigmoid_focal_loss(self, a, la, b, lb)
    }

    fn bwd(&self, x: &Tensor, w: &Tensor, _: &Tensor, g: &Tensor) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let backward = SigmoidFocalLossBackward { gamma: self.gamma };
        Ok((gradient_of(x, || x.apply_op3_no_bwd(w, g, &backward))?, None))
    }
}

impl CustomOp3 for SigmoidFocalLossBackward {
    fn name(&self) -> &'static str {
        "sigmoid-focal-loss-backward"
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
        let (_, labels) = lx.shape().dims2()?;
        let g = elements::<f64>(g, lg, self.name())?[0];
        let out = with_real!(x, self.name(), T => {
            let (x, w) = (elements::<T>(x, lx, self.name())?, elements::<T>(w, lw, self.name())?);
            let mut out = zeros::<T>(x.len());
            loss::sigmoid_focal_loss_backward(x, w, self.gamma, labels, g, &mut out);
            store(out)
        });
        Ok((out, lx.shape().clone()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        a: &CudaStorage,
        la: &Layout,
        b: &CudaStorage,
        lb: &Layout,
        c: &CudaStorage,
        lc: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        cuda::sigmoid_focal_loss_backward(self, (a, la), (b, lb), (c, lc))
    }
}

impl CustomOp1 for LogSoftmax {
    fn name(&self) -> &'static str {
        "log-softmax"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (_, classes) = layout.shape().dims2()?;
        let out = with_real!(x, self.name(), T => {
            let x = elements::<T>(x, layout, self.name())?;
            let mut out = zeros::<T>(x.len());
            loss::log_softmax(x, classes, &mut out);
            store(out)
        });
        Ok((out, layout.shape().clone()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, x: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        cuda::log_softmax(self, x, layout)
    }

    fn bwd(&self, x: &Tensor, result: &Tensor, g: &Tensor) -> Result<Option<Tensor>> {
        gradient_of(x, || result.apply_op2_no_bwd(&g.contiguous()?, &LogSoftmaxBackward))
    }
}

impl CustomOp2 for LogSoftmaxBackward {
    fn name(&self) -> &'static str {
        "log-softmax-backward"
    }

    fn cpu_fwd(&self, r: &CpuStorage, lr: &Layout, g: &CpuStorage, lg: &Layout) -> Result<(CpuStorage, Shape)> {
        let (_, classes) = lr.shape().dims2()?;
        let out = with_real!(r, self.name(), T => {
            let (r, g) = (elements::<T>(r, lr, self.name())?, elements::<T>(g, lg, self.name())?);
            let mut out = zeros::<T>(r.len());
            loss::log_softmax_backward(r, g, classes, &mut out);
            store(out)
        });
        Ok((out, lr.shape().clone()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, a: &CudaStorage, la: &Layout, b: &CudaStorage, lb: &Layout) -> Result<(CudaStorage, Shape)> {
        cuda::log_softmax_backward(self, a, la, b, lb)
    }
}
