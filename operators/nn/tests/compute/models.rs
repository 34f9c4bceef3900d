//! Models from a user's view: shapes, randomness, errors and learning.

use candle_core::{Device, Tensor};
use gnnflow_data::rng::{Key, Purpose};
use gnnflow_kernels::block::Block;
use gnnflow_kernels::dense::elementwise::{Activation, Dropout};
use gnnflow_nn::layers::{Gcn, Sage, gcn_weights};
use gnnflow_nn::metrics::{Bounds, Counts, Task};
use gnnflow_nn::model::{Reduction, StageRows};
use gnnflow_nn::ops::{Reduce, segment_mean, segment_sum};
use gnnflow_nn::optimizer::{Adam, AdamOptions, Optimizer};
use gnnflow_nn::{
    Error, GraphBlock, JumpingKnowledge, KindOptions, Layer, LayerInfo, Model, ModelSpec, Norm, Pass, Registry, loss,
    ops,
};

use crate::factory::{flat, key, random, tensor};

fn build(spec: &ModelSpec) -> Result<Model, Error> {
    Model::build(spec, &Registry::default(), &Device::Cpu, 1)
}

#[test]
fn model_properties_follow_the_spec() {
    let spec = ModelSpec { heads: 8, ..ModelSpec::new("gat", 3, 10, 64, 7) };
    let gat = build(&spec).unwrap();
    assert_eq!((gat.dims(), gat.num_layers(), gat.needs_degrees()), (vec![10, 64, 64, 7], 3, false));
    assert!(build(&ModelSpec::new("gcn", 1, 10, 64, 7)).unwrap().needs_degrees());
}

#[test]
fn build_with_invalid_spec_names_the_key() {
    let why = |spec: &ModelSpec| build(spec).unwrap_err().to_string();
    assert!(
        why(&ModelSpec::new("transformer", 2, 3, 4, 5))
            .contains("appnp, gat, gatv2, gcn, gin, gine, mlp, rgcn, sage, sgc")
    );
    assert!(why(&ModelSpec { heads: 3, ..ModelSpec::new("gat", 2, 3, 4, 5) }).starts_with("heads: "));
    assert!(why(&ModelSpec { dropout: 1.0, ..ModelSpec::new("gcn", 2, 3, 4, 5) }).starts_with("dropout: "));
    assert!(why(&ModelSpec { input_dropout: 1.0, ..ModelSpec::new("gcn", 2, 3, 4, 5) }).starts_with("input_dropout: "));
    assert!(why(&ModelSpec::new("gcn", 0, 3, 4, 5)).starts_with("layers: "));
    let lstm = ModelSpec {
        options: KindOptions { aggregator: "lstm".to_owned(), ..KindOptions::default() },
        ..ModelSpec::new("sage", 2, 3, 4, 5)
    };
    assert!(why(&lstm).starts_with("aggregator: "));
    assert!(why(&ModelSpec::new("rgcn", 2, 3, 4, 5)).starts_with("relations: "));
    assert!(why(&ModelSpec::new("gine", 2, 3, 4, 5)).starts_with("edge_dim: "));
    assert!(why(&ModelSpec { residual: true, ..ModelSpec::new("sgc", 2, 3, 4, 5) }).starts_with("residual: "));
    assert!(why(&ModelSpec { norm: Norm::Batch, ..ModelSpec::new("appnp", 2, 3, 4, 5) }).starts_with("norm: "));
    let teleport = KindOptions { teleport: 1.5, ..KindOptions::default() };
    assert!(why(&ModelSpec { options: teleport, ..ModelSpec::new("appnp", 2, 3, 4, 5) }).starts_with("teleport: "));
    let decoupled = |kind| ModelSpec { options: decoupled_options(), ..ModelSpec::new(kind, 2, 3, 4, 5) };
    assert!(why(&decoupled("gatv2")).starts_with("decoupled: "));
    assert!(why(&ModelSpec { residual: true, ..decoupled("gat") }).starts_with("residual: "));
    assert!(why(&ModelSpec { output_heads: 0, ..decoupled("gat") }).starts_with("output_heads: "));
    let gat = build(&ModelSpec { heads: 3, output_heads: 2, ..decoupled("gat") }).unwrap();
    assert_eq!((gat.dims(), gat.carried_dim()), (vec![10, 14, 5], 4));
}

/// Options of a decoupled model.
fn decoupled_options() -> KindOptions {
    KindOptions { decoupled: true, ..KindOptions::default() }
}

#[test]
fn forward_with_mismatched_input_is_an_error() {
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

/// A layer without [`Layer::product_of_aggregated`], which is never fused.
struct Unfused<L>(L);

impl<L: Layer> Layer for Unfused<L> {
    fn info(&self) -> LayerInfo {
        self.0.info()
    }

    fn send(&self, pass: &Pass<'_>, h_src: &Tensor) -> Result<Tensor, Error> {
        self.0.send(pass, h_src)
    }

    fn apply_edge(&self, pass: &Pass<'_>, h_dst: &Tensor, sent: &Tensor) -> Result<Option<Tensor>, Error> {
        self.0.apply_edge(pass, h_dst, sent)
    }

    fn aggregate(&self, pass: &Pass<'_>, sent: &Tensor, edges: Option<&Tensor>) -> Result<Tensor, Error> {
        self.0.aggregate(pass, sent, edges)
    }

    fn apply_node(&self, pass: &Pass<'_>, h_dst: &Tensor, aggregated: &Tensor) -> Result<Tensor, Error> {
        self.0.apply_node(pass, h_dst, aggregated)
    }

    fn forward(&self, pass: &Pass<'_>, h_src: &Tensor) -> Result<Tensor, Error> {
        self.0.forward(pass, h_src)
    }

    fn forward_relu(&self, pass: &Pass<'_>, h_src: &Tensor, dropout: Option<Dropout>) -> Result<Tensor, Error> {
        self.0.forward_relu(pass, h_src, dropout)
    }
}

#[test]
fn fused_layers_have_the_bits_of_separate_ones() {
    let mut registry = Registry::default();
    registry.register("unfused sage", |spec, params| Ok(Box::new(Unfused(Sage::new(spec, params)?))));
    registry.register("unfused gcn", |spec, params| Ok(Box::new(Unfused(Gcn::new(spec, params)?))));
    let plain = [random(700, 900, 4, 1), random(300, 700, 5, 2), random(40, 300, 6, 3)];
    let weighted = |at: usize| {
        let mut blocks = plain.clone();
        let weights = (0..blocks[at].indices().len()).map(|edge| edge as f32 * 0.01).collect();
        blocks[at] = blocks[at].clone().with_edge_weights(weights);
        blocks
    };
    let labels: Vec<u32> = (0..40).map(|node| node % 3).collect();
    let degrees: Vec<u32> = (0..900).map(|node| 4 + node % 9).collect();
    for blocks in [plain.clone(), weighted(0), weighted(1), weighted(2)] {
        // The last layer of the first spec can be fused, that of the second one transforms first, and the others are never fused.
        let wide = ModelSpec { dropout: 0.3, input_dropout: 0.2, ..ModelSpec::new("sage", 3, 5, 24, 30) };
        let specs = [
            wide.clone(),
            ModelSpec { out_dim: 3, ..wide.clone() },
            ModelSpec { residual: true, ..wide.clone() },
            ModelSpec { norm: Norm::Layer, ..wide.clone() },
            ModelSpec { jumping_knowledge: JumpingKnowledge::Cat, ..wide.clone() },
            ModelSpec { activation: Some(Activation::Elu), ..wide },
        ];
        for spec in specs {
            let all = |kind: &str| {
                let spec = ModelSpec { kind: kind.to_owned(), ..spec.clone() };
                let model = Model::build(&spec, &registry, &Device::Cpu, 1).unwrap();
                let blocks: Vec<_> = blocks.iter().cloned().map(GraphBlock::new).collect();
                let outputs = model.forward(&blocks, &tensor((900, 5), 4), Some(&degrees), Some(key(5))).unwrap();
                let loss = loss::cross_entropy(&outputs, &labels).unwrap();
                let mut gradients = vec![0.0; model.params().flat_len()];
                model.params().gradients(&loss.backward().unwrap(), &mut gradients).unwrap();
                (flat(&outputs), gradients)
            };
            for kind in ["sage", "gcn"] {
                assert_eq!(all(kind), all(&format!("unfused {kind}")), "{kind}: {spec:?}");
            }
        }
    }
}

#[test]
fn edge_weights_equal_parallel_edges() {
    // Node 0 has three edges from 2 and one from 3; node 1 has one from 3; node 2 has none.
    let many = GraphBlock::new(Block::new(3, 4, vec![0, 4, 5, 5], vec![2, 2, 2, 3, 3]));
    let few = Block::new(3, 4, vec![0, 2, 3, 3], vec![2, 3, 3]).with_edge_weights(vec![0.75, 0.25, 1.0]);
    for (inputs, outputs) in [(3, 5), (5, 3)] {
        let model = build(&ModelSpec::new("sage", 1, inputs, 4, outputs)).unwrap();
        let run = |block| flat(&model.forward(&[block], &tensor((4, inputs), 1), None, None).unwrap());
        let (expected, found) = (run(many.clone()), run(GraphBlock::new(few.clone())));
        assert_eq!(found.len(), expected.len());
        assert!(expected.iter().zip(&found).all(|(a, b)| (a - b).abs() < 1e-6), "{expected:?} {found:?}");
    }
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
    // The layers use the values that were set.
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
fn dropout_with_equal_keys_is_equal() {
    let block = GraphBlock::new(random(40, 90, 6, 1));
    let spec = ModelSpec { input_dropout: 0.5, ..ModelSpec::new("gat", 1, 30, 8, 5) };
    let model = build(&spec).unwrap();
    let run = |key| flat(&model.forward(std::slice::from_ref(&block), &tensor((90, 30), 1), None, key).unwrap());
    let root = Key::new(1, Purpose::Dropout);
    assert_eq!(run(Some(root.fold(1))), run(Some(root.fold(1))));
    assert_ne!(run(Some(root.fold(1))), run(Some(root.fold(2))));
    assert_ne!(run(Some(root.fold(1))), run(None));
}

#[test]
fn input_dropout_changes_the_features_and_dropout_the_later_inputs() {
    let blocks = [GraphBlock::new(random(40, 90, 6, 1)), GraphBlock::new(random(10, 40, 6, 2))];
    let key = Key::new(1, Purpose::Dropout);
    for kind in ["sage", "gcn", "mlp", "sgc", "appnp"] {
        let differs = |layers: usize, input_dropout: f64, dropout: f64| {
            let options = KindOptions { mlp_layers: layers, ..KindOptions::default() };
            let spec = ModelSpec { input_dropout, dropout, options, ..ModelSpec::new(kind, layers, 30, 8, 5) };
            let (model, blocks) = (build(&spec).unwrap(), &blocks[2 - layers..]);
            let (x, degrees) = (tensor((blocks[0].num_src(), 30), 1), vec![6; blocks[0].num_src()]);
            let run = |key| flat(&model.forward(blocks, &x, Some(&degrees), key).unwrap());
            run(Some(key)) != run(None)
        };
        assert!(!differs(2, 0.0, 0.0), "{kind}");
        // The one map of sgc reads the propagated features.
        assert_eq!([differs(1, 0.0, 0.5), differs(2, 0.0, 0.5)], [false, kind != "sgc"], "{kind}");
        assert_eq!([differs(1, 0.5, 0.0), differs(2, 0.5, 0.0)], [true; 2], "{kind}");
    }
}

#[test]
fn sampled_gcn_weights_are_unbiased() {
    // Node 0 has neighbors 1..=6 of degrees 0..6; the mean over all samples of 2 of them is the whole weighted sum.
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
fn with_self_loops_has_each_self_loop_once() {
    let block = GraphBlock::new(Block::new(3, 4, vec![0, 2, 5, 5], vec![3, 0, 1, 0, 1]));
    let looped = block.with_self_loops().block();
    assert_eq!((looped.neighbors(0), looped.neighbors(1), looped.neighbors(2)), (&[0, 3][..], &[1, 0][..], &[2][..]));
    assert_eq!(gcn_weights(&block, &[1, 1, 0, 0])[..2], [0.5, (1f64 / 2f64.sqrt()) as f32]);
}

#[test]
fn every_kind_learns_classes_from_neighbors() {
    // Only the neighbors' rows carry a node's class; its own row is noise.
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
            options: KindOptions {
                aggregator: aggregator.to_owned(),
                decoupled: aggregator == "decoupled",
                ..KindOptions::default()
            },
            heads: 2,
            input_dropout: 0.1,
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
        counts.finish(&Bounds::default())["accuracy"]
    };
    let mlp = accuracy("mlp", "");
    assert!(mlp < 0.85, "the baseline has accuracy {mlp} without edges");
    for (kind, aggregator) in [
        ("sage", "mean"),
        ("sage", "gcn"),
        ("sage", "pool"),
        ("gcn", ""),
        ("gat", ""),
        ("gatv2", ""),
        ("gin", ""),
        ("sgc", ""),
        ("appnp", ""),
        ("gat", "decoupled"),
    ] {
        let found = accuracy(kind, aggregator);
        assert!(found > 0.93 && found > mlp, "{kind} {aggregator}: {found}, baseline {mlp}");
    }
}

#[test]
fn rows_that_nodes_send_have_a_stage_if_they_differ_from_the_input() {
    // By stage: columns and edges. After them: the stage of the embeddings.
    type Stages = (Vec<(usize, bool)>, usize);
    let stages = |spec: &ModelSpec| -> Stages {
        let model = build(spec).unwrap();
        (model.stages().iter().map(|stage| (stage.width, stage.edges)).collect(), model.embedding_stage())
    };
    let of = |kind: &str, layers: usize| ModelSpec::new(kind, layers, 6, 8, 4);
    // The first layer widens its rows, so it sends its input.
    assert_eq!(stages(&of("sage", 2)), (vec![(8, true), (4, false), (4, true)], 0));
    assert_eq!(stages(&of("gcn", 3)), (vec![(8, true), (8, true), (4, false), (4, true)], 1));
    assert_eq!(stages(&of("gat", 2)), (vec![(8, false), (8, true), (4, false), (4, true)], 1));
    assert_eq!(stages(&of("gin", 2)), (vec![(8, true), (4, true)], 0));
    // The input of the only layer is the features, and its result is the embeddings.
    assert_eq!(stages(&of("gcn", 1)), (vec![(4, false), (4, true)], 1));
    assert_eq!(stages(&of("gin", 1)), (vec![(4, true)], 0));
    assert_eq!(stages(&of("appnp", 1)), (vec![(4, false), (4, true)], 0));
    let jumps = ModelSpec { jumping_knowledge: JumpingKnowledge::Cat, ..of("gat", 2) };
    assert_eq!(stages(&jumps), (vec![(8, false), (8, true), (8, false), (8, true), (4, false)], 3));
    // The first layer reads its own features besides the rows that it received.
    let own: Vec<_> = build(&of("gatv2", 2)).unwrap().stages().into_iter().map(|stage| stage.own).collect();
    assert_eq!(own, [vec![], vec![StageRows::Features], vec![], vec![StageRows::Of(1)]]);
}

#[test]
fn stages_equal_a_batch_with_all_neighbors() {
    // Two blocks with all neighbors of the entire graph: layer by layer for all nodes, or in one call for some.
    let whole = random(50, 50, 6, 3);
    let types = (0..whole.num_edges() as u16).map(|e| e % 3).collect();
    let whole = GraphBlock::new(whole.with_edge_types(types));
    let degrees: Vec<u32> = whole.block().indptr().windows(2).map(|w| w[1] - w[0]).collect();
    let (x, alone) = (tensor((50, 6), 1), GraphBlock::new(Block::new(50, 50, vec![0; 51], vec![])));
    let jumps = [JumpingKnowledge::None, JumpingKnowledge::Cat, JumpingKnowledge::Max, JumpingKnowledge::Mean];
    let bits = |t: &Tensor| flat(t).into_iter().map(f32::to_bits).collect::<Vec<_>>();
    let mut reductions = 0;
    for kind in ["sage", "gcn", "gat", "gatv2", "gin", "sgc", "rgcn", "appnp", "mlp", "gat, decoupled", "sage, plain"] {
        let decoupled = kind.ends_with("decoupled");
        let plain = matches!(kind, "sgc" | "appnp") || kind.contains(',');
        for jumping_knowledge in jumps.into_iter().filter(|&jump| !plain || jump == JumpingKnowledge::None) {
            let norm = if plain { Norm::None } else { Norm::Batch };
            let options =
                KindOptions { relations: 3, bases: Some(2), train_epsilon: true, decoupled, ..KindOptions::default() };
            let spec = ModelSpec {
                heads: 2,
                input_dropout: 0.5,
                dropout: 0.5,
                residual: !plain,
                norm,
                jumping_knowledge,
                options,
                output_heads: if decoupled { 2 } else { 1 },
                ..ModelSpec::new(kind.split(',').next().unwrap(), 3, 6, 8, 4)
            };
            let mut model = build(&spec).unwrap();
            // Running statistics that differ from their initial values.
            let mut params = vec![0.0; model.params().flat_len()];
            model.params().copy_to(&mut params).unwrap();
            let blocks = [whole.clone(), whole.clone(), whole.clone()];
            let key = Key::new(1, Purpose::Dropout);
            let (_, sums) = model.forward_with_sums(&blocks, &x, Some(&degrees), Some(key)).unwrap();
            let mut flat_sums = vec![0.0; model.params().trained_len()];
            flat_sums.extend(sums);
            model.absorb(&mut params, &flat_sums);
            model.params_mut().set_from(&params).unwrap();
            let at_once = model.forward(&blocks, &x, Some(&degrees), None).unwrap();
            let mut results: Vec<Tensor> = Vec::new();
            let stages = model.stages();
            for (stage, what) in stages.iter().enumerate() {
                let block = if what.edges { &whole } else { &alone };
                let own = what.own.iter().map(|own| match own {
                    StageRows::Features => x.clone(),
                    StageRows::Of(earlier) => results[*earlier].clone(),
                });
                let own: Vec<Tensor> = own.collect();
                let below = results.last().unwrap_or(&x).clone();
                let rows = model.forward_stage(stage, block, &below, Some(&degrees), &own).unwrap();
                assert_eq!(rows.dim(1).unwrap(), what.width, "{kind}: stage {stage}");
                if let Some(Reduction { reduce, own_first }) = what.reduction {
                    let reduced = match reduce {
                        Reduce::Sum => segment_sum(&whole, &below).unwrap(),
                        Reduce::Mean => segment_mean(&whole, &below).unwrap(),
                    };
                    let reduced = if own_first { Tensor::cat(&[&below, &reduced], 1).unwrap() } else { reduced };
                    let finished = model.finish_stage(stage, &reduced, &own).unwrap();
                    assert!(bits(&finished) == bits(&rows), "{kind} {jumping_knowledge:?}: stage {stage}");
                    reductions += 1;
                }
                results.push(rows);
            }
            assert!(bits(results.last().unwrap()) == bits(&at_once), "{kind} {jumping_knowledge:?}");
        }
    }
    assert!(reductions > 10, "{reductions} stages of sage and gin reduce rows");
}

#[test]
fn batch_from_reduced_rows_equals_one_from_rows() {
    let (outer, inner) = (GraphBlock::new(random(30, 50, 5, 1)), GraphBlock::new(random(20, 30, 4, 2)));
    let (blocks, x) = ([outer.clone(), inner], tensor((50, 6), 1));
    let reduced = Tensor::cat(&[&x.narrow(0, 0, 30).unwrap(), &segment_mean(&outer, &x).unwrap()], 1).unwrap();
    let key = Some(Key::new(1, Purpose::Dropout));
    let sage = || ModelSpec { dropout: 0.5, ..ModelSpec::new("sage", 2, 6, 8, 9) };
    let model = build(&sage()).unwrap();
    assert_eq!(model.first_reduction(), Some(Reduction { reduce: Reduce::Mean, own_first: true }));
    let (rows, _) = model.forward_with_sums(&blocks, &x, None, key).unwrap();
    let (from_reduced, _) = model.forward_reduced(&blocks, reduced.clone(), key).unwrap();
    assert_eq!(flat(&from_reduced), flat(&rows));
    let gradients = [&rows, &from_reduced].map(|rows| {
        let gradients = rows.sqr().unwrap().sum_all().unwrap().backward().unwrap();
        let mut values = vec![0.0; model.params().flat_len()];
        model.params().gradients(&gradients, &mut values).unwrap();
        values
    });
    assert!(gradients[0] == gradients[1] && gradients[0].iter().any(|&value| value != 0.0));
    assert!(model.forward_reduced(&blocks, reduced.narrow(0, 0, 29).unwrap(), key).is_err());
    // Weights of edges change the mean.
    let weighted = outer.block().clone().with_edge_weights(vec![0.5; outer.block().indices().len()]);
    assert!(model.forward_reduced(&[GraphBlock::new(weighted), blocks[1].clone()], reduced.clone(), key).is_err());
    // More than the reduction reads the input; or the layer multiplies it first.
    for spec in [
        ModelSpec { input_dropout: 0.1, ..sage() },
        ModelSpec { residual: true, ..sage() },
        ModelSpec { jumping_knowledge: JumpingKnowledge::Cat, ..sage() },
        ModelSpec { hidden: 5, ..sage() },
        ModelSpec::new("gcn", 2, 6, 8, 9),
        ModelSpec::new("gin", 2, 6, 8, 9),
    ] {
        let model = build(&spec).unwrap();
        assert_eq!(model.first_reduction(), None, "{spec:?}");
        assert!(model.forward_reduced(&blocks, reduced.clone(), key).is_err());
    }
}

#[test]
fn running_statistics_of_several_batches_equal_one_batch() {
    let spec = ModelSpec { norm: Norm::Batch, ..ModelSpec::new("mlp", 2, 5, 6, 3) };
    let model = build(&spec).unwrap();
    let x = (tensor((90, 5), 1) + 10.0).unwrap();
    let key = Some(Key::new(1, Purpose::Dropout));
    let sums = |first: usize, rows: usize| {
        let block = GraphBlock::new(Block::new(rows as u32, rows as u32, vec![0; rows + 1], vec![]));
        let x = x.narrow(0, first, rows).unwrap();
        model.forward_with_sums(&[block.clone(), block], &x, None, key).unwrap().1
    };
    let trained = model.params().trained_len();
    let moved = |sums: Vec<f32>| {
        let mut params = vec![0.0; model.params().flat_len()];
        model.params().copy_to(&mut params).unwrap();
        let flat_sums: Vec<f32> = vec![0.0; trained].into_iter().chain(sums).collect();
        model.absorb(&mut params, &flat_sums);
        params.split_off(trained)
    };
    let all = moved(sums(0, 90));
    let parts = [sums(0, 20), sums(20, 45), sums(65, 25)];
    let added = (0..parts[0].len()).map(|i| parts.iter().map(|part| part[i]).sum()).collect();
    for (one, several) in all.iter().zip(moved(added)) {
        assert!((one - several).abs() <= 1e-4 * one.abs().max(1.0), "{one} {several}");
    }
    assert!(moved(vec![0.0; parts[0].len()]).iter().all(|&x| x == 0.0 || x == 1.0), "unchanged without rows");
}

#[test]
fn relation_sums_agree_and_wrong_types_are_errors() {
    let (x, weights) = (tensor((900, 7), 1), tensor((9 * 5, 7), 2).reshape((9, 5, 7)).unwrap());
    let block = random(700, 900, 12, 2);
    let edges = block.num_edges();
    let typed = |types: Vec<u16>| GraphBlock::new(block.clone().with_edge_types(types));
    let block_of = typed((0..edges as u64).map(|e| key(4).below(e, 9) as u16).collect());
    let found = flat(&ops::relation_sum(&block_of, &x, &weights).unwrap());
    let wanted = flat(&ops::relation_sum_composed(&block_of, &x, &weights).unwrap());
    assert!(found.iter().zip(&wanted).all(|(f, w)| (f - w).abs() < 1e-4));
    let half = x.to_dtype(candle_core::DType::BF16).unwrap();
    let wide = half.to_dtype(candle_core::DType::F32).unwrap();
    let sum = |x: &Tensor| flat(&ops::relation_sum(&block_of, x, &weights).unwrap());
    assert_eq!(sum(&half), sum(&wide));
    // Mixing the aggregated rows, then the bases, equals mixing the bases first.
    let (coefficients, bases) = (tensor((9, 3), 3), tensor((3 * 5, 7), 4));
    let mixed = coefficients.matmul(&bases.reshape((3, 35)).unwrap()).unwrap().reshape((9, 5, 7)).unwrap();
    let wanted = flat(&ops::relation_sum(&block_of, &x, &mixed).unwrap());
    let side_by_side = bases.reshape((3, 5, 7)).unwrap().transpose(0, 1).unwrap().flatten_from(1).unwrap();
    let mix = |x: &Tensor| ops::relation_mix(&block_of, x, &coefficients).unwrap();
    let found = flat(&ops::linear(&mix(&x), &side_by_side, None).unwrap());
    assert!(found.iter().zip(&wanted).all(|(f, w)| (f - w).abs() < 1e-4));
    assert_eq!(flat(&mix(&half)), flat(&mix(&wide)));
    let options = KindOptions { relations: 9, ..KindOptions::default() };
    let model = build(&ModelSpec { options, ..ModelSpec::new("rgcn", 1, 7, 4, 5) }).unwrap();
    let why = |block| model.forward(&[block], &x, None, None).unwrap_err().to_string();
    assert!(why(typed(vec![9; edges])).contains("an edge has type 9, but R-GCN has 9 types"));
    assert!(why(GraphBlock::new(block.clone())).contains("R-GCN needs edge types, but the block has none"));
}

#[test]
fn rgcn_learns_from_edge_types_where_gcn_fails() {
    // Friends have the node's class, foes the other one, with as many edges of each type. Without edge types, neighbors
    // carry no information, and the node's own row is noise.
    let nodes = 400u64;
    let class = |i: u64| key(11).below(i, 2) as u32;
    let (mut indptr, mut indices, mut types) = (vec![0u32], Vec::new(), Vec::new());
    for i in 0..nodes {
        let draws = key(12).fold(i);
        for edge in 0..6u64 {
            let foe = edge % 2 == 1;
            let wanted = if foe { 1 - class(i) } else { class(i) };
            let mut tries = (0..).map(|draw| draws.fold(edge).below(draw, nodes));
            let j = tries.find(|&j| j != i && class(j) == wanted).expect("both classes have nodes");
            indices.push(j as u32);
            types.push(u16::from(foe));
        }
        indptr.push(indices.len() as u32);
    }
    let block = Block::new(nodes as u32, nodes as u32, indptr, indices).with_edge_types(types);
    let block = GraphBlock::new(block);
    let value = |i: u64, c: u64| {
        // A node's own features carry a signal that is too faint to classify it.
        let sign = if u64::from(class(i)) == c % 2 { 0.5 } else { 0.0 };
        (key(13).normal(i * 4 + c) + sign) as f32
    };
    let x: Vec<f32> = (0..nodes).flat_map(|i| (0..4).map(move |c| value(i, c))).collect();
    let x = Tensor::from_vec(x, (nodes as usize, 4), &Device::Cpu).unwrap();
    let labels: Vec<u32> = (0..nodes).map(class).collect();
    let (train, test): (Vec<u32>, Vec<u32>) = (0..nodes as u32).partition(|i| i % 2 == 0);
    let rows = |t: &Tensor, of: &[u32]| t.index_select(&Tensor::new(of, &Device::Cpu).unwrap(), 0).unwrap();
    let labels_of = |of: &[u32]| of.iter().map(|&i| labels[i as usize]).collect::<Vec<_>>();
    let degrees = vec![6; nodes as usize];
    let accuracy = |kind: &str, bases: Option<usize>| {
        let options = KindOptions { relations: 2, bases, ..KindOptions::default() };
        let mut model =
            build(&ModelSpec { options, input_dropout: 0.2, dropout: 0.2, ..ModelSpec::new(kind, 2, 4, 16, 2) })
                .unwrap();
        let blocks = [block.clone(), block.clone()];
        let len = model.params().flat_len();
        let mut adam = Adam::new(len, AdamOptions { learning_rate: 0.02, ..Default::default() });
        let mut params = vec![0.0; len];
        model.params().copy_to(&mut params).unwrap();
        for step in 0..60 {
            let key = Key::new(1, Purpose::Dropout).fold(step);
            let logits = model.forward(&blocks, &x, Some(&degrees), Some(key)).unwrap();
            let store = loss::cross_entropy(&rows(&logits, &train), &labels_of(&train)).unwrap().backward().unwrap();
            let mut gradient = vec![0.0; len];
            model.params().gradients(&store, &mut gradient).unwrap();
            gradient.iter_mut().for_each(|g| *g /= train.len() as f32);
            adam.step(&mut params, &gradient);
            model.params_mut().set_from(&params).unwrap();
        }
        let mut counts = Counts::new(Task::SingleLabel, 2);
        let logits = model.forward(&blocks, &x, Some(&degrees), None).unwrap();
        counts.update_classes(&flat(&rows(&logits, &test)), &labels_of(&test));
        counts.finish(&Bounds::default())["accuracy"]
    };
    let gcn = accuracy("gcn", None);
    for bases in [None, Some(2)] {
        let found = accuracy("rgcn", bases);
        assert!(found > 0.93 && found > gcn + 0.15, "rgcn, bases {bases:?}: {found}, gcn {gcn}");
    }
}

/// The gradient of the loss by the first layer's input, from which a step updates learned rows.
#[test]
fn input_gradients_equal_differences() {
    let types = |block: &Block, seed| (0..block.num_edges() as u64).map(|e| key(seed).below(e, 3) as u16).collect();
    let [outer, inner] = [random(20, 30, 5, 1), random(6, 20, 4, 2)];
    let blocks = [(outer, 5), (inner, 6)].map(|(block, seed)| {
        let (types, features) = (types(&block, seed), crate::factory::normal(block.num_edges() * 3, seed));
        GraphBlock::with_edge_features(block.with_edge_types(types), features, 3)
    });
    let start = crate::factory::normal(30 * 5, 3);
    let probe = crate::factory::normal(6 * 4, 4);
    for kind in Registry::default().names() {
        let spec = ModelSpec {
            heads: 2,
            activation: Some(gnnflow_kernels::dense::elementwise::Activation::Tanh),
            options: KindOptions {
                relations: 3,
                edge_dim: if ["gine", "gatv2"].contains(&kind) { 3 } else { 0 },
                ..KindOptions::default()
            },
            ..ModelSpec::new(kind, 2, 5, 8, 4)
        };
        let model = build(&spec).unwrap();
        let outputs = |x: &Tensor| model.forward(&blocks, x, Some(&[2; 30]), None).unwrap();
        let x = candle_core::Var::from_vec(start.clone(), (30, 5), &Device::Cpu).unwrap();
        let probes = Tensor::from_vec(probe.clone(), (6, 4), &Device::Cpu).unwrap();
        let gradients = (outputs(&x) * probes).unwrap().sum_all().unwrap().backward().unwrap();
        let gradient = flat(gradients.get(&x).unwrap_or_else(|| panic!("{kind}: no gradient")));
        for place in (0..start.len()).step_by(7) {
            let at = |step: f32| -> f64 {
                let mut moved = start.clone();
                moved[place] += step;
                let outputs = flat(&outputs(&Tensor::from_vec(moved, (30, 5), &Device::Cpu).unwrap()));
                outputs.iter().zip(&probe).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
            };
            let difference = (at(5e-3) - at(-5e-3)) / 1e-2;
            let error = (difference - f64::from(gradient[place])).abs() / (1.0 + difference.abs());
            assert!(error < 5e-3, "{kind}, place {place}: {} against {difference}", gradient[place]);
        }
    }
}
