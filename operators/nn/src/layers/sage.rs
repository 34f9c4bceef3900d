//! GraphSAGE (Hamilton, Ying, Leskovec 2017) with the mean, GCN and max-pooling aggregators.

use candle_core::{DType, Tensor, Var};

use super::{Aggregation, Layer, Pass};
use crate::error::{Error, Result};
use crate::initial::Initial;
use crate::model::LayerSpec;
use crate::ops::{
    activate, add_bias, linear, linear_relu, prefix, segment_max, segment_mean, self_and_mean, weighted_sum,
};
use crate::params::ParamBuilder;
use gnnflow_kernels::dense::elementwise::{Activation, Dropout};

/// How [`Sage`] aggregates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aggregator {
    /// The mean of the neighbors, beside the node's own row. Where a block brings weights along, which stand for the mean's: the
    /// sum by them.
    Mean,
    /// The mean of the neighbors and the node itself.
    Gcn,
    /// The largest of each column of `relu(P·h + p)` among the neighbors, beside the node's own row.
    Pool,
}

impl Aggregator {
    /// The aggregator called `mean`, `gcn` or `pool`.
    ///
    /// # Errors
    /// [`Error::Spec`] for any other name.
    pub fn named(name: &str) -> Result<Self> {
        match name {
            "mean" => Ok(Self::Mean),
            "gcn" => Ok(Self::Gcn),
            "pool" => Ok(Self::Pool),
            _ => Err(Error::spec("aggregator", format!("{name:?} is none of \"mean\", \"gcn\", \"pool\""))),
        }
    }
}

/// `W_self·h_i + W_neighbor·aggregate(h_j) + b`; the GCN aggregator has no `W_self`.
///
/// Where the rows get narrower, means are taken after `W_neighbor`: they are linear, and narrow rows are cheaper to move.
#[derive(Debug)]
pub struct Sage {
    in_dim: usize,
    out_dim: usize,
    aggregator: Aggregator,
    neighbor: Var,
    own: Option<Var>,
    pool: Option<(Var, Var)>,
    bias: Var,
}

impl Sage {
    /// The layer that `spec` describes: parameters `neighbor.weight`, `self.weight`, `pool.weight`, `pool.bias`, `bias`.
    ///
    /// # Errors
    /// When the aggregator is unknown or the device has no memory left.
    pub fn new(spec: &LayerSpec, params: &mut ParamBuilder) -> Result<Self> {
        let LayerSpec { in_dim, out_dim, .. } = *spec;
        let aggregator = Aggregator::named(&spec.options.aggregator)?;
        let xavier = Initial::XavierUniform { gain: std::f64::consts::SQRT_2 };
        let pool = match aggregator {
            Aggregator::Pool => Some((
                params.add("pool.weight", &[in_dim, in_dim], xavier)?,
                params.add("pool.bias", &[in_dim], Initial::Zeros)?,
            )),
            _ => None,
        };
        let own = match aggregator {
            Aggregator::Gcn => None,
            _ => Some(params.add("self.weight", &[out_dim, in_dim], xavier)?),
        };
        let neighbor = params.add("neighbor.weight", &[out_dim, in_dim], xavier)?;
        let bias = params.add("bias", &[out_dim], Initial::Zeros)?;
        Ok(Self { in_dim, out_dim, aggregator, neighbor, own, pool, bias })
    }

    /// The weights of a destination's own row, where that can stand beside its sources' mean.
    fn self_weight(&self, pass: &Pass<'_>) -> Option<&Var> {
        let is_weighted = pass.block.block().edge_weights().is_some();
        self.own.as_ref().filter(|_| self.aggregator == Aggregator::Mean && !self.transforms_first() && !is_weighted)
    }

    /// Weights of a destination's own row and, behind them, of its sources' mean.
    fn both(&self, own: &Var) -> Result<Tensor> {
        Ok(Tensor::cat(&[own.as_tensor(), self.neighbor.as_tensor()], 1)?)
    }

    fn transforms_first(&self) -> bool {
        self.aggregator != Aggregator::Pool && self.in_dim > self.out_dim
    }
}

impl Layer for Sage {
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
        match self.aggregator {
            Aggregator::Mean => Some(Aggregation::Mean),
            Aggregator::Gcn => Some(Aggregation::MeanWithSelf),
            Aggregator::Pool => Some(Aggregation::Max),
        }
    }

    fn sent_dim(&self) -> usize {
        if self.transforms_first() { self.out_dim } else { self.in_dim }
    }

    fn sends_as_held(&self) -> bool {
        self.pool.is_none() && !self.transforms_first()
    }

    fn reads_own(&self) -> bool {
        self.own.is_some()
    }

    fn send(&self, _: &Pass<'_>, h_src: &Tensor) -> Result<Tensor> {
        match &self.pool {
            Some((weight, bias)) => Ok(activate(&linear(h_src, weight, Some(bias))?, Activation::Relu, None)?),
            None if self.transforms_first() => Ok(linear(h_src, &self.neighbor, None)?),
            None => Ok(h_src.clone()),
        }
    }

    /// As the pieces do, but a mean that is transformed afterwards stands beside the node's own row, so that one product does
    /// for both: fewer and longer sums, and no rows copied.
    fn forward(&self, pass: &Pass<'_>, h_src: &Tensor) -> Result<Tensor> {
        match self.self_weight(pass) {
            Some(own) => Ok(linear(&self_and_mean(pass.block, h_src)?, &self.both(own)?, Some(&self.bias))?),
            None => {
                let aggregated = self.aggregate(pass, &self.send(pass, h_src)?, None)?;
                self.apply_node(pass, &prefix(h_src, pass.block.num_dst())?, &aggregated)
            }
        }
    }

    fn forward_relu(&self, pass: &Pass<'_>, h_src: &Tensor, dropout: Option<Dropout>) -> Result<Tensor> {
        match self.self_weight(pass) {
            Some(own) => Ok(linear_relu(&self_and_mean(pass.block, h_src)?, &self.both(own)?, &self.bias, dropout)?),
            None => Ok(activate(&self.forward(pass, h_src)?, Activation::Relu, dropout)?),
        }
    }

    fn aggregate(&self, pass: &Pass<'_>, sent: &Tensor, _: Option<&Tensor>) -> Result<Tensor> {
        Ok(match self.aggregator {
            Aggregator::Mean => match pass.block.block().edge_weights() {
                Some(weights) => {
                    let dtype = if sent.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
                    let weights = Tensor::from_slice(weights, weights.len(), sent.device())?.to_dtype(dtype)?;
                    weighted_sum(pass.block, sent, &weights)?
                }
                None => segment_mean(pass.block, sent)?,
            },
            Aggregator::Gcn => segment_mean(pass.block.with_self_loops(), sent)?,
            Aggregator::Pool => segment_max(pass.block, sent)?,
        })
    }

    fn apply_node(&self, _: &Pass<'_>, h_dst: &Tensor, aggregated: &Tensor) -> Result<Tensor> {
        Ok(match (&self.own, self.transforms_first()) {
            (Some(own), true) => add_bias(&linear(h_dst, own, Some(aggregated))?, &self.bias)?,
            (None, true) => add_bias(aggregated, &self.bias)?,
            (Some(own), false) => linear(aggregated, &self.neighbor, Some(&linear(h_dst, own, Some(&self.bias))?))?,
            (None, false) => linear(aggregated, &self.neighbor, Some(&self.bias))?,
        })
    }
}
