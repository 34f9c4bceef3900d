//! Results have equal bits for any number of threads.

use candle_core::{Device, Tensor, Var};
use gnnflow_data::rng::{Key, Purpose};
use gnnflow_kernels::block::Block;
use gnnflow_nn::{GraphBlock, KindOptions, Model, ModelSpec, Norm, Registry, loss, ops};

use crate::factory::{flat, random, tensor};

/// Runs `f` on pools of 1, 2 and 5 threads and asserts equal bits.
fn assert_same_bits(what: &str, f: impl Fn() -> Vec<Vec<f32>> + Send + Sync) {
    let run = |threads| rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(&f);
    let bits = |out: Vec<Vec<f32>>| -> Vec<u32> { out.into_iter().flatten().map(f32::to_bits).collect() };
    let one = bits(run(1));
    for threads in [2, 5] {
        assert!(one == bits(run(threads)), "{what}: {threads} threads give other bits than 1");
    }
}

#[test]
fn linear_has_equal_bits_for_any_thread_count() {
    for (rows, k, columns) in
        [(1, 1, 1), (3, 100, 47), (511, 256, 256), (5000, 100, 64), (1024, 1433, 16), (20_000, 8, 3)]
    {
        let (x, w) = (tensor((rows, k), 1), tensor((columns, k), 2));
        let (b, probe) = (tensor((1, columns), 3).flatten_all().unwrap(), tensor((rows, columns), 4));
        assert_same_bits(&format!("linear {rows}×{k}×{columns}"), || {
            let vars = [&x, &w, &b].map(|t| Var::from_tensor(t).unwrap());
            let out = ops::linear(&vars[0], &vars[1], Some(&vars[2])).unwrap();
            let gradients = (&out * &probe).unwrap().sum_all().unwrap().backward().unwrap();
            let mut results = vec![flat(&out)];
            results.extend(vars.iter().map(|v| flat(gradients.get(v).unwrap())));
            results
        });
    }
}

#[test]
fn self_and_mean_equals_concatenation_for_any_thread_count() {
    let block = GraphBlock::new(random(1500, 4000, 12, 1));
    let x = tensor((4000, 37), 3);
    let probe = tensor((1500, 74), 4);
    assert_same_bits("self and mean", || {
        let x = Var::from_tensor(&x).unwrap();
        let both = ops::self_and_mean(&block, &x).unwrap();
        let gradients = (&both * &probe).unwrap().sum_all().unwrap().backward().unwrap();
        vec![flat(&both), flat(gradients.get(&x).unwrap())]
    });
    let both = ops::self_and_mean(&block, &x).unwrap();
    let apart = [ops::prefix(&x, 1500).unwrap(), ops::segment_mean(&block, &x).unwrap()];
    assert_eq!(flat(&both), flat(&Tensor::cat(&apart, 1).unwrap()));
}

#[test]
fn every_model_has_equal_bits_for_any_thread_count() {
    let typed = |block: Block| {
        let types = (0..block.num_edges() as u16).map(|e| e % 6).collect();
        block.with_edge_types(types)
    };
    let (outer, inner) = (typed(random(1500, 4000, 12, 1)), typed(random(300, 1500, 12, 2)));
    let x = tensor((4000, 40), 3);
    let labels: Vec<u32> = (0..300).map(|i| i % 7).collect();
    for (kind, aggregator) in [
        ("sage", "mean"),
        ("sage", "gcn"),
        ("sage", "pool"),
        ("gcn", ""),
        ("gat", ""),
        ("mlp", ""),
        ("gatv2", ""),
        ("gin", ""),
        ("sgc", ""),
        ("appnp", ""),
        ("rgcn", ""),
    ] {
        let spec = ModelSpec {
            heads: 4,
            output_heads: 2,
            input_dropout: 0.5,
            dropout: 0.5,
            residual: !matches!(kind, "sgc" | "appnp"),
            norm: match kind {
                "gatv2" | "sage" => Norm::Batch,
                "gin" | "rgcn" => Norm::Layer,
                _ => Norm::None,
            },
            options: KindOptions { aggregator: aggregator.to_owned(), relations: 6, ..KindOptions::default() },
            ..ModelSpec::new(kind, 2, 40, 32, 7)
        };
        let model = Model::build(&spec, &Registry::default(), &Device::Cpu, 5).unwrap();
        let degrees = vec![20; 4000];
        assert_same_bits(&format!("{kind} {aggregator}"), || {
            let blocks = [GraphBlock::new(outer.clone()), GraphBlock::new(inner.clone())];
            let key = Key::new(5, Purpose::Dropout).fold(1);
            let (logits, sums) = model.forward_with_sums(&blocks, &x, Some(&degrees), Some(key)).unwrap();
            let loss = loss::cross_entropy(&logits, &labels).unwrap();
            let mut gradients = vec![0.0; model.params().flat_len()];
            model.params().gradients(&loss.backward().unwrap(), &mut gradients).unwrap();
            assert!(gradients.iter().all(|g| g.is_finite()) && gradients.iter().any(|&g| g != 0.0));
            vec![flat(&logits), gradients, sums, vec![loss.to_scalar::<f64>().unwrap() as f32]]
        });
    }
}

#[test]
fn half_precision_features_equal_widened_ones() {
    let block = GraphBlock::new(random(300, 1500, 12, 2));
    let model = Model::build(&ModelSpec::new("sage", 1, 40, 8, 7), &Registry::default(), &Device::Cpu, 5).unwrap();
    let x = tensor((1500, 40), 3);
    for dtype in [candle_core::DType::BF16, candle_core::DType::F16] {
        let half: Tensor = x.to_dtype(dtype).unwrap();
        let wide = half.to_dtype(candle_core::DType::F32).unwrap();
        let run = |x: &Tensor| flat(&model.forward(std::slice::from_ref(&block), x, None, None).unwrap());
        assert_eq!(run(&half), run(&wide), "{dtype:?} is widened exactly");
    }
}
