//! How a hop chooses among in-edges, as data.

use std::sync::Arc;

use super::{Fanout, Importance, Sampler};

/// Which in-edges a hop takes.
#[derive(Clone)]
pub enum Strategy {
    /// Uniformly: the loops made for it.
    Fanout(Fanout),
    /// By what edges weigh, by their types, by their times.
    PerEdge(PerEdgeStrategy),
    /// So many sources for the whole hop (LADIES), see [`assemble_layer`](super::assemble_layer): owners send all in-edges, the
    /// asker chooses.
    Layer(u32),
    /// So many draws of sources for the whole hop from one distribution over the graph (FastGCN). Edges that come from them are
    /// taken, and weigh `P[v, u] · times / (draws · q[u])`: the weights of the block, where [`Columns`](super::Columns) ask for them.
    Importance(u32, Arc<Importance>),
    /// A user's sampler, with the hop's fanout as the pipeline file has it.
    Registered(Arc<dyn Sampler>, i64),
}

impl Strategy {
    /// Edges that one node is expected to get, for the size of messages.
    pub fn expected(&self) -> usize {
        let count = |fanout: i64| usize::try_from(fanout).unwrap_or(64);
        match self {
            Strategy::Fanout(Fanout::Uniform { k } | Fanout::UniformWithReplacement { k }) => *k as usize,
            Strategy::Fanout(Fanout::All) | Strategy::Layer(_) => 64,
            Strategy::Importance(..) => 16,
            Strategy::PerEdge(PerEdgeStrategy { fanouts: Fanouts::Each(fanout), .. })
            | Strategy::Registered(_, fanout) => count(*fanout),
            Strategy::PerEdge(PerEdgeStrategy { fanouts: Fanouts::ByType(fanouts), .. }) => {
                fanouts.iter().map(|&fanout| count(fanout)).sum()
            }
        }
    }

    /// Whether a hop is drawn node by node, and its block may grow at once.
    pub fn is_fused(&self) -> bool {
        !self.is_temporal() && !matches!(self, Strategy::Layer(_))
    }

    /// Whether each seed has a tree of its own, and edges are bound by its time.
    pub fn is_temporal(&self) -> bool {
        matches!(self, Strategy::PerEdge(PerEdgeStrategy { temporal: true, .. }))
    }
}

/// A way to choose, and how many.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PerEdgeStrategy {
    /// How edges are chosen among those that may be.
    pub draw: Draw,
    /// How many.
    pub fanouts: Fanouts,
    /// Whether only edges may be that are older than the seed, strictly.
    pub temporal: bool,
}

/// How in-edges are chosen; the module's documentation says it exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Draw {
    /// Every subset of k is as likely as any other.
    Uniform,
    /// k independent draws.
    UniformWithReplacement,
    /// One after another, each in proportion to its weight among those left.
    Weighted,
    /// k independent draws, each edge in proportion to its weight.
    WeightedWithReplacement,
    /// An edge when its source's number of this hop is low enough: k expected, and sources shared.
    Labor,
    /// The k latest.
    Last,
}

/// How many in-edges are taken from a node; a negative number is all that may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fanouts {
    /// So many.
    Each(i64),
    /// So many of each type, which is the index; none of types beyond.
    ByType(Vec<i64>),
}
