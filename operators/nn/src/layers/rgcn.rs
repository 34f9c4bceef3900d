//! The relational graph convolutional network (Schlichtkrull and others 2018) over typed edges.

use candle_core::{Tensor, Var};

use super::LayerSpec;
use super::{Aggregation, Layer, LayerInfo, Pass};
use crate::error::{Error, Result};
use crate::initial::Initial;
use crate::ops::{add_bias, linear, matmul, relation_mix, relation_sum};
use crate::params::ParamBuilder;

/// `W_0·h_i + Σ_r W_r·mean_{j ∈ N_r(i)} h_j + b`, over the relations r.
///
/// With bases, `W_r = Σ_b c_rb·V_b`, so that relations share parameters. The node itself is not among its neighbors.
#[derive(Debug)]
pub struct Rgcn {
    in_dim: usize,
    out_dim: usize,
    relations: usize,
    weights: Weights,
    root: Var,
    bias: Var,
}

#[derive(Debug)]
enum Weights {
    /// `[R, O, I]`
    Each(Var),
    /// `[R, B]` and `[B, O, I]`
    Mixed(Var, Var),
}

impl Rgcn {
    /// Creates the layer of `spec`, with parameters `weight`, or `coefficients` and `bases`; `root.weight`, `bias`.
    ///
    /// # Errors
    /// When there are no relations or no bases, or the device is out of memory.
    pub fn new(spec: &LayerSpec, params: &mut ParamBuilder) -> Result<Self> {
        let LayerSpec { in_dim, out_dim, ref options, .. } = *spec;
        let (relations, xavier) = (options.relations, Initial::XavierUniform { gain: 1.0 });
        if relations == 0 {
            return Err(Error::spec("relations", "R-GCN needs edge types; use a graph that has them"));
        }
        let weights = match options.bases {
            None => Weights::Each(params.add("weight", &[relations, out_dim, in_dim], xavier)?),
            Some(0) => return Err(Error::spec("num_bases", "is 0; use at least 1")),
            Some(bases) => Weights::Mixed(
                params.add("coefficients", &[relations, bases], xavier)?,
                params.add("bases", &[bases, out_dim, in_dim], xavier)?,
            ),
        };
        let root = params.add("root.weight", &[out_dim, in_dim], xavier)?;
        Ok(Self { in_dim, out_dim, relations, weights, root, bias: params.add("bias", &[out_dim], Initial::Zeros)? })
    }

    /// `[R, O, I]`
    fn weights(&self) -> Result<Tensor> {
        match &self.weights {
            Weights::Each(weights) => Ok(weights.as_tensor().clone()),
            Weights::Mixed(coefficients, bases) => {
                let mixed = matmul(coefficients, &bases.flatten_from(1)?)?;
                Ok(mixed.reshape((self.relations, self.out_dim, self.in_dim))?)
            }
        }
    }
}

impl Layer for Rgcn {
    fn info(&self) -> LayerInfo {
        LayerInfo {
            sends_input: true,
            row_independent: true,
            aggregation: Some(Aggregation::MeanByRelation { relations: self.relations }),
            ..LayerInfo::new(self.in_dim, self.out_dim)
        }
    }

    fn merge_aggregated(&self, aggregated: &Tensor) -> Result<Tensor> {
        // [R, O, I] as [O, R · I]: relations are concatenated, as in the aggregated rows.
        let weights = self.weights()?.transpose(0, 1)?.flatten_from(1)?.contiguous()?;
        Ok(matmul(aggregated, &weights.t()?.contiguous()?)?)
    }

    fn aggregate(&self, pass: &Pass<'_>, sent: &Tensor, _: Option<&Tensor>) -> Result<Tensor> {
        let types = pass.block.edge_types();
        let types = types.ok_or_else(|| Error::Input("R-GCN needs edge types, but the block has none".into()))?;
        if let Some(found) = types.iter().find(|&&found| usize::from(found) >= self.relations) {
            return Err(Error::Input(format!("an edge has type {found}, but R-GCN has {} types", self.relations)));
        }
        // With fewer bases than columns, mixing the aggregated rows costs less than mixing the matrices.
        match &self.weights {
            Weights::Mixed(coefficients, bases) if sent.device().is_cpu() && bases.dim(0)? < self.out_dim => {
                let mixed = relation_mix(pass.block, sent, coefficients)?;
                let all = bases.transpose(0, 1)?.flatten_from(1)?;
                Ok(linear(&mixed, &all, None)?)
            }
            _ => Ok(relation_sum(pass.block, sent, &self.weights()?)?),
        }
    }

    fn apply_node(&self, _: &Pass<'_>, h_dst: &Tensor, aggregated: &Tensor) -> Result<Tensor> {
        Ok(add_bias(&linear(h_dst, &self.root, Some(aggregated))?, &self.bias)?)
    }
}
