//! Node regression.

use std::fs::File;
use std::sync::Arc;

use crate::common::{TestDir, summary};
use arrow::array::{Array, ArrayRef, AsArray, Float32Array, Int64Array, ListArray, StringArray};
use arrow::datatypes::{Float32Type, Int64Type};
use gnnflow_data::rng::{Key, Purpose};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

const NODES: u64 = 800;
const EDGES: u64 = 6400;

/// Writes a dump whose labels are the mean of the first feature over a node's in-neighbors, plus a little noise. Every
/// ninth node is in no split.
fn dump(place: &TestDir) {
    let key = Key::new(8, Purpose::GenerateNodes);
    let ends: Vec<[u64; 2]> = (0..EDGES).map(|e| [0, 1].map(|side| key.fold(side).below(e, NODES))).collect();
    let feature = |v: u64, i: u64| key.fold(7).fold(v).normal(i);
    let label = |v: u64| {
        let sources: Vec<f64> = ends.iter().filter(|ends| ends[1] == v).map(|ends| feature(ends[0], 0)).collect();
        let mean = sources.iter().sum::<f64>() / sources.len().max(1) as f64;
        (3.0 * mean + 0.5 + 0.02 * key.fold(9).normal(v)) as f32
    };
    let split =
        |v: u64| (!v.is_multiple_of(9)).then(|| ["train", "train", "val", "test"][key.fold(5).below(v, 4) as usize]);
    let rows = (0..NODES).map(|v| Some((0..4).map(move |i| Some(key.fold(7).fold(v).normal(i) as f32))));
    let ids = |side: usize| Arc::new(Int64Array::from_iter_values(ends.iter().map(move |ends| ends[side] as i64)));
    place.write("nodes.parquet", "");
    place.parquet(
        "nodes.parquet",
        vec![
            ("node_id", Arc::new(Int64Array::from_iter_values(0..NODES as i64))),
            ("features", Arc::new(ListArray::from_iter_primitive::<Float32Type, _, _>(rows))),
            ("label", Arc::new(Float32Array::from_iter_values((0..NODES).map(label)))),
            ("split", Arc::new(StringArray::from_iter((0..NODES).map(split)))),
        ],
    );
    place.parquet("edges.parquet", vec![("src", ids(0)), ("dst", ids(1))]);
}

fn pipeline(place: &TestDir, train: &str) {
    let text = format!(
        "[graph]\nnodes = 'nodes.parquet'\nedges = 'edges.parquet'\nduplicates = 'keep'\n\
         [partition]\nmethod = 'random'\nparts = 4\n[model]\nkind = 'sage'\nhidden = 16\nlayers = 1\ndropout = 0.0\n\
         [train]\nepochs = 60\nbatch = 32\nhash_blocks = true\nfanouts = [-1]\n{train}\n[infer]\npredictions = true\n"
    );
    place.write("p.toml", text);
}

#[test]
fn regression_has_equal_bits_for_1_2_4_processes_and_correct_metrics() {
    let place = TestDir::new();
    dump(&place);
    pipeline(&place, "task = 'node-regression'\noptimizer = { lr = 0.03 }");
    let mut expected = None;
    for processes in ["1", "2", "4"] {
        let run = format!("run-{processes}");
        place.succeed(&["run", "p.toml", "--quiet", "--processes", processes, "--run-dir", &run]);
        let summary = summary(&place, &run);
        let text = |key: &str| summary[key].as_str().unwrap().to_owned();
        let metrics = |key: &str| summary["test"][key].as_f64().unwrap().to_bits();
        let found = (["model_sha256", "predictions_sha256"].map(text), ["rmse", "mae", "r2", "loss"].map(metrics));
        assert_eq!(&found, expected.get_or_insert_with(|| found.clone()), "{processes} processes");
    }
    let sage = summary(&place, "run-1");
    assert!(sage["test"]["r2"].as_f64().unwrap() > 0.9, "{}", sage["test"]);
    place.succeed(&["run", "p.toml", "--quiet", "--run-dir", "mlp", "--set", "model.kind=mlp"]);
    assert!(summary(&place, "mlp")["test"]["r2"].as_f64().unwrap() < 0.3, "labels depend on neighbors");

    // The metrics of the summary equal those computed from the predictions.
    let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(place.path("run-1/predictions.parquet")).unwrap());
    let (mut rows, mut nodes, mut squares, mut errors) = (0, 0.0, 0.0, 0.0);
    for batch in reader.unwrap().build().unwrap() {
        let batch = batch.unwrap();
        let column = |name: &str| batch.column_by_name(name).unwrap().clone();
        let (ids, splits) = (column("node_id"), column("split"));
        let (predictions, labels) = (column("prediction"), column("label"));
        rows += batch.num_rows();
        for row in 0..batch.num_rows() {
            assert_eq!(
                splits.as_string::<i32>().value(row) == "none",
                ids.as_primitive::<Int64Type>().value(row) % 9 == 0
            );
            assert!(labels.is_valid(row));
            let value = |column: &ArrayRef| f64::from(column.as_primitive::<Float32Type>().value(row));
            if splits.as_string::<i32>().value(row) == "test" {
                let error = value(&predictions) - value(&labels);
                (nodes, squares, errors) = (nodes + 1.0, squares + error * error, errors + error.abs());
            }
        }
    }
    let metric = |key: &str| sage["test"][key].as_f64().unwrap();
    assert_eq!(rows, NODES as usize);
    assert!(
        (metric("rmse") - f64::sqrt(squares / nodes)).abs() < 1e-9 && (metric("mae") - errors / nodes).abs() < 1e-9
    );
    assert!((metric("loss") - squares / nodes).abs() < 1e-9);
}

#[test]
fn labels_that_do_not_fit_the_task_are_refused() {
    let place = TestDir::new();
    dump(&place);
    pipeline(&place, "");
    let words = ["train.task:", "the labels are numbers", "use \"node-regression\""];
    place.fail(&["run", "p.toml", "--quiet", "--run-dir", "run"], 2, &words);
    crate::common::planted(&place, "q.toml", "[model]\n[train]\ntask = 'node-regression'\n");
    let words = ["q.toml:9: train.task:", "the labels are classes", "use \"node-classification\""];
    place.fail(&["run", "q.toml", "--quiet", "--run-dir", "run"], 2, &words);
}
