//! What learned rows of nodes take.

use crate::config::{Config, Embedding};
use crate::plan::Sizes;
use gnnflow_dataflow::embed::table::EmbeddingTable;
use gnnflow_kernels::sparse::SparseOptimizer;
use serde::Serialize;

/// Learnt rows of nodes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LearntRows {
    /// Numbers in a row.
    pub dim: usize,
    /// How they move.
    pub optimizer: String,
    /// `sync` or `async`.
    pub mode: String,
    /// Steps that a row may be behind when it is read.
    pub staleness: usize,
    /// All processes together: rows × 4 × (numbers + the optimizer's), 4 more a row where it counts steps, and the rows of the best
    /// epoch.
    pub bytes: u64,
}

impl LearntRows {
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

/// The rows that `config` asks for.
pub(super) fn of(config: &Config) -> Option<&Embedding> {
    config.model.as_ref()?.embedding.as_ref()
}

/// Numbers of a node that the first layer reads, and the bytes of one.
pub(super) fn input(config: &Config, graph: &Sizes) -> (usize, usize) {
    of(config).map_or((graph.features, graph.feature_bytes), |embedding| (embedding.dim, 4))
}

/// Bytes of mapped files for `nodes` rows: table, state, and the rows of the best epoch.
pub(super) fn bytes(config: &Config, nodes: u64) -> u64 {
    of(config).map_or(0, |embedding| {
        let table = EmbeddingTable::bytes(nodes, embedding.dim, embedding.optimizer.rule());
        table + EmbeddingTable::bytes(nodes, embedding.dim, SparseOptimizer::Sgd)
    })
}

/// Bytes that a batch's gradients take on their way to the rows, as ids and numbers.
pub(super) fn push(config: &Config, batch_nodes: u64) -> u64 {
    of(config).map_or(0, |embedding| batch_nodes * (4 + 4 * embedding.dim as u64))
}
