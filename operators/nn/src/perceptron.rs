//! Linear maps with an activation between them, for GIN, APPNP and decoupled models.

use candle_core::{Tensor, Var};
use gnnflow_data::rng::Key;

use super::error::Result;
use super::initial::Initial;
use super::ops::{activate, linear};
use super::params::ParamBuilder;
use gnnflow_kernels::dense::elementwise::{Activation, Dropout};

/// The dropout of a [`Perceptron`].
#[derive(Clone, Copy, Debug)]
pub struct PerceptronDropout {
    /// The share of the first map's input to drop.
    pub input: f64,
    /// The share of the inputs of all later maps to drop.
    pub between: f64,
    /// The key of the masks.
    pub key: Key,
}

impl PerceptronDropout {
    /// Returns the mask of the input of map `index`; `None` if nothing is dropped.
    fn mask(&self, index: usize) -> Option<Dropout> {
        let share = if index == 0 { self.input } else { self.between };
        (share > 0.0).then(|| Dropout::new(share, self.key.fold(index as u64)))
    }
}

/// A multi-layer perceptron.
#[derive(Debug)]
pub struct Perceptron {
    maps: Vec<(Var, Option<Var>)>,
    activation: Activation,
}

impl Perceptron {
    /// Creates maps from `dims[0]` columns to `dims[1]`, and so on: parameters `mlp.0.weight`, `mlp.0.bias`, …
    ///
    /// # Errors
    /// When the device is out of memory.
    pub fn new(dims: &[usize], activation: Activation, params: &mut ParamBuilder) -> Result<Self> {
        Self::build(dims, true, activation, params)
    }

    /// As [`Perceptron::new`], without a bias in the last map, for results to which a later layer adds one.
    ///
    /// # Errors
    /// As [`Perceptron::new`].
    pub(crate) fn without_last_bias(dims: &[usize], activation: Activation, params: &mut ParamBuilder) -> Result<Self> {
        Self::build(dims, false, activation, params)
    }

    /// Returns the columns of the rows between its maps, together.
    pub(crate) fn hidden_dim(&self) -> usize {
        let inner = &self.maps[..self.maps.len().saturating_sub(1)];
        inner.iter().map(|(weight, _)| weight.dims()[0]).sum()
    }

    fn build(dims: &[usize], last_bias: bool, activation: Activation, params: &mut ParamBuilder) -> Result<Self> {
        let mut maps = Vec::with_capacity(dims.len().saturating_sub(1));
        for (k, w) in dims.windows(2).enumerate() {
            let weight = params.add(&format!("mlp.{k}.weight"), &[w[1], w[0]], Initial::XavierUniform { gain: 1.0 })?;
            let bias = match last_bias || k + 2 < dims.len() {
                true => Some(params.add(&format!("mlp.{k}.bias"), &[w[1]], Initial::Zeros)?),
                false => None,
            };
            maps.push((weight, bias));
        }
        Ok(Self { maps, activation })
    }

    /// Returns the dimensions of `layers` maps from `in_dim` to `out_dim`, with `hidden` columns in between.
    pub fn dims(in_dim: usize, hidden: usize, out_dim: usize, layers: usize) -> Vec<usize> {
        let between = std::iter::repeat_n(hidden, layers.saturating_sub(1));
        std::iter::once(in_dim).chain(between).chain([out_dim]).collect()
    }

    /// Applies all maps: `[N, dims[0]]` → `[N, last of dims]`. `first` is the number of rows before these in the masks.
    ///
    /// # Errors
    /// When shapes disagree or the device fails.
    pub fn forward(&self, x: &Tensor, dropout: Option<PerceptronDropout>, first: usize) -> Result<Tensor> {
        let mut h = x.clone();
        for (k, (weight, bias)) in self.maps.iter().enumerate() {
            let before = (first * weight.dim(1)?) as u64;
            let mask = dropout.and_then(|dropout| dropout.mask(k)).map(|mask| mask.behind(before));
            let activation = if k == 0 { Activation::Identity } else { self.activation };
            h = linear(&activate(&h, activation, mask)?, weight, bias.as_ref().map(Var::as_tensor))?;
        }
        Ok(h)
    }
}
