//! Personalized propagation of predictions (Gasteiger, Bojchevski, Günnemann 2019).

use candle_core::Tensor;

use super::gcn::{edge_weights, propagated};
use super::{Aggregation, Layer, Pass};
use crate::error::{Error, Result};
use crate::model::LayerSpec;

/// One propagation: `(1 − α)·Σ_j w_ij·z_j + α·z⁰_i` with [`gcn_weights`](super::gcn_weights), z⁰ being what the model's
/// perceptron predicts from a node's own features.
#[derive(Debug)]
pub struct Appnp {
    dim: usize,
    teleport: f64,
}

impl Appnp {
    /// The layer that `spec` describes; it has no parameters.
    ///
    /// # Errors
    /// When α is not in 0 ≤ α ≤ 1.
    pub fn new(spec: &LayerSpec) -> Result<Self> {
        let teleport = spec.options.teleport;
        if !(0.0..=1.0).contains(&teleport) {
            return Err(Error::spec("teleport", format!("{teleport} is not in 0 ≤ α ≤ 1")));
        }
        Ok(Self { dim: spec.out_dim, teleport })
    }
}

impl Layer for Appnp {
    fn in_dim(&self) -> usize {
        self.dim
    }

    fn out_dim(&self) -> usize {
        self.dim
    }

    fn works_by_row(&self) -> bool {
        true
    }

    fn aggregation(&self) -> Option<Aggregation> {
        Some(Aggregation::Symmetric)
    }

    fn by_column(&self) -> Option<[f32; 2]> {
        Some([(1.0 - self.teleport) as f32, self.teleport as f32])
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

    fn needs_initial(&self) -> bool {
        true
    }

    fn apply_edge(&self, pass: &Pass<'_>, _: &Tensor, sent: &Tensor) -> Result<Option<Tensor>> {
        edge_weights(pass, sent).map(Some)
    }

    fn aggregate(&self, pass: &Pass<'_>, sent: &Tensor, edges: Option<&Tensor>) -> Result<Tensor> {
        propagated(pass, sent, edges)
    }

    fn apply_node(&self, pass: &Pass<'_>, _: &Tensor, aggregated: &Tensor) -> Result<Tensor> {
        let kept = (pass.initial_rows()? * self.teleport)?;
        Ok(((aggregated * (1.0 - self.teleport))? + kept)?)
    }
}
