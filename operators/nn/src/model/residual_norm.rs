//! The residual connection and norm after a layer, before its activation.

use candle_core::{Tensor, Var};

use super::spec::Norm;
use crate::error::Result;
use crate::initial::Initial;
use crate::ops::{Moments, batch_norm, layer_norm, linear, widen};
use crate::params::ParamBuilder;

/// Added to variances, as in PyTorch.
const EPSILON: f64 = 1e-5;
/// The share of the running statistics that a step replaces, as in PyTorch.
const MOMENTUM: f64 = 0.1;

/// The residual connection and norm of a layer, both optional.
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
    /// Creates `residual.weight` if the widths differ, `norm.weight`, `norm.bias` and the running statistics.
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

    /// Returns `norm(z + residual(h))` for the layer's result `z` and the destinations' input rows `h`. In training,
    /// uses the batch's statistics and writes its sums into `sums` at the running statistics' positions.
    pub(super) fn apply(&self, z: Tensor, h: &Tensor, sums: Option<&mut [f32]>) -> Result<Tensor> {
        let z = match &self.residual {
            Residual::None => z,
            Residual::Identity => (z + widen(h)?)?,
            Residual::Projection(weight) => linear(h, weight, Some(&z))?,
        };
        self.norm.as_ref().map_or(Ok(z.clone()), |norm| norm.apply(&z, sums))
    }

    /// Whether the layer's result is returned unchanged.
    pub(super) fn is_identity(&self) -> bool {
        matches!(self.residual, Residual::None) && self.norm.is_none()
    }

    /// Returns the running statistics of a batch norm.
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
                running.record_sums(&moments, sums)?;
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

/// The running statistics of a batch norm: means, variances and the number of steps, adjacent in the buffers.
///
/// A batch contributes sums, so that those of partitions can be added: per column, of the differences from the running
/// mean and of their squares; and the number of rows. The differences are near 0, so squares lose no precision.
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

    /// Writes a batch's sums at the running statistics' positions among all buffers.
    fn record_sums(&self, moments: &Moments, sums: &mut [f32]) -> Result<()> {
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

    /// Moves the running statistics in `buffers` toward those of the batches with the given `sums`.
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
            // The sample variance, as in PyTorch.
            let unbiased = variance * rows / (rows - 1.0).max(1.0);
            buffers[c] = (f64::from(buffers[c]) + MOMENTUM * shift) as f32;
            let before = f64::from(buffers[width + c]);
            buffers[width + c] = (before + MOMENTUM * (unbiased - before)) as f32;
        }
        buffers[2 * width] += 1.0;
    }
}
