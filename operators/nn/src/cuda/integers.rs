//! Arrays of integers on a GPU: sums of all earlier numbers, edges by source, and other arrays that are derived from edges there.

use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::{CudaSlice, DevicePtr, DeviceRepr, LaunchConfig};
use candle_core::op::BackpropOp;
use candle_core::{CudaDevice, CudaStorage, Storage, Tensor};

use super::kernels::{self, Argument, Kernel, NULL};
use super::threads::{one_warp, over_numbers, warp_per_row};
use crate::device_copies::RowEdges;
use crate::error::{Error, Result};

/// Numbers that one warp adds up: `PIECE` of `integers.cu`.
const PIECE: usize = 1024;
/// Values of a digit of the sort: `DIGITS` of `integers.cu`.
const DIGITS: usize = 256;

/// The edges of a block by source, and for each of them its position in the order by destination.
pub(crate) struct BySource {
    pub(crate) rows: RowEdges,
    pub(crate) edges: Tensor,
}

/// Kernels on integers, enqueued in order on the device's stream.
pub(super) struct Integers<'a>(&'a CudaDevice);

/// An array of integers on the device.
pub(super) struct Array {
    pub(super) numbers: CudaSlice<u32>,
    /// The length; the memory has at least one number.
    pub(super) len: usize,
}

/// Sums of all earlier numbers.
pub(super) struct Scan {
    /// `starts[i]` is the sum of the numbers before `i`, for `i` of `0..=n`.
    pub(super) starts: Array,
    /// The last one is the sum of all.
    sums: CudaSlice<u64>,
    pieces: usize,
}

impl<'a> Integers<'a> {
    pub(super) fn on(device: &'a CudaDevice) -> Self {
        Self(device)
    }

    /// Allocates at least one number, since the pool cannot allocate 0 bytes. Their values are undefined.
    fn alloc<T: DeviceRepr>(&self, len: usize) -> Result<CudaSlice<T>> {
        // SAFETY: every kernel writes all of its output before anything reads it.
        Ok(unsafe { self.0.alloc::<T>(len.max(1)) }?)
    }

    /// Allocates an array, whose numbers are undefined.
    pub(super) fn array(&self, len: usize) -> Result<Array> {
        Ok(Array { numbers: self.alloc::<u32>(len)?, len })
    }

    /// Allocates an array of `value`.
    pub(super) fn filled(&self, len: usize, value: u32) -> Result<Array> {
        let out = self.array(len)?;
        let arguments = [self.address_of_array(&out), (len as u64).into(), value.into()];
        // SAFETY: these are the kernel's arguments, and the arrays are as long as it expects.
        unsafe { self.launch(kernels::FILL_INTEGERS, over_numbers(len), &arguments)? };
        Ok(out)
    }

    /// Copies integers to the device.
    pub(super) fn copy(&self, numbers: &[u32]) -> Result<Array> {
        let mut out = self.array(numbers.len())?;
        if !numbers.is_empty() {
            self.0.memcpy_htod(numbers, &mut out.numbers.slice_mut(..numbers.len()))?;
        }
        Ok(out)
    }

    /// Returns the address of memory on the device.
    pub(super) fn address<T>(&self, memory: &CudaSlice<T>) -> Argument {
        // The guard would record an event, but operations are on one stream, and event tracking is off.
        let stream = self.0.cuda_stream();
        let (address, _guard) = memory.device_ptr(&stream);
        Argument::Pointer(address)
    }

    /// Returns the address of an array.
    pub(super) fn address_of_array(&self, array: &Array) -> Argument {
        self.address(&array.numbers)
    }

    /// Returns the address of a tensor of integers, whose storage begins with it.
    fn address_of_tensor(&self, tensor: &Tensor) -> Result<Argument> {
        match &*tensor.storage_and_layout().0 {
            Storage::Cuda(storage) => Ok(self.address(storage.as_cuda_slice::<u32>()?)),
            _ => Err(Error::Input("the edges of a block are not on the GPU".to_owned())),
        }
    }

    /// Converts a length to the kernels' type.
    pub(super) fn length(&self, n: usize) -> Result<u32> {
        u32::try_from(n).ok().filter(|&n| n < 1 << 31).ok_or_else(too_many)
    }

    /// Returns a length as an argument.
    pub(super) fn count(&self, n: usize) -> Result<Argument> {
        Ok(self.length(n)?.into())
    }

    /// Enqueues a kernel.
    ///
    /// # Safety
    /// As [`Kernel::launch`].
    pub(super) unsafe fn launch(&self, kernel: Kernel, threads: LaunchConfig, arguments: &[Argument]) -> Result<()> {
        // SAFETY: guaranteed by the caller.
        Ok(unsafe { kernel.launch(self.0, "", threads, arguments) }?)
    }

    /// Returns an array as a tensor.
    pub(super) fn tensor(&self, array: Array) -> Tensor {
        let storage = CudaStorage::wrap_cuda_slice(array.numbers, self.0.clone());
        Tensor::from_storage(Storage::Cuda(storage), array.len, BackpropOp::none(), false)
    }

    /// Returns the sums of all earlier numbers.
    pub(super) fn scan(&self, numbers: &Array) -> Result<Scan> {
        let (n, pieces) = (self.count(numbers.len)?, numbers.len.div_ceil(PIECE));
        let (sums, starts) = (self.alloc::<u64>(pieces + 1)?, self.array(numbers.len + 1)?);
        let (numbers, at) = (self.address_of_array(numbers), self.address(&sums));
        // SAFETY: these are the kernel's arguments, and the arrays are as long as it expects.
        unsafe { self.launch(kernels::SUM_PIECES, warp_per_row(pieces as u32), &[numbers, n, at])? };
        // SAFETY: these are the kernel's arguments, and the arrays are as long as it expects.
        unsafe { self.launch(kernels::SCAN_PIECES, one_warp(), &[at, self.count(pieces)?])? };
        // At least one warp, which writes the 0 at the beginning.
        let arguments = [numbers, n, at, self.address_of_array(&starts)];
        // SAFETY: these are the kernel's arguments, and the arrays are as long as it expects.
        unsafe { self.launch(kernels::SCAN, warp_per_row(pieces.max(1) as u32), &arguments)? };
        Ok(Scan { starts, sums, pieces })
    }

    /// Waits for the device and returns the sum of all numbers.
    pub(super) fn total(&self, scan: &Scan) -> Result<usize> {
        let last = self.0.clone_dtoh(&scan.sums.slice(scan.pieces..scan.pieces + 1))?;
        self.0.cuda_stream().synchronize().w()?;
        let total = last.first().and_then(|&total| usize::try_from(total).ok()).filter(|&total| total < 1 << 31);
        total.ok_or_else(too_many)
    }

    /// Returns the positions at which `marks` is 1. Waits for the device.
    fn marked(&self, marks: &Array) -> Result<Array> {
        let scan = self.scan(marks)?;
        let out = self.array(self.total(&scan)?)?;
        let arguments = [self.address_of_array(&scan.starts), self.count(marks.len)?, self.address_of_array(&out)];
        // SAFETY: these are the kernel's arguments, and the arrays are as long as it expects.
        unsafe { self.launch(kernels::LIST_MARKED, over_numbers(marks.len), &arguments)? };
        Ok(out)
    }

    /// Returns `x[numbers[i]]` for each `i`.
    fn pick(&self, x: &Array, numbers: &Array) -> Result<Array> {
        let out = self.array(numbers.len)?;
        let arguments = [
            self.address_of_array(x),
            self.address_of_array(numbers),
            self.count(numbers.len)?,
            self.address_of_array(&out),
        ];
        // SAFETY: these are the kernel's arguments, and the arrays are as long as it expects.
        unsafe { self.launch(kernels::PICK_INTEGERS, over_numbers(numbers.len), &arguments)? };
        Ok(out)
    }

    /// Sorts keys below `end` stably. Returns them, and for each its number before.
    fn sort(&self, keys: &Tensor, end: usize) -> Result<(Array, Array)> {
        let (n, pieces) = (keys.elem_count(), keys.elem_count().div_ceil(PIECE));
        let bits = usize::BITS - end.saturating_sub(1).leading_zeros();
        let (mut sorted, mut from): (Option<(Array, Array)>, _) = (None, self.address_of_tensor(keys)?);
        for shift in (0..bits.max(1)).step_by(DIGITS.ilog2() as usize) {
            let counts = self.filled(DIGITS * pieces, 0)?;
            let (count, shift, pieces_of) = (self.count(n)?, shift.into(), self.count(pieces)?);
            let arguments = [from, count, shift, pieces_of, self.address_of_array(&counts)];
            // SAFETY: these are the kernel's arguments, and the arrays are as long as it expects.
            unsafe { self.launch(kernels::COUNT_DIGITS, over_numbers(n), &arguments)? };
            let places = self.scan(&counts)?.starts;
            let to = (self.array(n)?, self.array(n)?);
            let numbers = sorted.as_ref().map_or(NULL, |(_, numbers)| self.address_of_array(numbers));
            let arguments = [
                from,
                numbers,
                count,
                shift,
                pieces_of,
                self.address_of_array(&places),
                self.address_of_array(&to.0),
                self.address_of_array(&to.1),
            ];
            // SAFETY: these are the kernel's arguments, and the arrays are as long as it expects.
            unsafe { self.launch(kernels::MOVE_BY_DIGIT, warp_per_row(pieces as u32), &arguments)? };
            from = self.address_of_array(&to.0);
            sorted = Some(to);
        }
        match sorted {
            Some(sorted) => Ok(sorted),
            None => unreachable!("keys have at least one digit"),
        }
    }

    /// Returns the row of each edge.
    fn rows_of_edges(&self, indptr: &Tensor, edges: usize) -> Result<Array> {
        let (rows, out) = (indptr.elem_count() - 1, self.array(edges)?);
        let arguments = [self.address_of_tensor(indptr)?, self.count(rows)?, self.address_of_array(&out)];
        // SAFETY: these are the kernel's arguments, and the arrays are as long as it expects.
        unsafe { self.launch(kernels::ROWS_OF_EDGES, warp_per_row(self.length(rows)?), &arguments)? };
        Ok(out)
    }

    /// Returns the rows with at least `edges` edges. Waits for the device.
    fn long_rows(&self, indptr: Argument, rows: usize, edges: u32) -> Result<Option<Tensor>> {
        let marks = self.array(rows)?;
        let arguments = [indptr, self.count(rows)?, edges.into(), self.address_of_array(&marks)];
        // SAFETY: these are the kernel's arguments, and the arrays are as long as it expects.
        unsafe { self.launch(kernels::MARK_LONG_ROWS, over_numbers(rows), &arguments)? };
        let found = self.marked(&marks)?;
        Ok(Some(found).filter(|found| found.len > 0).map(|found| self.tensor(found)))
    }
}

fn too_many() -> Error {
    Error::Input("a hop of a batch has 2^31 edges or more; use smaller train.batch or train.fanouts".to_owned())
}

/// Returns the arrays of rows as the kernels of sums read them. Rows of `edges` edges or more are listed, if there may be any.
pub(super) fn row_edges(on: &Integers<'_>, indptr: Array, indices: Array, long: Option<u32>) -> Result<RowEdges> {
    let (rows, address) = (indptr.len - 1, on.address_of_array(&indptr));
    let long_rows = long.map(|edges| on.long_rows(address, rows, edges)).transpose()?.flatten();
    Ok(RowEdges { indptr: on.tensor(indptr), indices: on.tensor(indices), long_rows })
}

/// Returns the edges by source, in the order of `gnnflow_kernels::aggregate::transpose`. Rows of `long` edges or more are listed.
pub(crate) fn by_source(device: &CudaDevice, edges: &RowEdges, sources: usize, long: u32) -> Result<BySource> {
    let on = Integers::on(device);
    let count = edges.indices.elem_count();
    let (keys, numbers) = on.sort(&edges.indices, sources)?;
    let starts = on.array(sources + 1)?;
    let arguments = [on.address_of_array(&keys), on.count(count)?, on.count(sources)?, on.address_of_array(&starts)];
    // SAFETY: these are the kernel's arguments, and the arrays are as long as it expects.
    unsafe { on.launch(kernels::ROW_STARTS, over_numbers(sources + 1), &arguments)? };
    let destinations = on.pick(&on.rows_of_edges(&edges.indptr, count)?, &numbers)?;
    Ok(BySource { rows: row_edges(&on, starts, destinations, Some(long))?, edges: on.tensor(numbers) })
}

/// Returns the destination of each edge.
pub(crate) fn destinations(device: &CudaDevice, edges: &RowEdges) -> Result<Tensor> {
    let on = Integers::on(device);
    Ok(on.tensor(on.rows_of_edges(&edges.indptr, edges.indices.elem_count())?))
}

/// Returns one over the number of edges of each row.
pub(crate) fn inverse_degrees(device: &CudaDevice, edges: &RowEdges) -> Result<Tensor> {
    let (on, rows) = (Integers::on(device), edges.indptr.elem_count() - 1);
    let out = on.alloc::<f32>(rows)?;
    let arguments = [on.address_of_tensor(&edges.indptr)?, on.count(rows)?, on.address(&out)];
    // SAFETY: these are the kernel's arguments, and the arrays are as long as it expects.
    unsafe { on.launch(kernels::INVERSE_DEGREES, over_numbers(rows), &arguments)? };
    let storage = CudaStorage::wrap_cuda_slice(out, device.clone());
    Ok(Tensor::from_storage(Storage::Cuda(storage), rows, BackpropOp::none(), false))
}

/// Returns the edges with one self-loop for each row, first in it, instead of any others, and their number. Rows of `long` edges or more are listed.
pub(crate) fn with_self_loops(device: &CudaDevice, edges: &RowEdges, long: u32) -> Result<(RowEdges, usize)> {
    let (on, rows) = (Integers::on(device), edges.indptr.elem_count() - 1);
    let (indptr, indices) = (on.address_of_tensor(&edges.indptr)?, on.address_of_tensor(&edges.indices)?);
    let counts = on.array(rows)?;
    let arguments = [indptr, indices, on.count(rows)?, on.address_of_array(&counts)];
    // SAFETY: these are the kernel's arguments, and the arrays are as long as it expects.
    unsafe { on.launch(kernels::COUNT_WITH_LOOPS, warp_per_row(on.length(rows)?), &arguments)? };
    let scan = on.scan(&counts)?;
    let all = on.total(&scan)?;
    let out = on.array(all)?;
    let arguments = [indptr, indices, on.count(rows)?, on.address_of_array(&scan.starts), on.address_of_array(&out)];
    // SAFETY: these are the kernel's arguments, and the arrays are as long as it expects.
    unsafe { on.launch(kernels::ADD_LOOPS, warp_per_row(on.length(rows)?), &arguments)? };
    Ok((row_edges(&on, scan.starts, out, Some(long))?, all))
}
