//! Devices by name.

use candle_core::Device;

use super::error::{Error, Result};

/// Returns the device called `name`: `"cpu"`, or `"cuda"` for the first GPU.
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
    match name {
        "cpu" => Ok(Device::Cpu),
        #[cfg(feature = "cuda")]
        "cuda" => super::cuda::open().map_err(refuse),
        #[cfg(not(feature = "cuda"))]
        "cuda" => Err(refuse("this build has no CUDA; build with `--features cuda` (docs/book/src/gpu.md)".to_owned())),
        _ => Err(refuse("unknown device; use \"cpu\" or \"cuda\"".to_owned())),
    }
}

/// Returns the bytes of free memory of a GPU; `None` for the CPU.
///
/// # Errors
/// When the driver fails.
pub fn free_memory(device: &Device) -> Result<Option<u64>> {
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(device) => Ok(Some(super::cuda::free_memory(device)?)),
        _ => Ok(None),
    }
}
