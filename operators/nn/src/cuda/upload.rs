//! Copies to a GPU on a second stream.
//!
//! ```text
//! numbers → page-locked slots (the calling thread) → GPU memory (the stream of copies) ─ event → operations (the device's stream)
//! ```
//!
//! Memory is allocated in the order of the stream of copies, which does not wait for operations unless the GPU's memory is nearly full. It is freed
//! in the order of the device's stream, after the last operation that reads it. So it must not be freed before that stream waits for the copy:
//! [`Upload`] and [`Uploaded`] keep all tensors until then.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytemuck::{NoUninit, cast_slice};
use candle_core::cuda_backend::cudarc::driver::{
    CudaContext, CudaEvent, CudaSlice, CudaStream, DevicePtr, DeviceRepr, DriverError, PinnedHostSlice, result, sys,
};
use candle_core::cuda_backend::{CudaDType, WrapErr};
use candle_core::op::BackpropOp;
use candle_core::{CudaDevice, CudaStorage, Result, Shape, Storage, Tensor, WithDType};

type DriverResult<T> = std::result::Result<T, DriverError>;

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
    state: Mutex<State>,
}

struct State {
    slots: Vec<Slot>,
    next: usize,
    /// The tensors since the last [`Upload::end`].
    copied: Vec<Tensor>,
}

/// Page-locked memory, which the GPU reads without the help of a core.
struct Slot {
    memory: PinnedHostSlice<u8>,
    /// After the last copy from this slot.
    copied: CudaEvent,
}

impl Upload {
    /// Prepares copies to a device. The error is one of the driver.
    pub(crate) fn new(device: &CudaDevice) -> DriverResult<Self> {
        let stream = device.cuda_stream();
        let context = stream.context();
        let slot = |_| {
            // SAFETY: bytes are written before they are read.
            let memory = unsafe { context.alloc_pinned_with_flags::<u8>(SLOT, 0) }?;
            // The thread sleeps while it waits for the event.
            let copied = context.new_event(Some(sys::CUevent_flags::CU_EVENT_BLOCKING_SYNC))?;
            DriverResult::Ok(Slot { memory, copied })
        };
        let slots = (0..SLOTS).map(slot).collect::<DriverResult<_>>()?;
        let copies = context.new_stream()?;
        Ok(Self { device: device.clone(), copies, state: Mutex::new(State { slots, next: 0, copied: Vec::new() }) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts to copy numbers, at least one. Operations may read the tensor after [`Uploaded::wait`].
    pub(crate) fn copy<T: Uploads>(&self, numbers: &[T], shape: Shape) -> Result<Tensor> {
        let mut state = self.state();
        let address = self.copy_bytes(&mut state, cast_slice(numbers))?.leak();
        // SAFETY: the address is that of a new allocation of as many numbers, and their stream is of the same context.
        let slice: CudaSlice<T> = unsafe { self.device.cuda_stream().upgrade_device_ptr(address, numbers.len()) };
        let storage = CudaStorage::wrap_cuda_slice(slice, self.device.clone());
        let tensor = Tensor::from_storage(Storage::Cuda(storage), shape, BackpropOp::none(), false);
        state.copied.push(tensor.clone());
        Ok(tensor)
    }

    fn copy_bytes(&self, state: &mut State, bytes: &[u8]) -> Result<CudaSlice<u8>> {
        // SAFETY: all bytes are written here. After an error, the memory is freed in the order of the copies.
        let target = unsafe { self.copies.alloc::<u8>(bytes.len()) }.w()?;
        let (address, _) = target.device_ptr(&self.copies);
        for (number, piece) in bytes.chunks(SLOT).enumerate() {
            let at = state.next;
            state.next = (at + 1) % SLOTS;
            let Slot { memory, copied } = &mut state.slots[at];
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

    /// Returns the end of all copies since the last call.
    pub(crate) fn end(&self) -> Result<Uploaded> {
        let mut state = self.state();
        let copied = self.copies.record_event(None).w()?;
        let tensors = std::mem::take(&mut state.copied);
        Ok(Uploaded { copied, operations: self.device.cuda_stream(), tensors })
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        // Slots and tensors are freed next.
        surely(self.copies.context(), || self.copies.synchronize());
    }
}

/// A point in the stream of copies.
pub(crate) struct Uploaded {
    copied: CudaEvent,
    operations: Arc<CudaStream>,
    /// Copied before this point.
    tensors: Vec<Tensor>,
}

impl std::fmt::Debug for Uploaded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Uploaded").field("tensors", &self.tensors.len()).finish_non_exhaustive()
    }
}

impl Uploaded {
    /// Lets all later operations wait for the copies.
    pub(crate) fn wait(self) -> Result<()> {
        self.operations.wait(&self.copied).w()
    }
}

impl Drop for Uploaded {
    fn drop(&mut self) {
        // The tensors may be freed next. Waiting twice costs nothing.
        surely(self.operations.context(), || self.operations.wait(&self.copied));
    }
}

/// Calls the driver. If an earlier error, which a destructor has left, keeps it from that, calls again. The next call of an operation returns the error.
fn surely(context: &CudaContext, call: impl Fn() -> DriverResult<()>) {
    if let Err(error) = call() {
        context.record_err(call());
        context.record_err::<()>(Err(error));
    }
}
