//! Decoupled GAT (NeutronTP, section 4.1) compared with a reference in dense matrices with double precision and manual
//! gradients. Also the rounds per epoch and refused settings.

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Arc;

use crate::common::{Rows, TestDir, Weights, hashes, losses, succeed, weights};
use arrow::array::{AsArray, Int64Array, ListArray, StringArray};
use arrow::datatypes::{DataType, Float32Type};
use gnnflow_data::rng::{Key, Purpose};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde_json::Value;

const NODES: usize = 90;
const FEATURES: usize = 6;
const HIDDEN: usize = 8;
const CLASSES: usize = 3;
const RATE: f64 = 0.4;
const EPOCHS: usize = 5;

fn key(of: u64) -> Key {
    Key::new(11, Purpose::GenerateNodes).fold(of)
}

/// Returns the distinct sources of each node's in-edges, without self-loops. Some nodes have none.
fn in_edges() -> Vec<Vec<usize>> {
    let of = |v: usize| {
        let degree = if v % 10 == 3 { 0 } else { key(1).below(v as u64, 9) };
        let mut sources: Vec<usize> =
            (0..degree).map(|i| key(2).fold(v as u64).below(i, NODES as u64) as usize).filter(|&u| u != v).collect();
        sources.sort_unstable();
        sources.dedup();
        sources
    };
    (0..NODES).map(of).collect()
}

fn features() -> Rows {
    let feature = |v: usize, i: usize| f64::from(key(3).fold(v as u64).normal(i as u64) as f32);
    (0..NODES).map(|v| (0..FEATURES).map(|i| feature(v, i)).collect()).collect()
}

fn class(v: usize) -> usize {
    key(4).below(v as u64, CLASSES as u64) as usize
}

fn split(v: usize) -> &'static str {
    ["train", "train", "val", "test"][key(5).below(v as u64, 4) as usize]
}

fn dump(place: &TestDir) {
    let rows = features().into_iter().map(|row| Some(row.into_iter().map(|x| Some(x as f32))));
    place.parquet(
        "nodes.parquet",
        vec![
            ("node_id", Arc::new(Int64Array::from_iter_values(0..NODES as i64))),
            ("features", Arc::new(ListArray::from_iter_primitive::<Float32Type, _, _>(rows))),
            ("label", Arc::new(Int64Array::from_iter_values((0..NODES).map(|v| class(v) as i64)))),
            ("split", Arc::new(StringArray::from_iter_values((0..NODES).map(split)))),
        ],
    );
    let edges = in_edges();
    let pairs: Vec<[i64; 2]> =
        edges.iter().enumerate().flat_map(|(v, sources)| sources.iter().map(move |&u| [u as i64, v as i64])).collect();
    let ends = |side: usize| Arc::new(Int64Array::from_iter_values(pairs.iter().map(move |pair| pair[side])));
    place.parquet("edges.parquet", vec![("src", ends(0)), ("dst", ends(1))]);
}

fn pipeline(place: &TestDir, layers: usize, heads: usize) {
    let text = format!(
        "[graph]\nnodes = 'nodes.parquet'\nedges = 'edges.parquet'\n[partition]\nmethod = 'random'\nparts = 4\nout = 'dataset'\n\
         [model]\nkind = 'gat'\ndecoupled = true\nlayers = {layers}\nhidden = {HIDDEN}\noutput_heads = {heads}\ndropout = 0.0\n\
         [train]\nschedule.kind = 'tensor-parallel'\nepochs = {EPOCHS}\nevaluate_every = 0\nseed = 3\n\
         optimizer = {{ kind = 'sgd', lr = {RATE} }}\n[infer]\npredictions = true\nembeddings = true\n"
    );
    place.write("p.toml", text);
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// The result of a pass: the mean loss of each split, and gradients of the training loss.
struct Pass {
    loss: BTreeMap<&'static str, f64>,
    gradients: Weights,
}

/// Computes the network from its definition, one node and head after another.
fn pass(weights: &Weights, layers: usize, heads: usize) -> Pass {
    let map = |k: usize| &weights[&format!("mlp.{k}.weight")];
    let (source, destination) = (&weights["layers.0.source"], &weights["layers.0.destination"]);
    let last_bias = &weights[&format!("layers.{}.bias", layers - 1)][0];
    // Inputs of every linear layer, and its outputs before the activation.
    let (mut inputs, mut before): (Vec<Rows>, Vec<Rows>) = (vec![features()], Vec::new());
    for k in 0..layers {
        let bias = weights.get(&format!("mlp.{k}.bias")).map(|bias| bias[0].clone());
        assert_eq!(bias.is_some(), k + 1 < layers, "the last linear layer has no bias");
        let row = |x: &Vec<f64>| -> Vec<f64> {
            let sums = map(k).iter().map(|weights| dot(weights, x));
            sums.enumerate().map(|(i, sum)| sum + bias.as_ref().map_or(0.0, |bias| bias[i])).collect()
        };
        let made: Rows = inputs[k].iter().map(row).collect();
        let elu = |x: &f64| if *x > 0.0 { *x } else { x.exp_m1() };
        inputs.push(made.iter().map(|row| row.iter().map(elu).collect()).collect());
        before.push(made);
    }
    let z = &before[layers - 1];
    let head = |rows: &Rows, h: usize| -> Rows {
        rows.iter().map(|row| row[h * CLASSES..(h + 1) * CLASSES].to_vec()).collect()
    };
    // Every node has a self-loop.
    let edges: Vec<Vec<usize>> =
        in_edges().into_iter().enumerate().map(|(v, sources)| sources.into_iter().chain([v]).collect()).collect();
    let mut logits = vec![last_bias.clone(); NODES];
    let (mut alphas, mut slopes, mut steps) = (Vec::new(), Vec::new(), Vec::new());
    for h in 0..heads {
        let z = head(z, h);
        // Source and destination scores of every node.
        let [src, dst] = [source, destination].map(|vectors| z.iter().map(|z| dot(z, &vectors[h])).collect::<Vec<_>>());
        let (mut alpha, mut slope) = (Vec::new(), Vec::new());
        for (v, sources) in edges.iter().enumerate() {
            let slopes: Vec<f64> = sources.iter().map(|&u| if src[u] + dst[v] > 0.0 { 1.0 } else { 0.2 }).collect();
            let powers: Vec<f64> =
                sources.iter().zip(&slopes).map(|(&u, slope)| (slope * (src[u] + dst[v])).exp()).collect();
            let sum: f64 = powers.iter().sum();
            alpha.push(powers.into_iter().map(|power| power / sum).collect::<Vec<f64>>());
            slope.push(slopes);
        }
        let mut propagated = vec![z];
        for k in 0..layers {
            let sum = |(sources, alpha): (&Vec<usize>, &Vec<f64>)| -> Vec<f64> {
                (0..CLASSES).map(|c| sources.iter().zip(alpha).map(|(&u, a)| a * propagated[k][u][c]).sum()).collect()
            };
            let next = edges.iter().zip(&alpha).map(sum).collect();
            propagated.push(next);
        }
        for (logits, row) in logits.iter_mut().zip(&propagated[layers]) {
            logits.iter_mut().zip(row).for_each(|(logit, x)| *logit += x / heads as f64);
        }
        alphas.push(alpha);
        slopes.push(slope);
        steps.push(propagated);
    }

    // Loss and backward pass.
    let softmax = |row: &Vec<f64>| -> Vec<f64> {
        let sum: f64 = row.iter().map(|x| x.exp()).sum();
        row.iter().map(|x| x.exp() / sum).collect()
    };
    let probabilities: Rows = logits.iter().map(softmax).collect();
    let of = |name: &str| -> Vec<usize> { (0..NODES).filter(|&v| split(v) == name).collect() };
    let mean = |name: &'static str| {
        let nodes = of(name);
        (name, nodes.iter().map(|&v| -probabilities[v][class(v)].ln()).sum::<f64>() / nodes.len() as f64)
    };
    let train = of("train");
    let mut grad = vec![vec![0.0; CLASSES]; NODES];
    for &v in &train {
        for c in 0..CLASSES {
            grad[v][c] = (probabilities[v][c] - f64::from(u8::from(c == class(v)))) / train.len() as f64;
        }
    }
    let mut gradients: Weights = weights
        .iter()
        .map(|(name, rows)| (name.clone(), rows.iter().map(|row| vec![0.0; row.len()]).collect()))
        .collect();
    let mut add = |name: &str, row: usize, values: &[f64]| {
        let sums = &mut gradients.get_mut(name).unwrap()[row];
        sums.iter_mut().zip(values).for_each(|(sum, x)| *sum += x);
    };
    grad.iter().for_each(|row| add(&format!("layers.{}.bias", layers - 1), 0, row));
    let mut grad_z = vec![vec![0.0; heads * CLASSES]; NODES];
    for h in 0..heads {
        let (alpha, propagated) = (&alphas[h], &steps[h]);
        let mut rows: Rows = grad.iter().map(|row| row.iter().map(|x| x / heads as f64).collect()).collect();
        let mut grad_alpha: Rows = alpha.iter().map(|row: &Vec<f64>| vec![0.0; row.len()]).collect();
        for k in (0..layers).rev() {
            let mut below = vec![vec![0.0; CLASSES]; NODES];
            for (v, sources) in edges.iter().enumerate() {
                for (e, &u) in sources.iter().enumerate() {
                    grad_alpha[v][e] += dot(&rows[v], &propagated[k][u]);
                    (0..CLASSES).for_each(|c| below[u][c] += alpha[v][e] * rows[v][c]);
                }
            }
            rows = below;
        }
        let (mut grad_src, mut grad_dst) = (vec![0.0; NODES], vec![0.0; NODES]);
        for (v, sources) in edges.iter().enumerate() {
            let mean = dot(&alpha[v], &grad_alpha[v]);
            for (e, &u) in sources.iter().enumerate() {
                let logit = alpha[v][e] * (grad_alpha[v][e] - mean) * slopes[h][v][e];
                grad_src[u] += logit;
                grad_dst[v] += logit;
            }
        }
        for v in 0..NODES {
            for c in 0..CLASSES {
                grad_z[v][h * CLASSES + c] = rows[v][c] + grad_src[v] * source[h][c] + grad_dst[v] * destination[h][c];
            }
            let z = &propagated[0][v];
            add("layers.0.source", h, &z.iter().map(|z| grad_src[v] * z).collect::<Vec<_>>());
            add("layers.0.destination", h, &z.iter().map(|z| grad_dst[v] * z).collect::<Vec<_>>());
        }
    }
    let mut grad = grad_z;
    for k in (0..layers).rev() {
        if k + 1 < layers {
            for (grad, before) in grad.iter_mut().zip(&before[k]) {
                grad.iter_mut().zip(before).for_each(|(grad, x)| *grad *= if *x > 0.0 { 1.0 } else { x.exp() });
            }
            grad.iter().for_each(|row| add(&format!("mlp.{k}.bias"), 0, row));
        }
        let mut below = vec![vec![0.0; inputs[k][0].len()]; NODES];
        for v in 0..NODES {
            for (i, &gradient) in grad[v].iter().enumerate() {
                add(&format!("mlp.{k}.weight"), i, &inputs[k][v].iter().map(|x| gradient * x).collect::<Vec<_>>());
                below[v].iter_mut().zip(&map(k)[i]).for_each(|(sum, weight)| *sum += gradient * weight);
            }
        }
        grad = below;
    }
    Pass { loss: ["train", "val", "test"].into_iter().map(mean).collect(), gradients }
}

fn step(weights: &mut Weights, gradients: &Weights) {
    for (name, rows) in weights {
        for (row, gradient) in rows.iter_mut().zip(&gradients[name]) {
            row.iter_mut().zip(gradient).for_each(|(weight, x)| *weight -= RATE * x);
        }
    }
}

#[test]
fn training_matches_a_dense_reference() {
    let place = TestDir::new();
    dump(&place);
    for (layers, heads) in [(1, 2), (2, 1), (2, 4), (3, 1), (3, 4)] {
        pipeline(&place, layers, heads);
        // A learning rate near 0 leaves the initial weights.
        succeed(&place, &["--set", "train.epochs=1", "--set", "train.optimizer.lr=1e-30"]);
        let mut found = weights(&place, "run");
        assert_eq!(found.len(), 2 * layers - 1 + 3, "{:?}", found.keys());
        // The final weights, and the loss of every epoch.
        let mut expected = Vec::new();
        for _ in 0..EPOCHS {
            let Pass { loss, gradients } = pass(&found, layers, heads);
            assert!(gradients.values().flatten().flatten().any(|x| x.abs() > 1e-3));
            expected.push(loss["train"]);
            step(&mut found, &gradients);
        }
        assert!(expected[EPOCHS - 1] < expected[0], "{expected:?}");
        let after = pass(&found, layers, heads);
        let mut one = None;
        let full_graph = ["--set", "train.schedule.kind=full-graph"];
        let all = format!("train.fanouts=[{}]", vec!["-1"; layers].join(", "));
        let batches = ["--set", &all, "--set", "train.schedule=mini-batch", "--set", "train.batch=100000"];
        let chunks = ["--processes", "2", "--set", "train.schedule.chunk_memory=2KiB"];
        let variants: [(&[&str], bool); 6] = [
            (&[], true),
            (&["--processes", "2"], true),
            (&chunks, true),
            // One head has three columns, one per class: the fourth process has none.
            (&["--processes", "4"], true),
            (&full_graph, false),
            (&batches, false),
        ];
        for (args, tensor_parallel) in variants {
            let summary = succeed(&place, args);
            let case = format!("{layers} layers, {heads} heads, {args:?}");
            if tensor_parallel {
                assert_eq!(&hashes(&summary), one.get_or_insert_with(|| hashes(&summary)), "{case}");
            }
            for (epoch, (found, wanted)) in losses(&place).into_iter().zip(&expected).enumerate() {
                assert!((found / wanted - 1.0).abs() < 1e-5, "{case}: epoch {epoch} has loss {found}, not {wanted}");
            }
            for (name, rows) in weights(&place, "run") {
                let pairs = rows.iter().flatten().zip(found[&name].iter().flatten());
                let most = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
                assert!(most < 1e-5, "{case}: {name} is off by {most:e}");
            }
            for split in ["train", "val", "test"] {
                let (found, wanted) = (summary[split]["loss"].as_f64().unwrap(), after.loss[split]);
                assert!((found / wanted - 1.0).abs() < 1e-5, "{case}: {split} has loss {found}, not {wanted}");
            }
            assert_eq!(embedding_width(&place), heads * CLASSES, "{case}: embeddings exclude attention scores");
        }
    }
}

fn embedding_width(place: &TestDir) -> usize {
    let file = File::open(place.path("run/embeddings.parquet")).unwrap();
    let mut reader = ParquetRecordBatchReaderBuilder::try_new(file).unwrap().build().unwrap();
    let batch = reader.next().unwrap().unwrap();
    let column = batch.column_by_name("embedding").unwrap();
    assert!(matches!(column.data_type(), DataType::FixedSizeList(..)));
    column.as_fixed_size_list().value_length() as usize
}

#[test]
fn epoch_has_four_rounds_for_any_number_of_layers() {
    let place = TestDir::new();
    dump(&place);
    let mut bytes = Vec::new();
    for layers in [2, 3, 4] {
        pipeline(&place, layers, 4);
        let sets = ["--processes", "2", "--set", "partition.parts=2", "--set", "infer.embeddings=false"];
        let summary = succeed(&place, &sets);
        assert_eq!(summary["rounds_per_step"], 4.0, "{layers} layers");
        bytes.push(summary["bytes_per_step"].as_f64().unwrap() - gradient_bytes(&place));
        let plan: Value =
            serde_json::from_str(&place.succeed(&[&["run", "p.toml", "--dry-run", "--json"], &sets[..]].concat()))
                .unwrap();
        assert_eq!(plan["training"]["rounds_per_step"], 4, "{layers} layers");
        succeed(&place, &[&sets[..], &["--set", "model.decoupled=false", "--set", "model.heads=2"]].concat());
        assert_eq!(crate::common::summary(&place, "run")["rounds_per_step"], 4.0 * layers as f64, "{layers} layers");
    }
    assert!(bytes.iter().all(|&found| (found / bytes[0] - 1.0).abs() < 0.01), "bytes without gradients: {bytes:?}");
}

/// Returns the bytes of gradients that two processes send in an epoch: shards, and the sums of shards.
fn gradient_bytes(place: &TestDir) -> f64 {
    let numbers: usize = weights(place, "run").values().flatten().map(Vec::len).sum();
    2.0 * 4.0 * numbers as f64
}

#[test]
fn settings_that_cannot_be_decoupled_are_refused() {
    let place = TestDir::new();
    dump(&place);
    pipeline(&place, 2, 2);
    let refused = |sets: &[&str], words: &[&str]| {
        let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
        place.fail(&[&["run", "p.toml", "--dry-run"], &sets[..]].concat(), 2, words);
    };
    refused(&["model.heads=2"], &["model.heads", "output_heads", "`decoupled` to false"]);
    refused(&["model.residual=true"], &["model.residual", "`decoupled` to false"]);
    refused(&["model.norm=layer"], &["model.norm", "`decoupled` to false"]);
    let batches = ["train.schedule=mini-batch", "model.jumping_knowledge=cat"];
    refused(&batches, &["model.jumping_knowledge", "`decoupled` to false"]);
    refused(&["model.kind=gatv2"], &["model.decoupled", "`gatv2`", "use `gcn` or `gat`"]);
}
