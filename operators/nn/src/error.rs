//! Errors of this crate.

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Errors of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A tensor operation failed: shapes or types disagree, or a device ran out of memory.
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
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

impl Error {
    pub(crate) fn spec(key: &'static str, why: impl Into<String>) -> Self {
        Self::Spec { key, why: why.into() }
    }
}
