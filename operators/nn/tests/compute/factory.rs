//! Random blocks and numbers for tests.

use candle_core::{Device, Tensor};
use gnnflow_data::rng::{Key, Purpose};
use gnnflow_kernels::block::Block;

pub(crate) fn key(seed: u64) -> Key {
    Key::new(seed, Purpose::GenerateNodes)
}

/// Returns a block with degrees up to `max_degree` and repeated sources. Every fifth destination has no edge.
pub(crate) fn random(num_dst: usize, num_src: usize, max_degree: usize, seed: u64) -> Block {
    let key = key(seed);
    let (mut indptr, mut indices) = (vec![0u32], Vec::new());
    for i in 0..num_dst as u64 {
        let degree = if i % 5 == 4 { 0 } else { key.fold(i).below(0, max_degree as u64 + 1) };
        indices.extend((1..=degree).map(|d| key.fold(i).below(d, num_src as u64) as u32));
        indptr.push(indices.len() as u32);
    }
    Block::new(num_dst as u32, num_src as u32, indptr, indices)
}

/// Returns blocks of every shape that is likely to break a loop, with names.
pub(crate) fn shapes() -> Vec<(&'static str, Block)> {
    let star = Block::new(1, 600, vec![0, 600], (0..600).collect());
    let path = Block::new(5, 5, vec![0, 1, 2, 3, 4, 4], vec![1, 2, 3, 4]);
    vec![
        ("empty", Block::new(0, 0, vec![0], vec![])),
        ("no edges", Block::new(3, 4, vec![0; 4], vec![])),
        ("one node", Block::new(1, 1, vec![0, 0], vec![])),
        ("self loop", Block::new(2, 2, vec![0, 1, 2], vec![0, 1])),
        ("multi-edge", Block::new(2, 3, vec![0, 4, 5], vec![2, 2, 1, 2, 0])),
        ("star", star),
        ("path", path),
        ("random", random(37, 61, 9, 1)),
        ("more rows than a chunk", random(700, 900, 12, 2)),
    ]
}

/// Standard normal numbers.
pub(crate) fn normal(len: usize, seed: u64) -> Vec<f32> {
    (0..len as u64).map(|i| key(seed).normal(i) as f32).collect()
}

/// Standard normal numbers in `f64`.
pub(crate) fn normal64(len: usize, seed: u64) -> Vec<f64> {
    (0..len as u64).map(|i| key(seed).normal(i)).collect()
}

pub(crate) fn tensor(shape: (usize, usize), seed: u64) -> Tensor {
    Tensor::from_vec(normal(shape.0 * shape.1, seed), shape, &Device::Cpu).unwrap()
}

pub(crate) fn flat(t: &Tensor) -> Vec<f32> {
    t.flatten_all().unwrap().to_vec1().unwrap()
}
