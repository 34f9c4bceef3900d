//! The specification of a model.

use serde::{Deserialize, Serialize};

use crate::layers::KindOptions;
use gnnflow_kernels::dense::elementwise::Activation;

/// The specification of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelSpec {
    /// The kind of its layers, a name in the [`Registry`](super::Registry).
    pub kind: String,
    /// The number of layers, which is the number of hops of a batch.
    pub layers: usize,
    /// Columns of the input features.
    pub in_dim: usize,
    /// Columns between layers, of all heads together.
    pub hidden: usize,
    /// Columns of the result: classes or labels.
    pub out_dim: usize,
    /// Heads of all layers but the last.
    pub heads: usize,
    /// Heads of the last layer; their results are averaged.
    pub output_heads: usize,
    /// The share of the features that training drops.
    pub input_dropout: f64,
    /// The share of the inputs of all layers after the first that training drops.
    pub dropout: f64,
    /// The share of attention weights that training drops; `None`: as `dropout`.
    pub attention_dropout: Option<f64>,
    /// The activation between layers; `None`: the kind's default.
    pub activation: Option<Activation>,
    /// Whether each layer's input is added to its output, through a learned linear map if the widths differ.
    pub residual: bool,
    /// The normalization of the results of all layers but the last.
    pub norm: Norm,
    /// How the results of all layers are joined.
    pub jumping_knowledge: JumpingKnowledge,
    /// The decoder, which reads the model's result. The model itself does not run it.
    pub decoder: Decoder,
    /// Options of single kinds of layers.
    pub options: KindOptions,
}

impl ModelSpec {
    /// A model with one head and without dropout, residual connections, normalization or jumping knowledge.
    pub fn new(kind: &str, layers: usize, in_dim: usize, hidden: usize, out_dim: usize) -> Self {
        Self {
            kind: kind.to_owned(),
            layers,
            in_dim,
            hidden,
            out_dim,
            heads: 1,
            output_heads: 1,
            input_dropout: 0.0,
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

/// A function of the rows of pairs of nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Decoder {
    /// No decoder.
    #[default]
    None,
    /// A vector for each of the given number of relations, `out_dim` wide: the parameter `decoder.relations`.
    Relations(usize),
    /// A [`PairHead`](crate::pair_head::PairHead): parameters `decoder.mlp.0.weight` and so on.
    Pairs {
        /// Outputs per pair.
        outputs: usize,
        /// The number of linear maps.
        layers: usize,
    },
}

/// The normalization of a layer's result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Norm {
    /// No normalization.
    #[default]
    None,
    /// Each column over the batch (Ioffe, Szegedy 2015); at inference by running statistics.
    Batch,
    /// Each row over its columns (Ba, Kiros, Hinton 2016).
    Layer,
}

/// How the results of all layers are joined (Xu and others 2018). The model's result is a linear map of the joined row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum JumpingKnowledge {
    /// Not joined: the model's result is the last layer's.
    #[default]
    None,
    /// Concatenated.
    Cat,
    /// The maximum of each column.
    Max,
    /// The mean of each column.
    Mean,
}
