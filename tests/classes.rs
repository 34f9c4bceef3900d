//! Weights of classes and nodes, the focal loss, and metrics of imbalanced classes.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Float64Array, Int64Array, ListArray, StringArray};
use arrow::datatypes::{Float32Type, Int64Type};
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

/// Tells whether a node has the common label, which its second feature shows.
fn is_common(node: u64) -> bool {
    Key::new(8, Purpose::GenerateNodes).fold(node).normal(1) > 0.0
}

/// Two labels per node: a common one, and the rare class.
fn labels(place: &TestDir) {
    let flags = |v: u64| [Some(i64::from(is_common(v))), Some(i64::from(is_rare(v)))];
    let rows = (0..NODES).map(|v| Some(flags(v)));
    dump(place, Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(rows)));
}

#[test]
fn weights_raise_the_recall_of_a_rare_label() {
    let place = TestDir::new();
    labels(&place);
    let few = "train.epochs=14";
    let plain = run(&place, &[few]);
    let balanced = run(&place, &[few, "train.classes.weights=balanced"]);
    let of_label = |summary: &Value, metric: &str| summary["by_class"]["test"]["classes"][1][metric].as_f64().unwrap();
    for (metric, least) in [("recall", 0.3), ("f1", 0.05)] {
        let gain = of_label(&balanced, metric) - of_label(&plain, metric);
        assert!(gain > least, "{metric}: {} {}", plain["by_class"], balanced["by_class"]);
    }
    let macro_f1 = |summary: &Value| summary["test"]["macro_f1"].as_f64().unwrap();
    assert!(macro_f1(&balanced) > macro_f1(&plain), "{} {}", plain["test"], balanced["test"]);
    // The same weights as numbers: training nodes without the label over those with it, not scaled.
    let training = |has: &dyn Fn(u64) -> bool| (0..NODES).filter(|&v| v % 4 < 2 && has(v)).count() as f64;
    let ratio = |has: &dyn Fn(u64) -> bool| training(&|v| !has(v)) / training(has);
    let weights = format!("train.classes.weights=[{}, {}]", ratio(&is_common), ratio(&is_rare));
    assert_eq!(hashes(&run(&place, &[few, &weights])), hashes(&balanced));
    // Labels that are predicted well count less, and nodes can be weighted too.
    let loss = |sets: &[&str]| {
        run(&place, &[sets, &["train.epochs=1"]].concat());
        losses(&place)[0]
    };
    assert!(loss(&["train.classes.focal_gamma=2"]) < loss(&[]));
    node_weights(&place, |_| 2.0);
    let doubled = loss(&["train.classes.node_weights=w.parquet", "train.optimizer={kind='sgd', lr=1e-9}"]);
    let single = loss(&["train.optimizer={kind='sgd', lr=1e-9}"]);
    assert!((doubled / single - 2.0).abs() < 1e-5, "{doubled} {single}");
}

/// Writes weights of the training nodes.
fn node_weights(place: &TestDir, weight: impl Fn(u64) -> f64) {
    let training = || (0..NODES).filter(|v| v % 4 < 2);
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(training().map(|v| v as i64)));
    let weights: ArrayRef = Arc::new(Float64Array::from_iter_values(training().map(weight)));
    place.parquet("w.parquet", vec![("node_id", ids), ("weight", weights)]);
}

const WEIGHTED: [&str; 2] = ["train.classes.weights=balanced", "train.classes.focal_gamma=1.5"];

/// Returns the arguments of a run of three epochs with these settings.
fn arguments<'a>(schedule: &'a str, sets: &[&'a str]) -> Vec<&'a str> {
    let whole = ["train.schedule=full-graph", "train.schedule=tensor-parallel"].contains(&schedule);
    let unset = if whole { &["--unset", "train.fanouts", "--unset", "train.batch"][..] } else { &[] };
    let sets = [sets, &[schedule, "train.epochs=3"]].concat();
    unset.iter().copied().chain(sets.into_iter().flat_map(|set| ["--set", set])).collect()
}

#[test]
fn weighted_training_has_equal_bits_for_1_2_processes_and_tensor_workers() {
    for write in [fraud, labels] {
        let place = TestDir::new();
        write(&place);
        node_weights(&place, |v| (v % 5) as f64);
        let classes = [&WEIGHTED[..], &["train.classes.node_weights=w.parquet"]].concat();
        for schedule in ["mini-batch", "full-graph", "tensor-parallel", "partition-parallel"] {
            let schedule = format!("train.schedule={schedule}");
            let args = arguments(&schedule, &classes);
            let one = succeed(&place, &args);
            let two = succeed(&place, &[&args[..], &["--processes", "2"]].concat());
            assert_eq!(hashes(&one), hashes(&two), "{args:?}");
            assert_eq!(one["by_class"], two["by_class"]);
            assert_ne!(hashes(&one), hashes(&succeed(&place, &arguments(&schedule, &[]))), "{args:?}");
        }
        if cfg!(feature = "tensor-workers") {
            let full_graph = arguments("train.schedule=full-graph", &classes);
            let one = succeed(&place, &full_graph);
            // The workers compute all tasks, also if they start late.
            let sets = ["--set", "train.tensor_workers.workers=2", "--set", "train.tensor_workers.local_tasks=false"];
            let workers = succeed(&place, &[&full_graph[..], &sets].concat());
            assert!(workers["tensor"]["tasks"].as_u64() > Some(0));
            assert_eq!(hashes(&one), hashes(&workers));
        }
    }
}

/// Writes a graph in which some edges from nodes of the rare class are of a rare class themselves.
fn edges(place: &TestDir) {
    fraud(place);
    let edges = read(place, "edges.parquet");
    let (src, key) = (column::<Int64Array>(&edges, "src"), Key::new(9, Purpose::GenerateEdges));
    let is_fraud = |e: u64| is_rare(src.value(e as usize) as u64) && key.below(e, 3) < 2;
    let class = (0..3 * NODES).map(|e| if is_fraud(e) { "fraud" } else { "fair" });
    let class: ArrayRef = Arc::new(StringArray::from_iter_values(class));
    let ends = ["src", "dst"].map(|name| (name, edges.column_by_name(name).unwrap().clone()));
    place.parquet("edges.parquet", ends.into_iter().chain([("class", class)]).collect());
    let task = "[graph]\ncolumns = { edge_label = 'class' }";
    let text = PIPELINE.replace("[graph]", task).replace("[train]", "[train]\ntask = 'edge-classification'");
    place.write("p.toml", text);
}

#[test]
fn weights_and_focal_loss_of_edges_work_with_every_schedule() {
    let place = TestDir::new();
    edges(&place);
    let plain = run(&place, &[]);
    let balanced = run(&place, &["train.classes.weights=balanced"]);
    let gain = of_rare(&balanced, "recall") - of_rare(&plain, "recall");
    assert!(gain > 0.2, "{} {}", plain["by_class"], balanced["by_class"]);
    for schedule in ["mini-batch", "full-graph", "tensor-parallel"] {
        let schedule = format!("train.schedule={schedule}");
        let args = arguments(&schedule, &WEIGHTED);
        let one = succeed(&place, &args);
        let two = succeed(&place, &[&args[..], &["--processes", "2"]].concat());
        assert_eq!(hashes(&one), hashes(&two), "{args:?}");
        for part in [&[][..], &WEIGHTED[..1], &WEIGHTED[1..]] {
            assert_ne!(hashes(&one), hashes(&succeed(&place, &arguments(&schedule, part))), "{args:?}");
        }
    }
    let args = ["run", "p.toml", "--run-dir", "run", "--set", "train.classes.node_weights=w.parquet"];
    place.fail(&args, 2, &["train.classes.node_weights", "`edge-classification` has no weights of nodes"]);
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
    labels(&place);
    let args = ["run", "p.toml", "--run-dir", "run", "--set", "train.classes.weights=[1, 2, 3]"];
    place.fail(&args, 2, &["train.classes.weights: 3 weights for 2 labels; give one per label, in this order: 0, 1"]);
    let ended = run(&place, &["train.metric=pr-auc", "train.epochs=1", "train.classes.top_k=10"]);
    assert!(ended["test"]["pr_auc"].as_f64().is_some() && ended["test"]["precision_at_10"].as_f64().is_some());
    assert_eq!(summary(&place, "run")["by_class"]["test"]["classes"].as_array().unwrap().len(), 2);
}
