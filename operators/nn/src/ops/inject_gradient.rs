//! Starts a backward pass in the middle of a model, from a given gradient.

use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor, bail};

use super::{gradient_of, store};

/// A tensor → an `f64` scalar 0, whose backward pass gives the tensor the gradient [`InjectGradient::gradient`].
#[derive(Clone, Debug)]
pub(crate) struct InjectGradient {
    /// The gradient, of the tensor's shape.
    pub gradient: Tensor,
}

/// Returns a scalar whose backward pass gives `result` the gradient `gradient`. The forward pass computes nothing.
///
/// ```
/// use candle_core::{Device, Tensor, Var};
/// use gnnflow_nn::ops;
///
/// let x = Var::new(&[1f32, 2.], &Device::Cpu)?;
/// let gradient = Tensor::new(&[10f32, 20.], &Device::Cpu)?;
/// let gradients = ops::inject_gradient(&(x.as_tensor() * 3.0)?, &gradient)?.backward()?;
/// assert_eq!(gradients.get(&x).unwrap().to_vec1::<f32>()?, [30., 60.]);
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
/// When shapes disagree.
pub fn inject_gradient(result: &Tensor, gradient: &Tensor) -> Result<Tensor> {
    if result.dims() != gradient.dims() {
        bail!("inject-gradient: a gradient of shape {:?} for a result of shape {:?}", gradient.dims(), result.dims());
    }
    if result.device().is_cpu() {
        return result.contiguous()?.apply_op1(InjectGradient { gradient: gradient.clone() });
    }
    // The sum of products has the same gradient, for one more pass over both tensors.
    (result * gradient)?.sum_all()?.to_dtype(candle_core::DType::F64)
}

impl CustomOp1 for InjectGradient {
    fn name(&self) -> &'static str {
        "inject-gradient"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        Ok((store(vec![0f64]), Shape::from(())))
    }

    fn bwd(&self, result: &Tensor, _: &Tensor, _: &Tensor) -> Result<Option<Tensor>> {
        // The scalar is the root of the backward pass, so its own gradient is 1.
        gradient_of(result, || Ok(self.gradient.clone()))
    }
}
