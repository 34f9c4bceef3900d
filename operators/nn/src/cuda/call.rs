//! The common steps of every operation: checks inputs, allocates outputs and launches kernels.

use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::cudarc::driver::{CudaSlice, CudaView, DevicePtr, DeviceRepr, LaunchConfig};
use candle_core::cuda_backend::{CudaDType, CudaStorage};
use candle_core::{CudaDevice, Device, Layout, Result, Shape, Storage, Tensor, bail};

use super::kernels::{Argument, Kernel, NULL};
use super::threads::config;
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
