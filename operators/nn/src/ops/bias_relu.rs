//! A bias fused with ReLU and dropout.

use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape, Tensor};

use super::linear_relu::ReluOfResult;
use super::{activate, add_bias, column_sum, elements, expect, gradient_of, store, with_real, zeros};
use gnnflow_kernels::dense::elementwise;
use gnnflow_kernels::dense::elementwise::{Activation, Dropout};

/// `(x [N, D], bias [D])` → `dropout(max(x + bias, 0))`.
#[derive(Clone, Debug)]
pub(crate) struct BiasRelu {
    /// The mask, if any.
    pub dropout: Option<Dropout>,
}

/// Returns [`activate`] with [`Activation::Relu`] of [`add_bias`], with the same bits.
///
/// On the CPU, the sum is never stored: the gradient depends only on where the result is above 0.
///
/// ```
/// use candle_core::{Device, Result, Tensor};
/// use gnnflow_nn::ops::bias_relu;
///
/// # fn main() -> Result<()> {
/// let (x, bias) = (Tensor::new(&[[1f32, 2.0]], &Device::Cpu)?, Tensor::new(&[0.5f32, -3.0], &Device::Cpu)?);
/// assert_eq!(bias_relu(&x, &bias, None)?.to_vec2::<f32>()?, [[1.5, 0.0]]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// When shapes disagree.
pub fn bias_relu(x: &Tensor, bias: &Tensor, dropout: Option<Dropout>) -> Result<Tensor> {
    if !x.device().is_cpu() {
        return activate(&add_bias(x, bias)?, Activation::Relu, dropout);
    }
    x.contiguous()?.apply_op2(&bias.contiguous()?, BiasRelu { dropout })
}

impl CustomOp2 for BiasRelu {
    fn name(&self) -> &'static str {
        "bias-relu"
    }

    fn cpu_fwd(&self, x: &CpuStorage, lx: &Layout, b: &CpuStorage, lb: &Layout) -> Result<(CpuStorage, Shape)> {
        expect(self.name(), "columns", lx.shape().dims2()?.1, lb.shape().dims1()?)?;
        let out = with_real!(x, self.name(), T => {
            let (x, b) = (elements::<T>(x, lx, self.name())?, elements::<T>(b, lb, self.name())?);
            let mut out = zeros::<T>(x.len());
            elementwise::bias_relu(x, b, self.dropout, &mut out);
            store(out)
        });
        Ok((out, lx.shape().clone()))
    }

    fn bwd(&self, x: &Tensor, bias: &Tensor, result: &Tensor, g: &Tensor) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let g = result.apply_op2_no_bwd(&g.contiguous()?, &ReluOfResult { dropout: self.dropout })?;
        Ok((gradient_of(x, || Ok(g.clone()))?, gradient_of(bias, || column_sum(&g))?))
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device, Var};
    use gnnflow_data::rng::{Key, Purpose};

    use super::*;
    use crate::ops::inject_gradient;

    #[test]
    fn bias_relu_has_the_bits_of_its_parts() {
        let normal = |shape: (usize, usize)| Tensor::randn(0f32, 1.0, shape, &Device::Cpu).unwrap();
        // The second one has more numbers than a piece.
        for shape in [(7, 5), (3000, 47)] {
            let (x, bias) = (Var::from_tensor(&normal(shape)).unwrap(), normal((1, shape.1)).flatten_all().unwrap());
            let (bias, gradient) = (Var::from_tensor(&bias).unwrap(), normal(shape));
            for dropout in [None, Some(Dropout::new(0.4, Key::new(3, Purpose::Dropout)).behind(11))] {
                let fused = bias_relu(&x, &bias, dropout).unwrap();
                let parts = activate(&add_bias(&x, &bias).unwrap(), Activation::Relu, dropout).unwrap();
                let bits = |tensor: &Tensor| -> Vec<u32> {
                    let numbers = tensor.flatten_all().unwrap().to_dtype(DType::F32).unwrap().to_vec1::<f32>().unwrap();
                    numbers.into_iter().map(f32::to_bits).collect()
                };
                assert_eq!(bits(&fused), bits(&parts));
                let gradients = [fused, parts].map(|out| inject_gradient(&out, &gradient).unwrap().backward().unwrap());
                for var in [&x, &bias] {
                    let [fused, parts] = [0, 1].map(|which| bits(gradients[which].get(var).unwrap()));
                    assert_eq!(fused, parts);
                }
            }
        }
    }
}
