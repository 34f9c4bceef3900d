//! How far intervals and epochs may run ahead of one another: the one place that the gate, the row exchanges and the plan ask.

use gnnflow_nn::model::Hop;

use crate::config::Mode;
use crate::config::schedule::WholeGraph;

/// The order between stages and epochs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Synchrony {
    /// `sync`: rows leave when all intervals of the stage are computed, at all workers.
    Barrier,
    /// `pipe`: an interval's rows leave at once, and a stage begins when the one before is over everywhere.
    Pipelined,
    /// `async`: intervals go on with the rows that came last (Dorylus, section 5.2).
    Stale {
        /// How many epochs an interval may be ahead of the slowest.
        epochs: u32,
        backward: BackwardRows,
    },
}

/// What the way back reads where rows may be stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BackwardRows {
    /// The gradients that came last.
    Stale,
    /// Attention without overlapping epochs: edge weights are computed again at both ends of an edge, which must know the same rows. So only
    /// the way to the loss reads stale rows.
    Fresh,
    /// Attention with overlapping epochs: the reader of a ghost row computes its gradient
    /// ([`mirrors`](crate::engine::full_graph::mirrors)). A worker's own intervals then go through the stages in lockstep.
    Mirrored,
}

impl Synchrony {
    /// Returns the order that `train` asks for, with a model with these hops.
    pub(crate) fn of(options: &WholeGraph, hops: &[Hop]) -> Self {
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

    /// Tells whether readers of ghost rows compute their gradients.
    pub(crate) fn mirrors(self) -> bool {
        matches!(self, Self::Stale { backward: BackwardRows::Mirrored, .. })
    }
}
