//! The rows of one or two tensors with given numbers.

#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{CpuStorage, CustomOp3, Device, Layout, Result, Shape, Tensor, bail};

use super::{elements, store, with_element};
#[cfg(feature = "cuda")]
use crate::cuda;
use crate::target::Target;
use crate::upload::Upload;

/// `(x [N, D], more [M, D], rows [n] of type u32)` → `[n, D]`, in the type of `x`. Numbers from `N` on are rows of `more`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GatherRows;

/// Numbers of rows on a device.
#[derive(Clone, Debug)]
pub struct RowNumbers {
    /// `[n]`, `u32`
    numbers: Tensor,
    /// The largest number, or a bound of it; `None` if there are none.
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

    /// Takes numbers that are on a device, `[n]` of type `u32`. All are below `end`, which is not checked.
    pub(crate) fn on_device(numbers: Tensor, end: u32) -> Self {
        let most = if numbers.elem_count() == 0 { None } else { end.checked_sub(1) };
        Self { numbers, most }
    }

    /// Returns how many there are.
    pub(super) fn len(&self) -> usize {
        self.numbers.dims()[0]
    }

    /// Returns the largest one, or a bound of it.
    pub(super) fn most(&self) -> Option<u32> {
        self.most
    }

    /// Returns the numbers: `[n]`, `u32`.
    pub(super) fn numbers(&self) -> &Tensor {
        &self.numbers
    }
}

/// Returns rows of `x [N, D]` and of `more [M, D]`: row `rows[i]` of `x`, or row `rows[i] - N` of `more`, becomes row `i`. They get no gradient.
///
/// # Errors
/// When there is no such row, `more` has other columns or another type, or the device is out of memory.
pub fn gather_rows(x: &Tensor, more: Option<&Tensor>, rows: &RowNumbers) -> Result<Tensor> {
    let (count, columns) = x.dims2()?;
    let more = more.filter(|more| more.dims().first() != Some(&0));
    if let Some(more) = more
        && (more.dims2()?.1, more.dtype()) != (columns, x.dtype())
    {
        bail!("gather-rows: {:?} numbers in rows of {columns}, and {:?} in {:?}", x.dtype(), more.dtype(), more.dims());
    }
    let all = count + more.map_or(Ok(0), |more| more.dim(0))?;
    match rows.most {
        // A GPU cannot allocate an empty tensor.
        None => Tensor::zeros((1, columns), x.dtype(), x.device())?.narrow(0, 0, 0),
        Some(missing) if missing as usize >= all => {
            bail!("gather-rows: there is no row {missing}; there are {all}")
        }
        Some(_) => {
            let x = x.contiguous()?;
            let more = more.map_or_else(|| Ok(x.clone()), Tensor::contiguous)?;
            x.apply_op3_no_bwd(&more, &rows.numbers, &GatherRows)
        }
    }
}

impl CustomOp3 for GatherRows {
    fn name(&self) -> &'static str {
        "gather-rows"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        lx: &Layout,
        more: &CpuStorage,
        lm: &Layout,
        rows: &CpuStorage,
        lr: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (count, width) = lx.shape().dims2()?;
        let rows = elements::<u32>(rows, lr, self.name())?;
        let out = with_element!(x, self.name(), T => {
            let (x, more) = (elements::<T>(x, lx, self.name())?, elements::<T>(more, lm, self.name())?);
            let mut out = Vec::with_capacity(rows.len() * width);
            for row in rows.iter().map(|&row| row as usize) {
                let (from, row) = if row < count { (x, row) } else { (more, row - count) };
                out.extend_from_slice(&from[row * width..(row + 1) * width]);
            }
            store(out)
        });
        Ok((out, (rows.len(), width).into()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        x: &CudaStorage,
        lx: &Layout,
        more: &CudaStorage,
        lm: &Layout,
        rows: &CudaStorage,
        lr: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        cuda::gather_rows(self, (x, lx), (more, lm), (rows, lr))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_gathered_in_order_and_missing_ones_are_refused() -> crate::Result<()> {
        let x = Tensor::arange(0u32, 12, &Device::Cpu)?.to_dtype(candle_core::DType::BF16)?.reshape((4, 3))?;
        let numbers = |rows: &[u32]| RowNumbers::new(rows, &Device::Cpu, None).unwrap();
        let gather = |rows: &[u32]| gather_rows(&x, None, &numbers(rows));
        let found = gather(&[3, 0, 3])?;
        assert_eq!(found.dtype(), x.dtype());
        let found = found.to_dtype(candle_core::DType::F32)?.to_vec2::<f32>()?;
        assert_eq!(found, [[9., 10., 11.], [0., 1., 2.], [9., 10., 11.]]);
        assert_eq!(gather(&[])?.dims(), [0, 3]);
        assert!(gather(&[4]).unwrap_err().to_string().contains("there is no row 4"));
        let [first, rest] = [x.narrow(0, 0, 1)?, x.narrow(0, 1, 3)?];
        let of_two = gather_rows(&first, Some(&rest), &numbers(&[3, 0, 3]))?.to_dtype(candle_core::DType::F32)?;
        assert_eq!(of_two.to_vec2::<f32>()?, found);
        assert!(gather_rows(&first, Some(&rest), &numbers(&[4])).is_err());
        assert!(gather_rows(&first, Some(&rest.narrow(1, 0, 2)?), &numbers(&[3])).is_err());
        assert_eq!(gather_rows(&x, Some(&rest.narrow(0, 0, 0)?), &numbers(&[0]))?.dims(), [1, 3]);
        Ok(())
    }
}
