//! The rows of a tensor with given numbers.

#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{CpuStorage, CustomOp2, Device, Layout, Result, Shape, Tensor, bail};

use super::{elements, store, with_element};
#[cfg(feature = "cuda")]
use crate::cuda;
use crate::target::Target;
use crate::upload::Upload;

/// `(x [N, D], rows [n] of type u32)` → `[n, D]`, in the type of `x`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GatherRows;

/// Numbers of rows on a device.
#[derive(Clone, Debug)]
pub struct RowNumbers {
    /// `[n]`, `u32`
    numbers: Tensor,
    /// The largest number; `None` if there are none.
    most: Option<u32>,
}

impl RowNumbers {
    /// Copies numbers to `device`, asynchronously with `upload`.
    ///
    /// # Errors
    /// When the device is out of memory.
    pub fn new(numbers: &[u32], device: &Device, upload: Option<&Upload>) -> crate::Result<Self> {
        let most = numbers.iter().copied().max();
        Ok(Self { numbers: Target::new(device, upload).integers(numbers)?, most })
    }
}

/// Returns rows of `x [N, D]`: row `rows[i]` of `x` becomes row `i`. `x` gets no gradient.
///
/// # Errors
/// When there is no such row, or the device is out of memory.
pub fn gather_rows(x: &Tensor, rows: &RowNumbers) -> Result<Tensor> {
    let (count, columns) = x.dims2()?;
    match rows.most {
        // A GPU cannot allocate an empty tensor.
        None => Tensor::zeros((1, columns), x.dtype(), x.device())?.narrow(0, 0, 0),
        Some(missing) if missing as usize >= count => {
            bail!("gather-rows: there is no row {missing}; there are {count}")
        }
        Some(_) => x.contiguous()?.apply_op2_no_bwd(&rows.numbers, &GatherRows),
    }
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
    use super::*;

    #[test]
    fn rows_are_gathered_in_order_and_missing_ones_are_refused() -> crate::Result<()> {
        let x = Tensor::arange(0u32, 12, &Device::Cpu)?.to_dtype(candle_core::DType::BF16)?.reshape((4, 3))?;
        let gather = |rows: &[u32]| gather_rows(&x, &RowNumbers::new(rows, &Device::Cpu, None).unwrap());
        let found = gather(&[3, 0, 3])?;
        assert_eq!(found.dtype(), x.dtype());
        let found = found.to_dtype(candle_core::DType::F32)?.to_vec2::<f32>()?;
        assert_eq!(found, [[9., 10., 11.], [0., 1., 2.], [9., 10., 11.]]);
        assert_eq!(gather(&[])?.dims(), [0, 3]);
        assert!(gather(&[4]).unwrap_err().to_string().contains("there is no row 4"));
        Ok(())
    }
}
