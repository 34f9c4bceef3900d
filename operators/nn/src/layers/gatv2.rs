//! GATv2 (Brody, Alon, Yahav 2022): attention that can rank neighbors differently for every node.

use candle_core::{Tensor, Var};

use super::LayerSpec;
use super::gat::{SLOPE, attention_sum, drop_attention, head_width};
use super::{Aggregation, Layer, LayerInfo, Pass};
use crate::error::Result;
use crate::initial::Initial;
use crate::ops::{activate, add_bias, attention_logits, edge_add, edge_softmax, head_dot, head_mean, linear};
use crate::params::ParamBuilder;
use gnnflow_kernels::dense::elementwise::Activation;

/// For each head, the attention-weighted sum of `S·h_j + s` over the neighbors and the node itself, plus a bias. Heads
/// are concatenated, or averaged in the last layer.
///
/// Attention is `softmax_j(a · leaky_relu(S·h_j + s + D·h_i + d))` with slope 0.2. If edges have features, `E·e_ij` is
/// added inside. The features of a self-loop are the mean of the node's in-edges.
#[derive(Debug)]
pub struct Gatv2 {
    in_dim: usize,
    out_dim: usize,
    heads: usize,
    last: bool,
    attention_dropout: f64,
    source: (Var, Var),
    destination: (Var, Var),
    edge: Option<Var>,
    attention: Var,
    bias: Var,
}

impl Gatv2 {
    /// Creates the layer of `spec`, with parameters `source.weight`, `source.bias`, `destination.weight`,
    /// `destination.bias`, `edge.weight` if edges have features, `attention` (the vectors a) and `bias`.
    ///
    /// # Errors
    /// When the width is not a multiple of the heads (except in the last layer), or the device is out of memory.
    pub fn new(spec: &LayerSpec, params: &mut ParamBuilder) -> Result<Self> {
        let LayerSpec { in_dim, out_dim, heads, last, attention_dropout, ref options, .. } = *spec;
        let (width, xavier) = (head_width(spec)?, Initial::XavierUniform { gain: 1.0 });
        let mut map = |name: &str| -> Result<(Var, Var)> {
            let weight = params.add(&format!("{name}.weight"), &[heads * width, in_dim], xavier)?;
            Ok((weight, params.add(&format!("{name}.bias"), &[heads * width], Initial::Zeros)?))
        };
        let (source, destination) = (map("source")?, map("destination")?);
        let edge = match options.edge_dim {
            0 => None,
            dim => Some(params.add("edge.weight", &[heads * width, dim], xavier)?),
        };
        let attention = params.add("attention", &[heads, width], xavier)?;
        let bias = params.add("bias", &[out_dim], Initial::Zeros)?;
        Ok(Self { in_dim, out_dim, heads, last, attention_dropout, source, destination, edge, attention, bias })
    }

    /// Returns the columns of all heads together.
    fn columns(&self) -> usize {
        if self.last { self.heads * self.out_dim } else { self.out_dim }
    }
}

impl Layer for Gatv2 {
    fn info(&self) -> LayerInfo {
        let (heads, dropout) = (self.heads, self.attention_dropout);
        LayerInfo {
            sent_dim: self.columns(),
            needs_edge_features: self.edge.is_some(),
            reads_own: false,
            row_independent: true,
            // Full-graph schedules hold no edge features.
            aggregation: self.edge.is_none().then_some(Aggregation::Attention {
                heads,
                dynamic: true,
                slope: SLOPE,
                dropout,
            }),
            ..LayerInfo::new(self.in_dim, self.out_dim)
        }
    }

    fn attention_terms(&self, held: &Tensor, sent: &Tensor) -> Result<[Tensor; 2]> {
        let sizes = self.attention.abs()?.reshape((1, self.columns()))?;
        let right = linear(held, &self.destination.0, Some(&self.destination.1))?;
        Ok([sent.broadcast_mul(&sizes)?, right.broadcast_mul(&sizes)?])
    }

    fn attention_vectors(&self) -> Option<&Var> {
        Some(&self.attention)
    }

    fn send(&self, _: &Pass<'_>, h_src: &Tensor) -> Result<Tensor> {
        Ok(linear(h_src, &self.source.0, Some(&self.source.1))?)
    }

    fn apply_edge(&self, pass: &Pass<'_>, h_dst: &Tensor, sent: &Tensor) -> Result<Option<Tensor>> {
        let right = linear(h_dst, &self.destination.0, Some(&self.destination.1))?;
        let block = pass.block.with_self_loops_on(sent.device())?;
        let logits = match &self.edge {
            None => attention_logits(block, sent, &right, &self.attention, SLOPE)?,
            Some(map) => {
                let edges = linear(&pass.edge_features(block, sent.device())?, map, None)?;
                let sums = (edge_add(block, sent, &right)? + edges)?;
                head_dot(&activate(&sums, Activation::LeakyRelu(SLOPE), None)?, &self.attention)?
            }
        };
        Ok(Some(drop_attention(pass, &edge_softmax(block, &logits)?, self.attention_dropout)?))
    }

    fn aggregate(&self, pass: &Pass<'_>, sent: &Tensor, edges: Option<&Tensor>) -> Result<Tensor> {
        attention_sum(pass, sent, edges)
    }

    fn apply_node(&self, _: &Pass<'_>, _: &Tensor, aggregated: &Tensor) -> Result<Tensor> {
        let joined = if self.last { head_mean(aggregated, self.heads)? } else { aggregated.clone() };
        Ok(add_bias(&joined, &self.bias)?)
    }
}
