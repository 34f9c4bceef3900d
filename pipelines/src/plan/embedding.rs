//! The memory and messages of learned rows.

use crate::config::{Config, Embedding};
use crate::plan::Sizes;
use gnnflow_dataflow::embed::table::EmbeddingTable;
use gnnflow_kernels::sparse::SparseOptimizer;
use serde::Serialize;

/// Learned rows of nodes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LearnedRows {
    /// Width of a row.
    pub dim: usize,
    /// Their optimizer.
    pub optimizer: String,
    /// `sync` or `async`.
    pub mode: String,
    /// Maximum staleness of a row in steps, when it is read.
    pub staleness: usize,
    /// Bytes in all processes: rows × 4 × (width + optimizer state), 4 more per row if the optimizer counts steps, and the
    /// rows of the best epoch.
    pub bytes: u64,
}

impl LearnedRows {
    pub(super) fn new(config: &Config, graph: &Sizes) -> Option<Self> {
        let embedding = of(config)?;
        Some(Self {
            dim: embedding.dim,
            optimizer: embedding.optimizer.to_string(),
            mode: embedding.mode.to_string(),
            staleness: embedding.staleness(),
            bytes: bytes(config, graph.nodes),
        })
    }
}

pub(super) fn of(config: &Config) -> Option<&Embedding> {
    config.model.as_ref()?.embedding.as_ref()
}

/// Returns the input width of the first layer, and the bytes of a value.
pub(super) fn input(config: &Config, graph: &Sizes) -> (usize, usize) {
    of(config).map_or((graph.features, graph.feature_bytes), |embedding| (embedding.dim, 4))
}

/// Returns the bytes of mapped files for `nodes` rows: rows, optimizer state, and the rows of the best epoch.
pub(super) fn bytes(config: &Config, nodes: u64) -> u64 {
    of(config).map_or(0, |embedding| {
        let table = EmbeddingTable::bytes(nodes, embedding.dim, embedding.optimizer.rule());
        table + EmbeddingTable::bytes(nodes, embedding.dim, SparseOptimizer::Sgd)
    })
}

/// Returns the bytes of the gradients that a batch sends to the owners of the rows, with ids.
pub(super) fn push(config: &Config, batch_nodes: u64) -> u64 {
    of(config).map_or(0, |embedding| batch_nodes * (4 + 4 * embedding.dim as u64))
}
