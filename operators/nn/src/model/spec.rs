//! What models and layers are made of.

use serde::{Deserialize, Serialize};

use gnnflow_kernels::dense::elementwise::Activation;

/// What a model is made of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelSpec {
    /// The name of its layers in the [`Registry`](super::Registry).
    pub kind: String,
    /// How many layers: the hops that a batch reaches.
    pub layers: usize,
    /// Columns of the input features.
    pub in_dim: usize,
    /// Columns between layers, all heads together.
    pub hidden: usize,
    /// Columns of the result: classes or labels.
    pub out_dim: usize,
    /// Heads of all layers but the last.
    pub heads: usize,
    /// Heads of the last layer, whose results are averaged.
    pub output_heads: usize,
    /// Share of each layer's input that is dropped when training.
    pub dropout: f64,
    /// Share of attention that is dropped when training; `None`: as `dropout`.
    pub attention_dropout: Option<f64>,
    /// What stands between layers; `None`: as the kind has it.
    pub activation: Option<Activation>,
    /// Whether what goes into a layer is added to what comes out: through a learned map where widths differ.
    pub residual: bool,
    /// How the results of all layers but the last are normalized.
    pub norm: Norm,
    /// Whether, and how, the results of all layers go into the model's.
    pub jumping_knowledge: JumpingKnowledge,
    /// What stands behind the model and reads its result. The model itself does not run it.
    pub decoder: Decoder,
    /// What single kinds of layers ask for.
    pub options: KindOptions,
}

impl ModelSpec {
    /// A model of one head without dropout, residuals, normalization or jumping knowledge; set the other fields after.
    pub fn new(kind: &str, layers: usize, in_dim: usize, hidden: usize, out_dim: usize) -> Self {
        Self {
            kind: kind.to_owned(),
            layers,
            in_dim,
            hidden,
            out_dim,
            heads: 1,
            output_heads: 1,
            dropout: 0.0,
            attention_dropout: None,
            activation: None,
            residual: false,
            norm: Norm::None,
            jumping_knowledge: JumpingKnowledge::None,
            decoder: Decoder::None,
            options: KindOptions::default(),
        }
    }
}

/// What reads the rows of pairs of nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Decoder {
    /// Nothing.
    #[default]
    None,
    /// A vector for each of so many relations, as wide as the result: the parameter `decoder.relations`.
    Relations(usize),
    /// A [`PairHead`](crate::pair_head::PairHead): parameters `decoder.mlp.0.weight` and so on.
    Pairs {
        /// Numbers that it says of a pair.
        outputs: usize,
        /// Linear maps.
        layers: usize,
    },
}

/// How the result of a layer is normalized.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Norm {
    /// Not at all.
    #[default]
    None,
    /// Each column over the batch (Ioffe, Szegedy 2015); at inference by running statistics.
    Batch,
    /// Each row over its columns (Ba, Kiros, Hinton 2016).
    Layer,
}

/// How the results of all layers are joined (Xu and others 2018). A linear map of what is joined is the model's result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum JumpingKnowledge {
    /// They are not: the last layer's is the model's.
    #[default]
    None,
    /// Side by side.
    Cat,
    /// The largest of each column.
    Max,
    /// The mean of each column.
    Mean,
}

/// What single kinds of layers ask for; the others do not look.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KindOptions {
    /// SAGE's `mean`, `gcn` or `pool`.
    pub aggregator: String,
    /// GIN's ε, or what it starts from.
    pub epsilon: f64,
    /// Whether GIN learns ε.
    pub train_epsilon: bool,
    /// Linear maps in GIN's perceptron, and in APPNP's.
    pub mlp_layers: usize,
    /// APPNP's α: the share of its own prediction that a node keeps in every propagation.
    pub teleport: f64,
    /// Relations of a graph of typed edges; 0 where edges have no types.
    pub relations: usize,
    /// Matrices of which R-GCN mixes those of all relations; `None`: a matrix for each relation.
    pub bases: Option<usize>,
    /// Columns of the edges' features, for layers that read them; 0 where they are not to be read.
    pub edge_dim: usize,
    /// Whether GAT's maps come before all propagations (NeutronTP, section 4.1): a perceptron of as many maps as there are layers, then
    /// [`GatPropagation`](crate::layers::GatPropagation)s with `output_heads` heads.
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

/// What one layer is made of.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerSpec {
    /// Which layer, from 0 at the input.
    pub index: usize,
    /// Columns in.
    pub in_dim: usize,
    /// Columns out, all heads together.
    pub out_dim: usize,
    /// Columns between the model's layers, for layers that have an inside.
    pub hidden: usize,
    /// How many heads.
    pub heads: usize,
    /// Whether its result is the model's. Heads are then averaged; else they lie side by side.
    pub last: bool,
    /// Share of attention that is dropped when training.
    pub attention_dropout: f64,
    /// What stands between the model's layers, for layers that have an inside.
    pub activation: Activation,
    /// What single kinds of layers ask for.
    pub options: KindOptions,
}

impl LayerSpec {
    /// A first layer of one head, of which others follow; set the other fields after.
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
