//! The simple graph convolution (Wu and others 2019): a linear model of propagated features.

use candle_core::{Tensor, Var};

use super::LayerSpec;
use super::gcn::{degree_weighted_sum, edge_weights};
use super::{Aggregation, Layer, LayerInfo, Pass};
use crate::error::Result;
use crate::initial::Initial;
use crate::ops::linear;
use crate::params::ParamBuilder;

/// One propagation by [`gcn_weights`](super::gcn_weights). The last layer then applies `W·h + b`, to its destinations
/// only. Propagated features need no gradient.
#[derive(Debug)]
pub struct Sgc {
    in_dim: usize,
    out_dim: usize,
    map: Option<(Var, Var)>,
}

impl Sgc {
    /// Creates the layer of `spec`, with parameters `weight`, `bias` in the last layer and none in the others.
    ///
    /// # Errors
    /// When the device is out of memory.
    pub fn new(spec: &LayerSpec, params: &mut ParamBuilder) -> Result<Self> {
        let LayerSpec { in_dim, out_dim, last, .. } = *spec;
        let map = match last {
            true => Some((
                params.add("weight", &[out_dim, in_dim], Initial::XavierUniform { gain: 1.0 })?,
                params.add("bias", &[out_dim], Initial::Zeros)?,
            )),
            false => None,
        };
        Ok(Self { in_dim, out_dim, map })
    }
}

impl Layer for Sgc {
    fn info(&self) -> LayerInfo {
        LayerInfo {
            needs_degrees: true,
            reads_own: false,
            sends_input: true,
            row_independent: true,
            aggregation: Some(Aggregation::Symmetric),
            element_wise: self.map.is_none().then_some([1.0, 0.0]),
            ..LayerInfo::new(self.in_dim, self.out_dim)
        }
    }

    fn apply_edge(&self, pass: &Pass<'_>, _: &Tensor, sent: &Tensor) -> Result<Option<Tensor>> {
        edge_weights(pass, sent).map(Some)
    }

    fn aggregate(&self, pass: &Pass<'_>, sent: &Tensor, edges: Option<&Tensor>) -> Result<Tensor> {
        degree_weighted_sum(pass, sent, edges)
    }

    fn apply_node(&self, _: &Pass<'_>, _: &Tensor, aggregated: &Tensor) -> Result<Tensor> {
        match &self.map {
            Some((weight, bias)) => Ok(linear(aggregated, weight, Some(bias))?),
            None => Ok(aggregated.clone()),
        }
    }
}
