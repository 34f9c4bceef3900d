//! The cost of one evaluation of link prediction.

use serde::Serialize;

use super::Sizes;
use super::pairs::unreversed;
use crate::config::{Config, EDGE_SPLIT_FRACTIONS, RankAmong};

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
    /// Maximum number of products of two rows for recommendations, of all nodes for all nodes; `None` without recommendations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recommendations: Option<u64>,
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
        let recommends = config.infer.as_ref().is_some_and(|infer| infer.recommendations.is_some());
        Some(Self {
            edges,
            exact: graph.targets.is_some(),
            among,
            scores: 2 * edges * among,
            recommendations: recommends.then(|| graph.nodes.saturating_mul(graph.nodes)),
        })
    }
}
