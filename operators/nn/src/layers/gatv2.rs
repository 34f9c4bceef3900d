//! GATv2 (Brody, Alon, Yahav 2022): attention that is not the same ranking for every node.

use candle_core::{Tensor, Var};

use super::gat::{SLOPE, attend, attended, head_width};
use super::{Aggregation, Layer, Pass};
use crate::error::Result;
use crate::initial::Initial;
use crate::model::LayerSpec;
use crate::ops::{activate, add_bias, attention_logits, edge_add, head_dot, head_mean, linear};
use crate::params::ParamBuilder;
use gnnflow_kernels::dense::elementwise::Activation;

/// For each head, the attention-weighted sum of `S·h_j + s` over the neighbors and the node itself; heads side by side, or
/// their mean in the last layer; plus a bias.
///
/// Attention is `softmax_j(a · leaky_relu(S·h_j + s + D·h_i + d))` with slope 0.2. Where edges have features, `E·e_ij` is added
/// inside; that of a node to itself has the mean of the edges that enter the node.
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
    /// The layer that `spec` describes: parameters `source.weight`, `source.bias`, `destination.weight`, `destination.bias`,
    /// `edge.weight` where edges have features, `attention` (the vectors a) and `bias`.
    ///
    /// # Errors
    /// When the width of a layer of several heads is not a multiple of them, or the device has no memory left.
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
}

impl Layer for Gatv2 {
    fn in_dim(&self) -> usize {
        self.in_dim
    }

    fn out_dim(&self) -> usize {
        self.out_dim
    }

    fn needs_edge_features(&self) -> bool {
        self.edge.is_some()
    }

    fn works_by_row(&self) -> bool {
        true
    }

    fn aggregation(&self) -> Option<Aggregation> {
        let (heads, dropout) = (self.heads, self.attention_dropout);
        // Features of edges are only where blocks are.
        self.edge.is_none().then_some(Aggregation::Attention { heads, dynamic: true, slope: SLOPE, dropout })
    }

    fn sent_dim(&self) -> usize {
        if self.last { self.heads * self.out_dim } else { self.out_dim }
    }

    fn reads_own(&self) -> bool {
        false
    }

    fn attention_terms(&self, held: &Tensor, sent: &Tensor) -> Result<[Tensor; 2]> {
        let sizes = self.attention.abs()?.reshape((1, self.sent_dim()))?;
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
        let block = pass.block.with_self_loops();
        let logits = match &self.edge {
            None => attention_logits(block, sent, &right, &self.attention, SLOPE)?,
            Some(map) => {
                let edges = linear(&pass.edge_features(block, sent.device())?, map, None)?;
                let sums = (edge_add(block, sent, &right)? + edges)?;
                head_dot(&activate(&sums, Activation::LeakyRelu(SLOPE), None)?, &self.attention)?
            }
        };
        Ok(Some(attend(pass, &logits, self.attention_dropout)?))
    }

    fn aggregate(&self, pass: &Pass<'_>, sent: &Tensor, edges: Option<&Tensor>) -> Result<Tensor> {
        attended(pass, sent, edges)
    }

    fn apply_node(&self, _: &Pass<'_>, _: &Tensor, aggregated: &Tensor) -> Result<Tensor> {
        let joined = if self.last { head_mean(aggregated, self.heads)? } else { aggregated.clone() };
        Ok(add_bias(&joined, &self.bias)?)
    }
}
