//! What stands behind a layer, before its activation: a residual connection, and a norm.

use candle_core::{Tensor, Var};

use super::spec::Norm;
use crate::error::Result;
use crate::initial::Initial;
use crate::ops::{Moments, batch_norm, layer_norm, linear, widen};
use crate::params::ParamBuilder;

/// Added to variances, as PyTorch does.
const EPSILON: f64 = 1e-5;
/// How much of the running statistics a step replaces, as in PyTorch.
const MOMENTUM: f64 = 0.1;

/// A layer's residual connection and norm, where it has them.
#[derive(Debug)]
pub(super) struct ResidualNorm {
    residual: Residual,
    norm: Option<NormLayer>,
}

#[derive(Debug)]
enum Residual {
    None,
    Identity,
    Projection(Var),
}

impl ResidualNorm {
    /// Parameters: `residual.weight` where widths differ; `norm.weight`, `norm.bias` and the running statistics.
    pub(super) fn new(dims: [usize; 2], residual: bool, norm: Norm, params: &mut ParamBuilder) -> Result<Self> {
        let [in_dim, out_dim] = dims;
        let residual = match residual {
            false => Residual::None,
            true if in_dim == out_dim => Residual::Identity,
            true => {
                let xavier = Initial::XavierUniform { gain: 1.0 };
                Residual::Projection(params.add("residual.weight", &[out_dim, in_dim], xavier)?)
            }
        };
        Ok(Self { residual, norm: NormLayer::new(norm, out_dim, params)? })
    }

    /// `norm(z + residual(h))`, for the layer's result `z` and what its destinations had, `h`. In training, batch statistics are
    /// used, and put where the running ones are among `sums`.
    pub(super) fn apply(&self, z: Tensor, h: &Tensor, sums: Option<&mut [f32]>) -> Result<Tensor> {
        let z = match &self.residual {
            Residual::None => z,
            Residual::Identity => (z + widen(h)?)?,
            Residual::Projection(weight) => linear(h, weight, Some(&z))?,
        };
        self.norm.as_ref().map_or(Ok(z.clone()), |norm| norm.apply(&z, sums))
    }

    /// Whether there is nothing: a layer's result is left as it is.
    pub(super) fn is_nothing(&self) -> bool {
        matches!(self.residual, Residual::None) && self.norm.is_none()
    }

    /// The running statistics of a batch norm.
    pub(super) fn running(&self) -> Option<&Running> {
        self.norm.as_ref().and_then(|norm| norm.running.as_ref())
    }
}

/// Batch norm, with running statistics, or layer norm.
#[derive(Debug)]
struct NormLayer {
    weight: Var,
    bias: Var,
    running: Option<Running>,
}

impl NormLayer {
    fn new(norm: Norm, width: usize, params: &mut ParamBuilder) -> Result<Option<Self>> {
        if norm == Norm::None {
            return Ok(None);
        }
        let weight = params.add("norm.weight", &[width], Initial::Constant(1.0))?;
        let bias = params.add("norm.bias", &[width], Initial::Zeros)?;
        let running = if norm == Norm::Batch { Some(Running::new(width, params)?) } else { None };
        Ok(Some(Self { weight, bias, running }))
    }

    fn apply(&self, z: &Tensor, sums: Option<&mut [f32]>) -> Result<Tensor> {
        let Some(running) = &self.running else { return Ok(layer_norm(z, &self.weight, &self.bias, EPSILON)?) };
        match sums {
            Some(sums) => {
                let (normed, moments) = batch_norm(z, &self.weight, &self.bias, EPSILON)?;
                running.tell(&moments, sums)?;
                Ok(normed)
            }
            None => {
                let scale =
                    (&self.weight.as_tensor().detach() / (running.variance.as_detached_tensor() + EPSILON)?.sqrt()?)?;
                let shift = (self.bias.as_detached_tensor() - (running.mean.as_detached_tensor() * &scale)?)?;
                Ok(z.broadcast_mul(&scale)?.broadcast_add(&shift)?)
            }
        }
    }
}

/// Running statistics: means, variances, and the number of steps that they are of, one behind the other among the buffers.
///
/// What a batch tells of itself are sums, so that those of several partitions can be added: of each column less its running
/// mean (near 0, so that squares lose nothing), of their squares, and the number of rows.
#[derive(Debug)]
pub(super) struct Running {
    mean: Var,
    variance: Var,
    begin: usize,
}

impl Running {
    fn new(width: usize, params: &mut ParamBuilder) -> Result<Self> {
        let (mean, begin) = params.add_buffer("norm.running_mean", &[width], 0.0)?;
        let (variance, _) = params.add_buffer("norm.running_var", &[width], 1.0)?;
        params.add_buffer("norm.steps", &[1], 0.0)?;
        Ok(Self { mean, variance, begin })
    }

    /// Puts a batch's sums where the running statistics are among all buffers.
    fn tell(&self, moments: &Moments, sums: &mut [f32]) -> Result<()> {
        let (width, rows) = (moments.mean.len(), moments.rows as f64);
        let running: Vec<f32> = self.mean.to_vec1()?;
        let sums = &mut sums[self.begin..][..2 * width + 1];
        for (c, running) in running.into_iter().enumerate() {
            let shifted = moments.mean[c] - f64::from(running);
            sums[c] = (rows * shifted) as f32;
            sums[width + c] = (rows * (moments.variance[c] + shifted * shifted)) as f32;
        }
        sums[2 * width] = moments.rows as f32;
        Ok(())
    }

    /// Moves the running statistics among `buffers` towards those of the batches whose sums are `sums`.
    pub(super) fn absorb(&self, buffers: &mut [f32], sums: &[f32]) {
        let width = self.mean.elem_count();
        let range = self.begin..self.begin + 2 * width + 1;
        let (buffers, sums) = (&mut buffers[range.clone()], &sums[range]);
        let rows = f64::from(sums[2 * width]);
        if rows == 0.0 {
            return;
        }
        for c in 0..width {
            let shift = f64::from(sums[c]) / rows;
            let variance = (f64::from(sums[width + c]) / rows - shift * shift).max(0.0);
            // Of a sample, as PyTorch does.
            let unbiased = variance * rows / (rows - 1.0).max(1.0);
            buffers[c] = (f64::from(buffers[c]) + MOMENTUM * shift) as f32;
            let before = f64::from(buffers[width + c]);
            buffers[width + c] = (before + MOMENTUM * (unbiased - before)) as f32;
        }
        buffers[2 * width] += 1.0;
    }
}
