//! Personalized propagation of predictions (Gasteiger, Bojchevski, Günnemann 2019).

use candle_core::Tensor;

use super::LayerSpec;
use super::gcn::{degree_weighted_sum, edge_weights};
use super::{Aggregation, Layer, LayerInfo, Pass};
use crate::error::{Error, Result};

/// One propagation: `(1 − α)·Σ_j w_ij·z_j + α·z⁰_i` with [`gcn_weights`](super::gcn_weights), where z⁰ is the
/// perceptron's prediction from the node's own features.
#[derive(Debug)]
pub struct Appnp {
    dim: usize,
    teleport: f64,
}

impl Appnp {
    /// Creates the layer of `spec`. It has no parameters.
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
    fn info(&self) -> LayerInfo {
        LayerInfo {
            needs_degrees: true,
            needs_initial: true,
            reads_own: false,
            sends_input: true,
            row_independent: true,
            aggregation: Some(Aggregation::Symmetric),
            element_wise: Some([(1.0 - self.teleport) as f32, self.teleport as f32]),
            ..LayerInfo::new(self.dim, self.dim)
        }
    }

    fn apply_edge(&self, pass: &Pass<'_>, _: &Tensor, sent: &Tensor) -> Result<Option<Tensor>> {
        edge_weights(pass, sent).map(Some)
    }

    fn aggregate(&self, pass: &Pass<'_>, sent: &Tensor, edges: Option<&Tensor>) -> Result<Tensor> {
        degree_weighted_sum(pass, sent, edges)
    }

    fn apply_node(&self, pass: &Pass<'_>, _: &Tensor, aggregated: &Tensor) -> Result<Tensor> {
        let teleported = (pass.initial_rows()? * self.teleport)?;
        Ok(((aggregated * (1.0 - self.teleport))? + teleported)?)
    }
}
