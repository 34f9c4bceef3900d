//! The simple graph convolution (Wu and others 2019): a linear model of features that have been propagated.

use candle_core::{Tensor, Var};

use super::gcn::{edge_weights, propagated};
use super::{Aggregation, Layer, Pass};
use crate::error::Result;
use crate::initial::Initial;
use crate::model::LayerSpec;
use crate::ops::linear;
use crate::params::ParamBuilder;

/// One propagation by [`gcn_weights`](super::gcn_weights), and behind the last one `W·h + b`.
///
/// Features are propagated as they are: they need no gradient then, and the product is over the last destinations only.
#[derive(Debug)]
pub struct Sgc {
    in_dim: usize,
    out_dim: usize,
    map: Option<(Var, Var)>,
}

impl Sgc {
    /// The layer that `spec` describes: parameters `weight`, `bias` in the last one, none in the others.
    ///
    /// # Errors
    /// When the device has no memory left.
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
        Some(Aggregation::Symmetric)
    }

    fn by_column(&self) -> Option<[f32; 2]> {
        self.map.is_none().then_some([1.0, 0.0])
    }

    fn sends_as_held(&self) -> bool {
        true
    }

    fn reads_own(&self) -> bool {
        false
    }

    fn needs_degrees(&self) -> bool {
        true
    }

    fn apply_edge(&self, pass: &Pass<'_>, _: &Tensor, sent: &Tensor) -> Result<Option<Tensor>> {
        edge_weights(pass, sent).map(Some)
    }

    fn aggregate(&self, pass: &Pass<'_>, sent: &Tensor, edges: Option<&Tensor>) -> Result<Tensor> {
        propagated(pass, sent, edges)
    }

    fn apply_node(&self, _: &Pass<'_>, _: &Tensor, aggregated: &Tensor) -> Result<Tensor> {
        match &self.map {
            Some((weight, bias)) => Ok(linear(aggregated, weight, Some(bias))?),
            None => Ok(aggregated.clone()),
        }
    }
}
