//! `[train.edge]`: which edges are classified, and how.

use super::section::section;
use super::values::TypeName;

section! {
    /// Edge classification: which edges are classified, and how.
    pub struct EdgeTask {
        /// Types of the edges that are classified, by name or number; other edges are only aggregated. Unset: all but reverse types (`rev_…`) and that of added self-loops.
        #[schemars(length(min = 1), extend("examples" = [["rates"]]))]
        pub target_etype: Option<Vec<TypeName>> = None,
        /// Fractions of the labeled edges for training, validation and test, without `graph.columns.edge_split`.
        /// Drawn per pair of nodes, so that both directions and parallel edges stay together. Unset: [0.8, 0.1, 0.1].
        #[schemars(length(equal = 3), inner(range(min = 0.0, max = 1.0)), extend("examples" = [[0.85, 0.05, 0.1]]))]
        pub split_fractions: Option<Vec<f64>> = None,
        /// Hide the target edges of a batch, and all validation and test edges, from sampling. `false`: all edges are visible, without labels.
        /// Unset: `true`; `false` with full-graph schedules, which cannot hide them.
        #[schemars(extend("examples" = [false]))]
        pub exclude_training_targets: Option<bool> = None,
        /// Linear maps from the concatenated rows of both endpoints to the classes, with a ReLU between them.
        #[schemars(range(min = 1, max = 16))]
        pub num_decoder_layers: usize = 2,
    }
}
