//! The strategies by which a hop chooses in-edges.

use std::sync::Arc;

use super::{Fanout, Importance, Sampler};

/// The choice of in-edges of a hop.
#[derive(Clone)]
pub enum Strategy {
    /// Uniform draws, with specialized loops.
    Fanout(Fanout),
    /// Draws by edge weights, types and times.
    PerEdge(PerEdgeStrategy),
    /// A number of sources for the whole hop (LADIES), see [`assemble_layer`](super::assemble_layer). Owners send all
    /// in-edges; the requester chooses.
    Layer(u32),
    /// A number of draws of sources for the whole hop, from one distribution over the graph (FastGCN). Edges from these
    /// sources are taken. Their weights, if [requested](super::Columns), are `P[v, u] · times / (draws · q[u])`.
    Importance(u32, Arc<Importance>),
    /// A user's sampler, and the hop's fanout from the pipeline file.
    Registered(Arc<dyn Sampler>, i64),
}

impl Strategy {
    /// Returns the fanout, if all in-edges of a node are drawn alike.
    pub fn fanout(&self) -> Option<Fanout> {
        match self {
            Self::Fanout(fanout) => Some(*fanout),
            _ => None,
        }
    }

    /// Returns the expected number of edges per node; it determines the size of messages.
    pub fn expected(&self) -> usize {
        let count = |fanout: i64| usize::try_from(fanout).unwrap_or(64);
        match self {
            Strategy::Fanout(Fanout::Uniform { k } | Fanout::UniformWithReplacement { k }) => *k as usize,
            Strategy::Fanout(Fanout::All) | Strategy::Layer(_) => 64,
            Strategy::Importance(..) => 16,
            Strategy::PerEdge(PerEdgeStrategy { fanouts: EdgeFanout::Each(fanout), .. })
            | Strategy::Registered(_, fanout) => count(*fanout),
            Strategy::PerEdge(PerEdgeStrategy { fanouts: EdgeFanout::ByType(fanouts), .. }) => {
                fanouts.iter().map(|&fanout| count(fanout)).sum()
            }
        }
    }

    /// Returns whether nodes are sampled independently, so that sampling and compaction can be fused.
    pub fn is_fused(&self) -> bool {
        !self.is_temporal() && !matches!(self, Strategy::Layer(_))
    }

    /// Returns whether each seed has a separate tree, restricted to edges older than the seed.
    pub fn is_temporal(&self) -> bool {
        matches!(self, Strategy::PerEdge(PerEdgeStrategy { temporal: true, .. }))
    }

    /// Takes `k` in-edges of each node, uniformly and without replacement; all if there are fewer.
    pub const fn uniform(k: u32) -> Self {
        Self::Fanout(Fanout::Uniform { k })
    }
}

/// A kind of draw and its fanouts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PerEdgeStrategy {
    /// The kind of draw among the eligible edges.
    pub draw: Draw,
    /// The number of edges.
    pub fanouts: EdgeFanout,
    /// Whether only edges strictly older than the seed are eligible.
    pub temporal: bool,
}

/// The kind of draw; the documentation of [`sample`](super) defines each exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Draw {
    /// Every subset of k edges has the same probability.
    Uniform,
    /// k uniform draws with replacement.
    UniformWithReplacement,
    /// k successive draws without replacement, each in proportion to the remaining weights.
    Weighted,
    /// k draws with replacement, in proportion to weights.
    WeightedWithReplacement,
    /// LABOR: takes an edge if its source's random number for the hop is below a limit; k edges are expected.
    Labor,
    /// The k latest edges.
    Last,
}

/// The number of in-edges per node; a negative number means all eligible edges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EdgeFanout {
    /// One number for all types together.
    Each(i64),
    /// One number per type; types beyond the list get 0.
    ByType(Vec<i64>),
}
