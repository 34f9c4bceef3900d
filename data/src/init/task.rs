//! The task of a pipeline that `init` writes.

use serde::Serialize;

/// A task, with the word of `train.task`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Task {
    /// One class, or several, per node.
    NodeClassification,
    /// A number per node.
    NodeRegression,
    /// One class per edge.
    EdgeClassification,
    /// Whether an edge exists.
    LinkPrediction,
}

impl Task {
    /// Returns its word in pipeline files.
    pub const fn word(self) -> &'static str {
        match self {
            Self::NodeClassification => "node-classification",
            Self::NodeRegression => "node-regression",
            Self::EdgeClassification => "edge-classification",
            Self::LinkPrediction => "link-prediction",
        }
    }

    /// Whether it learns from edges.
    pub(super) fn is_of_edges(self) -> bool {
        matches!(self, Self::EdgeClassification | Self::LinkPrediction)
    }
}
