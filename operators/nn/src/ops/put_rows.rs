//! Writes rows of a tensor at given numbers.

#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, InplaceOp3, Layout, Result, Tensor, bail};

use super::{RowNumbers, elements, expect};
#[cfg(feature = "cuda")]
use crate::cuda;

/// `(table [N, D], x [n, D], rows [n] of type u32)`: writes to `table`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PutRows;

/// Writes row `i` of `x [n, D]` to row `rows[i]` of `table [N, D]`, in place. No two numbers may be equal. There are no gradients.
///
/// # Errors
/// When there is no such row, or `x` has other columns or another type than `table`.
pub fn put_rows(table: &Tensor, x: &Tensor, rows: &RowNumbers) -> Result<()> {
    let ((count, columns), (given, width)) = (table.dims2()?, x.dims2()?);
    expect("put-rows", "columns", width, columns)?;
    expect("put-rows", "rows", given, rows.len())?;
    if x.dtype() != table.dtype() {
        bail!("put-rows: {:?} numbers for a table of {:?}", x.dtype(), table.dtype());
    }
    match rows.most() {
        None => Ok(()),
        Some(missing) if missing as usize >= count => bail!("put-rows: there is no row {missing}; there are {count}"),
        Some(_) => table.inplace_op3(&x.contiguous()?, rows.numbers(), &PutRows),
    }
}

impl InplaceOp3 for PutRows {
    fn name(&self) -> &'static str {
        "put-rows"
    }

    fn cpu_fwd(
        &self,
        table: &mut CpuStorage,
        lt: &Layout,
        x: &CpuStorage,
        lx: &Layout,
        rows: &CpuStorage,
        lr: &Layout,
    ) -> Result<()> {
        /// Copies the rows.
        fn put<T: Copy>(table: &mut [T], x: &[T], rows: &[u32], width: usize) {
            for (row, x) in rows.iter().zip(x.chunks_exact(width.max(1))) {
                table[*row as usize * width..][..width].copy_from_slice(x);
            }
        }
        let (op, (_, width)) = (self.name(), lx.shape().dims2()?);
        let rows = elements::<u32>(rows, lr, op)?;
        let Some((start, end)) = lt.contiguous_offsets() else { bail!("{op}: the table is not contiguous") };
        match table {
            CpuStorage::F32(table) => put(&mut table[start..end], elements(x, lx, op)?, rows, width),
            CpuStorage::F64(table) => put(&mut table[start..end], elements(x, lx, op)?, rows, width),
            CpuStorage::F16(table) => put(&mut table[start..end], elements(x, lx, op)?, rows, width),
            CpuStorage::BF16(table) => put(&mut table[start..end], elements(x, lx, op)?, rows, width),
            other => bail!("{op}: no kernel for {:?}", other.dtype()),
        }
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        table: &mut CudaStorage,
        lt: &Layout,
        x: &CudaStorage,
        lx: &Layout,
        rows: &CudaStorage,
        lr: &Layout,
    ) -> Result<()> {
        cuda::put_rows(self, (table, lt), (x, lx), (rows, lr))
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;

    #[test]
    fn rows_are_written_in_place_and_missing_ones_are_refused() -> crate::Result<()> {
        let numbers = |rows: &[u32]| RowNumbers::new(rows, &Device::Cpu, None).unwrap();
        for dtype in [DType::F32, DType::BF16] {
            let table = Tensor::zeros((4, 3), dtype, &Device::Cpu)?;
            let x = Tensor::arange(0u32, 6, &Device::Cpu)?.to_dtype(dtype)?.reshape((2, 3))?;
            put_rows(&table, &x, &numbers(&[3, 1]))?;
            put_rows(&table, &x.narrow(0, 0, 0)?, &numbers(&[]))?;
            let found = table.to_dtype(DType::F32)?.to_vec2::<f32>()?;
            assert_eq!(found, [[0.0; 3], [3.0, 4.0, 5.0], [0.0; 3], [0.0, 1.0, 2.0]]);
            assert!(put_rows(&table, &x, &numbers(&[0, 4])).unwrap_err().to_string().contains("there is no row 4"));
            assert!(put_rows(&table, &x, &numbers(&[0])).is_err());
            assert!(put_rows(&table, &x.narrow(1, 0, 2)?, &numbers(&[0, 1])).is_err());
        }
        Ok(())
    }
}
