//! The rows of a matrix with given numbers.

use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::CudaStorage;
use candle_core::{CustomOp2, Layout, Result, Shape};

use super::call::{Call, over_gathered_rows, with_element};
use super::kernels;
use crate::ops::gather::GatherRows;

pub(crate) fn gather_rows(
    op: &GatherRows,
    x: &CudaStorage,
    lx: &Layout,
    numbers: &CudaStorage,
    ln: &Layout,
) -> Result<(CudaStorage, Shape)> {
    let call = Call::new(op.name(), x);
    let ((_, columns), count) = (lx.shape().dims2()?, ln.shape().dims1()?);
    let [bytes, offset] = [columns, lx.start_offset()].map(|numbers| numbers * x.dtype().size_in_bytes());
    let fits = |piece: usize| bytes.is_multiple_of(piece) && offset.is_multiple_of(piece);
    let (suffix, piece) = if fits(16) {
        ("_16", 16)
    } else if fits(4) {
        ("_4", 4)
    } else {
        ("_2", 2)
    };
    let (rows, pieces) = (call.count(count)?, call.count(bytes / piece)?);
    let (threads, shift) = over_gathered_rows(rows, pieces);
    let numbers = call.indices(numbers, ln)?;
    with_element!(call, x, T => {
        let x = call.input::<T>(x, lx)?;
        let out = call.alloc::<T>(count * columns)?;
        let arguments = [numbers.address, x.address, call.address(&out), rows.into(), pieces.into(), shift];
        // SAFETY: these are the kernel's arguments; `gather_rows` in `ops` has checked that there is a row for every number.
        unsafe { kernels::GATHER_ROWS.launch(call.device, suffix, threads, &arguments)? };
        call.output(out, (count, columns))
    })
}
