//! Jumping knowledge: joins the results of all layers and maps them to the model's result.

use candle_core::{Tensor, Var};

use super::spec::JumpingKnowledge;
use crate::error::{Error, Result};
use crate::initial::Initial;
use crate::ops::{activate, linear};
use crate::params::ParamBuilder;
use gnnflow_kernels::dense::elementwise::{Activation, Dropout};

/// A linear map of the joined results of all layers.
#[derive(Debug)]
pub(super) struct Readout {
    how: JumpingKnowledge,
    weight: Var,
    bias: Var,
}

impl Readout {
    /// Creates the parameters `readout.weight` and `readout.bias`. Returns `None` without jumping knowledge.
    pub(super) fn new(
        how: JumpingKnowledge,
        layers: usize,
        [hidden, out_dim]: [usize; 2],
        params: &mut ParamBuilder,
    ) -> Result<Option<Self>> {
        let width = match how {
            JumpingKnowledge::None => return Ok(None),
            JumpingKnowledge::Cat => layers * hidden,
            JumpingKnowledge::Max | JumpingKnowledge::Mean => hidden,
        };
        params.set_prefix("readout.");
        let weight = params.add("weight", &[out_dim, width], Initial::XavierUniform { gain: 1.0 })?;
        Ok(Some(Self { how, weight, bias: params.add("bias", &[out_dim], Initial::Zeros)? }))
    }

    pub(super) fn out_dim(&self) -> usize {
        self.bias.elem_count()
    }

    /// Returns the columns of the joined results.
    pub(super) fn width(&self) -> usize {
        self.weight.dims().last().copied().unwrap_or(0)
    }

    /// Maps the results of all layers, each `[N, hidden]`, to the model's result, `[N, out_dim]`.
    pub(super) fn apply(&self, results: &[Tensor], mask: Option<Dropout>) -> Result<Tensor> {
        let Some((first, others)) = results.split_first() else {
            return Err(Error::Input("jumping knowledge needs the results of at least one layer".to_owned()));
        };
        let joined = match self.how {
            JumpingKnowledge::Cat => Tensor::cat(results, 1)?,
            JumpingKnowledge::Max => others.iter().try_fold(first.clone(), |all, one| all.maximum(one))?,
            JumpingKnowledge::Mean | JumpingKnowledge::None => {
                let sum = others.iter().try_fold(first.clone(), |all, one| all + one)?;
                (sum * (1.0 / results.len() as f64))?
            }
        };
        Ok(linear(&activate(&joined, Activation::Identity, mask)?, &self.weight, Some(&self.bias))?)
    }
}
