//! The common steps of every operation: checks inputs, allocates outputs and lays out threads over rows and columns.

use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::cudarc::driver::{CudaSlice, CudaView, DevicePtr, DeviceRepr, LaunchConfig};
use candle_core::cuda_backend::{CudaDType, CudaStorage};
use candle_core::{CudaDevice, Device, Layout, Result, Shape, Storage, Tensor, bail};

use super::kernels::{Argument, Kernel};
use crate::device_block::DeviceBlock;
use crate::device_copies::RowEdges;
use crate::graph_block::GraphBlock;

/// A number type with kernels.
pub(super) trait Number: CudaDType + DeviceRepr + 'static {
    /// The type that sums are computed in.
    type Sum: Number;
    /// The suffix of its kernels' names.
    const SUFFIX: &'static str;
}

impl Number for f32 {
    type Sum = f32;
    const SUFFIX: &'static str = "_f32";
}

impl Number for f64 {
    type Sum = f64;
    const SUFFIX: &'static str = "_f64";
}

impl Number for half::bf16 {
    type Sum = f32;
    const SUFFIX: &'static str = "_bf16";
}

impl Number for half::f16 {
    type Sum = f32;
    const SUFFIX: &'static str = "_f16";
}

/// Runs `$body` with `$T` as the number type of an `f32` or `f64` storage.
macro_rules! with_real {
    ($call:expr, $storage:expr, $T:ident => $body:expr) => {
        match candle_core::backend::BackendStorage::dtype($storage) {
            candle_core::DType::F32 => {
                type $T = f32;
                $body
            }
            candle_core::DType::F64 => {
                type $T = f64;
                $body
            }
            other => candle_core::bail!("{}: no CUDA kernel for {other:?}", $call.op),
        }
    };
}

/// As `with_real`, also for half precision.
macro_rules! with_element {
    ($call:expr, $storage:expr, $T:ident => $body:expr) => {
        match candle_core::backend::BackendStorage::dtype($storage) {
            candle_core::DType::BF16 => {
                type $T = half::bf16;
                $body
            }
            candle_core::DType::F16 => {
                type $T = half::f16;
                $body
            }
            _ => $crate::cuda::call::with_real!($call, $storage, $T => $body),
        }
    };
}

pub(super) use {with_element, with_real};

/// One call of an operation.
pub(super) struct Call<'a> {
    pub(super) op: &'static str,
    pub(super) device: &'a CudaDevice,
}

/// A contiguous input: its address, and whether it is aligned for reads of four numbers.
pub(super) struct Input<'a, T> {
    pub(super) view: CudaView<'a, T>,
    pub(super) address: Argument,
    pub(super) aligned: bool,
}

impl<'a> Call<'a> {
    /// A call of the operation `op` on the device of `storage`.
    pub(super) fn new(op: &'static str, storage: &'a CudaStorage) -> Self {
        Self { op, device: storage.device() }
    }

    /// Fails unless `found` equals `wanted`.
    pub(super) fn expect(&self, what: &str, found: usize, wanted: usize) -> Result<()> {
        crate::ops::expect(self.op, what, found, wanted)
    }

    /// Converts a count to the kernels' type.
    pub(super) fn count(&self, n: usize) -> Result<u32> {
        match u32::try_from(n) {
            Ok(n) if n < 1 << 31 => Ok(n),
            _ => bail!("{}: {n} rows or columns are too many for one kernel", self.op),
        }
    }

    /// Returns the numbers of a contiguous tensor.
    pub(super) fn input<'s, T: Number>(&self, storage: &'s CudaStorage, layout: &Layout) -> Result<Input<'s, T>> {
        self.view::<T>(storage, layout)
    }

    /// Returns the numbers of a contiguous tensor on the device, while `storage` and `layout` are borrowed from it.
    pub(super) fn of_tensor<'s, T: Number>(&self, storage: &'s Storage, layout: &Layout) -> Result<Input<'s, T>> {
        match storage {
            Storage::Cuda(storage) => self.input(storage, layout),
            _ => bail!("{}: tensors are on several devices", self.op),
        }
    }

    /// Returns indices, as [`Call::input`].
    pub(super) fn indices<'s>(&self, storage: &'s CudaStorage, layout: &Layout) -> Result<Input<'s, u32>> {
        self.view::<u32>(storage, layout)
    }

    fn view<'s, T: CudaDType + DeviceRepr>(&self, storage: &'s CudaStorage, layout: &Layout) -> Result<Input<'s, T>> {
        let Some((start, end)) = layout.contiguous_offsets() else { bail!("{}: the input is not contiguous", self.op) };
        let view = storage.as_cuda_slice::<T>()?.slice(start..end);
        let address = self.address(&view);
        Ok(Input { view, address, aligned: start % 4 == 0 })
    }

    /// Allocates `len` uninitialized numbers, at least one, since the pool cannot allocate 0 bytes.
    pub(super) fn alloc<T: DeviceRepr>(&self, len: usize) -> Result<CudaSlice<T>> {
        // SAFETY: every kernel writes all of its output before anything reads it.
        unsafe { self.device.alloc::<T>(len.max(1)) }
    }

    /// Returns the address of memory on the device.
    pub(super) fn address<T>(&self, memory: &impl DevicePtr<T>) -> Argument {
        // The guard would record an event, but operations are on one stream, and event tracking is off.
        let stream = self.device.cuda_stream();
        let (address, _guard) = memory.device_ptr(&stream);
        Argument::Pointer(address)
    }

    /// Fails unless there is a row for every source and every destination of the block, with equal columns. Returns their number.
    pub(super) fn columns_at_ends(&self, block: &GraphBlock, left: &Layout, right: &Layout) -> Result<usize> {
        let ((sources, columns), (destinations, others)) = (left.shape().dims2()?, right.shape().dims2()?);
        self.expect("source rows", sources, block.num_src())?;
        self.expect("destination rows", destinations, block.num_dst())?;
        self.expect("columns", others, columns)?;
        Ok(columns)
    }

    /// Returns the addresses of the sources of every destination's edges.
    pub(super) fn by_destination(&self, block: &GraphBlock) -> Result<Edges> {
        self.edges(|on| on.by_destination(), block)
    }

    /// Returns the addresses of the destinations of every source's edges.
    pub(super) fn by_source(&self, block: &GraphBlock) -> Result<Edges> {
        self.edges(|on| on.by_source(), block)
    }

    /// Returns the address of the position, by destination, of every edge by source.
    pub(super) fn edges_by_source(&self, block: &GraphBlock) -> Result<Argument> {
        self.address_of::<u32>(&self.array(|on| on.edges_by_source(), block)?)
    }

    /// Returns the address of the destination of every edge.
    pub(super) fn destinations(&self, block: &GraphBlock) -> Result<Argument> {
        self.address_of::<u32>(&self.array(|on| on.destinations(), block)?)
    }

    /// Returns the address of one over the number of every destination's edges.
    pub(super) fn inverse_degrees(&self, block: &GraphBlock) -> Result<Argument> {
        self.address_of::<f32>(&self.array(|on| on.inverse_degrees(), block)?)
    }

    fn edges(
        &self,
        get: impl FnOnce(&DeviceBlock<'_>) -> crate::Result<RowEdges>,
        block: &GraphBlock,
    ) -> Result<Edges> {
        let RowEdges { indptr, indices, long_rows } = self.array(get, block)?;
        let long_rows = match &long_rows {
            Some(rows) => LongRows { list: self.address_of::<u32>(rows)?, count: rows.elem_count() as u32 },
            None => LongRows { list: NULL, count: 0 },
        };
        Ok(Edges { indptr: self.address_of::<u32>(&indptr)?, indices: self.address_of::<u32>(&indices)?, long_rows })
    }

    /// Returns an array of `block`, which the block keeps on the device.
    fn array<T>(&self, get: impl FnOnce(&DeviceBlock<'_>) -> crate::Result<T>, block: &GraphBlock) -> Result<T> {
        get(&block.on_device(&Device::Cuda(self.device.clone()))).map_err(|error| match error {
            crate::Error::Tensor(error) => error,
            other => candle_core::Error::Msg(other.to_string()),
        })
    }

    fn address_of<T: CudaDType + DeviceRepr>(&self, tensor: &Tensor) -> Result<Argument> {
        match &*tensor.storage_and_layout().0 {
            Storage::Cuda(storage) => Ok(self.address(storage.as_cuda_slice::<T>()?)),
            _ => bail!("{}: the block is not on the device", self.op),
        }
    }

    /// Enqueues `kernel` for numbers of type `T`.
    ///
    /// # Safety
    /// As [`Kernel::launch`].
    pub(super) unsafe fn launch<T: Number>(
        &self,
        kernel: Kernel,
        threads: LaunchConfig,
        arguments: &[Argument],
    ) -> Result<()> {
        // SAFETY: guaranteed by the caller.
        unsafe { kernel.launch(self.device, T::SUFFIX, threads, arguments) }
    }

    /// Returns `out` as the operation's result.
    pub(super) fn output<T: CudaDType>(
        &self,
        out: CudaSlice<T>,
        shape: impl Into<Shape>,
    ) -> Result<(CudaStorage, Shape)> {
        Ok((CudaStorage::wrap_cuda_slice(out, self.device.clone()), shape.into()))
    }
}

/// The addresses of a block's edges by row. The block keeps the arrays.
#[derive(Clone, Copy)]
pub(super) struct Edges {
    pub(super) indptr: Argument,
    pub(super) indices: Argument,
    pub(super) long_rows: LongRows,
}

/// The rows with many edges.
#[derive(Clone, Copy)]
pub(super) struct LongRows {
    pub(super) list: Argument,
    count: u32,
}

impl LongRows {
    /// Blocks of up to 128 threads for each row, a thread for each of its columns; no threads if there are no such rows.
    pub(super) fn threads(self, columns: u32) -> LaunchConfig {
        let block = columns.next_multiple_of(32).clamp(32, 128);
        config((self.count, columns.div_ceil(block)), (block, 1))
    }
}

/// A null pointer: no array.
pub(super) const NULL: Argument = Argument::Pointer(0);

/// Threads per block: `THREADS` of `common.cuh`.
const THREADS: u32 = 256;
/// Rows that one thread sums: `PANEL` of `common.cuh`.
pub(super) const PANEL: u32 = 512;
/// The maximum number of blocks for loops over numbers; more would only queue.
const BLOCKS: u64 = 1 << 14;

fn config(grid: (u32, u32), block: (u32, u32)) -> LaunchConfig {
    LaunchConfig { grid_dim: (grid.0, grid.1, 1), block_dim: (block.0, block.1, 1), shared_mem_bytes: 0 }
}

/// Threads for `Place` of `common.cuh`, each for `each` columns of a row. Also returns log2 of the threads per row.
pub(super) fn over_rows(rows: u32, columns: u32, each: u32) -> (LaunchConfig, Argument) {
    let places = columns.div_ceil(each);
    let lanes = places.clamp(1, 32).next_power_of_two();
    let grid = (rows.div_ceil(THREADS / lanes), places.div_ceil(lanes));
    (config(grid, (THREADS, 1)), Argument::U32(lanes.trailing_zeros()))
}

/// As [`over_rows`], with `GATHERED` of `common.cuh` rows for each thread.
pub(super) fn over_gathered_rows(rows: u32, pieces: u32) -> (LaunchConfig, Argument) {
    const GATHERED: u32 = 4;
    over_rows(rows.div_ceil(GATHERED), pieces, 1)
}

/// One warp per row.
pub(super) fn warp_per_row(rows: u32) -> LaunchConfig {
    config((rows.div_ceil(8), 1), (32, 8))
}

/// Threads for `Row` of `edges.cu`: one warp per row, for adjacent heads. Also returns log2 of the number of heads.
pub(super) fn warp_per_row_of_heads(rows: u32, heads: u32) -> (LaunchConfig, Argument) {
    let lanes = heads.clamp(1, 32).next_power_of_two();
    (config((rows.div_ceil(8), heads.div_ceil(lanes)), (32, 8)), Argument::U32(lanes.trailing_zeros()))
}

/// Threads that loop over `n` numbers.
pub(super) fn over_numbers(n: usize) -> LaunchConfig {
    let blocks = (n as u64).div_ceil(u64::from(THREADS)).min(BLOCKS);
    config((blocks as u32, 1), (THREADS, 1))
}

/// Sixteen threads for each of `n` dot products.
pub(super) fn sixteen_per_product(n: usize) -> LaunchConfig {
    config((n.div_ceil(THREADS as usize / 16) as u32, 1), (THREADS, 1))
}

/// One block per `piece` of the `n` numbers.
pub(super) fn block_per_piece(n: usize, piece: usize) -> LaunchConfig {
    config((n.div_ceil(piece) as u32, 1), (THREADS, 1))
}

/// One thread per panel of rows and column.
pub(super) fn over_panels(rows: u32, columns: u32) -> LaunchConfig {
    config((rows.div_ceil(PANEL), columns.div_ceil(64)), (64, 1))
}

/// One thread per column.
pub(super) fn over_columns(columns: u32) -> LaunchConfig {
    config((columns.div_ceil(64), 1), (64, 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn over_rows_covers_every_row_and_column_once() {
        for (rows, columns, each) in [(1, 1, 1), (10, 8, 1), (10, 47, 1), (1000, 100, 4), (7, 256, 4), (3, 5000, 1)] {
            let (LaunchConfig { grid_dim, block_dim, .. }, shift) = over_rows(rows, columns, each);
            let Argument::U32(shift) = shift else { panic!("a shift is an integer") };
            let lanes = 1 << shift;
            assert!(lanes <= 32 && block_dim == (256, 1, 1));
            let (covered_rows, covered_columns) = (grid_dim.0 * (256 / lanes), grid_dim.1 * lanes * each);
            assert!(covered_rows >= rows && covered_rows < rows + 256 / lanes);
            assert!(covered_columns >= columns && covered_columns < columns + lanes * each);
        }
        assert_eq!(over_rows(0, 8, 1).0.grid_dim.0, 0);
        assert_eq!(over_rows(8, 0, 1).0.grid_dim.1, 0);
        assert_eq!(warp_per_row_of_heads(9, 40).0.grid_dim, (2, 2, 1));
    }
}
