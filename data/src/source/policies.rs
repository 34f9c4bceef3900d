//! Policies for edges and nodes that are unusual or invalid.

use serde::{Deserialize, Serialize};

/// Policy for edges that occur more than once, that is, with the same source, destination and type (if there is a type
/// column). Edges that differ only in time are duplicates too; use [`Duplicates::Keep`] for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Duplicates {
    /// Keep the first in dump order. In an undirected graph, an edge and its reverse are the same edge. The first row
    /// of the pair gives weight, type, time, features, split and label to both directions.
    #[default]
    Drop,
    /// Keep them all.
    Keep,
    /// Fail with the place of the first duplicate.
    Fail,
}

/// Policy for edges from a node to itself. They are never mirrored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SelfLoops {
    /// Keep the self-loops of the dump.
    #[default]
    Keep,
    /// Drop them.
    Drop,
    /// Add a self-loop to every node without one. It has weight 1, time 0 and edge features 0, is unlabeled and in no
    /// split, and has a separate edge type, the last one.
    Add,
    /// Fail with the place of the first self-loop.
    Fail,
}

/// Policy for edges with an end that is not in the node table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UnknownNodes {
    /// Fail with the place of the first unknown id.
    #[default]
    Fail,
    /// Drop these edges and count them.
    Drop,
    /// Create a node for every unknown id, after the nodes of the dump, by ascending id. It has features of 0 (after
    /// scaling), no label (−1, no class, or NaN), no split, and type 0.
    Create,
}

/// Policy for nodes without an edge to another node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Isolated {
    /// Keep them.
    #[default]
    Keep,
    /// Drop them.
    Drop,
    /// Fail with the id of the first isolated node.
    Fail,
}
