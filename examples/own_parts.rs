//! A gnnflow with parts of one's own: a partitioner, a sampler and a layer, called by name in a pipeline file.
//!
//!     cargo run --release --example own_parts -- run pipeline.toml
//!
//! where the file says `partition.method = "stripes"`, `train.sampler = "nearest"` and `model.kind = "gin"`.

use candle_core::{Tensor, Var};
use gnnflow_data::partitioner::{Assignment, Goal, GraphStream, Partitioner};
use gnnflow_data::rng::Key;
use gnnflow_operators::compute::initial::Initial;
use gnnflow_operators::compute::{Layer, LayerSpec, ParamBuilder, Pass, Result, ops};
use gnnflow_operators::kernel::sample::Sampler;

/// Stripes of a hundred nodes, dealt out in turn.
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

/// The neighbours whose ids are nearest to the node's own: no randomness at all.
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

/// The graph isomorphism layer: a linear map of (1 + ε)·h + Σ neighbours, ε being learnt.
struct Gin {
    dims: (usize, usize),
    weight: Var,
    bias: Var,
    epsilon: Var,
}

impl Gin {
    fn new(spec: &LayerSpec, params: &mut ParamBuilder) -> Result<Self> {
        Ok(Gin {
            dims: (spec.in_dim, spec.out_dim),
            weight: params.add("weight", &[spec.out_dim, spec.in_dim], Initial::XavierUniform { gain: 1.0 })?,
            bias: params.add("bias", &[spec.out_dim], Initial::Zeros)?,
            epsilon: params.add("epsilon", &[1], Initial::Zeros)?,
        })
    }
}

impl Layer for Gin {
    fn in_dim(&self) -> usize {
        self.dims.0
    }
    fn out_dim(&self) -> usize {
        self.dims.1
    }
    fn aggregate(&self, pass: &Pass<'_>, sent: &Tensor, _: Option<&Tensor>) -> Result<Tensor> {
        Ok(ops::segment_sum(pass.block, sent)?)
    }
    fn apply_node(&self, _: &Pass<'_>, h_dst: &Tensor, aggregated: &Tensor) -> Result<Tensor> {
        let own = h_dst.broadcast_mul(&(self.epsilon.as_tensor() + 1.0)?)?;
        Ok(ops::linear(&(own + aggregated)?, &self.weight, Some(&self.bias))?)
    }
}

fn main() -> std::process::ExitCode {
    let app = gnnflow::App::new().partitioner(Stripes).sampler(Nearest);
    app.layer("gin", |spec, params| Ok(Box::new(Gin::new(spec, params)?))).main()
}
