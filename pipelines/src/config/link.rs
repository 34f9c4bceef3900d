//! `[train.link]`: which edges are predicted, and how.

use std::path::PathBuf;

use super::section::{section, words};
use super::values::OneOrMany;

section! {
    /// Link prediction: which edges are predicted, against what, and how they are scored.
    pub struct Link {
        /// Types of the edges that are predicted, by name or number; edges of other types are only looked at. Unset: all types, but those that are the reverses of others (`rev_…`).
        #[schemars(length(min = 1), extend("examples" = [["buys"]]))]
        pub target_etype: Option<Vec<String>> = None,
        /// Shares of the edges to train on, to validate and to test with, where the graph has no `graph.columns.edge_split`; drawn by pairs of nodes, so that both directions and parallel edges fall together. What they leave is looked at, but not predicted. Unset: [0.8, 0.1, 0.1].
        #[schemars(length(equal = 3), inner(range(min = 0.0, max = 1.0)), extend("examples" = [[0.85, 0.05, 0.1]]))]
        pub split_fractions: Option<Vec<f64>> = None,
        /// Batches do not see the edges that they predict; those to validate and to test with nobody ever sees. `false`: all training edges are there. Unset: `true`, but over whole graphs (`full-graph`, `tensor-parallel`) `false`, as every step is over all edges.
        #[schemars(extend("examples" = [false]))]
        pub exclude_training_targets: Option<bool> = None,
        /// How the rows of two nodes become the score of an edge between them.
        pub decoder: Decoder = Decoder::Dot,
        /// What is minimised.
        pub loss: LinkLoss = LinkLoss::BinaryCrossEntropy,
        /// Where the pairs come from that an edge is compared with.
        pub negative_sampler: NegativeSampler = NegativeSampler::Uniform,
        /// Pairs that each edge is compared with in training.
        #[schemars(range(min = 1, max = 65536))]
        pub num_negative_edges: usize = 16,
        /// Nodes that the ends of an edge are ranked among in validation and test: so many drawn once for each. Unset: all nodes (of the same type).
        #[schemars(range(min = 1, max = 16777216), extend("examples" = [1000]))]
        pub num_negative_edges_eval: Option<usize> = None,
        /// Nodes of your own that the destinations of edges are ranked among in validation and test: Parquet files, folders or URLs with the columns `src` and `candidate`, one row each; with a column `dst`, they are for the edge between both, else for all edges from `src`. They count as they are, but for the destination itself; sources are then not ranked.
        #[schemars(extend("examples" = ["candidates.parquet"]))]
        pub eval_negative_dstnode: Option<OneOrMany<PathBuf>> = None,
        /// Tell `recall_at_K` and `ndcg_at_K` too, for lists of K recommendations to each source, as papers on recommendation define them. Unset: not.
        #[schemars(range(min = 1, max = 10000), extend("examples" = [20]))]
        pub top_k: Option<usize> = None,
    }
}

words! {
    /// How the rows of two nodes become a score.
    pub enum Decoder {
        /// Their dot product.
        Dot = "dot",
        /// Their dot product, weighed by a vector that is learnt for each edge type (Yang et al. 2015).
        Distmult = "distmult",
    }
}

words! {
    /// What link prediction minimises.
    pub enum LinkLoss {
        /// Each pair by itself: is it an edge?
        BinaryCrossEntropy = "binary-cross-entropy",
        /// An edge against all pairs that it is compared with: which one is it?
        SoftmaxCrossEntropy = "softmax-cross-entropy",
    }
}

words! {
    /// Where negative pairs come from.
    pub enum NegativeSampler {
        /// For each edge its own, each node as likely as any other.
        Uniform = "uniform",
        /// The same for all edges of a batch.
        Joint = "joint",
        /// The ends of the batch's other edges.
        InBatch = "in-batch",
        /// For each edge its own, each node in proportion to its in-degree.
        Degree = "degree",
    }
}
