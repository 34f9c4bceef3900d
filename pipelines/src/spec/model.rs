//! `[model]`: the network.

use super::section::{section, words};
use gnnflow_operators::compute::ModelSpec;

/// Layer kinds of this version.
pub(super) const KINDS: &[&str] = &["sage", "gcn", "gat", "mlp"];

/// Whether layers of this name come with gnnflow.
pub(crate) fn is_builtin(kind: &str) -> bool {
    KINDS.contains(&kind)
}

section! {
    /// The network.
    pub struct Model {
        /// The kind of layer: GraphSAGE, GCN, GAT, `mlp` (no edges: the baseline), or the name of a registered one.
        #[schemars(extend("x-known" = KINDS))]
        pub kind: String = "sage".into(),
        /// Number of layers, the output layer included.
        #[schemars(range(min = 1, max = 64))]
        pub layers: usize = 2,
        /// Width of the hidden layers; of all heads together for `gat`.
        #[schemars(range(min = 1, max = 65536))]
        pub hidden: usize = 128,
        /// Attention heads of the hidden layers (`gat`); divides `hidden`. Unset: 8.
        #[schemars(range(min = 1, max = 1024), extend("examples" = [8]))]
        pub heads: Option<usize> = None,
        /// Attention heads of the output layer (`gat`), averaged. Unset: 1.
        #[schemars(range(min = 1, max = 1024), extend("examples" = [1]))]
        pub output_heads: Option<usize> = None,
        /// How a `sage` layer aggregates its neighbours. Unset: `mean`.
        #[schemars(extend("examples" = ["mean"]))]
        pub aggregator: Option<Aggregator> = None,
        /// Probability with which an input of a layer is dropped in training.
        #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1.0))]
        pub dropout: f64 = 0.5,
        /// Probability with which an attention coefficient is dropped in training (`gat`). Unset: as `dropout`.
        #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1.0), extend("examples" = [0.6]))]
        pub attention_dropout: Option<f64> = None,
    }
}

impl Model {
    /// Attention heads of the hidden layers.
    pub fn heads(&self) -> usize {
        self.heads.unwrap_or(if self.kind == "gat" { 8 } else { 1 })
    }

    /// Attention heads of the output layer.
    pub fn output_heads(&self) -> usize {
        self.output_heads.unwrap_or(1)
    }

    /// How a `sage` layer aggregates.
    pub fn aggregator(&self) -> Aggregator {
        self.aggregator.unwrap_or(Aggregator::Mean)
    }

    /// Probability with which an attention coefficient is dropped.
    pub fn attention_dropout(&self) -> f64 {
        self.attention_dropout.unwrap_or(self.dropout)
    }

    /// The model for nodes with `features` features and `classes` classes.
    pub fn describe(&self, features: usize, classes: usize) -> ModelSpec {
        ModelSpec {
            heads: self.heads(),
            output_heads: self.output_heads(),
            dropout: self.dropout,
            attention_dropout: Some(self.attention_dropout()),
            aggregator: self.aggregator().word().into(),
            ..ModelSpec::new(&self.kind, self.layers, features, self.hidden, classes)
        }
    }

    /// Whether layers read neighbours at all.
    pub fn uses_edges(&self) -> bool {
        self.kind != "mlp"
    }
}

words! {
    /// How a GraphSAGE layer aggregates its neighbours.
    pub enum Aggregator {
        /// Their mean, beside the node itself.
        Mean = "mean",
        /// The mean over the neighbours and the node itself, by one weight matrix.
        Gcn = "gcn",
        /// The maximum of their transformed features.
        Pool = "pool",
    }
}
