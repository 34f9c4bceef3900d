//! Whole models, forward and backward, as training runs them.

use std::sync::Arc;

use candle_core::{Device, Tensor};
use gnnflow_data::rng::{Key, Purpose};

use super::cases::{numbers, random_block};
use super::found::{self, Found};
use crate::error::Result;
use crate::graph_block::GraphBlock;
use crate::loss::cross_entropy;
use crate::model::{JumpingKnowledge, Model, ModelSpec, Norm, Registry};
use gnnflow_kernels::dense::elementwise::Activation;

/// Sets further fields of a model's spec.
pub(super) type Configure = fn(&mut ModelSpec);

/// Models of every kind and aggregator, with norms, residuals and readouts: names, kinds, further fields.
pub(super) const MODELS: [(&str, &str, Configure); 15] = [
    ("sage mean", "sage", |_| ()),
    ("sage gcn", "sage", |spec| spec.options.aggregator = "gcn".to_owned()),
    ("sage pool", "sage", |spec| spec.options.aggregator = "pool".to_owned()),
    ("gcn", "gcn", |_| ()),
    ("gat", "gat", heads),
    ("gat, decoupled", "gat", |spec| (spec.output_heads, spec.options.decoupled) = (2, true)),
    ("gatv2", "gatv2", heads),
    ("gin", "gin", |spec| spec.options.train_epsilon = true),
    ("sgc", "sgc", |_| ()),
    ("appnp", "appnp", |_| ()),
    ("rgcn", "rgcn", |_| ()),
    ("rgcn with bases", "rgcn", |spec| spec.options.bases = Some(2)),
    ("batch norm", "sage", |spec| (spec.norm, spec.residual) = (Norm::Batch, true)),
    ("layer norm", "gcn", |spec| (spec.norm, spec.activation) = (Norm::Layer, Some(Activation::Gelu))),
    ("jumping knowledge", "sage", |spec| {
        (spec.jumping_knowledge, spec.activation) = (JumpingKnowledge::Max, Some(Activation::Tanh));
    }),
];

/// The number of edge types.
const TYPES: u64 = 3;

fn heads(spec: &mut ModelSpec) {
    (spec.heads, spec.output_heads) = (4, 2);
}

const NODES: [u64; 3] = [900, 250, 60];
const CLASSES: usize = 7;

/// Runs two layers of `kind` with dropout and `configure` on a batch. Returns logits, loss and gradients.
pub(super) fn run(kind: &str, configure: Configure, device: &Device) -> Result<Found> {
    let mut spec = ModelSpec::new(kind, 2, 30, 32, CLASSES);
    (spec.input_dropout, spec.dropout, spec.options.relations) = (0.3, 0.3, TYPES as usize);
    configure(&mut spec);
    let model = Model::build(&spec, &Registry::default(), device, 5)?;

    let block = |layer: usize| {
        let key = Key::new(4, Purpose::Sample).fold(layer as u64);
        let block = random_block(key, NODES[layer + 1], NODES[layer], |i| key.below(1 << 20 | i, 9));
        let types = (0..block.num_edges() as u64).map(|e| key.fold(1).below(e, TYPES) as u16).collect();
        GraphBlock::new(block.with_edge_types(types))
    };
    let blocks: [Arc<GraphBlock>; 2] = [block(0), block(1)];
    let x = numbers("features", NODES[0] as usize * spec.in_dim);
    let x = Tensor::from_vec(x, (NODES[0] as usize, spec.in_dim), &Device::Cpu)?.to_device(device)?;
    let key = Key::new(6, Purpose::Init);
    let degrees: Vec<u32> = (0..NODES[0]).map(|i| key.below(i, 40) as u32).collect();
    let labels: Vec<u32> = (0..NODES[2]).map(|i| key.below(1 << 20 | i, CLASSES as u64) as u32).collect();

    let logits = model.forward(&blocks, &x, Some(&degrees), Some(Key::new(8, Purpose::Dropout)))?;
    let loss = cross_entropy(&logits, &labels)?;
    let mut gradients = vec![0f32; model.params().flat_len()];
    model.params().gradients(&loss.backward()?, &mut gradients)?;
    let gradients = gradients.into_iter().map(f64::from).collect();
    Ok(vec![
        ("logits".to_owned(), found::numbers(&logits)?),
        ("loss".to_owned(), found::numbers(&loss)?),
        ("gradients".to_owned(), gradients),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_model_gives_finite_nonzero_numbers() -> Result<()> {
        for (name, kind, configure) in MODELS {
            for (of, numbers) in run(kind, configure, &Device::Cpu)? {
                let some = numbers.iter().any(|x| x.abs() > 1e-3);
                assert!(some && numbers.iter().all(|x| x.is_finite()), "{name}: {of}");
            }
        }
        Ok(())
    }
}
