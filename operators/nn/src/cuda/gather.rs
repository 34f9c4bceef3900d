//! The rows of one or two matrices with given numbers.

use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::CudaStorage;
use candle_core::{CustomOp3, Layout, Result, Shape};

use super::call::{Call, with_element};
use super::kernels;
use super::threads::over_gathered_rows;
use crate::ops::gather::GatherRows;

/// Returns the suffix of the kernels that copy rows of `columns` numbers in the largest possible pieces, and the pieces of a row.
pub(super) fn piece(x: &CudaStorage, columns: usize, layouts: [&Layout; 2]) -> (&'static str, usize) {
    let size = x.dtype().size_in_bytes();
    let fits = |piece: usize| {
        (columns * size).is_multiple_of(piece)
            && layouts.iter().all(|layout| (layout.start_offset() * size).is_multiple_of(piece))
    };
    let (suffix, piece) = [("_16", 16), ("_4", 4)].into_iter().find(|&(_, piece)| fits(piece)).unwrap_or(("_2", 2));
    (suffix, columns * size / piece)
}

pub(crate) fn gather_rows(
    op: &GatherRows,
    (x, lx): (&CudaStorage, &Layout),
    (more, lm): (&CudaStorage, &Layout),
    (numbers, ln): (&CudaStorage, &Layout),
) -> Result<(CudaStorage, Shape)> {
    let call = Call::new(op.name(), x);
    let ((held, columns), count) = (lx.shape().dims2()?, ln.shape().dims1()?);
    let (suffix, pieces) = piece(x, columns, [lx, lm]);
    let (rows, pieces, held) = (call.count(count)?, call.count(pieces)?, call.count(held)?);
    let (threads, shift) = over_gathered_rows(rows, pieces);
    let numbers = call.indices(numbers, ln)?;
    with_element!(call, x, T => {
        let (x, more) = (call.input::<T>(x, lx)?, call.input::<T>(more, lm)?);
        let out = call.alloc::<T>(count * columns)?;
        let arguments = [
            numbers.address, x.address, more.address, held.into(), call.address(&out), rows.into(), pieces.into(), shift,
        ];
        // SAFETY: these are the kernel's arguments; `gather_rows` in `ops` has checked that there is a row for every number.
        unsafe { kernels::GATHER_ROWS.launch(call.device, suffix, threads, &arguments)? };
        call.output(out, (count, columns))
    })
}
