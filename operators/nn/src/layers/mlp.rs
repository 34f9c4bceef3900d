//! The baseline that looks at no edge.

use candle_core::{Tensor, Var};

use super::{Aggregation, Layer, Pass};
use crate::error::Result;
use crate::initial::Initial;
use crate::model::LayerSpec;
use crate::ops::{linear, prefix};
use crate::params::ParamBuilder;

/// `W·h_i + b`
#[derive(Debug)]
pub struct Mlp {
    in_dim: usize,
    out_dim: usize,
    weight: Var,
    bias: Var,
}

impl Mlp {
    /// The layer that `spec` describes: parameters `weight`, `bias`.
    ///
    /// # Errors
    /// When the device has no memory left.
    pub fn new(spec: &LayerSpec, params: &mut ParamBuilder) -> Result<Self> {
        let LayerSpec { in_dim, out_dim, .. } = *spec;
        let weight = params.add("weight", &[out_dim, in_dim], Initial::XavierUniform { gain: 1.0 })?;
        Ok(Self { in_dim, out_dim, weight, bias: params.add("bias", &[out_dim], Initial::Zeros)? })
    }
}

impl Layer for Mlp {
    fn in_dim(&self) -> usize {
        self.in_dim
    }

    fn out_dim(&self) -> usize {
        self.out_dim
    }

    fn works_by_row(&self) -> bool {
        true
    }

    fn aggregation(&self) -> Option<Aggregation> {
        Some(Aggregation::Nothing)
    }

    fn sends_as_held(&self) -> bool {
        true
    }

    /// Nothing arrives: a destination has its own row.
    fn aggregate(&self, pass: &Pass<'_>, sent: &Tensor, _: Option<&Tensor>) -> Result<Tensor> {
        Ok(prefix(sent, pass.block.num_dst())?)
    }

    fn apply_node(&self, _: &Pass<'_>, h_dst: &Tensor, _: &Tensor) -> Result<Tensor> {
        Ok(linear(h_dst, &self.weight, Some(&self.bias))?)
    }
}
