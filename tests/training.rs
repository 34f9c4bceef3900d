//! Accuracy of node classification, and the outputs of a run.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use crate::common::{TestDir, planted, summary};
use arrow::array::AsArray;
use arrow::datatypes::{Float32Type, Int64Type};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

/// Reads all rows of a Parquet file, as batches.
fn read(path: &Path) -> Vec<arrow::array::RecordBatch> {
    let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(path).unwrap()).unwrap();
    reader.build().unwrap().map(|batch| batch.unwrap()).collect()
}

/// Returns a column of integers by node id.
fn by_id(batches: &[arrow::array::RecordBatch], column: &str) -> BTreeMap<i64, i64> {
    let mut all = BTreeMap::new();
    for batch in batches {
        let ids = batch.column_by_name("node_id").unwrap().as_primitive::<Int64Type>();
        let values = batch.column_by_name(column).unwrap().as_primitive::<Int64Type>();
        for (id, value) in ids.values().iter().zip(values.values()) {
            assert!(all.insert(*id, *value).is_none(), "node {id} twice");
        }
    }
    all
}

#[test]
fn graph_models_beat_the_mlp_and_outputs_have_the_ids_of_the_user() {
    let place = TestDir::new();
    let settings = "[model]\nkind = 'sage'\n[train]\nepochs = 50\nbatch = 64\nfanouts = [10, 10]\n";
    planted(&place, "p.toml", settings);
    let kinds = ["sage", "gcn", "gat", "gatv2", "gin", "sgc", "appnp", "mlp"];
    for run in kinds {
        let kind = format!("model.kind={run}");
        let mut args = vec!["run", "p.toml", "--quiet", "--run-dir", run, "--set", &kind];
        if run != "sgc" {
            args.extend(["--set", "model.hidden=32"]);
        }
        if run == "gin" {
            // Its sums are larger over all neighbors than over those that training samples.
            args.extend(["--set", "model.norm=layer"]);
        }
        let ended = place.run(&args);
        assert_eq!(ended.code, 0, "{}", ended.stderr);
    }
    let accuracy = |run| summary(&place, run)["test"]["accuracy"].as_f64().unwrap();
    for run in kinds.into_iter().filter(|&kind| kind != "mlp") {
        let more = if run == "gin" { 0.05 } else { 0.1 };
        assert!(accuracy(run) > accuracy("mlp") + more, "{run} {}, mlp {}", accuracy(run), accuracy("mlp"));
    }

    let (dump, run) = (read(&place.path("graph/nodes.parquet")), place.path("sage"));
    let predictions = read(&run.join("predictions.parquet"));
    assert_eq!(by_id(&predictions, "label"), by_id(&dump, "label"));
    let predicted = by_id(&predictions, "prediction");
    // The test accuracy of the summary equals that of the predictions.
    let labels = by_id(&dump, "label");
    let mut test = Vec::new();
    for batch in &predictions {
        let ids = batch.column_by_name("node_id").unwrap().as_primitive::<Int64Type>();
        let splits = batch.column_by_name("split").unwrap().as_string::<i32>();
        test.extend((0..batch.num_rows()).filter(|&row| splits.value(row) == "test").map(|row| ids.value(row)));
    }
    let right = test.iter().filter(|id| predicted[id] == labels[id]).count();
    assert_eq!(right as f64 / test.len() as f64, accuracy("sage"));

    let embeddings = read(&run.join("embeddings.parquet"));
    let widths: Vec<i32> = embeddings
        .iter()
        .map(|batch| batch.column_by_name("embedding").unwrap().as_fixed_size_list().value_length())
        .collect();
    assert!(widths.iter().all(|&width| width == 32));
    assert_eq!(embeddings.iter().map(|batch| batch.num_rows()).sum::<usize>(), labels.len());
    for name in ["pipeline.toml", "metrics.jsonl", "model.safetensors", "report.html", "checkpoints/last.safetensors"] {
        assert!(run.join(name).is_file(), "{name}");
    }
    assert!(!run.join("scratch").exists());
}

#[test]
fn scores_are_probabilities_and_the_largest_is_the_prediction() {
    let place = TestDir::new();
    planted(&place, "p.toml", "[model]\nkind = 'gcn'\nhidden = 16\n[train]\nepochs = 2\nfanouts = [5, 5]\n");
    let ended = place.run(&["run", "p.toml", "--quiet", "--run-dir", "run", "--set", "infer.scores=true"]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    for batch in read(&place.path("run/predictions.parquet")) {
        let predictions = batch.column_by_name("prediction").unwrap().as_primitive::<Int64Type>();
        let scores = batch.column_by_name("scores").unwrap().as_fixed_size_list();
        for row in 0..batch.num_rows() {
            let scores = scores.value(row);
            let scores = scores.as_primitive::<Float32Type>().values();
            assert!((scores.iter().sum::<f32>() - 1.0).abs() < 1e-5);
            let prediction = predictions.value(row) as usize;
            assert!(scores.iter().all(|&score| score <= scores[prediction]));
        }
    }
}

#[test]
fn resolved_pipeline_of_a_run_gives_an_equal_model() {
    let place = TestDir::new();
    planted(&place, "p.toml", "[model]\nkind = 'sage'\nhidden = 16\n[train]\nepochs = 2\nfanouts = [5, 5]\n");
    assert_eq!(place.run(&["run", "p.toml", "--quiet", "--run-dir", "first"]).code, 0);
    let ended = place.run(&["run", "first/pipeline.toml", "--quiet", "--run-dir", "second"]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert_eq!(summary(&place, "first")["model_sha256"], summary(&place, "second")["model_sha256"]);
}

#[test]
fn early_stop_keeps_the_best_epoch() {
    let place = TestDir::new();
    planted(&place, "p.toml", "[model]\nkind = 'mlp'\nhidden = 64\n[train]\nepochs = 500\nearly_stop = 3\n");
    let ended = place.run(&["run", "p.toml", "--quiet", "--run-dir", "run", "--set", "train.optimizer.lr=0.05"]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let summary = summary(&place, "run");
    let (epochs, best) = (summary["epochs"].as_u64().unwrap(), summary["best_epoch"].as_u64().unwrap());
    assert_eq!(epochs, best + 3);
    assert!(epochs < 500);
}
