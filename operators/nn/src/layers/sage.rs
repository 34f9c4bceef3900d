//! GraphSAGE (Hamilton, Ying, Leskovec 2017) with the mean, GCN and max-pooling aggregators.

use candle_core::{DType, Tensor, Var};

use super::LayerSpec;
use super::{Aggregation, Layer, LayerInfo, Pass};
use crate::error::{Error, Result};
use crate::initial::Initial;
use crate::ops::{
    Aggregated, AggregatedProduct, Reduce, RowAggregation, activate, add_bias, bias_relu, linear, linear_relu, prefix,
    segment_max, segment_mean, weighted_sum,
};
use crate::params::ParamBuilder;
use gnnflow_kernels::dense::elementwise::{Activation, Dropout};

/// How [`Sage`] aggregates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aggregator {
    /// The mean of the neighbors, besides the node's own row. If the block has edge weights, the weighted sum instead.
    Mean,
    /// The mean of the neighbors and the node itself.
    Gcn,
    /// The maximum of each column of `relu(P·h + p)` over the neighbors, besides the node's own row.
    Pool,
}

impl Aggregator {
    /// Returns the aggregator named `mean`, `gcn` or `pool`.
    ///
    /// # Errors
    /// [`Error::Spec`] for any other name.
    pub fn named(name: &str) -> Result<Self> {
        match name {
            "mean" => Ok(Self::Mean),
            "gcn" => Ok(Self::Gcn),
            "pool" => Ok(Self::Pool),
            _ => Err(Error::spec("aggregator", format!("unknown name {name:?}; use \"mean\", \"gcn\" or \"pool\""))),
        }
    }
}

/// `W_self·h_i + W_neighbor·aggregate(h_j) + b`; the GCN aggregator has no `W_self`.
///
/// If the output is narrower than the input, `W_neighbor` is applied before the mean: narrow rows are cheaper to move.
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
    /// Creates the layer of `spec`: parameters `neighbor.weight`, `self.weight`, `pool.weight`, `pool.bias`, `bias`.
    ///
    /// # Errors
    /// When the aggregator is unknown or the device is out of memory.
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

    fn transforms_first(&self) -> bool {
        self.aggregator != Aggregator::Pool && self.in_dim > self.out_dim
    }
}

impl Layer for Sage {
    fn info(&self) -> LayerInfo {
        let aggregation = match self.aggregator {
            Aggregator::Mean => Aggregation::Mean,
            Aggregator::Gcn => Aggregation::MeanWithSelf,
            Aggregator::Pool => Aggregation::Max,
        };
        LayerInfo {
            sent_dim: if self.transforms_first() { self.out_dim } else { self.in_dim },
            reads_own: self.own.is_some(),
            sends_input: self.pool.is_none() && !self.transforms_first(),
            row_independent: true,
            aggregation: Some(aggregation),
            ..LayerInfo::new(self.in_dim, self.out_dim)
        }
    }

    fn send(&self, _: &Pass<'_>, h_src: &Tensor) -> Result<Tensor> {
        match &self.pool {
            Some((weight, bias)) => Ok(activate(&linear(h_src, weight, Some(bias))?, Activation::Relu, None)?),
            None if self.transforms_first() => Ok(linear(h_src, &self.neighbor, None)?),
            None => Ok(h_src.clone()),
        }
    }

    fn send_weight(&self) -> Option<&Var> {
        Some(&self.neighbor).filter(|_| self.transforms_first())
    }

    /// As the pieces. If possible, one product covers the own row and the mean: fewer, longer sums and no copied rows.
    fn forward(&self, pass: &Pass<'_>, h_src: &Tensor) -> Result<Tensor> {
        match self.product_of_aggregated(pass)? {
            Some(AggregatedProduct { aggregation, weight, bias }) => {
                Ok(Aggregated::new(&aggregation, h_src)?.linear(&weight, &bias)?)
            }
            None => {
                let aggregated = self.aggregate(pass, &self.send(pass, h_src)?, None)?;
                self.apply_node(pass, &prefix(h_src, pass.block.num_dst())?, &aggregated)
            }
        }
    }

    /// Concatenates `W_self` and `W_neighbor` by columns.
    fn product_of_aggregated(&self, pass: &Pass<'_>) -> Result<Option<AggregatedProduct>> {
        let is_weighted = pass.block.edge_weights().is_some();
        match &self.own {
            Some(own) if self.aggregator == Aggregator::Mean && !self.transforms_first() && !is_weighted => {
                let weight = Tensor::cat(&[own.as_tensor(), self.neighbor.as_tensor()], 1)?;
                let aggregation = RowAggregation::SelfAndMean(pass.block.clone());
                Ok(Some(AggregatedProduct { aggregation, weight, bias: self.bias.as_tensor().clone() }))
            }
            _ => Ok(None),
        }
    }

    fn reduction(&self) -> Option<Reduce> {
        (self.aggregator == Aggregator::Mean).then_some(Reduce::Mean)
    }

    fn forward_relu(&self, pass: &Pass<'_>, h_src: &Tensor, dropout: Option<Dropout>) -> Result<Tensor> {
        match self.product_of_aggregated(pass)? {
            Some(AggregatedProduct { aggregation, weight, bias }) => {
                Ok(Aggregated::new(&aggregation, h_src)?.linear_relu(&weight, &bias, dropout)?)
            }
            None => Ok(activate(&self.forward(pass, h_src)?, Activation::Relu, dropout)?),
        }
    }

    fn aggregate(&self, pass: &Pass<'_>, sent: &Tensor, _: Option<&Tensor>) -> Result<Tensor> {
        Ok(match self.aggregator {
            Aggregator::Mean => match pass.block.edge_weights() {
                Some(weights) => {
                    let dtype = if sent.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
                    let weights = Tensor::from_slice(weights, weights.len(), sent.device())?.to_dtype(dtype)?;
                    weighted_sum(pass.block, sent, &weights)?
                }
                None => segment_mean(pass.block, sent)?,
            },
            Aggregator::Gcn => segment_mean(pass.block.with_self_loops_on(sent.device())?, sent)?,
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

    fn apply_node_relu(
        &self,
        pass: &Pass<'_>,
        h_dst: &Tensor,
        aggregated: &Tensor,
        dropout: Option<Dropout>,
    ) -> Result<Tensor> {
        Ok(match (&self.own, self.transforms_first()) {
            (Some(own), true) => bias_relu(&linear(h_dst, own, Some(aggregated))?, &self.bias, dropout)?,
            (None, true) => bias_relu(aggregated, &self.bias, dropout)?,
            (Some(_), false) => activate(&self.apply_node(pass, h_dst, aggregated)?, Activation::Relu, dropout)?,
            (None, false) => linear_relu(aggregated, &self.neighbor, &self.bias, dropout)?,
        })
    }
}
