//! What can go wrong while computing.

/// The result of anything in [`crate`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong while computing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A tensor operation failed: shapes or types disagree, or a device ran out of memory.
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
    /// No layer is registered under this name.
    #[error("no layer is called {name:?}; there are {known}")]
    UnknownLayer {
        /// The name that was asked for.
        name: String,
        /// The names that there are, separated by commas.
        known: String,
    },
    /// A model, a layer or an optimizer cannot be built as specified.
    #[error("{key}: {why}")]
    Spec {
        /// What was specified, as the field is called.
        key: &'static str,
        /// Why it cannot be.
        why: String,
    },
    /// The device cannot be used on this machine or by this build.
    #[error("device {name:?}: {why}")]
    Device {
        /// The device that was asked for.
        name: String,
        /// Why it cannot be used, and what to do about it.
        why: String,
    },
    /// Blocks, features or labels do not fit the model.
    #[error("{0}")]
    Input(String),
    /// Saved parameters or state do not fit the model.
    #[error("state {name:?}: {why}")]
    State {
        /// The vector that does not fit.
        name: String,
        /// In what way.
        why: String,
    },
}

impl Error {
    pub(crate) fn spec(key: &'static str, why: impl Into<String>) -> Self {
        Self::Spec { key, why: why.into() }
    }
}
