//! The rows of a tensor with given numbers.

#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape, Tensor, bail};

use super::{elements, store, with_element};
#[cfg(feature = "cuda")]
use crate::cuda;

/// `(x [N, D], rows [n] of type u32)` → `[n, D]`, in the type of `x`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GatherRows;

/// Returns rows of `x [N, D]`: row `rows[i]` of `x` becomes row `i`. `x` gets no gradient.
///
/// # Errors
/// When there is no such row.
pub fn gather_rows(x: &Tensor, rows: &[u32]) -> Result<Tensor> {
    let (count, columns) = x.dims2()?;
    if let Some(&missing) = rows.iter().find(|&&row| row as usize >= count) {
        bail!("gather-rows: there is no row {missing}; there are {count}");
    }
    if rows.is_empty() {
        // A GPU cannot allocate an empty tensor.
        return Tensor::zeros((1, columns), x.dtype(), x.device())?.narrow(0, 0, 0);
    }
    x.contiguous()?.apply_op2_no_bwd(&Tensor::from_slice(rows, rows.len(), x.device())?, &GatherRows)
}

impl CustomOp2 for GatherRows {
    fn name(&self) -> &'static str {
        "gather-rows"
    }

    fn cpu_fwd(&self, x: &CpuStorage, lx: &Layout, rows: &CpuStorage, lr: &Layout) -> Result<(CpuStorage, Shape)> {
        let (_, width) = lx.shape().dims2()?;
        let rows = elements::<u32>(rows, lr, self.name())?;
        let out = with_element!(x, self.name(), T => {
            let x = elements::<T>(x, lx, self.name())?;
            let mut out = Vec::with_capacity(rows.len() * width);
            rows.iter().for_each(|&row| out.extend_from_slice(&x[row as usize * width..(row as usize + 1) * width]));
            store(out)
        });
        Ok((out, (rows.len(), width).into()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, x: &CudaStorage, lx: &Layout, rows: &CudaStorage, lr: &Layout) -> Result<(CudaStorage, Shape)> {
        cuda::gather_rows(self, x, lx, rows, lr)
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    #[test]
    fn rows_are_gathered_in_order_and_missing_ones_are_refused() -> Result<()> {
        let x = Tensor::arange(0u32, 12, &Device::Cpu)?.to_dtype(candle_core::DType::BF16)?.reshape((4, 3))?;
        let found = gather_rows(&x, &[3, 0, 3])?;
        assert_eq!(found.dtype(), x.dtype());
        let found = found.to_dtype(candle_core::DType::F32)?.to_vec2::<f32>()?;
        assert_eq!(found, [[9., 10., 11.], [0., 1., 2.], [9., 10., 11.]]);
        assert_eq!(gather_rows(&x, &[])?.dims(), [0, 3]);
        assert!(gather_rows(&x, &[4]).unwrap_err().to_string().contains("there is no row 4"));
        Ok(())
    }
}
