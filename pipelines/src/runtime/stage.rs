//! The stages of a run.

use serde::{Deserialize, Serialize};

/// What a run does, coarsely.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "snake_case")]
pub enum Stage {
    /// It prepares the dataset, or opens a prepared one.
    #[default]
    Preparing,
    /// It waits until all processes are connected.
    Connecting,
    /// It reads the graph and builds the dataflows.
    Opening,
    /// It trains.
    Training {
        /// The epoch, from 1.
        epoch: usize,
    },
    /// It computes the metrics of an epoch.
    Evaluating {
        /// The epoch, from 1.
        epoch: usize,
    },
    /// It computes the results of nodes or edges.
    Inference,
    /// It writes the results.
    Writing,
    /// It applies batches of changes, or waits for them.
    Following,
    /// It uploads the results.
    Uploading,
}

impl Stage {
    /// Returns whether the run has not begun its own work and may still be refused.
    pub fn is_before_work(self) -> bool {
        matches!(self, Self::Preparing | Self::Connecting | Self::Opening)
    }

    /// Returns the epoch in training.
    pub fn epoch(self) -> Option<usize> {
        match self {
            Self::Training { epoch } | Self::Evaluating { epoch } => Some(epoch),
            _ => None,
        }
    }
}

impl std::fmt::Display for Stage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Preparing => "preparing",
            Self::Connecting => "connecting",
            Self::Opening => "opening",
            Self::Training { .. } => "training",
            Self::Evaluating { .. } => "evaluating",
            Self::Inference => "inference",
            Self::Writing => "writing",
            Self::Following => "following",
            Self::Uploading => "uploading",
        })
    }
}
