//! A linear layer without edges, as a baseline.

use candle_core::{Tensor, Var};

use super::LayerSpec;
use super::{Aggregation, Layer, LayerInfo, Pass};
use crate::error::Result;
use crate::initial::Initial;
use crate::ops::{linear, linear_relu, prefix};
use crate::params::ParamBuilder;
use gnnflow_kernels::dense::elementwise::Dropout;

/// `W·h_i + b`
#[derive(Debug)]
pub struct Mlp {
    in_dim: usize,
    out_dim: usize,
    weight: Var,
    bias: Var,
}

impl Mlp {
    /// Creates the layer of `spec`, with parameters `weight`, `bias`.
    ///
    /// # Errors
    /// When the device is out of memory.
    pub fn new(spec: &LayerSpec, params: &mut ParamBuilder) -> Result<Self> {
        let LayerSpec { in_dim, out_dim, .. } = *spec;
        let weight = params.add("weight", &[out_dim, in_dim], Initial::XavierUniform { gain: 1.0 })?;
        Ok(Self { in_dim, out_dim, weight, bias: params.add("bias", &[out_dim], Initial::Zeros)? })
    }
}

impl Layer for Mlp {
    fn info(&self) -> LayerInfo {
        LayerInfo {
            sends_input: true,
            row_independent: true,
            aggregation: Some(Aggregation::Nothing),
            ..LayerInfo::new(self.in_dim, self.out_dim)
        }
    }

    /// Returns the destinations' own rows, since the layer reads no edges.
    fn aggregate(&self, pass: &Pass<'_>, sent: &Tensor, _: Option<&Tensor>) -> Result<Tensor> {
        Ok(prefix(sent, pass.block.num_dst())?)
    }

    fn apply_node(&self, _: &Pass<'_>, h_dst: &Tensor, _: &Tensor) -> Result<Tensor> {
        Ok(linear(h_dst, &self.weight, Some(&self.bias))?)
    }

    fn apply_node_relu(&self, _: &Pass<'_>, h_dst: &Tensor, _: &Tensor, dropout: Option<Dropout>) -> Result<Tensor> {
        Ok(linear_relu(h_dst, &self.weight, &self.bias, dropout)?)
    }
}
