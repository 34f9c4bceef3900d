//! `[model]`: the network.

use super::section::{section, words};

/// Layer kinds of this version.
pub(super) const KINDS: &[&str] = &["sage", "gcn", "gat", "mlp"];

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
        /// What follows every layer but the last. Unset: `elu` for `gat`, `relu` for all others.
        #[schemars(extend("examples" = ["relu"]))]
        pub activation: Option<Activation> = None,
        /// Probability with which an input of a layer is dropped in training.
        #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1.0))]
        pub dropout: f64 = 0.5,
        /// Probability with which an attention coefficient is dropped in training (`gat`). Unset: 0.
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

    /// What follows every layer but the last.
    pub fn activation(&self) -> Activation {
        self.activation.unwrap_or(if self.kind == "gat" { Activation::Elu } else { Activation::Relu })
    }

    /// Probability with which an attention coefficient is dropped.
    pub fn attention_dropout(&self) -> f64 {
        self.attention_dropout.unwrap_or(0.0)
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

words! {
    /// An activation function.
    pub enum Activation {
        /// max(x, 0).
        Relu = "relu",
        /// x, or exp(x) − 1 below 0.
        Elu = "elu",
    }
}
