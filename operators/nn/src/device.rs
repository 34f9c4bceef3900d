//! Devices by name.

use std::time::Duration;

use candle_core::Device;

#[cfg(feature = "cuda")]
use super::cuda::open;
use super::device_memory::DeviceMemory;
use super::error::{Error, Result};

/// Returns the device called `name`: `"cpu"`, `"cuda"` for the first GPU, or `"cuda:1"` for the GPU with this number, from 0.
///
/// There is no fallback: an unusable device is an error with the reason. Create the device once and clone it.
///
/// ```
/// assert!(gnnflow_nn::device("cpu").unwrap().is_cpu());
/// assert!(gnnflow_nn::device("tpu").is_err());
/// ```
///
/// # Errors
/// [`Error::Device`] when the name is unknown, the build has no CUDA, or there is no usable GPU.
pub fn device(name: &str) -> Result<Device> {
    let refuse = |why: String| Error::Device { name: name.to_owned(), why };
    let number = match name {
        "cpu" => return Ok(Device::Cpu),
        "cuda" => Some(0),
        _ => name.strip_prefix("cuda:").and_then(|number| number.parse::<u16>().ok()),
    };
    let Some(number) = number else {
        return Err(refuse(
            "unknown device; use \"cpu\", \"cuda\", or \"cuda:1\" for the GPU with this number".to_owned(),
        ));
    };
    open(number).map_err(refuse)
}

#[cfg(not(feature = "cuda"))]
fn open(_: u16) -> std::result::Result<Device, String> {
    Err("this build has no CUDA; build with `--features cuda` (docs/book/src/gpu.md)".to_owned())
}

/// Describes a device: the model of a GPU, its compute capability and its driver; or the architecture of the CPU and the number of threads.
///
/// ```
/// let cpu = gnnflow_nn::device("cpu").unwrap();
/// assert!(gnnflow_nn::device::describe(&cpu).contains("threads"));
/// ```
pub fn describe(device: &Device) -> String {
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(device) => super::cuda::describe(device).unwrap_or_else(|error| error.to_string()),
        _ => format!("{}, {} threads", std::env::consts::ARCH, rayon::current_num_threads()),
    }
}

/// Returns the memory of a GPU; `None` for the CPU.
///
/// ```
/// assert_eq!(gnnflow_nn::device_memory(&gnnflow_nn::device("cpu").unwrap()).unwrap(), None);
/// ```
///
/// # Errors
/// When the driver fails.
pub fn device_memory(device: &Device) -> Result<Option<DeviceMemory>> {
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(device) => Ok(Some(super::cuda::memory(device)?)),
        _ => Ok(None),
    }
}

/// Measures work on a GPU, by its own clock.
#[derive(Debug)]
pub struct DeviceTimer {
    #[cfg(feature = "cuda")]
    timer: super::cuda::Timer,
}

impl DeviceTimer {
    /// Begins after the work that the GPU has so far; `None` for the CPU.
    ///
    /// # Errors
    /// When the driver fails.
    pub fn start(device: &Device) -> Result<Option<Self>> {
        match device {
            #[cfg(feature = "cuda")]
            Device::Cuda(device) => Ok(Some(Self { timer: super::cuda::Timer::start(device)? })),
            _ => Ok(None),
        }
    }

    /// Ends after the work that the GPU has now.
    ///
    /// # Errors
    /// When the driver fails.
    pub fn end(self) -> Result<DeviceTime> {
        Ok(DeviceTime {
            #[cfg(feature = "cuda")]
            time: self.timer.end()?,
        })
    }
}

/// A measured time of work on a GPU.
#[derive(Debug)]
pub struct DeviceTime {
    #[cfg(feature = "cuda")]
    time: super::cuda::Time,
}

impl DeviceTime {
    /// Waits until the GPU has done the work, and returns its time.
    ///
    /// # Errors
    /// When the driver fails.
    #[cfg(feature = "cuda")]
    pub fn elapsed(self) -> Result<Duration> {
        Ok(self.time.elapsed()?)
    }

    /// Returns zero: this build has no GPU.
    ///
    /// # Errors
    /// Never.
    #[cfg(not(feature = "cuda"))]
    pub fn elapsed(self) -> Result<Duration> {
        Ok(Duration::ZERO)
    }
}
