//! Writes rows of a matrix at given numbers.

use candle_core::cuda_backend::CudaStorage;
use candle_core::{InplaceOp3, Layout, Result};

use super::call::{Call, with_element};
use super::gather::piece;
use super::kernels;
use super::threads::over_rows;
use crate::ops::put_rows::PutRows;

pub(crate) fn put_rows(
    op: &PutRows,
    (table, lt): (&CudaStorage, &Layout),
    (x, lx): (&CudaStorage, &Layout),
    (numbers, ln): (&CudaStorage, &Layout),
) -> Result<()> {
    let call = Call::new(op.name(), table);
    let (count, columns) = lx.shape().dims2()?;
    let (suffix, bytes) = piece(table, columns, [lt, lx]);
    let (rows, pieces) = (call.count(count)?, call.count(bytes)?);
    let (threads, shift) = over_rows(rows, pieces, 1);
    let numbers = call.indices(numbers, ln)?;
    with_element!(call, table, T => {
        let (table, x) = (call.input::<T>(table, lt)?, call.input::<T>(x, lx)?);
        let arguments = [numbers.address, x.address, table.address, rows.into(), pieces.into(), shift];
        // SAFETY: these are the kernel's arguments; `put_rows` in `ops` has checked that there is a row for every number, and candle has borrowed the
        // table's storage mutably.
        unsafe { kernels::PUT_ROWS.launch(call.device, suffix, threads, &arguments) }
    })
}
