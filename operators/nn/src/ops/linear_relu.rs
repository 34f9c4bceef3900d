//! A matrix product fused with ReLU and dropout, which run on each panel while it is in the cache.

use candle_core::{CpuStorage, CustomOp2, CustomOp3, Layout, Result, Shape, Tensor};

use super::linear::{Onto, product, times_transposed_onto};
use super::{activate, column_sum, elements, expect, gradient_of, linear, store, widen, with_real, zeros};
use gnnflow_kernels::dense::elementwise;
use gnnflow_kernels::dense::elementwise::{Activation, Dropout};

/// `(x [N, K], W [O, K], bias [O])` → `dropout(max(bias + x·Wᵀ, 0))`.
#[derive(Clone, Debug)]
pub(crate) struct LinearRelu {
    /// The mask, if any.
    pub dropout: Option<Dropout>,
}

/// Gradient of the input of ReLU and dropout: `(result, gradient)` → the same shape.
#[derive(Clone, Debug)]
pub(crate) struct ReluOfResult {
    /// The mask that was used, if any.
    pub dropout: Option<Dropout>,
}

/// Returns [`activate`] with [`Activation::Relu`] of [`linear`], with the same bits.
///
/// On the CPU, the product is never stored: the gradient depends only on where the result is above 0.
///
/// ```
/// use candle_core::{Device, Result, Tensor};
/// use gnnflow_nn::ops::linear_relu;
///
/// # fn main() -> Result<()> {
/// let (x, weight) = (Tensor::new(&[[1f32, 2.0]], &Device::Cpu)?, Tensor::new(&[[1f32, 1.0], [1.0, -1.0]], &Device::Cpu)?);
/// let result = linear_relu(&x, &weight, &Tensor::new(&[0.5f32, 0.5], &Device::Cpu)?, None)?;
/// assert_eq!(result.to_vec2::<f32>()?, [[3.5, 0.0]]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// When shapes disagree.
pub fn linear_relu(x: &Tensor, weight: &Tensor, bias: &Tensor, dropout: Option<Dropout>) -> Result<Tensor> {
    if !x.device().is_cpu() {
        return activate(&linear(x, weight, Some(bias))?, Activation::Relu, dropout);
    }
    widen(x)?.contiguous()?.apply_op3(&weight.contiguous()?, &bias.contiguous()?, LinearRelu { dropout })
}

impl CustomOp3 for LinearRelu {
    fn name(&self) -> &'static str {
        "linear-relu"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        lx: &Layout,
        w: &CpuStorage,
        lw: &Layout,
        bias: &CpuStorage,
        lb: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let ((rows, k), (columns, wk)) = (lx.shape().dims2()?, lw.shape().dims2()?);
        expect(self.name(), "columns", k, wk)?;
        expect(self.name(), "numbers in the bias", lb.shape().dims1()?, columns)?;
        let out = with_real!(x, self.name(), T => {
            let (x, w) = (elements::<T>(x, lx, self.name())?, elements::<T>(w, lw, self.name())?);
            let bias = elements::<T>(bias, lb, self.name())?;
            let finish = |first: usize, panel: &mut [T]| {
                elementwise::relu_in_place(self.dropout.map(|dropout| dropout.behind(first as u64)), panel);
            };
            store(times_transposed_onto(x, w, [rows, k, columns], Onto::Bias(bias), finish))
        });
        Ok((out, (rows, columns).into()))
    }

    fn bwd(
        &self,
        x: &Tensor,
        w: &Tensor,
        bias: &Tensor,
        result: &Tensor,
        g: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let g = result.apply_op2_no_bwd(&g.contiguous()?, &ReluOfResult { dropout: self.dropout })?;
        let dx = gradient_of(x, || product(&g, w, false, false))?;
        let dw = gradient_of(w, || product(&g, x, true, false))?;
        Ok((dx, dw, gradient_of(bias, || column_sum(&g))?))
    }
}

impl CustomOp2 for ReluOfResult {
    fn name(&self) -> &'static str {
        "relu-of-result"
    }

    fn cpu_fwd(&self, result: &CpuStorage, lr: &Layout, g: &CpuStorage, lg: &Layout) -> Result<(CpuStorage, Shape)> {
        expect(self.name(), "gradients", lg.shape().elem_count(), lr.shape().elem_count())?;
        let out = with_real!(result, self.name(), T => {
            let (result, g) = (elements::<T>(result, lr, self.name())?, elements::<T>(g, lg, self.name())?);
            let mut out = zeros::<T>(result.len());
            elementwise::relu_of_result(self.dropout, result, g, &mut out);
            store(out)
        });
        Ok((out, lr.shape().clone()))
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device, Var};
    use gnnflow_data::rng::{Key, Purpose};

    use super::*;

    #[test]
    fn linear_relu_equals_linear_then_relu_bit_for_bit() {
        let mask = Dropout::new(0.4, Key::new(1, Purpose::Dropout));
        let numbers = |n: usize, c: f32| (0..n).map(|i| (i as f32 * c).sin()).collect::<Vec<_>>();
        for dtype in [DType::F32, DType::F64] {
            for [rows, k, columns] in [[1030, 7, 19], [512, 33, 5], [3, 0, 4], [0, 2, 3]] {
                let var = |shape: &[usize], c: f32| {
                    let tensor = Tensor::from_vec(numbers(shape.iter().product(), c), shape, &Device::Cpu);
                    Var::from_tensor(&tensor.unwrap().to_dtype(dtype).unwrap()).unwrap()
                };
                let (x, w, bias) = (var(&[rows, k], 0.7), var(&[columns, k], 0.3), var(&[columns], 1.1));
                let weights = var(&[rows, columns], 0.9);
                for dropout in [None, Some(mask), Some(mask.behind(77))] {
                    let all = |result: Tensor| {
                        let gradients = (&result * weights.as_tensor()).unwrap().sum_all().unwrap().backward().unwrap();
                        let of = |var: &Var| gradients.get(var).unwrap().clone();
                        let all = [result.clone(), of(&x), of(&w), of(&bias)];
                        all.map(|t| t.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1::<f64>().unwrap())
                    };
                    let found = all(linear_relu(&x, &w, &bias, dropout).unwrap());
                    let apart = linear(&x, &w, Some(&bias)).unwrap();
                    assert_eq!(
                        found,
                        all(activate(&apart, Activation::Relu, dropout).unwrap()),
                        "{rows} {k} {columns}"
                    );
                }
            }
        }
    }

    #[test]
    fn linear_relu_of_nan_is_nan() {
        let x = Tensor::new(&[[f32::NAN], [1.0]], &Device::Cpu).unwrap();
        let (w, bias) = (Tensor::new(&[[-1f32]], &Device::Cpu).unwrap(), Tensor::new(&[0f32], &Device::Cpu).unwrap());
        let result = linear_relu(&x, &w, &bias, None).unwrap().to_vec2::<f32>().unwrap();
        assert!(result[0][0].is_nan() && result[1][0] == 0.0);
        assert!(linear_relu(&x, &w, &Tensor::new(&[0f32, 1.0], &Device::Cpu).unwrap(), None).is_err());
    }
}
