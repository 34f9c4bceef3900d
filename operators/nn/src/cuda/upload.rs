//! Copies to a GPU beside its operations.
//!
//! ```text
//! numbers → page-locked slots (the calling thread) → GPU memory (the stream of copies) ─ event → operations (the device's stream)
//! ```
//!
//! The memory is allocated in the order of the stream of copies, which does not wait for operations. It is freed in the order of the device's
//! stream, after the last operation that reads it.

use std::sync::{Arc, Mutex, PoisonError};

use bytemuck::{NoUninit, cast_slice};
use candle_core::cuda_backend::cudarc::driver::{
    CudaEvent, CudaSlice, CudaStream, DevicePtr, DeviceRepr, PinnedHostSlice, result,
};
use candle_core::cuda_backend::{CudaDType, WrapErr};
use candle_core::op::BackpropOp;
use candle_core::{CudaDevice, CudaStorage, Result, Shape, Storage, Tensor, WithDType};

/// Bytes of a slot. Copies of this size reach the rate of the bus.
const SLOT: usize = 4 << 20;
/// One slot is written while others are copied.
const SLOTS: usize = 3;

/// Numbers that are copied.
pub(crate) trait Uploads: CudaDType + DeviceRepr + NoUninit + WithDType {}

impl<T: CudaDType + DeviceRepr + NoUninit + WithDType> Uploads for T {}

/// A stream of copies.
pub(crate) struct Upload {
    device: CudaDevice,
    copies: Arc<CudaStream>,
    slots: Mutex<Slots>,
}

struct Slots {
    all: Vec<Slot>,
    next: usize,
}

/// Page-locked memory, which the GPU reads without the help of a core.
struct Slot {
    memory: PinnedHostSlice<u8>,
    /// After the last copy from this slot.
    copied: CudaEvent,
}

impl Upload {
    pub(crate) fn new(device: &CudaDevice) -> Result<Self> {
        let stream = device.cuda_stream();
        let context = stream.context();
        let slot = |_| {
            // SAFETY: bytes are written before they are read.
            let memory = unsafe { context.alloc_pinned_with_flags::<u8>(SLOT, 0) }.w()?;
            Ok(Slot { memory, copied: context.new_event(None).w()? })
        };
        let all = (0..SLOTS).map(slot).collect::<Result<_>>()?;
        let copies = context.new_stream().w()?;
        Ok(Self { device: device.clone(), copies, slots: Mutex::new(Slots { all, next: 0 }) })
    }

    /// Starts to copy numbers, at least one. Operations may read the tensor after [`Upload::end`] and [`Uploaded::wait`].
    pub(crate) fn copy<T: Uploads>(&self, numbers: &[T], shape: Shape) -> Result<Tensor> {
        let copied = self.copy_bytes(cast_slice(numbers));
        if copied.is_err() {
            // The memory of earlier copies may be freed now.
            self.copies.synchronize().w()?;
        }
        let address = copied?.leak();
        // SAFETY: the address is that of a new allocation of as many numbers, and their stream is of the same context.
        let slice: CudaSlice<T> = unsafe { self.device.cuda_stream().upgrade_device_ptr(address, numbers.len()) };
        let storage = CudaStorage::wrap_cuda_slice(slice, self.device.clone());
        Ok(Tensor::from_storage(Storage::Cuda(storage), shape, BackpropOp::none(), false))
    }

    fn copy_bytes(&self, bytes: &[u8]) -> Result<CudaSlice<u8>> {
        // SAFETY: all bytes are written here.
        let target = unsafe { self.copies.alloc::<u8>(bytes.len()) }.w()?;
        let (address, _) = target.device_ptr(&self.copies);
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        for (number, piece) in bytes.chunks(SLOT).enumerate() {
            let at = slots.next;
            slots.next = (at + 1) % SLOTS;
            let Slot { memory, copied } = &mut slots.all[at];
            copied.synchronize().w()?;
            let memory = &mut memory.as_mut_slice().w()?[..piece.len()];
            memory.copy_from_slice(piece);
            let to = address + (number * SLOT) as u64;
            // SAFETY: the target has room for the piece, and the slot is not written before the event has happened.
            unsafe { result::memcpy_htod_async(to, memory, self.copies.cu_stream()).w()? };
            copied.record(&self.copies).w()?;
        }
        Ok(target)
    }

    /// Returns the point after all copies so far.
    pub(crate) fn end(&self) -> Result<Uploaded> {
        Ok(Uploaded { copied: self.copies.record_event(None).w()?, operations: self.device.cuda_stream() })
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        // The slots are freed next. An error of the driver ends the run elsewhere.
        let _ = self.copies.synchronize();
    }
}

/// A point in the stream of copies.
#[derive(Debug)]
pub(crate) struct Uploaded {
    copied: CudaEvent,
    operations: Arc<CudaStream>,
}

impl Uploaded {
    /// Lets all later operations wait for the copies.
    pub(crate) fn wait(&self) -> Result<()> {
        self.operations.wait(&self.copied).w()
    }
}

impl Drop for Uploaded {
    fn drop(&mut self) {
        // Memory is freed in the order of operations: not before its copies have ended. Waiting twice costs nothing.
        let _ = self.wait();
    }
}
