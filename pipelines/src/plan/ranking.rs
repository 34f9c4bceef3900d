//! The cost of one evaluation of link prediction.

use serde::Serialize;

use super::Sizes;
use crate::config::{Config, RankAmong};

/// Default fractions of held-out edges: validation and test.
const HELD_OUT: f64 = 0.2;

/// The cost of one evaluation: held-out edges × 2 ends × nodes products of two rows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RankingCost {
    /// About the number of validation and test edges.
    pub edges: u64,
    /// Nodes among which each end is ranked.
    pub among: u64,
    /// Products of two rows.
    pub scores: u64,
}

impl RankingCost {
    /// Returns the cost; `None` without link prediction, and if the splits or the candidates are in the data.
    pub(super) fn of(config: &Config, graph: &Sizes) -> Option<Self> {
        let train = config.train.as_ref().filter(|train| train.predicts_links())?;
        let link = train.link();
        let in_data = config.graph.columns.edge_split.as_ref().is_some_and(|name| !name.is_empty());
        if in_data || link.eval_negative_dstnode.is_some() {
            return None;
        }
        let fractions = link.split_fractions.as_deref();
        let held_out = fractions.map_or(HELD_OUT, |fractions| fractions.iter().skip(1).sum());
        // Reverse edges are not predicted.
        let of_types = if config.graph.dataset.is_none() && config.graph.reverse_edges { 0.5 } else { 1.0 };
        let edges = (graph.edges as f64 * held_out * of_types).round() as u64;
        let among = match link.rank_among() {
            RankAmong::All => graph.nodes,
            RankAmong::Count(count) => graph.nodes.min(count as u64),
        };
        Some(Self { edges, among, scores: 2 * edges * among })
    }
}
