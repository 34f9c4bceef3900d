//! `[train.edge]`: which edges have something to be learnt, and how.

use super::section::section;

section! {
    /// Edge classification: which edges are classified, and how.
    pub struct EdgeTask {
        /// Types of the edges that are classified, by name or number; edges of other types are only looked at. Unset: all types, but those that are the reverses of others (`rev_…`).
        #[schemars(length(min = 1), extend("examples" = [["rates"]]))]
        pub target_etype: Option<Vec<String>> = None,
        /// Shares of the labelled edges to train on, to validate and to test with, where the graph has no `graph.columns.edge_split`; drawn by pairs of nodes, so that both directions and parallel edges fall together. Unset: [0.8, 0.1, 0.1].
        #[schemars(length(equal = 3), inner(range(min = 0.0, max = 1.0)), extend("examples" = [[0.85, 0.05, 0.1]]))]
        pub split_fractions: Option<Vec<f64>> = None,
        /// Batches do not see the edges that they classify, and nobody sees those to validate and to test with, as in link prediction. `false`: all edges are there, without their labels. Unset: `true`, but over whole graphs (`full-graph`, `tensor-parallel`) `false`, as every step is over all edges.
        #[schemars(extend("examples" = [false]))]
        pub exclude_training_targets: Option<bool> = None,
        /// Linear maps from the rows of both ends, side by side, to the classes: 1, or more with a ReLU between them.
        #[schemars(range(min = 1, max = 16))]
        pub num_decoder_layers: usize = 2,
    }
}
