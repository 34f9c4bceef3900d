//! Models as users meet them: shapes, randomness, errors, and that they learn.

use candle_core::{Device, Tensor};
use gnnflow_data::rng::{Key, Purpose};
use gnnflow_operators::block::Block;
use gnnflow_operators::compute::layers::gcn_weights;
use gnnflow_operators::compute::metrics::{Counts, Task};
use gnnflow_operators::compute::optimizer::{Adam, AdamOptions, Optimizer};
use gnnflow_operators::compute::{Error, GraphBlock, Model, ModelSpec, Registry, loss};

use crate::factory::{flat, key, random, tensor};

fn build(spec: &ModelSpec) -> Result<Model, Error> {
    Model::build(spec, &Registry::default(), &Device::Cpu, 1)
}

#[test]
fn dimensions_and_degrees() {
    let spec = ModelSpec { heads: 8, ..ModelSpec::new("gat", 3, 10, 64, 7) };
    let gat = build(&spec).unwrap();
    assert_eq!((gat.dims(), gat.num_layers(), gat.needs_degrees()), (vec![10, 64, 64, 7], 3, false));
    assert!(build(&ModelSpec::new("gcn", 1, 10, 64, 7)).unwrap().needs_degrees());
}

#[test]
fn what_cannot_be_built_says_why() {
    let why = |spec: &ModelSpec| build(spec).unwrap_err().to_string();
    assert!(why(&ModelSpec::new("transformer", 2, 3, 4, 5)).contains("gat, gcn, mlp, sage"));
    assert!(why(&ModelSpec { heads: 3, ..ModelSpec::new("gat", 2, 3, 4, 5) }).starts_with("heads: "));
    assert!(why(&ModelSpec { dropout: 1.0, ..ModelSpec::new("gcn", 2, 3, 4, 5) }).starts_with("dropout: "));
    assert!(why(&ModelSpec::new("gcn", 0, 3, 4, 5)).starts_with("layers: "));
    let lstm = ModelSpec { aggregator: "lstm".to_owned(), ..ModelSpec::new("sage", 2, 3, 4, 5) };
    assert!(why(&lstm).starts_with("aggregator: "));
}

#[test]
fn what_does_not_fit_says_so() {
    let block = GraphBlock::new(random(4, 9, 3, 1));
    let model = build(&ModelSpec::new("gcn", 1, 3, 4, 5)).unwrap();
    let run = |x: &Tensor, degrees: Option<&[u32]>| model.forward(std::slice::from_ref(&block), x, degrees, None);
    assert!(run(&tensor((9, 3), 1), Some(&[2; 9])).is_ok());
    for (x, degrees) in [(tensor((9, 3), 1), None), (tensor((9, 3), 1), Some(&[2; 8][..])), (tensor((8, 3), 1), None)] {
        assert!(matches!(run(&x, degrees), Err(Error::Input(_))));
    }
    assert!(model.forward(&[], &tensor((9, 3), 1), None, None).is_err());
    let logits = run(&tensor((9, 3), 1), Some(&[2; 9])).unwrap();
    assert!(loss::cross_entropy(&logits, &[0, 1, 2, 5]).unwrap_err().to_string().contains("label 5"));
    assert!(loss::cross_entropy(&logits, &[0, 1]).is_err());
}

#[test]
fn parameters_round_trip_and_depend_on_the_seed() {
    let spec = ModelSpec::new("sage", 2, 3, 4, 5);
    let mut model = build(&spec).unwrap();
    let mut values = vec![0.0; model.params().flat_len()];
    model.params().copy_to(&mut values).unwrap();
    let other = Model::build(&spec, &Registry::default(), &Device::Cpu, 2).unwrap();
    let mut others = values.clone();
    other.params().copy_to(&mut others).unwrap();
    assert_ne!(values, others);
    model.params_mut().set_from(&others).unwrap();
    model.params().copy_to(&mut values).unwrap();
    assert_eq!(values, others);
    // The layers see what was set.
    let block = GraphBlock::new(random(4, 9, 3, 1));
    let blocks = [GraphBlock::new(Block::new(9, 9, vec![0; 10], vec![])), block];
    let run = |model: &Model| flat(&model.forward(&blocks, &tensor((9, 3), 1), None, None).unwrap());
    assert_eq!(run(&model), run(&other));
    let names: Vec<String> = model.params().export().unwrap().into_iter().map(|p| p.name).collect();
    assert_eq!(names[..3], ["layers.0.self.weight", "layers.0.neighbor.weight", "layers.0.bias"]);
    assert!(model.params_mut().import("layers.0.bias", &[5], &[0.0; 5]).is_err());
    assert!(model.params_mut().import("layers.9.bias", &[4], &[0.0; 4]).is_err());
}

#[test]
fn dropout_follows_its_key() {
    let block = GraphBlock::new(random(40, 90, 6, 1));
    let spec = ModelSpec { dropout: 0.5, ..ModelSpec::new("gat", 1, 30, 8, 5) };
    let model = build(&spec).unwrap();
    let run = |key| flat(&model.forward(std::slice::from_ref(&block), &tensor((90, 30), 1), None, key).unwrap());
    let root = Key::new(1, Purpose::Dropout);
    assert_eq!(run(Some(root.fold(1))), run(Some(root.fold(1))));
    assert_ne!(run(Some(root.fold(1))), run(Some(root.fold(2))));
    assert_ne!(run(Some(root.fold(1))), run(None));
}

#[test]
fn sampled_gcn_weights_estimate_the_whole_sum() {
    // Node 0 has neighbours 1..=6 of degrees 0..6; the mean over all samples of 2 of them is the whole weighted sum.
    let degrees = [6, 0, 1, 2, 3, 4, 5];
    let value = |j: u32| f64::from(j) * 1.5 - 2.0;
    let sum = |neighbors: &[u32]| {
        let block = GraphBlock::new(Block::new(1, 7, vec![0, neighbors.len() as u32], neighbors.to_vec()));
        let weights = gcn_weights(&block, &degrees);
        let looped = block.with_self_loops().block().neighbors(0);
        looped.iter().zip(weights).map(|(&j, w)| f64::from(w) * value(j)).sum::<f64>()
    };
    let pairs: Vec<f64> = (1..=6).flat_map(|a| (a + 1..=6).map(move |b| (a, b))).map(|(a, b)| sum(&[a, b])).collect();
    let mean = pairs.iter().sum::<f64>() / pairs.len() as f64;
    assert!((mean - sum(&[1, 2, 3, 4, 5, 6])).abs() < 1e-5);
}

#[test]
fn self_loops_are_there_exactly_once() {
    let block = GraphBlock::new(Block::new(3, 4, vec![0, 2, 5, 5], vec![3, 0, 1, 0, 1]));
    let looped = block.with_self_loops().block();
    assert_eq!((looped.neighbors(0), looped.neighbors(1), looped.neighbors(2)), (&[0, 3][..], &[1, 0][..], &[2][..]));
    assert_eq!(gcn_weights(&block, &[1, 1, 0, 0])[..2], [0.5, (1f64 / 2f64.sqrt()) as f32]);
}

#[test]
fn every_kind_learns_what_its_neighbours_tell() {
    // The class of a node is written on its neighbours only; a node's own row is noise.
    let nodes = 400;
    let class = |i: u64| (key(1).below(i, 2)) as u32;
    let (mut indptr, mut indices) = (vec![0u32], Vec::new());
    for i in 0..nodes {
        let mut found = 0;
        for draw in 0.. {
            let j = key(2).fold(i).below(draw, nodes);
            if j != i && class(j) == class(i) {
                indices.push(j as u32);
                found += 1;
                if found == 5 {
                    break;
                }
            }
        }
        indptr.push(indices.len() as u32);
    }
    let block = GraphBlock::new(Block::new(nodes as u32, nodes as u32, indptr, indices));
    let mut x = vec![0f32; nodes as usize * 4];
    for i in 0..nodes {
        for c in 0..4u64 {
            let sign = if u64::from(class(i)) == c % 2 { 0.5 } else { 0.0 };
            x[(i * 4 + c) as usize] = (key(3).normal(i * 4 + c) + sign) as f32;
        }
    }
    let x = Tensor::from_vec(x, (nodes as usize, 4), &Device::Cpu).unwrap();
    let labels: Vec<u32> = (0..nodes).map(class).collect();
    let degrees = vec![5; nodes as usize];
    let accuracy = |kind: &str, aggregator: &str| {
        let spec = ModelSpec {
            aggregator: aggregator.to_owned(),
            heads: 2,
            dropout: 0.1,
            ..ModelSpec::new(kind, 2, 4, 16, 2)
        };
        let mut model = build(&spec).unwrap();
        let blocks = [block.clone(), block.clone()];
        let len = model.params().flat_len();
        let mut adam = Adam::new(len, AdamOptions { learning_rate: 0.02, ..Default::default() });
        let mut params = vec![0.0; len];
        model.params().copy_to(&mut params).unwrap();
        for step in 0..60 {
            let key = Key::new(1, Purpose::Dropout).fold(step);
            let logits = model.forward(&blocks, &x, Some(&degrees), Some(key)).unwrap();
            let store = loss::cross_entropy(&logits, &labels).unwrap().backward().unwrap();
            let mut gradient = vec![0.0; len];
            model.params().gradients(&store, &mut gradient).unwrap();
            gradient.iter_mut().for_each(|g| *g /= nodes as f32);
            adam.step(&mut params, &gradient);
            model.params_mut().set_from(&params).unwrap();
        }
        let mut counts = Counts::new(Task::SingleLabel, 2);
        counts.update_classes(&flat(&model.forward(&blocks, &x, Some(&degrees), None).unwrap()), &labels);
        counts.finish()["accuracy"]
    };
    let mlp = accuracy("mlp", "");
    assert!(mlp < 0.85, "the baseline sees {mlp} without edges");
    for (kind, aggregator) in [("sage", "mean"), ("sage", "gcn"), ("sage", "pool"), ("gcn", ""), ("gat", "")] {
        let found = accuracy(kind, aggregator);
        assert!(found > 0.93 && found > mlp, "{kind} {aggregator}: {found}, baseline {mlp}");
    }
}
