//! Layers, models, losses and optimizers against PyTorch, PyG and DGL: see ../golden/make_golden.py.

use std::collections::HashMap;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor, Var};
use gnnflow_data::rng::{Key, Purpose};
use gnnflow_kernels::block::Block;
use gnnflow_kernels::dense::elementwise::Activation;
use gnnflow_nn::layers::{Gat, Gatv2, Gcn, Gin, Gine, Rgcn, Sage};
use gnnflow_nn::model::StageRows;
use gnnflow_nn::optimizer::{Adam, AdamOptions, Optimizer, Sgd, SgdOptions};
use gnnflow_nn::{
    GraphBlock, JumpingKnowledge, KindOptions, Layer, LayerSpec, Model, ModelSpec, Norm, ParamBuilder, Params, Pass,
    Registry, Result, loss, ops,
};

use crate::factory::flat;

type Arrays = HashMap<String, Tensor>;

fn arrays() -> Arrays {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/golden.safetensors");
    candle_core::safetensors::load(path, &Device::Cpu).unwrap()
}

fn ints(arrays: &Arrays, name: &str) -> Vec<u32> {
    arrays[name].to_dtype(DType::U32).unwrap().to_vec1().unwrap()
}

fn block(arrays: &Arrays, name: &str, num_src: usize) -> Arc<GraphBlock> {
    let indptr = ints(arrays, &format!("{name}/indptr"));
    let num_dst = indptr.len() as u32 - 1;
    GraphBlock::new(Block::new(num_dst, num_src as u32, indptr, ints(arrays, &format!("{name}/indices"))))
}

/// Asserts equality within 1e-5 of the largest number (or of 1).
#[track_caller]
fn assert_close(what: &str, found: &Tensor, wanted: &Tensor) {
    let (found, wanted) = (flat(found), flat(wanted));
    assert_eq!(found.len(), wanted.len(), "{what}: size");
    let scale = wanted.iter().fold(1f32, |m, x| m.max(x.abs()));
    for (i, (f, w)) in found.iter().zip(&wanted).enumerate() {
        assert!((f - w).abs() <= 1e-5 * scale, "{what}[{i}]: {f}; expected {w} (scale {scale})");
    }
}

/// Imports the case's parameters. GAT's attention vectors have a leading dimension of 1 there.
fn import(arrays: &Arrays, case: &str, params: &mut Params) {
    let names: Vec<(String, Vec<usize>)> = params.iter().map(|(n, v)| (n.to_owned(), v.dims().to_vec())).collect();
    for (name, shape) in names {
        params.import(&name, &shape, &flat(&arrays[&format!("{case}/{name}")])).unwrap();
    }
}

fn check_layer(
    arrays: &Arrays,
    case: &str,
    block: &Arc<GraphBlock>,
    degrees: Option<&[u32]>,
    spec: LayerSpec,
    make: impl Fn(&LayerSpec, &mut ParamBuilder) -> Result<Box<dyn Layer>>,
) {
    let mut builder = ParamBuilder::new(1, &Device::Cpu);
    let layer = make(&spec, &mut builder).unwrap();
    let mut params = builder.finish();
    import(arrays, case, &mut params);
    let get = |name: &str| &arrays[&format!("{case}/{name}")];
    let x = Var::from_tensor(get("x")).unwrap();
    let out = layer.forward(&Pass { degrees, ..Pass::new(block) }, &x).unwrap();
    assert_close(&format!("{case}: output"), &out, get("out"));
    let gradients = (out * get("probe")).unwrap().sum_all().unwrap().backward().unwrap();
    assert_close(&format!("{case}: gradient of x"), gradients.get(&x).unwrap(), get("grad.x"));
    for (name, var) in params.iter() {
        assert_close(&format!("{case}: gradient of {name}"), gradients.get(var).unwrap(), get(&format!("grad.{name}")));
    }
}

fn spec(in_dim: usize, out_dim: usize) -> LayerSpec {
    LayerSpec::new(in_dim, out_dim)
}

const WIDTHS: [(&str, usize, usize); 2] = [("narrowing", 9, 5), ("widening", 5, 8)];

#[test]
fn sage_equals_pyg_and_dgl() {
    let arrays = arrays();
    let block = block(&arrays, "block", 45);
    for (width, input, output) in WIDTHS {
        for aggregator in ["mean", "gcn", "pool"] {
            let spec = LayerSpec {
                options: KindOptions { aggregator: aggregator.to_owned(), ..KindOptions::default() },
                ..spec(input, output)
            };
            let case = format!("sage-{aggregator}-{width}");
            check_layer(&arrays, &case, &block, None, spec, |s, p| Ok(Box::new(Sage::new(s, p)?)));
        }
    }
}

#[test]
fn gcn_equals_pyg() {
    let arrays = arrays();
    let block = block(&arrays, "square", 24);
    let degrees: Vec<u32> = block.block().indptr().windows(2).map(|w| w[1] - w[0]).collect();
    for (width, input, output) in WIDTHS {
        let make = |s: &LayerSpec, p: &mut ParamBuilder| -> Result<Box<dyn Layer>> { Ok(Box::new(Gcn::new(s, p)?)) };
        check_layer(&arrays, &format!("gcn-{width}"), &block, Some(&degrees), spec(input, output), make);
    }
}

/// Returns the block with edge features.
fn block_of_edges(arrays: &Arrays, name: &str, num_src: usize) -> Arc<GraphBlock> {
    let rows = &arrays[&format!("{name}/edges")];
    GraphBlock::with_edge_features(block(arrays, name, num_src).block().clone(), flat(rows), rows.dim(1).unwrap())
}

#[test]
fn gatv2_with_edges_equals_pyg() {
    let arrays = arrays();
    for (kind, concat, width) in [("concat", true, 12), ("mean", false, 4)] {
        let options = KindOptions { edge_dim: 3, ..KindOptions::default() };
        let spec = LayerSpec { heads: 3, last: !concat, options, ..spec(7, width) };
        for (suffix, name, sources) in [("", "square", 24), ("-bipartite", "block", 45)] {
            let block = block_of_edges(&arrays, name, sources);
            let case = format!("gatv2-edges-{kind}{suffix}");
            check_layer(&arrays, &case, &block, None, spec.clone(), |s, p| Ok(Box::new(Gatv2::new(s, p)?)));
        }
    }
}

#[test]
fn gine_equals_pyg() {
    let arrays = arrays();
    let block = block_of_edges(&arrays, "block", 45);
    for (kind, train_epsilon) in [("learnt", true), ("fixed", false)] {
        let options = KindOptions { epsilon: 0.3, train_epsilon, edge_dim: 3, ..KindOptions::default() };
        let spec = LayerSpec { hidden: 6, options, ..spec(9, 5) };
        check_layer(&arrays, &format!("gine-{kind}"), &block, None, spec, |s, p| Ok(Box::new(Gine::new(s, p)?)));
    }
}

#[test]
fn gat_equals_pyg() {
    let arrays = arrays();
    for (kind, concat, width) in [("concat", true, 12), ("mean", false, 4)] {
        let spec = LayerSpec { heads: 3, last: !concat, ..spec(7, width) };
        for (suffix, name, sources) in [("", "square", 24), ("-bipartite", "block", 45)] {
            let block = block(&arrays, name, sources);
            let case = format!("gat-{kind}{suffix}");
            check_layer(&arrays, &case, &block, None, spec.clone(), |s, p| Ok(Box::new(Gat::new(s, p)?)));
        }
    }
}

#[test]
fn two_layer_model_equals_pytorch() {
    let arrays = arrays();
    let blocks = [block(&arrays, "outer", 80), block(&arrays, "block", 45)];
    let mut model = Model::build(&ModelSpec::new("sage", 2, 9, 6, 4), &Registry::default(), &Device::Cpu, 1).unwrap();
    import(&arrays, "model", model.params_mut());
    let logits = model.forward(&blocks, &arrays["model/x"], None, None).unwrap();
    assert_close("logits", &logits, &arrays["model/logits"]);
    let loss = loss::cross_entropy(&logits, &ints(&arrays, "model/labels")).unwrap();
    assert_close("loss", &loss.to_dtype(DType::F32).unwrap(), &arrays["model/loss"]);
    let store = loss.backward().unwrap();
    let mut found = vec![0.0; model.params().flat_len()];
    model.params().gradients(&store, &mut found).unwrap();
    let wanted: Vec<f32> =
        model.params().iter().flat_map(|(name, _)| flat(&arrays[&format!("model/grad.{name}")])).collect();
    let as_tensor = |v: Vec<f32>| Tensor::from_vec(v, model.params().flat_len(), &Device::Cpu).unwrap();
    assert_close("gradients", &as_tensor(found), &as_tensor(wanted));
    // Inference stage by stage gives the same result.
    let (mut rows, mut blocks) = (vec![arrays["model/x"].clone()], blocks.iter());
    for (stage, what) in model.stages().into_iter().enumerate() {
        let below = rows.last().unwrap().clone();
        let sources = below.dim(0).unwrap();
        let alone = GraphBlock::new(Block::new(sources as u32, sources as u32, vec![0; sources + 1], vec![]));
        let block = if what.edges { blocks.next().unwrap() } else { &alone };
        let own = what.own.iter().map(|own| match own {
            StageRows::Features => &rows[0],
            StageRows::Of(earlier) => &rows[earlier + 1],
        });
        let own: Vec<Tensor> = own.map(|rows| rows.narrow(0, 0, block.num_dst()).unwrap()).collect();
        rows.push(model.forward_stage(stage, block, &below, None, &own).unwrap());
    }
    assert_eq!(flat(rows.last().unwrap()), flat(&logits));
}

#[test]
fn gatv2_equals_pyg() {
    let arrays = arrays();
    for (kind, last, width) in [("concat", false, 12), ("mean", true, 4)] {
        let spec = LayerSpec { heads: 3, last, ..spec(7, width) };
        for (suffix, name, sources) in [("", "square", 24), ("-bipartite", "block", 45)] {
            let block = block(&arrays, name, sources);
            let case = format!("gatv2-{kind}{suffix}");
            check_layer(&arrays, &case, &block, None, spec.clone(), |s, p| Ok(Box::new(Gatv2::new(s, p)?)));
        }
    }
}

#[test]
fn gin_equals_pyg() {
    let arrays = arrays();
    let block = block(&arrays, "block", 45);
    for (name, train_epsilon) in [("learnt", true), ("fixed", false)] {
        let options = KindOptions { epsilon: 0.3, train_epsilon, ..KindOptions::default() };
        let spec = LayerSpec { hidden: 6, options, ..spec(9, 5) };
        check_layer(&arrays, &format!("gin-{name}"), &block, None, spec, |s, p| Ok(Box::new(Gin::new(s, p)?)));
    }
}

#[test]
fn rgcn_equals_pyg_with_and_without_bases() {
    let arrays = arrays();
    let types: Vec<u16> = ints(&arrays, "block/types").iter().map(|&of| of as u16).collect();
    let block = GraphBlock::new(block(&arrays, "block", 45).block().clone().with_edge_types(types));
    for (name, bases) in [("each", None), ("bases", Some(3))] {
        let options = KindOptions { relations: 5, bases, ..KindOptions::default() };
        let spec = LayerSpec { options, ..spec(9, 6) };
        check_layer(&arrays, &format!("rgcn-{name}"), &block, None, spec, |s, p| Ok(Box::new(Rgcn::new(s, p)?)));
    }
}

/// A model over the square graph, every node a destination in every layer.
fn check_propagation(case: &str, spec: &ModelSpec) {
    let arrays = arrays();
    let block = block(&arrays, "square", 24);
    let degrees: Vec<u32> = block.block().indptr().windows(2).map(|w| w[1] - w[0]).collect();
    let mut model = Model::build(spec, &Registry::default(), &Device::Cpu, 1).unwrap();
    import(&arrays, case, model.params_mut());
    let get = |name: &str| &arrays[&format!("{case}/{name}")];
    let x = Var::from_tensor(get("x")).unwrap();
    let out = model.forward(&vec![block.clone(); spec.layers], &x, Some(&degrees), None).unwrap();
    assert_close(&format!("{case}: output"), &out, get("out"));
    let gradients = (&out * get("probe")).unwrap().sum_all().unwrap().backward().unwrap();
    assert_close(&format!("{case}: gradient of x"), gradients.get(&x).unwrap(), get("grad.x"));
    for (name, var) in model.params().iter() {
        assert_close(&format!("{case}: gradient of {name}"), gradients.get(var).unwrap(), get(&format!("grad.{name}")));
    }
}

#[test]
fn sgc_and_appnp_equal_pyg() {
    check_propagation("sgc", &ModelSpec::new("sgc", 3, 9, 1, 5));
    let options = KindOptions { teleport: 0.2, ..KindOptions::default() };
    check_propagation("appnp", &ModelSpec { options, ..ModelSpec::new("appnp", 3, 9, 6, 5) });
}

#[test]
fn norms_equal_pytorch() {
    let arrays = arrays();
    for case in ["batch-norm", "layer-norm"] {
        let get = |name: &str| &arrays[&format!("{case}/{name}")];
        let [x, weight, bias] = ["x", "weight", "bias"].map(|name| Var::from_tensor(get(name)).unwrap());
        let out = match case {
            "batch-norm" => ops::batch_norm(&x, &weight, &bias, 1e-5).unwrap().0,
            _ => ops::layer_norm(&x, &weight, &bias, 1e-5).unwrap(),
        };
        assert_close(case, &out, get("out"));
        let gradients = (out * get("probe")).unwrap().sum_all().unwrap().backward().unwrap();
        for (name, var) in [("x", &x), ("weight", &weight), ("bias", &bias)] {
            let wanted = get(&format!("grad.{name}"));
            assert_close(&format!("{case}: gradient of {name}"), gradients.get(var).unwrap(), wanted);
        }
    }
}

#[test]
fn activations_equal_pytorch() {
    let arrays = arrays();
    let functions = [
        ("relu", Activation::Relu),
        ("elu", Activation::Elu),
        ("leaky_relu", Activation::LeakyRelu(0.01)),
        ("tanh", Activation::Tanh),
        ("gelu", Activation::Gelu),
    ];
    for (name, function) in functions {
        let get = |what: &str| &arrays[&format!("activation-{name}/{what}")];
        let x = Var::from_tensor(get("x")).unwrap();
        let out = ops::activate(&x, function, None).unwrap();
        assert_close(name, &out, get("out"));
        let gradients = (out * get("probe")).unwrap().sum_all().unwrap().backward().unwrap();
        assert_close(&format!("{name}: gradient"), gradients.get(&x).unwrap(), get("grad.x"));
    }
}

#[test]
fn residuals_norms_and_readouts_in_training_equal_pytorch() {
    let arrays = arrays();
    let blocks = [block(&arrays, "outer", 80), block(&arrays, "block", 45)];
    let ways = [("cat", JumpingKnowledge::Cat), ("max", JumpingKnowledge::Max), ("mean", JumpingKnowledge::Mean)];
    for (name, jumping_knowledge) in ways {
        let case = format!("jumping-{name}");
        let get = |what: &str| &arrays[&format!("{case}/{what}")];
        let spec =
            ModelSpec { residual: true, norm: Norm::Batch, jumping_knowledge, ..ModelSpec::new("sage", 2, 9, 6, 4) };
        let mut model = Model::build(&spec, &Registry::default(), &Device::Cpu, 1).unwrap();
        let names: Vec<(String, Vec<usize>)> =
            model.params().iter().map(|(name, var)| (name.to_owned(), var.dims().to_vec())).collect();
        let is_buffer = |name: &str| name.contains("running") || name.contains("steps");
        for (name, shape) in names.iter().filter(|(name, _)| !is_buffer(name)) {
            model.params_mut().import(name, shape, &flat(get(name))).unwrap();
        }
        let key = Key::new(1, Purpose::Dropout);
        let (logits, sums) = model.forward_with_sums(&blocks, get("x"), None, Some(key)).unwrap();
        assert_close(&format!("{case}: logits"), &logits, get("logits"));
        let loss = loss::cross_entropy(&logits, &ints(&arrays, &format!("{case}/labels"))).unwrap();
        let store = loss.backward().unwrap();
        let trained = model.params().trained_len();
        let (mut found, mut wanted) = (Vec::new(), Vec::new());
        for (name, var) in model.params().iter().filter(|(name, _)| !is_buffer(name)) {
            let gradient = flat(store.get(var).unwrap());
            if name == "layers.0.bias" || name == "layers.1.bias" {
                // A norm removes a constant of all rows, so up to rounding these gradients are 0.
                assert!(gradient.iter().all(|g| g.abs() < 1e-4), "{case}: {name}");
            } else {
                found.extend(gradient);
                wanted.extend(flat(get(&format!("grad.{name}"))));
            }
        }
        let as_tensor = |v: Vec<f32>| Tensor::new(v, &Device::Cpu).unwrap();
        assert_close(&format!("{case}: gradients"), &as_tensor(found), &as_tensor(wanted));
        let mut params = vec![0.0; model.params().flat_len()];
        model.params().copy_to(&mut params).unwrap();
        let mut flat_sums = vec![0.0; trained];
        flat_sums.extend(sums);
        model.absorb(&mut params, &flat_sums);
        model.params_mut().set_from(&params).unwrap();
        for (name, var) in model.params().iter().filter(|(name, _)| name.contains("running")) {
            assert_close(&format!("{case}: {name}"), var, get(name));
        }
        assert_eq!(flat(model.params().get("layers.1.norm.steps").unwrap()), [1.0]);
    }
}

#[test]
fn losses_equal_pytorch() {
    let arrays = arrays();
    let check = |case: &str, loss: &dyn Fn(&Tensor) -> Tensor| {
        let logits = Var::from_tensor(&arrays[&format!("{case}/logits")]).unwrap();
        let loss = loss(&logits);
        assert_close(case, &loss.to_dtype(DType::F32).unwrap(), &arrays[&format!("{case}/loss")]);
        let gradients = loss.backward().unwrap();
        assert_close(&format!("{case}: gradient"), gradients.get(&logits).unwrap(), &arrays[&format!("{case}/grad")]);
    };
    let labels = ints(&arrays, "cross-entropy/labels");
    check("cross-entropy", &|logits| loss::cross_entropy(logits, &labels).unwrap());
    let targets = flat(&arrays["binary-cross-entropy/targets"]);
    check("binary-cross-entropy", &|logits| loss::binary_cross_entropy(logits, &targets).unwrap());
    let x = Var::from_tensor(&arrays["log-softmax/x"]).unwrap();
    let out = ops::log_softmax(&x).unwrap();
    assert_close("log-softmax", &out, &arrays["log-softmax/out"]);
    let gradients = (out * &arrays["log-softmax/probe"]).unwrap().sum_all().unwrap().backward().unwrap();
    assert_close("log-softmax: gradient", gradients.get(&x).unwrap(), &arrays["log-softmax/grad"]);
}

#[test]
fn optimizers_equal_pytorch_after_save_and_restore() {
    let arrays = arrays();
    let start = flat(&arrays["optimizers/start"]);
    let gradients: Vec<Vec<f32>> = arrays["optimizers/gradients"].to_vec2().unwrap();
    let sgd = |momentum, nesterov, weight_decay| -> Box<dyn Fn() -> Box<dyn Optimizer>> {
        Box::new(move || Box::new(Sgd::new(50, SgdOptions { learning_rate: 0.1, momentum, nesterov, weight_decay })))
    };
    let adam = |options: AdamOptions| -> Box<dyn Fn() -> Box<dyn Optimizer>> {
        Box::new(move || Box::new(Adam::new(50, options)))
    };
    let plain = AdamOptions { learning_rate: 0.01, weight_decay: 5e-4, ..Default::default() };
    let decoupled =
        AdamOptions { learning_rate: 0.01, beta1: 0.8, beta2: 0.99, epsilon: 1e-6, weight_decay: 0.1, decoupled: true };
    let makers = [
        ("sgd", sgd(0.0, false, 0.01)),
        ("sgd-momentum", sgd(0.9, false, 0.01)),
        ("sgd-nesterov", sgd(0.9, true, 0.0)),
        ("adam", adam(plain)),
        ("adamw", adam(decoupled)),
    ];
    for (name, make) in makers {
        let (mut optimizer, mut params) = (make(), start.clone());
        for (t, gradient) in gradients.iter().enumerate() {
            if t == 7 {
                let state = optimizer.state();
                optimizer = make();
                optimizer.load_state(state).unwrap();
            }
            optimizer.step(&mut params, gradient);
        }
        for (found, wanted) in params.iter().zip(flat(&arrays[&format!("optimizers/{name}")])) {
            assert!((found - wanted).abs() <= 1e-6 * wanted.abs().max(1.0), "{name}: {found}; expected {wanted}");
        }
    }
}

#[test]
fn load_state_of_another_optimizer_is_an_error() {
    let mut adam = Adam::new(3, AdamOptions::default());
    let sgd = Sgd::new(3, SgdOptions { momentum: 0.9, ..Default::default() });
    assert!(adam.load_state(sgd.state()).is_err());
    assert!(adam.load_state(Adam::new(4, AdamOptions::default()).state()).is_err());
}
