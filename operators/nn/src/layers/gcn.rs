//! The graph convolutional network (Kipf, Welling 2017) on sampled or whole neighborhoods.

use candle_core::{Tensor, Var};

use super::LayerSpec;
use super::{Aggregation, Layer, LayerInfo, Pass};
use crate::error::{Error, Result};
use crate::graph_block::GraphBlock;
use crate::initial::Initial;
use crate::ops::{
    Aggregated, AggregatedProduct, RowAggregation, activate, add_bias, bias_relu, linear, linear_relu, weighted_sum,
};
use crate::params::ParamBuilder;
use crate::target::Target;
use gnnflow_kernels::dense::elementwise::{Activation, Dropout};

/// `W·Σ_j w_ij·h_j + b` over the neighbors and the node itself, with `w_ij = 1 / sqrt((d_i + 1)(d_j + 1))`.
///
/// `d` are the true in-degrees, without self-loops. If `k_i` of the `d_i` neighbors were sampled, each is weighted by
/// `d_i / k_i`. If the output is narrower than the input, `W` is applied before the sum.
#[derive(Debug)]
pub struct Gcn {
    in_dim: usize,
    out_dim: usize,
    weight: Var,
    bias: Var,
}

impl Gcn {
    /// Creates the layer of `spec`, with parameters `weight`, `bias`.
    ///
    /// # Errors
    /// When the device is out of memory.
    pub fn new(spec: &LayerSpec, params: &mut ParamBuilder) -> Result<Self> {
        let LayerSpec { in_dim, out_dim, .. } = *spec;
        let weight = params.add("weight", &[out_dim, in_dim], Initial::XavierUniform { gain: 1.0 })?;
        Ok(Self { in_dim, out_dim, weight, bias: params.add("bias", &[out_dim], Initial::Zeros)? })
    }

    fn transforms_first(&self) -> bool {
        self.in_dim > self.out_dim
    }
}

/// Returns the weight of every edge of `block.with_self_loops()`. `degrees` has the in-degree of every source.
///
/// ```
/// use gnnflow_kernels::block::Block;
/// use gnnflow_nn::GraphBlock;
/// use gnnflow_nn::layers::gcn_weights;
///
/// // Node 0 has three neighbors, of which one was sampled.
/// let block = GraphBlock::new(Block::new(1, 2, vec![0, 1], vec![1]));
/// assert_eq!(gcn_weights(&block, &[3, 0]), [0.25, 1.5]);
/// ```
///
/// # Panics
/// When there are fewer degrees than sources.
pub fn gcn_weights(block: &GraphBlock, degrees: &[u32]) -> Vec<f32> {
    let norms: Vec<f64> = degrees[..block.num_src()].iter().map(|&d| 1.0 / (f64::from(d) + 1.0).sqrt()).collect();
    let looped = block.with_self_loops().block();
    let mut weights = Vec::with_capacity(looped.num_edges());
    for i in 0..looped.num_dst() {
        let neighbors = looped.neighbors(i);
        // The first neighbor is the node itself.
        weights.push((norms[i] * norms[i]) as f32);
        let each = norms[i] * f64::from(degrees[i]) / (neighbors.len() - 1).max(1) as f64;
        weights.extend(neighbors[1..].iter().map(|&j| (each * norms[j as usize]) as f32));
    }
    weights
}

/// Returns the weights of [`gcn_weights`] as a tensor on `device`.
pub(crate) fn degree_weights(pass: &Pass<'_>, target: Target<'_>) -> Result<Tensor> {
    let degrees = pass.source_degrees()?;
    pass.block.degree_weights(degrees, target, || gcn_weights(pass.block, degrees))
}

/// Returns [`gcn_weights`] as `[E, 1]`, on the device of `sent`.
pub(super) fn edge_weights(pass: &Pass<'_>, sent: &Tensor) -> Result<Tensor> {
    let weights = degree_weights(pass, Target::InOrder(sent.device()))?;
    // Gradient checks run in f64.
    let dtype = if sent.dtype() == candle_core::DType::F64 { sent.dtype() } else { weights.dtype() };
    Ok(weights.to_dtype(dtype)?)
}

/// Returns the sum of the sent rows by these weights.
pub(super) fn degree_weighted_sum(pass: &Pass<'_>, sent: &Tensor, weights: Option<&Tensor>) -> Result<Tensor> {
    let weights = weights.ok_or_else(|| Error::Input("GCN's sum needs a weight per edge".to_owned()))?;
    Ok(weighted_sum(pass.block.with_self_loops(), sent, weights)?)
}

impl Layer for Gcn {
    fn info(&self) -> LayerInfo {
        LayerInfo {
            sent_dim: self.in_dim.min(self.out_dim),
            needs_degrees: true,
            reads_own: false,
            sends_input: !self.transforms_first(),
            row_independent: true,
            aggregation: Some(Aggregation::Symmetric),
            ..LayerInfo::new(self.in_dim, self.out_dim)
        }
    }

    fn send(&self, _: &Pass<'_>, h_src: &Tensor) -> Result<Tensor> {
        if self.transforms_first() { Ok(linear(h_src, &self.weight, None)?) } else { Ok(h_src.clone()) }
    }

    fn send_weight(&self) -> Option<&Var> {
        Some(&self.weight).filter(|_| self.transforms_first())
    }

    fn apply_edge(&self, pass: &Pass<'_>, _: &Tensor, sent: &Tensor) -> Result<Option<Tensor>> {
        edge_weights(pass, sent).map(Some)
    }

    fn aggregate(&self, pass: &Pass<'_>, sent: &Tensor, edges: Option<&Tensor>) -> Result<Tensor> {
        degree_weighted_sum(pass, sent, edges)
    }

    fn product_of_aggregated(&self, pass: &Pass<'_>) -> Result<Option<AggregatedProduct>> {
        if self.transforms_first() {
            return Ok(None);
        }
        let (weight, bias) = (self.weight.as_tensor().clone(), self.bias.as_tensor().clone());
        let weights = edge_weights(pass, &weight)?;
        let aggregation = RowAggregation::WeightedSum(pass.block.with_self_loops().clone(), weights);
        Ok(Some(AggregatedProduct { aggregation, weight, bias }))
    }

    fn forward_relu(&self, pass: &Pass<'_>, h_src: &Tensor, dropout: Option<Dropout>) -> Result<Tensor> {
        match self.product_of_aggregated(pass)? {
            Some(AggregatedProduct { aggregation, weight, bias }) => {
                Ok(Aggregated::new(&aggregation, h_src)?.linear_relu(&weight, &bias, dropout)?)
            }
            None => Ok(activate(&self.forward(pass, h_src)?, Activation::Relu, dropout)?),
        }
    }

    fn apply_node(&self, _: &Pass<'_>, _: &Tensor, aggregated: &Tensor) -> Result<Tensor> {
        if self.transforms_first() {
            Ok(add_bias(aggregated, &self.bias)?)
        } else {
            Ok(linear(aggregated, &self.weight, Some(&self.bias))?)
        }
    }

    fn apply_node_relu(
        &self,
        _: &Pass<'_>,
        _: &Tensor,
        aggregated: &Tensor,
        dropout: Option<Dropout>,
    ) -> Result<Tensor> {
        if self.transforms_first() {
            Ok(bias_relu(aggregated, &self.bias, dropout)?)
        } else {
            Ok(linear_relu(aggregated, &self.weight, &self.bias, dropout)?)
        }
    }
}
