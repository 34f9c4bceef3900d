//! Weights of classes and nodes, the focal loss, and metrics of imbalanced classes.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Float64Array, Int64Array, ListArray, StringArray};
use arrow::datatypes::Float32Type;
use gnnflow_data::rng::{Key, Purpose};
use serde_json::Value;

use crate::common::{TestDir, column, hashes, losses, read, succeed, summary};

const NODES: u64 = 900;

const PIPELINE: &str = "[graph]\nnodes = 'nodes.parquet'\nedges = 'edges.parquet'\n[partition]\nparts = 4\nout = 'dataset'\n\
    [model]\nkind = 'sage'\nhidden = 8\nlayers = 1\ndropout = 0.0\n\
    [train]\nfanouts = [5]\nbatch = 50\noptimizer = { kind = 'adam', lr = 0.05 }\nepochs = 20\nhash_blocks = true\n[infer]\npredictions = true\nscores = true\n";

/// Returns whether a node is of the rare class: one in twelve.
fn is_rare(node: u64) -> bool {
    Key::new(7, Purpose::GenerateNodes).below(node, 12) == 0
}

/// Writes a graph of transfers whose features hardly show the rare class.
fn dump(place: &TestDir, label: ArrayRef) {
    let key = Key::new(8, Purpose::GenerateNodes);
    let value = |v: u64, i: u64| key.fold(v).normal(i) as f32 + 1.5 * f32::from(u8::from(is_rare(v) && i == 0));
    let rows = (0..NODES).map(|v| Some((0..4).map(move |i| Some(value(v, i)))));
    let splits = (0..NODES).map(|v| ["train", "train", "val", "test"][(v % 4) as usize]);
    let ends = |side: u64| Int64Array::from_iter_values((0..3 * NODES).map(|e| key.fold(side).below(e, NODES) as i64));
    place.parquet(
        "nodes.parquet",
        vec![
            ("node_id", Arc::new(Int64Array::from_iter_values(0..NODES as i64))),
            ("features", Arc::new(ListArray::from_iter_primitive::<Float32Type, _, _>(rows))),
            ("label", label),
            ("split", Arc::new(StringArray::from_iter_values(splits))),
        ],
    );
    place.parquet("edges.parquet", vec![("src", Arc::new(ends(1))), ("dst", Arc::new(ends(2)))]);
    place.write("p.toml", PIPELINE);
}

fn fraud(place: &TestDir) {
    dump(place, Arc::new(StringArray::from_iter_values((0..NODES).map(|v| if is_rare(v) { "fraud" } else { "fair" }))));
}

/// Runs the pipeline with `sets`.
fn run(place: &TestDir, sets: &[&str]) -> Value {
    let args: Vec<&str> = sets.iter().flat_map(|set| ["--set", *set]).collect();
    succeed(place, &args)
}

/// Returns a metric of the rare class on the test nodes.
fn of_rare(summary: &Value, metric: &str) -> f64 {
    let class = &summary["by_class"]["test"]["classes"][1];
    assert_eq!(class["class"], "fraud");
    class[metric].as_f64().unwrap()
}

#[test]
fn weights_and_focal_loss_raise_the_recall_of_a_rare_class() {
    let place = TestDir::new();
    fraud(&place);
    let plain = run(&place, &[]);
    let balanced = run(&place, &["train.classes.weights=balanced"]);
    let gain = of_rare(&balanced, "recall") - of_rare(&plain, "recall");
    assert!(gain > 0.2, "{} {}", plain["by_class"], balanced["by_class"]);
    // The same weights, given in another scale.
    let rare = (0..NODES).filter(|&v| v % 4 < 2 && is_rare(v)).count();
    let others = (0..NODES).filter(|v| v % 4 < 2).count() - rare;
    let given = run(&place, &[&format!("train.classes.weights=[1, {}]", others as f64 / rare as f64)]);
    let close = |a: &Value, b: &Value| (a.as_f64().unwrap() - b.as_f64().unwrap()).abs() < 1e-4;
    assert!(close(&balanced["test"]["loss"], &given["test"]["loss"]), "{} {}", balanced["test"], given["test"]);
    // Examples that are predicted well count less.
    let loss = |sets: &[&str]| {
        run(&place, sets);
        losses(&place)[0]
    };
    assert!(loss(&["train.epochs=1", "train.classes.focal_gamma=2"]) < loss(&["train.epochs=1"]));
}

#[test]
fn weighted_training_has_equal_bits_for_1_2_processes_and_tensor_workers() {
    let place = TestDir::new();
    fraud(&place);
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values((0..NODES as i64).step_by(3)));
    let weights: ArrayRef = Arc::new(Float64Array::from_iter_values((0..NODES).step_by(3).map(|v| (v % 5) as f64)));
    place.parquet("w.parquet", vec![("node_id", ids), ("weight", weights)]);
    let classes =
        ["train.classes.weights=balanced", "train.classes.focal_gamma=1.5", "train.classes.node_weights=w.parquet"];
    let full_graph = ["train.schedule=full-graph", "train.epochs=3"];
    let batches = [&classes[..], &["train.epochs=3"]].concat();
    let unset = ["--unset", "train.fanouts", "--unset", "train.batch"];
    let sets = |sets: &[&'static str]| sets.iter().flat_map(|set| ["--set", *set]).collect::<Vec<_>>();
    let full_graph = [&unset[..], &sets(&classes), &sets(&full_graph)].concat();
    for args in [sets(&batches), full_graph.clone()] {
        let one = succeed(&place, &args);
        let two = succeed(&place, &[&args[..], &["--processes", "2"]].concat());
        assert_eq!(hashes(&one), hashes(&two), "{args:?}");
        assert_eq!(one["by_class"], two["by_class"]);
    }
    let one = succeed(&place, &full_graph);
    if cfg!(feature = "tensor-workers") {
        let workers = succeed(&place, &[&full_graph[..], &["--set", "train.tensor_workers.workers=2"]].concat());
        assert!(workers["tensor"]["tasks"].as_u64() > Some(0));
        assert_eq!(hashes(&one), hashes(&workers));
    }
}

#[test]
fn nodes_with_weight_0_are_not_learned_from() {
    let place = TestDir::new();
    fraud(&place);
    let train: Vec<u64> = (0..NODES).filter(|v| v % 4 < 2).collect();
    let dropped = |v: u64| v % 8 == 1;
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(train.iter().map(|&v| v as i64)));
    let weights: ArrayRef =
        Arc::new(Float64Array::from_iter_values(train.iter().map(|&v| if dropped(v) { 0.0 } else { 1.0 })));
    place.parquet("w.parquet", vec![("node_id", ids), ("weight", weights)]);
    let full = ["--unset", "train.fanouts", "--unset", "train.batch", "--set", "train.schedule=full-graph"];
    let sgd = |lr: f64| format!("train.optimizer={{kind='sgd', lr={lr}}}");
    let kept = train.iter().filter(|&&v| !dropped(v)).count();
    // The mean is over all training nodes, so the steps are shorter by the share of the kept ones.
    let weighted = sgd(0.5 * train.len() as f64 / kept as f64);
    let weighted = ["--set", weighted.as_str(), "--set", "train.classes.node_weights=w.parquet"];
    let weighted = succeed(&place, &[&full[..], &weighted].concat());
    // The same without these nodes in the split.
    let splits =
        (0..NODES).map(|v| if dropped(v) { "none" } else { ["train", "train", "val", "test"][(v % 4) as usize] });
    let nodes = read(&place, "nodes.parquet");
    let columns = ["node_id", "features", "label"].map(|name| (name, nodes.column_by_name(name).unwrap().clone()));
    let split: ArrayRef = Arc::new(StringArray::from_iter_values(splits));
    place.parquet("nodes.parquet", columns.into_iter().chain([("split", split)]).collect());
    let without = succeed(&place, &[&full[..], &["--set", &sgd(0.5), "--set", "partition.out=other"]].concat());
    let close = |a: &Value, b: &Value| (a.as_f64().unwrap() - b.as_f64().unwrap()).abs() < 1e-4;
    assert!(close(&weighted["test"]["loss"], &without["test"]["loss"]), "{} {}", weighted["test"], without["test"]);
}

#[test]
fn metrics_of_two_classes_equal_those_of_the_predictions() {
    let place = TestDir::new();
    fraud(&place);
    let bounds = ["train.classes.min_precision=0.5", "train.classes.top_k=20"];
    let ended = run(&place, &[&bounds[..], &["train.classes.weights=balanced", "train.metric=pr-auc"]].concat());
    let batch = read(&place, "run/predictions.parquet");
    let (split, label) = (column::<StringArray>(&batch, "split"), column::<StringArray>(&batch, "label"));
    let scores = batch.column_by_name("scores").unwrap().as_fixed_size_list();
    let mut ranked: Vec<(f32, bool)> = (0..batch.num_rows())
        .filter(|&row| split.value(row) == "test")
        .map(|row| (scores.value(row).as_primitive::<Float32Type>().value(1), label.value(row) == "fraud"))
        .collect();
    ranked.sort_by(|a, b| b.0.total_cmp(&a.0));
    let all = ranked.iter().filter(|(_, rare)| *rare).count() as f64;
    let (mut found, mut area, mut recall) = (0.0, 0.0, 0.0f64);
    for (i, (_, rare)) in ranked.iter().enumerate() {
        found += f64::from(u8::from(*rare));
        let precision = found / (i + 1) as f64;
        area += if *rare { precision / all } else { 0.0 };
        recall = if precision >= 0.5 { found / all } else { recall };
    }
    let top = ranked[..20].iter().filter(|(_, rare)| *rare).count() as f64 / 20.0;
    for (name, expected) in [("pr_auc", area), ("recall_at_precision_0.5", recall), ("precision_at_20", top)] {
        let reported = ended["test"][name].as_f64().unwrap();
        assert!((reported - expected).abs() < 1e-3, "{name}: {reported}, from predictions {expected}");
    }
    // The best epoch is that of the metric.
    let epochs = std::fs::read_to_string(place.path("run/metrics.jsonl")).unwrap();
    let epochs: Vec<Value> = epochs.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let best = epochs.iter().map(|epoch| epoch["val"]["pr_auc"].as_f64().unwrap()).fold(0.0, f64::max);
    assert_eq!(epochs[ended["best_epoch"].as_u64().unwrap() as usize - 1]["val"]["pr_auc"], best);
    assert!(epochs.iter().all(|epoch| epoch["metric"] == "pr_auc"));
    // The matrix has the class in rows and the prediction in columns.
    let matrix = &ended["by_class"]["test"]["confusion"];
    let predicted = column::<StringArray>(&batch, "prediction");
    let count = |class: &str, found: &str| {
        let is =
            |row: &usize| split.value(*row) == "test" && label.value(*row) == class && predicted.value(*row) == found;
        (0..batch.num_rows()).filter(is).count() as u64
    };
    let classes = ["fair", "fraud"];
    let expected = classes.map(|class| classes.map(|found| count(class, found)));
    assert_eq!(*matrix, serde_json::json!(expected));
    assert_eq!(ended["by_class"]["test"]["classes"][1]["nodes"], all as u64);
    let page = std::fs::read_to_string(place.path("run/report.html")).unwrap();
    assert!(page.contains("Classes (test)") && page.contains("class \\ predicted"));
    assert!(page.contains("Area under the precision-recall curve"));
}

#[test]
fn settings_that_do_not_fit_the_classes_are_refused() {
    let place = TestDir::new();
    fraud(&place);
    let refuse = |sets: &[&str], code: i32, words: &[&str]| {
        let args: Vec<&str> = sets.iter().flat_map(|set| ["--set", *set]).collect();
        place.fail(&[&["run", "p.toml", "--run-dir", "run"], &args[..]].concat(), code, words);
    };
    refuse(
        &["train.classes.weights=[1, 2, 3]"],
        2,
        &["train.classes.weights: 3 weights for 2 classes; give one per class, in this order: \"fair\", \"fraud\""],
    );
    refuse(&["train.classes.weights=[0, 0]"], 2, &["train.classes.weights", "have the weight 0"]);
    refuse(&["train.classes.weights=[1, -2]"], 2, &["train.classes.weights"]);
    refuse(&["train.classes.weights=inverse"], 2, &["train.classes.weights", "balanced"]);
    refuse(&["train.metric=precision-at-k"], 2, &["train.metric", "`train.classes.top_k`"]);
    refuse(&["train.metric=recall-at-precision"], 2, &["train.metric", "`train.classes.min_precision`"]);
    refuse(&["train.task=node-regression", "train.classes.top_k=3"], 2, &["train.classes", "predicts no classes"]);
    let weights = |ids: Vec<i64>, values: Vec<f64>| {
        let (ids, values): (ArrayRef, ArrayRef) =
            (Arc::new(Int64Array::from(ids)), Arc::new(Float64Array::from(values)));
        place.parquet("w.parquet", vec![("node_id", ids), ("weight", values)]);
    };
    let table = ["train.classes.node_weights=w.parquet"];
    refuse(&table, 3, &["w.parquet", "train.classes.node_weights"]);
    for (ids, values, words) in [
        (vec![1, 99_999], vec![1.0, 1.0], ["row 1", "99999", "the id of a node"]),
        (vec![1, 1], vec![1.0, 1.0], ["row 1", "node_id", "one row per node"]),
        (vec![1, 2], vec![1.0, -1.0], ["row 1", "weight", "at least 0"]),
        (vec![1, 2], vec![1.0, f64::NAN], ["row 1", "weight", "NaN"]),
    ] {
        weights(ids, values);
        refuse(&table, 3, &words);
    }
    place.parquet("w.parquet", vec![("node_id", Arc::new(Int64Array::from(vec![1])) as ArrayRef)]);
    refuse(&table, 3, &["w.parquet: no column \"weight\" (train.classes.node_weights)"]);
    // Metrics of labels, with three classes.
    let place = TestDir::new();
    dump(&place, Arc::new(Int64Array::from_iter_values((0..NODES as i64).map(|v| v % 3))));
    for metric in ["roc-auc", "pr-auc"] {
        let words = [&format!("train.metric: `{metric}` needs two classes"), "there are 3 classes"];
        place.fail(&["run", "p.toml", "--run-dir", "run", "--set", &format!("train.metric={metric}")], 2, &words);
    }
    for bound in ["top_k=5", "min_precision=0.5"] {
        let set = format!("train.classes.{bound}");
        let words = [set.split('=').next().unwrap(), "needs two classes or several labels", "there are 3 classes"];
        place.fail(&["run", "p.toml", "--run-dir", "run", "--set", &set], 2, &words);
    }
    assert!(run(&place, &["train.metric=macro-f1", "train.epochs=1"])["test"].get("pr_auc").is_none());
    // Several labels per node.
    let place = TestDir::new();
    let flags = (0..NODES).map(|v| Some((0..2).map(move |i| Some((v >> i & 1) as i64))));
    dump(&place, Arc::new(ListArray::from_iter_primitive::<arrow::datatypes::Int64Type, _, _>(flags)));
    let args = ["run", "p.toml", "--run-dir", "run", "--set", "train.classes.weights=balanced"];
    place.fail(&args, 2, &["train.classes.weights: nodes have several labels"]);
    let ended = run(&place, &["train.metric=pr-auc", "train.epochs=1", "train.classes.top_k=10"]);
    assert!(ended["test"]["pr_auc"].as_f64().is_some() && ended["test"]["precision_at_10"].as_f64().is_some());
    assert_eq!(summary(&place, "run")["by_class"]["test"]["classes"].as_array().unwrap().len(), 2);
}
