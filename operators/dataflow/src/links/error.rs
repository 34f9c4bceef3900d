//! Why links cannot be measured.

use std::time::Duration;

use super::mailbox::Silent;

/// Why links cannot be measured.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// A worker does not answer, though its process lives.
    #[error(
        "rank {from} waited {} s for {what} from rank {to}, in vain; check the network between their hosts",
        waited.as_secs()
    )]
    Silent {
        /// The waiting worker.
        from: usize,
        /// The silent worker.
        to: usize,
        /// What did not arrive.
        what: &'static str,
        /// How long.
        waited: Duration,
    },
    /// The results cannot be exchanged.
    #[error(transparent)]
    Group(#[from] gnnflow_data::Error),
}

/// Makes the error of a worker that waited for `what`.
pub(super) fn silent(from: usize, what: &'static str) -> impl Fn(Silent) -> LinkError {
    move |Silent { rank: to, waited }| LinkError::Silent { from, to, what, waited }
}
