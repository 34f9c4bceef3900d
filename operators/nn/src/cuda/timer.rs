//! Measures work by the GPU's clock.

use std::sync::Arc;
use std::time::Duration;

use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::{CudaEvent, CudaStream, sys};
use candle_core::{CudaDevice, Result};

/// The time since a point of the device's stream.
#[derive(Debug)]
pub(crate) struct Timer {
    start: CudaEvent,
    stream: Arc<CudaStream>,
}

impl Timer {
    pub(crate) fn start(device: &CudaDevice) -> Result<Self> {
        let stream = device.cuda_stream();
        Ok(Self { start: stream.record_event(TIMED).w()?, stream })
    }

    pub(crate) fn end(self) -> Result<Time> {
        Ok(Time { end: self.stream.record_event(TIMED).w()?, start: self.start })
    }
}

/// The time between two points of the stream.
#[derive(Debug)]
pub(crate) struct Time {
    start: CudaEvent,
    end: CudaEvent,
}

impl Time {
    /// Waits for the second point.
    pub(crate) fn elapsed(self) -> Result<Duration> {
        Ok(Duration::from_secs_f64(f64::from(self.start.elapsed_ms(&self.end).w()?.max(0.0)) / 1e3))
    }
}

/// The flags of events with a time.
const TIMED: Option<sys::CUevent_flags> = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
