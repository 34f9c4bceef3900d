//! How far intervals and epochs may run ahead of one another. The gate, the row exchanges and the plan all use this type.

use gnnflow_nn::model::Hop;

use crate::config::Mode;
use crate::config::schedule::FullGraphOptions;

/// The order between stages and epochs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Synchrony {
    /// `sync`: rows are sent when all workers have computed all intervals of the stage.
    Barrier,
    /// `pipe`: the rows of an interval are sent immediately. A stage begins when all workers have finished the stage before.
    Pipelined,
    /// `async`: intervals continue with the latest rows received (Dorylus, section 5.2).
    Stale {
        /// By how many epochs an interval may be ahead of the slowest.
        epochs: u32,
        backward: BackwardRows,
    },
}

/// The rows that the backward pass reads in [`Synchrony::Stale`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BackwardRows {
    /// The latest gradients received.
    Stale,
    /// Attention without overlapping epochs: both ends of an edge recompute its weight and must have the same rows. So only the forward
    /// pass reads stale rows.
    Fresh,
    /// Attention with overlapping epochs: the reader of a ghost row computes its gradient
    /// ([`mirrors`](crate::engine::full_graph::mirrors)). The intervals of a worker then go through the stages in lockstep.
    Mirrored,
}

impl Synchrony {
    /// Returns the order that `options` select for a model with these hops.
    pub(crate) fn of(options: &FullGraphOptions, hops: &[Hop]) -> Self {
        match options.mode {
            Mode::Sync => Self::Barrier,
            Mode::Pipe => Self::Pipelined,
            Mode::Async => {
                let epochs = options.staleness as u32;
                let backward = match (hops.iter().any(Hop::attends), epochs) {
                    (false, _) => BackwardRows::Stale,
                    (true, 0) => BackwardRows::Fresh,
                    (true, _) => BackwardRows::Mirrored,
                };
                Self::Stale { epochs, backward }
            }
        }
    }

    /// Tells whether intervals may read rows of an earlier epoch.
    pub(crate) fn is_stale(self) -> bool {
        matches!(self, Self::Stale { .. })
    }

    /// Returns how many epochs may overlap.
    pub(crate) fn staleness(self) -> u32 {
        match self {
            Self::Stale { epochs, .. } => epochs,
            Self::Barrier | Self::Pipelined => 0,
        }
    }

    /// Tells whether the readers of ghost rows compute the gradients of these rows.
    pub(crate) fn mirrors(self) -> bool {
        matches!(self, Self::Stale { backward: BackwardRows::Mirrored, .. })
    }
}
