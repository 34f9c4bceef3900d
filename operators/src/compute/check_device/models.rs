//! Whole models: what training runs, of which the operations are pieces.

use std::sync::Arc;

use candle_core::{Device, Tensor};
use gnnflow_data::rng::{Key, Purpose};

use super::cases::{numbers, random_block};
use crate::compute::error::Result;
use crate::compute::graph_block::GraphBlock;
use crate::compute::loss::cross_entropy;
use crate::compute::model::{Model, ModelSpec, Registry};

/// Names of results and their numbers.
pub(super) type Found = Vec<(String, Vec<f64>)>;

/// Models of every kind and aggregator.
pub(super) const KINDS: [(&str, &str, &str); 5] = [
    ("sage mean", "sage", "mean"),
    ("sage gcn", "sage", "gcn"),
    ("sage pool", "sage", "pool"),
    ("gcn", "gcn", "mean"),
    ("gat", "gat", "mean"),
];

const NODES: [u64; 3] = [900, 250, 60];
const CLASSES: usize = 7;

/// Two layers with dropout, forward and backward on a batch: logits, loss, gradients.
pub(super) fn run(kind: &str, aggregator: &str, device: &Device) -> Result<Found> {
    let mut spec = ModelSpec::new(kind, 2, 30, 32, CLASSES);
    spec.aggregator = aggregator.to_owned();
    spec.dropout = 0.3;
    (spec.heads, spec.output_heads) = if kind == "gat" { (4, 2) } else { (1, 1) };
    let model = Model::build(&spec, &Registry::default(), device, 5)?;

    let block = |layer: usize| {
        let key = Key::new(4, Purpose::Sample).fold(layer as u64);
        GraphBlock::new(random_block(key, NODES[layer + 1], NODES[layer], |i| key.below(1 << 20 | i, 9)))
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
        ("logits".to_owned(), super::numbers(&logits)?),
        ("loss".to_owned(), super::numbers(&loss)?),
        ("gradients".to_owned(), gradients),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_model_has_numbers_to_compare() -> Result<()> {
        for (name, kind, aggregator) in KINDS {
            for (of, numbers) in run(kind, aggregator, &Device::Cpu)? {
                let some = numbers.iter().any(|x| x.abs() > 1e-3);
                assert!(some && numbers.iter().all(|x| x.is_finite()), "{name}: {of}");
            }
        }
        Ok(())
    }
}
