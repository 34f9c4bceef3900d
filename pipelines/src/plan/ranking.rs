//! The cost of one evaluation of link prediction.

use serde::Serialize;

use super::Sizes;
use super::pairs::unreversed;
use crate::config::{Config, EDGE_SPLIT_FRACTIONS, RankAmong};

/// Bytes of a recommendation in memory.
const ROW_BYTES: u64 = 20;

/// The cost of one evaluation: held-out edges × 2 ends × nodes products of two rows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RankingCost {
    /// Validation and test edges.
    pub edges: u64,
    /// Whether these edges are counted. Otherwise they are drawn from all edges, or all edges if they have a split column.
    pub exact: bool,
    /// Nodes among which each end is ranked.
    pub among: u64,
    /// Products of two rows.
    pub scores: u64,
    /// Recommendations to all nodes, if there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recommendations: Option<RecommendationCost>,
}

/// An upper bound of the cost of recommendations to all nodes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RecommendationCost {
    /// Products of two rows.
    pub scores: u64,
    /// Bytes of the lists in all processes together.
    pub bytes: u64,
}

impl RankingCost {
    /// Returns the cost; `None` without link prediction, and if the candidates are in the data.
    pub(super) fn of(config: &Config, graph: &Sizes) -> Option<Self> {
        let train = config.train.as_ref().filter(|train| train.predicts_links())?;
        let link = train.link();
        if link.eval_negative_dstnode.is_some() {
            return None;
        }
        let edges = match &graph.targets {
            Some(targets) => targets.held_out,
            None => {
                let fractions = link.split_fractions.as_deref().unwrap_or(&EDGE_SPLIT_FRACTIONS);
                let drawn: f64 = fractions.iter().skip(1).sum();
                let held_out = if config.graph.splits_edges() { 1.0 } else { drawn };
                (graph.edges as f64 * held_out * unreversed(&config.graph)).round() as u64
            }
        };
        let among = match link.rank_among() {
            RankAmong::All => graph.nodes,
            RankAmong::Count(count) => graph.nodes.min(count as u64),
        };
        let relations = graph.relations.unwrap_or(0).max(1) as u64;
        let cost = |length: usize| RecommendationCost {
            scores: graph.nodes.saturating_mul(graph.nodes).saturating_mul(relations),
            bytes: graph.nodes * relations * ROW_BYTES * (length as u64).min(graph.nodes),
        };
        Some(Self {
            edges,
            exact: graph.targets.is_some(),
            among,
            scores: 2 * edges * among,
            recommendations: config.infer.as_ref().and_then(|infer| infer.recommendations).map(cost),
        })
    }
}
