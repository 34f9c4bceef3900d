//! The specification of one layer.

use gnnflow_kernels::dense::elementwise::Activation;
use serde::{Deserialize, Serialize};

/// Options of single kinds of layers. Other kinds ignore them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KindOptions {
    /// SAGE's `mean`, `gcn` or `pool`.
    pub aggregator: String,
    /// GIN's ε, or its initial value if it is learned.
    pub epsilon: f64,
    /// Whether GIN learns ε.
    pub train_epsilon: bool,
    /// The number of linear maps in the perceptrons of GIN and APPNP.
    pub mlp_layers: usize,
    /// APPNP's α: the share of a node's own prediction in every propagation.
    pub teleport: f64,
    /// The number of edge types; 0 if edges have none.
    pub relations: usize,
    /// The number of R-GCN's basis matrices, which all relations share; `None`: one matrix per relation.
    pub bases: Option<usize>,
    /// Columns of edge features, for layers that read them; 0 to ignore them.
    pub edge_dim: usize,
    /// Whether GAT's linear maps precede all propagations (NeutronTP, section 4.1): a perceptron with one map per
    /// layer, then [`GatPropagation`](super::GatPropagation)s with `output_heads` heads.
    pub decoupled: bool,
}

impl Default for KindOptions {
    fn default() -> Self {
        Self {
            aggregator: "mean".to_owned(),
            epsilon: 0.0,
            train_epsilon: false,
            mlp_layers: 2,
            teleport: 0.1,
            relations: 0,
            bases: None,
            edge_dim: 0,
            decoupled: false,
        }
    }
}

/// The specification of one layer.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerSpec {
    /// The layer's index, from 0 at the input.
    pub index: usize,
    /// Columns of the input.
    pub in_dim: usize,
    /// Columns of the output, of all heads together.
    pub out_dim: usize,
    /// Columns between the model's layers, for layers that contain a perceptron.
    pub hidden: usize,
    /// The number of heads.
    pub heads: usize,
    /// Whether the layer's result is the model's. Heads are then averaged, else concatenated.
    pub last: bool,
    /// The share of attention weights that training drops.
    pub attention_dropout: f64,
    /// The activation between the model's layers, for layers that contain a perceptron.
    pub activation: Activation,
    /// Options of single kinds of layers.
    pub options: KindOptions,
}

impl LayerSpec {
    /// A first layer with one head that is not the last.
    pub fn new(in_dim: usize, out_dim: usize) -> Self {
        Self {
            index: 0,
            in_dim,
            out_dim,
            hidden: out_dim,
            heads: 1,
            last: false,
            attention_dropout: 0.0,
            activation: Activation::Relu,
            options: KindOptions::default(),
        }
    }
}
