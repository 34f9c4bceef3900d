//! A program with its own partitioner, sampler, operator and layer, which a pipeline file selects by name.
//!
//!     cargo run --release --example own_parts -- run examples/own_parts.toml
//!
//! The file has `partition.method = "stripes"`, `train.sampler = "nearest"`, `train.operators = ["mask"]` and
//! `model.kind = "graphconv"`.

use candle_core::{Tensor, Var};
use gnnflow::prelude::{MiniBatch, OperatorContext, StreamVec};
use gnnflow_data::partitioner::{Assignment, Goal, GraphStream, Partitioner};
use gnnflow_data::rng::Key;
use gnnflow_kernels::matrix::Values;
use gnnflow_kernels::sample::Sampler;
use gnnflow_nn::initial::Initial;
use gnnflow_nn::layers::Aggregation;
use gnnflow_nn::{Layer, LayerInfo, LayerSpec, ParamBuilder, Pass, Result, ops};
use timely::dataflow::operators::vec::Map;

/// Ranges of a hundred nodes, assigned to the parts round robin.
struct Stripes;

impl Partitioner for Stripes {
    fn name(&self) -> &str {
        "stripes"
    }
    fn assign(&self, _: &dyn GraphStream, goal: &Goal) -> gnnflow_data::Result<Assignment> {
        let parts = u64::from(goal.parts);
        Ok(Assignment::computed(move |node| (node / 100 % parts) as u32))
    }
}

/// A deterministic sampler: selects the neighbors with the nearest ids.
struct Nearest;

impl Sampler for Nearest {
    fn name(&self) -> &str {
        "nearest"
    }
    fn sample(&self, node: u32, neighbors: &[u32], _offset: u64, fanout: i64, _key: Key, out: &mut Vec<u32>) {
        let mut near = neighbors.to_vec();
        near.sort_by_key(|&neighbor| (neighbor.abs_diff(node), neighbor));
        near.truncate(usize::try_from(fanout).unwrap_or(usize::MAX));
        out.extend(near);
    }
}

/// The higher-order layer of Morris and others (2019): W₁·h + W₂·Σ neighbors + b.
struct GraphConv {
    dims: (usize, usize),
    own: Var,
    neighbor: Var,
    bias: Var,
}

impl GraphConv {
    fn new(spec: &LayerSpec, params: &mut ParamBuilder) -> Result<Self> {
        let (dims, xavier) = ((spec.in_dim, spec.out_dim), Initial::XavierUniform { gain: 1.0 });
        Ok(GraphConv {
            dims,
            own: params.add("own.weight", &[dims.1, dims.0], xavier)?,
            neighbor: params.add("neighbor.weight", &[dims.1, dims.0], xavier)?,
            bias: params.add("bias", &[dims.1], Initial::Zeros)?,
        })
    }
}

impl Layer for GraphConv {
    fn info(&self) -> LayerInfo {
        let info = LayerInfo::new(self.dims.0, self.dims.1);
        LayerInfo { aggregation: Some(Aggregation::Sum), ..info }
    }
    fn aggregate(&self, pass: &Pass<'_>, sent: &Tensor, _: Option<&Tensor>) -> Result<Tensor> {
        Ok(ops::segment_sum(pass.block, sent)?)
    }
    fn apply_node(&self, _: &Pass<'_>, h_dst: &Tensor, aggregated: &Tensor) -> Result<Tensor> {
        let own = ops::linear(h_dst, &self.own, Some(&self.bias))?;
        Ok(ops::linear(aggregated, &self.neighbor, Some(&own))?)
    }
}

/// An operator: sets the features of every tenth node to zero, those of other nodes in each epoch.
fn mask<'scope>(batches: StreamVec<'scope, u64, MiniBatch>, _: &OperatorContext) -> StreamVec<'scope, u64, MiniBatch> {
    batches.map(|mut batch: MiniBatch| {
        if let Values::F32(values) = &mut batch.features.values {
            for (node, row) in batch.nodes.iter().zip(values.chunks_mut(batch.features.dim)) {
                if (node + batch.key.epoch).is_multiple_of(10) {
                    row.fill(0.0);
                }
            }
        }
        batch
    })
}

fn main() -> std::process::ExitCode {
    let app = gnnflow::App::new().partitioner(Stripes).sampler(Nearest).operator("mask", mask);
    app.layer("graphconv", |spec, params| Ok(Box::new(GraphConv::new(spec, params)?))).main()
}
