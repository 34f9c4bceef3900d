//! A decoupled GAT (NeutronTP, section 4.1) beside a program that knows nothing of slices, chunks or processes: dense matrices in double
//! precision, and gradients by hand. How often its rows move, what it leaves, and what is refused.

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Arc;

use crate::common::{Place, Rows, Weights, hashes, losses, succeed, weights};
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

/// Sources of each node's in-edges, each once, none of them itself; some nodes have none.
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

fn dump(place: &Place) {
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

fn pipeline(place: &Place, layers: usize, heads: usize) {
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

/// What a pass over the whole graph comes to: the loss of each split, gradients of the mean over training nodes.
struct Pass {
    loss: BTreeMap<&'static str, f64>,
    gradients: Weights,
}

/// The network as it is written down, one node and head after another.
fn pass(weights: &Weights, layers: usize, heads: usize) -> Pass {
    let map = |k: usize| &weights[&format!("mlp.{k}.weight")];
    let (source, destination) = (&weights["layers.0.source"], &weights["layers.0.destination"]);
    let last_bias = &weights[&format!("layers.{}.bias", layers - 1)][0];
    // x of every map, before and after its activation.
    let (mut inputs, mut before): (Vec<Rows>, Vec<Rows>) = (vec![features()], Vec::new());
    for k in 0..layers {
        let bias = weights.get(&format!("mlp.{k}.bias")).map(|bias| bias[0].clone());
        assert_eq!(bias.is_some(), k + 1 < layers, "the last map has no bias");
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
    // A node hears of itself, too.
    let edges: Vec<Vec<usize>> =
        in_edges().into_iter().enumerate().map(|(v, sources)| sources.into_iter().chain([v]).collect()).collect();
    let mut logits = vec![last_bias.clone(); NODES];
    let (mut alphas, mut slopes, mut steps) = (Vec::new(), Vec::new(), Vec::new());
    for h in 0..heads {
        let z = head(z, h);
        let [left, right] =
            [source, destination].map(|vectors| z.iter().map(|z| dot(z, &vectors[h])).collect::<Vec<_>>());
        let (mut alpha, mut slope) = (Vec::new(), Vec::new());
        for (v, sources) in edges.iter().enumerate() {
            let slopes: Vec<f64> = sources.iter().map(|&u| if left[u] + right[v] > 0.0 { 1.0 } else { 0.2 }).collect();
            let powers: Vec<f64> =
                sources.iter().zip(&slopes).map(|(&u, slope)| (slope * (left[u] + right[v])).exp()).collect();
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

    // The loss, and back.
    let softmax = |row: &Vec<f64>| -> Vec<f64> {
        let sum: f64 = row.iter().map(|x| x.exp()).sum();
        row.iter().map(|x| x.exp() / sum).collect()
    };
    let shares: Rows = logits.iter().map(softmax).collect();
    let of = |name: &str| -> Vec<usize> { (0..NODES).filter(|&v| split(v) == name).collect() };
    let mean = |name: &'static str| {
        let nodes = of(name);
        (name, nodes.iter().map(|&v| -shares[v][class(v)].ln()).sum::<f64>() / nodes.len() as f64)
    };
    let train = of("train");
    let mut back = vec![vec![0.0; CLASSES]; NODES];
    for &v in &train {
        for c in 0..CLASSES {
            back[v][c] = (shares[v][c] - f64::from(u8::from(c == class(v)))) / train.len() as f64;
        }
    }
    let mut gradients: Weights = weights
        .iter()
        .map(|(name, rows)| (name.clone(), rows.iter().map(|row| vec![0.0; row.len()]).collect()))
        .collect();
    let mut add = |name: &str, row: usize, values: &[f64]| {
        let place = &mut gradients.get_mut(name).unwrap()[row];
        place.iter_mut().zip(values).for_each(|(sum, x)| *sum += x);
    };
    back.iter().for_each(|row| add(&format!("layers.{}.bias", layers - 1), 0, row));
    let mut back_z = vec![vec![0.0; heads * CLASSES]; NODES];
    for h in 0..heads {
        let (alpha, propagated) = (&alphas[h], &steps[h]);
        let mut rows: Rows = back.iter().map(|row| row.iter().map(|x| x / heads as f64).collect()).collect();
        let mut back_alpha: Rows = alpha.iter().map(|row: &Vec<f64>| vec![0.0; row.len()]).collect();
        for k in (0..layers).rev() {
            let mut below = vec![vec![0.0; CLASSES]; NODES];
            for (v, sources) in edges.iter().enumerate() {
                for (e, &u) in sources.iter().enumerate() {
                    back_alpha[v][e] += dot(&rows[v], &propagated[k][u]);
                    (0..CLASSES).for_each(|c| below[u][c] += alpha[v][e] * rows[v][c]);
                }
            }
            rows = below;
        }
        let (mut left, mut right) = (vec![0.0; NODES], vec![0.0; NODES]);
        for (v, sources) in edges.iter().enumerate() {
            let mean = dot(&alpha[v], &back_alpha[v]);
            for (e, &u) in sources.iter().enumerate() {
                let logit = alpha[v][e] * (back_alpha[v][e] - mean) * slopes[h][v][e];
                left[u] += logit;
                right[v] += logit;
            }
        }
        for v in 0..NODES {
            for c in 0..CLASSES {
                back_z[v][h * CLASSES + c] = rows[v][c] + left[v] * source[h][c] + right[v] * destination[h][c];
            }
            let z = &propagated[0][v];
            add("layers.0.source", h, &z.iter().map(|z| left[v] * z).collect::<Vec<_>>());
            add("layers.0.destination", h, &z.iter().map(|z| right[v] * z).collect::<Vec<_>>());
        }
    }
    let mut back = back_z;
    for k in (0..layers).rev() {
        if k + 1 < layers {
            for (back, before) in back.iter_mut().zip(&before[k]) {
                back.iter_mut().zip(before).for_each(|(back, x)| *back *= if *x > 0.0 { 1.0 } else { x.exp() });
            }
            back.iter().for_each(|row| add(&format!("mlp.{k}.bias"), 0, row));
        }
        let mut below = vec![vec![0.0; inputs[k][0].len()]; NODES];
        for v in 0..NODES {
            for (i, &gradient) in back[v].iter().enumerate() {
                add(&format!("mlp.{k}.weight"), i, &inputs[k][v].iter().map(|x| gradient * x).collect::<Vec<_>>());
                below[v].iter_mut().zip(&map(k)[i]).for_each(|(sum, weight)| *sum += gradient * weight);
            }
        }
        back = below;
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
fn it_is_the_network_that_is_written_down() {
    let place = Place::new();
    dump(&place);
    for (layers, heads) in [(1, 2), (2, 1), (2, 4), (3, 1), (3, 4)] {
        pipeline(&place, layers, heads);
        // A step of no length: the weights that training begins with.
        succeed(&place, &["--set", "train.epochs=1", "--set", "train.optimizer.lr=1e-30"]);
        let mut found = weights(&place, "run");
        assert_eq!(found.len(), 2 * layers - 1 + 3, "{:?}", found.keys());
        // What is learned in the end, and what every epoch loses until then.
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
        let nodes = ["--set", "train.schedule.kind=full-graph"];
        let all = format!("train.fanouts=[{}]", vec!["-1"; layers].join(", "));
        let batches = ["--set", &all, "--set", "train.schedule=mini-batch", "--set", "train.batch=100000"];
        let chunks = ["--processes", "2", "--set", "train.schedule.chunk_memory=2KiB"];
        let ways: [(&[&str], bool); 6] = [
            (&[], true),
            (&["--processes", "2"], true),
            (&chunks, true),
            (if heads * CLASSES < 4 { &["--processes", "3"] } else { &["--processes", "4"] }, true),
            (&nodes, false),
            (&batches, false),
        ];
        for (way, by_columns) in ways {
            let summary = succeed(&place, way);
            let case = format!("{layers} layers, {heads} heads, {way:?}");
            if by_columns {
                assert_eq!(&hashes(&summary), one.get_or_insert_with(|| hashes(&summary)), "{case}");
            }
            for (epoch, (found, wanted)) in losses(&place).into_iter().zip(&expected).enumerate() {
                assert!((found / wanted - 1.0).abs() < 1e-5, "{case}: epoch {epoch} loses {found}, not {wanted}");
            }
            for (name, rows) in weights(&place, "run") {
                let pairs = rows.iter().flatten().zip(found[&name].iter().flatten());
                let most = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
                assert!(most < 1e-5, "{case}: {name} is off by {most:e}");
            }
            for split in ["train", "val", "test"] {
                let (found, wanted) = (summary[split]["loss"].as_f64().unwrap(), after.loss[split]);
                assert!((found / wanted - 1.0).abs() < 1e-5, "{case}: {split} loses {found}, not {wanted}");
            }
            assert_eq!(embedding_width(&place), heads * CLASSES, "{case}: terms of attention are no embedding");
        }
    }
}

fn embedding_width(place: &Place) -> usize {
    let file = File::open(place.path("run/embeddings.parquet")).unwrap();
    let mut reader = ParquetRecordBatchReaderBuilder::try_new(file).unwrap().build().unwrap();
    let batch = reader.next().unwrap().unwrap();
    let column = batch.column_by_name("embedding").unwrap();
    assert!(matches!(column.data_type(), DataType::FixedSizeList(..)));
    column.as_fixed_size_list().value_length() as usize
}

#[test]
fn it_takes_four_exchanges_however_many_layers_there_are() {
    let place = Place::new();
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
    assert!(bytes.iter().all(|&found| (found / bytes[0] - 1.0).abs() < 0.01), "rows alone: {bytes:?}");
}

/// What two processes send of gradients in an epoch: each sends the other's pieces of its own, and the sums of its pieces.
fn gradient_bytes(place: &Place) -> f64 {
    let numbers: usize = weights(place, "run").values().flatten().map(Vec::len).sum();
    2.0 * 4.0 * numbers as f64
}

#[test]
fn what_cannot_be_decoupled_is_refused() {
    let place = Place::new();
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
    // Heads are cut where there are fewer of them than processes, but columns are not.
    place.succeed(&["prepare", "p.toml", "--quiet"]);
    let place_of = ["--processes", "4", "--set", "model.output_heads=1"];
    place.fail(&[&["run", "p.toml", "--dry-run"], &place_of[..]].concat(), 2, &["cuts rows by columns", "at most 3"]);
}
