//! The graph attention network (Veličković and others 2018).

use candle_core::{Tensor, Var};

use super::LayerSpec;
use super::{Aggregation, Layer, LayerInfo, Pass};
use crate::error::{Error, Result};
use crate::initial::Initial;
use crate::ops::{activate, add_bias, attention_softmax, head_dot, head_mean, linear, prefix, weighted_sum};
use crate::params::ParamBuilder;
use gnnflow_kernels::dense::elementwise::{Activation, Dropout};

/// For each head, the attention-weighted sum of `W·h_j` over the neighbors and the node itself, plus a bias. Heads are
/// concatenated, or averaged in the last layer. Attention is `softmax_j(leaky_relu(s·W·h_j + t·W·h_i))` with slope 0.2.
#[derive(Debug)]
pub struct Gat {
    in_dim: usize,
    out_dim: usize,
    heads: usize,
    concat: bool,
    attention_dropout: f64,
    weight: Var,
    source: Var,
    destination: Var,
    bias: Var,
}

/// Leaky ReLU's slope below 0, in GAT and GATv2.
pub(super) const SLOPE: f64 = 0.2;

/// Returns the columns of one head of the layer.
pub(super) fn head_width(spec: &LayerSpec) -> Result<usize> {
    let LayerSpec { out_dim, heads, last, .. } = *spec;
    if heads == 0 || !last && out_dim % heads != 0 {
        return Err(Error::spec(
            "heads",
            format!("{out_dim} columns cannot be split among {heads} heads; use a multiple of the heads"),
        ));
    }
    Ok(if last { out_dim } else { out_dim / heads })
}

/// Applies dropout of this share to attention weights.
pub(super) fn drop_attention(pass: &Pass<'_>, attention: &Tensor, share: f64) -> Result<Tensor> {
    let dropout = pass.dropout.filter(|_| share > 0.0).map(|key| Dropout::new(share, key));
    Ok(activate(attention, Activation::Identity, dropout)?)
}

/// Returns the sum of the sent rows weighted by `attention`.
pub(super) fn attention_sum(pass: &Pass<'_>, sent: &Tensor, attention: Option<&Tensor>) -> Result<Tensor> {
    let attention = attention.ok_or_else(|| Error::Input("attention needs a weight per edge".to_owned()))?;
    Ok(weighted_sum(pass.block.with_self_loops_on(sent.device())?, sent, attention)?)
}

impl Gat {
    /// Creates the layer of `spec`, with parameters `weight`, `source` and `destination` (the vectors s and t), `bias`.
    ///
    /// # Errors
    /// When the width is not a multiple of the heads (except in the last layer), or the device is out of memory.
    pub fn new(spec: &LayerSpec, params: &mut ParamBuilder) -> Result<Self> {
        let LayerSpec { in_dim, out_dim, heads, last, attention_dropout, .. } = *spec;
        let (concat, width) = (!last, head_width(spec)?);
        let xavier = Initial::XavierUniform { gain: 1.0 };
        Ok(Self {
            in_dim,
            out_dim,
            heads,
            concat,
            attention_dropout,
            weight: params.add("weight", &[heads * width, in_dim], xavier)?,
            source: params.add("source", &[heads, width], xavier)?,
            destination: params.add("destination", &[heads, width], xavier)?,
            bias: params.add("bias", &[out_dim], Initial::Zeros)?,
        })
    }
}

impl Layer for Gat {
    fn info(&self) -> LayerInfo {
        let (heads, dropout) = (self.heads, self.attention_dropout);
        LayerInfo {
            sent_dim: if self.concat { self.out_dim } else { heads * self.out_dim },
            reads_own: false,
            row_independent: true,
            aggregation: Some(Aggregation::Attention { heads, dynamic: false, slope: SLOPE, dropout }),
            ..LayerInfo::new(self.in_dim, self.out_dim)
        }
    }

    fn attention_terms(&self, _: &Tensor, sent: &Tensor) -> Result<[Tensor; 2]> {
        Ok([head_dot(sent, &self.source)?, head_dot(sent, &self.destination)?])
    }

    fn send(&self, _: &Pass<'_>, h_src: &Tensor) -> Result<Tensor> {
        Ok(linear(h_src, &self.weight, None)?)
    }

    fn apply_edge(&self, pass: &Pass<'_>, _: &Tensor, sent: &Tensor) -> Result<Option<Tensor>> {
        let block = pass.block.with_self_loops_on(sent.device())?;
        let left = head_dot(sent, &self.source)?;
        let right = head_dot(&prefix(sent, block.num_dst())?, &self.destination)?;
        let attention = attention_softmax(block, &left, &right, SLOPE)?;
        Ok(Some(drop_attention(pass, &attention, self.attention_dropout)?))
    }

    fn aggregate(&self, pass: &Pass<'_>, sent: &Tensor, edges: Option<&Tensor>) -> Result<Tensor> {
        attention_sum(pass, sent, edges)
    }

    fn apply_node(&self, _: &Pass<'_>, _: &Tensor, aggregated: &Tensor) -> Result<Tensor> {
        let joined = if self.concat { aggregated.clone() } else { head_mean(aggregated, self.heads)? };
        Ok(add_bias(&joined, &self.bias)?)
    }
}
