//! GIN with edge features (Hu and others 2020, "Strategies for Pre-training Graph Neural Networks").

use candle_core::{Tensor, Var};

use super::LayerSpec;
use super::gin::Epsilon;
use super::{Layer, LayerInfo, Pass};
use crate::error::{Error, Result};
use crate::initial::Initial;
use crate::ops::{linear, message_sum, widen};
use crate::params::ParamBuilder;
use crate::perceptron::Perceptron;

/// `MLP((1 + ε)·h_i + Σ_j relu(h_j + W·e_ij + b))`, with ε fixed or learned. W maps edge features to the width of node
/// rows. The perceptron has the model's hidden width inside.
#[derive(Debug)]
pub struct Gine {
    in_dim: usize,
    out_dim: usize,
    epsilon: Epsilon,
    edge: (Var, Var),
    mlp: Perceptron,
}

impl Gine {
    /// Creates the layer of `spec`, with parameters `edge.weight`, `edge.bias`, `mlp.0.weight`, `mlp.0.bias`, …, and
    /// `epsilon` if it is learned.
    ///
    /// # Errors
    /// When the perceptron has no layers, edges have no features, or the device is out of memory.
    pub fn new(spec: &LayerSpec, params: &mut ParamBuilder) -> Result<Self> {
        let LayerSpec { in_dim, out_dim, hidden, activation, ref options, .. } = *spec;
        if options.mlp_layers == 0 {
            return Err(Error::spec("mlp_layers", "is 0; use at least 1"));
        }
        if options.edge_dim == 0 {
            return Err(Error::spec("edge_dim", "is 0, but gine reads edge features; use a graph with edge features"));
        }
        let xavier = Initial::XavierUniform { gain: 1.0 };
        let weight = params.add("edge.weight", &[in_dim, options.edge_dim], xavier)?;
        let edge = (weight, params.add("edge.bias", &[in_dim], Initial::Zeros)?);
        let mlp = Perceptron::new(&Perceptron::dims(in_dim, hidden, out_dim, options.mlp_layers), activation, params)?;
        Ok(Self { in_dim, out_dim, epsilon: Epsilon::new(options, params)?, edge, mlp })
    }
}

impl Layer for Gine {
    fn info(&self) -> LayerInfo {
        let hidden_dim = self.mlp.hidden_dim();
        LayerInfo { hidden_dim, needs_edge_features: true, ..LayerInfo::new(self.in_dim, self.out_dim) }
    }

    fn apply_edge(&self, pass: &Pass<'_>, _: &Tensor, sent: &Tensor) -> Result<Option<Tensor>> {
        let features = pass.edge_features(pass.block, sent.device())?;
        Ok(Some(linear(&features, &self.edge.0, Some(&self.edge.1))?))
    }

    fn aggregate(&self, pass: &Pass<'_>, sent: &Tensor, edges: Option<&Tensor>) -> Result<Tensor> {
        let edges = edges.ok_or_else(|| Error::Input("GINE needs a row per edge".to_owned()))?;
        Ok(message_sum(pass.block, &widen(sent)?, edges)?)
    }

    fn apply_node(&self, _: &Pass<'_>, h_dst: &Tensor, aggregated: &Tensor) -> Result<Tensor> {
        self.mlp.forward(&(self.epsilon.scale(&widen(h_dst)?)? + aggregated)?, None, 0)
    }
}
