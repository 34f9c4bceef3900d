//! Starts a backward pass in the middle of a model, from a given gradient.

use candle_core::{CpuStorage, CustomOp1, CustomOp2, Layout, Result, Shape, Tensor, bail};

use super::linear::{linear, product};
use super::{gradient_of, store};

/// A tensor → an `f64` scalar 0, whose backward pass gives the tensor the gradient [`InjectGradient::gradient`].
#[derive(Clone, Debug)]
pub(crate) struct InjectGradient {
    /// The gradient, of the tensor's shape.
    pub gradient: Tensor,
}

/// `(x [N, K], W [O, K])` → an `f64` scalar 0, whose backward pass gives `x·Wᵀ` the gradient [`InjectProductGradient::gradient`].
#[derive(Clone, Debug)]
struct InjectProductGradient {
    /// The gradient, `[N, O]`.
    gradient: Tensor,
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

/// Returns a scalar whose backward pass gives `x·Wᵀ` the gradient `gradient`: that of [`inject_gradient`] of [`linear`], with the same bits. On
/// the CPU, the product is not computed.
///
/// ```
/// use candle_core::{Device, Tensor, Var};
/// use gnnflow_nn::ops;
///
/// let x = Tensor::new(&[[1f32, 2.]], &Device::Cpu)?;
/// let weight = Var::new(&[[3f32, 4.], [5., 6.]], &Device::Cpu)?;
/// let gradient = Tensor::new(&[[10f32, 20.]], &Device::Cpu)?;
/// let gradients = ops::inject_product_gradient(&x, &weight, &gradient)?.backward()?;
/// assert_eq!(gradients.get(&weight).unwrap().to_vec2::<f32>()?, [[10., 20.], [20., 40.]]);
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
/// When shapes disagree.
pub fn inject_product_gradient(x: &Tensor, weight: &Tensor, gradient: &Tensor) -> Result<Tensor> {
    if !x.device().is_cpu() {
        return inject_gradient(&linear(x, weight, None)?, gradient);
    }
    let ((rows, k), (columns, wk)) = (x.dims2()?, weight.dims2()?);
    if k != wk || gradient.dims() != [rows, columns] {
        let (x, weight, gradient) = (x.dims(), weight.dims(), gradient.dims());
        bail!("inject-product-gradient: a gradient of shape {gradient:?} for rows of {x:?} and a weight of {weight:?}");
    }
    x.contiguous()?.apply_op2(&weight.contiguous()?, InjectProductGradient { gradient: gradient.contiguous()? })
}

impl CustomOp2 for InjectProductGradient {
    fn name(&self) -> &'static str {
        "inject-product-gradient"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        Ok((store(vec![0f64]), Shape::from(())))
    }

    fn bwd(&self, x: &Tensor, weight: &Tensor, _: &Tensor, _: &Tensor) -> Result<(Option<Tensor>, Option<Tensor>)> {
        // As for `InjectGradient`, the gradient of the scalar is 1.
        let dx = gradient_of(x, || product(&self.gradient, weight, false, false))?;
        let dw = gradient_of(weight, || product(&self.gradient, x, true, false))?;
        Ok((dx, dw))
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};

    use super::*;

    #[test]
    fn gradients_of_a_product_have_the_bits_of_those_through_it() {
        let normal = |shape: (usize, usize)| Tensor::randn(0f32, 1.0, shape, &Device::Cpu).unwrap();
        for (rows, k, columns) in [(3, 5, 4), (1300, 64, 47)] {
            let [x, weight] = [(rows, k), (columns, k)].map(|shape| Var::from_tensor(&normal(shape)).unwrap());
            let gradient = normal((rows, columns));
            let through = inject_gradient(&linear(&x, &weight, None).unwrap(), &gradient).unwrap().backward().unwrap();
            let direct = inject_product_gradient(&x, &weight, &gradient).unwrap().backward().unwrap();
            for var in [&x, &weight] {
                let [a, b] = [&through, &direct].map(|found| found.get(var).unwrap().to_vec2::<f32>().unwrap());
                assert!(a.iter().flatten().zip(b.iter().flatten()).all(|(a, b)| a.to_bits() == b.to_bits()));
            }
        }
    }
}
