//! The graph isomorphism network (Xu, Hu, Leskovec, Jegelka 2019).

use candle_core::{Tensor, Var};

use super::{Aggregation, Layer, LayerInfo, Pass};
use super::{KindOptions, LayerSpec};
use crate::error::{Error, Result};
use crate::initial::Initial;
use crate::ops::{Reduce, segment_sum, widen};
use crate::params::ParamBuilder;
use crate::perceptron::Perceptron;

/// `MLP((1 + ε)·h_i + Σ_j h_j)`, with ε fixed or learned. The perceptron has the model's hidden width inside.
#[derive(Debug)]
pub struct Gin {
    in_dim: usize,
    out_dim: usize,
    epsilon: Epsilon,
    mlp: Perceptron,
}

/// ε, fixed or learned. The node's own row is multiplied by 1 + ε.
#[derive(Debug)]
pub(super) enum Epsilon {
    Fixed(f64),
    Learned(Var),
}

impl Epsilon {
    /// Creates the parameter `epsilon` if it is learned.
    pub(super) fn new(options: &KindOptions, params: &mut ParamBuilder) -> Result<Self> {
        Ok(match options.train_epsilon {
            true => Self::Learned(params.add("epsilon", &[1], Initial::Constant(options.epsilon))?),
            false => Self::Fixed(options.epsilon),
        })
    }

    /// `(1 + ε)·own`
    pub(super) fn scale(&self, own: &Tensor) -> Result<Tensor> {
        Ok(match self {
            Self::Fixed(epsilon) if *epsilon == 0.0 => own.clone(),
            Self::Fixed(epsilon) => (own * (1.0 + epsilon))?,
            Self::Learned(epsilon) => own.broadcast_mul(&(epsilon.as_tensor() + 1.0)?)?,
        })
    }
}

impl Gin {
    /// Creates the layer of `spec`, with parameters `mlp.0.weight`, `mlp.0.bias`, …, and `epsilon` if it is learned.
    ///
    /// # Errors
    /// When the perceptron has no layers, or the device is out of memory.
    pub fn new(spec: &LayerSpec, params: &mut ParamBuilder) -> Result<Self> {
        let LayerSpec { in_dim, out_dim, hidden, activation, ref options, .. } = *spec;
        if options.mlp_layers == 0 {
            return Err(Error::spec("mlp_layers", "is 0; use at least 1"));
        }
        let mlp = Perceptron::new(&Perceptron::dims(in_dim, hidden, out_dim, options.mlp_layers), activation, params)?;
        Ok(Self { in_dim, out_dim, epsilon: Epsilon::new(options, params)?, mlp })
    }
}

impl Layer for Gin {
    fn info(&self) -> LayerInfo {
        LayerInfo {
            hidden_dim: self.mlp.hidden_dim(),
            sends_input: true,
            row_independent: true,
            aggregation: Some(Aggregation::Sum),
            ..LayerInfo::new(self.in_dim, self.out_dim)
        }
    }

    fn aggregate(&self, pass: &Pass<'_>, sent: &Tensor, _: Option<&Tensor>) -> Result<Tensor> {
        Ok(segment_sum(pass.block, sent)?)
    }

    fn reduction(&self) -> Option<Reduce> {
        Some(Reduce::Sum)
    }

    fn apply_node(&self, _: &Pass<'_>, h_dst: &Tensor, aggregated: &Tensor) -> Result<Tensor> {
        self.mlp.forward(&(self.epsilon.scale(&widen(h_dst)?)? + aggregated)?, None, 0)
    }
}
