//! `[train.link]`: which edges are predicted, and how.

use std::path::PathBuf;

use super::section::{section, words};
use super::values::{OneOrMany, RankAmong, TypeName};

/// Fractions of the edges for training, validation and test if nothing sets them, in `[train.link]` and `[train.edge]`.
pub(crate) const EDGE_SPLIT_FRACTIONS: [f64; 3] = [0.8, 0.1, 0.1];

section! {
    /// Link prediction: which edges are predicted, their negatives, and how they are scored.
    pub struct Link {
        /// Types of the edges that are predicted, by name or number; other edges are only aggregated. Unset: all but reverse types (`rev_…`) and that of added self-loops.
        #[schemars(length(min = 1), extend("examples" = [["buys"]]))]
        pub target_etype: Option<Vec<TypeName>> = None,
        /// Fractions of the edges for training, validation and test, without `graph.columns.edge_split`; the rest is only aggregated.
        /// Drawn per pair of nodes, so that both directions and parallel edges stay together. Unset: [0.8, 0.1, 0.1].
        #[schemars(length(equal = 3), inner(range(min = 0.0, max = 1.0)), extend("examples" = [[0.85, 0.05, 0.1]]))]
        pub split_fractions: Option<Vec<f64>> = None,
        /// Hide the target edges of a batch from sampling. Validation and test edges are always hidden.
        /// Unset: `true`; `false` with full-graph schedules, which cannot hide them.
        #[schemars(extend("examples" = [false]))]
        pub exclude_training_targets: Option<bool> = None,
        /// The score of an edge, computed from the rows of its two nodes.
        pub decoder: Decoder = Decoder::Dot,
        /// The loss that is minimized.
        pub loss: LinkLoss = LinkLoss::SoftmaxCrossEntropy,
        /// How negative pairs are drawn.
        pub negative_sampler: NegativeSampler = NegativeSampler::Uniform,
        /// Negative pairs for each edge in training.
        #[schemars(range(min = 1, max = 65536))]
        pub num_negative_edges: usize = 16,
        /// Nodes of the same type among which each end of an edge is ranked in validation and test: a number of drawn nodes, or `"all"`.
        /// Unset: 1000, or all with `top_k`.
        #[schemars(extend("examples" = ["all"]))]
        pub num_negative_edges_eval: Option<RankAmong> = None,
        /// Parquet with candidate destinations for validation and test: columns `src`, `candidate` and optionally `dst` (then only for
        /// that edge), one row per candidate. Candidates are used as given, without the destination. Sources are then not ranked.
        #[schemars(extend("examples" = ["candidates.parquet"]))]
        pub eval_negative_dstnode: Option<OneOrMany<PathBuf>> = None,
        /// Also report `recall_at_K` and `ndcg_at_K` for lists of K recommendations per source. Unset: no lists.
        #[schemars(range(min = 1, max = 10000), extend("examples" = [20]))]
        pub top_k: Option<usize> = None,
    }
}

impl Link {
    /// Default number of nodes among which an end is ranked.
    const RANK_AMONG: usize = 1000;

    /// Returns the nodes among which each end of a held-out edge is ranked, without candidates of the user.
    pub(crate) fn rank_among(&self) -> RankAmong {
        let default = if self.top_k.is_some() { RankAmong::All } else { RankAmong::Count(Self::RANK_AMONG) };
        self.num_negative_edges_eval.unwrap_or(default)
    }
}

words! {
    /// The score of an edge, computed from the rows of its two nodes.
    pub enum Decoder {
        /// Their dot product.
        Dot = "dot",
        /// Their dot product, weighted by a learned vector for each edge type (Yang et al. 2015).
        Distmult = "distmult",
    }
}

words! {
    /// The loss of link prediction.
    pub enum LinkLoss {
        /// Binary classification of each pair. With many negatives per edge, all scores may become equal; use few.
        BinaryCrossEntropy = "binary-cross-entropy",
        /// Classification of an edge among its negative pairs.
        SoftmaxCrossEntropy = "softmax-cross-entropy",
    }
}

words! {
    /// How negative pairs are drawn.
    pub enum NegativeSampler {
        /// For each edge, with equal probabilities of all nodes.
        Uniform = "uniform",
        /// Once for all edges of a batch.
        Joint = "joint",
        /// From the endpoints of the batch's other edges.
        InBatch = "in-batch",
        /// For each edge, with probabilities in proportion to in-degrees.
        Degree = "degree",
    }
}
