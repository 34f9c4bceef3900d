//! Errors of this crate.

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The text of [`Error::OutOfMemory`].
const NO_MEMORY: &str = "the GPU has no memory left";

/// Why kernels cannot be loaded.
const OLD_DRIVER: &str = "the NVIDIA driver is too old for the kernels of this build; install driver 580 or newer, or build with the \
                                     toolkit of the driver's CUDA version (docs/book/src/gpu.md)";

/// Errors of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A tensor operation failed: shapes or types disagree, or the device failed.
    #[error(transparent)]
    Tensor(candle_core::Error),
    /// A GPU has no memory left.
    #[error("{NO_MEMORY}")]
    OutOfMemory,
    /// No layer is registered under this name.
    #[error("unknown layer kind {name:?}; use one of {known}")]
    UnknownLayer {
        /// The requested name.
        name: String,
        /// The registered names, separated by commas.
        known: String,
    },
    /// A model, a layer or an optimizer cannot be built as specified.
    #[error("{key}: {why}")]
    Spec {
        /// The name of the invalid field.
        key: &'static str,
        /// Why it is invalid.
        why: String,
    },
    /// The device cannot be used on this machine or by this build.
    #[error("device {name:?}: {why}")]
    Device {
        /// The requested device.
        name: String,
        /// Why it cannot be used, and what to do.
        why: String,
    },
    /// A checked tensor has a number that is not finite, see [`Model::set_check_values`](crate::Model::set_check_values).
    #[error("{0} has a number that is not finite")]
    NotFinite(String),
    /// Blocks, features or labels do not fit the model.
    #[error("{0}")]
    Input(String),
    /// Saved parameters or state do not fit the model.
    #[error("state {name:?}: {why}")]
    State {
        /// The name of the vector.
        name: String,
        /// Why it does not fit.
        why: String,
    },
}

impl From<candle_core::Error> for Error {
    fn from(error: candle_core::Error) -> Self {
        // With RUST_BACKTRACE=1, candle's errors have a backtrace, of many lines.
        if let candle_core::Error::WithBacktrace { inner, .. } = error {
            return Self::from(*inner);
        }
        // The drivers' errors are nested in texts. So is this crate's own error, from a copy of a block inside of an operation.
        let text = error.to_string();
        let is_one_of = |codes: &[&str]| codes.iter().any(|code| text.contains(code));
        if is_one_of(&["CUDA_ERROR_OUT_OF_MEMORY", "CUBLAS_STATUS_ALLOC_FAILED", NO_MEMORY]) {
            Self::OutOfMemory
        } else if is_one_of(&["CUDA_ERROR_UNSUPPORTED_PTX_VERSION"]) {
            Self::Device { name: "cuda".into(), why: OLD_DRIVER.into() }
        } else {
            Self::Tensor(error)
        }
    }
}

impl Error {
    pub(crate) fn spec(key: &'static str, why: impl Into<String>) -> Self {
        Self::Spec { key, why: why.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_memory_of_a_gpu_is_recognized() {
        let of = |text: &str| Error::from(candle_core::Error::Msg(text.into()));
        assert!(matches!(of("DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")"), Error::OutOfMemory));
        assert!(matches!(of(&Error::OutOfMemory.to_string()), Error::OutOfMemory));
        assert!(matches!(of("shapes disagree"), Error::Tensor(_)));
        assert!(of("CUDA_ERROR_UNSUPPORTED_PTX_VERSION").to_string().contains("driver is too old"));
    }
}
