//! The device that tensors live on, by name.

use candle_core::Device;

use super::error::{Error, Result};

/// The device called `name`: `"cpu"`, or `"cuda"` for the first GPU.
///
/// Nothing falls back: a device that cannot be used is an error that says why. Make the device once and clone it.
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
        _ => Err(refuse("not a device; there are \"cpu\" and \"cuda\"".to_owned())),
    }
}
