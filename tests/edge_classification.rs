//! Edge classification: equal bits for 1, 2 and 4 processes, predictions that match the summary, and refused settings.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::common::{TestDir, column, epochs, plan, read, summary, weights};
use arrow::array::{Array, ArrayRef, Int64Array, ListArray, StringArray};
use arrow::datatypes::Float32Type;
use gnnflow_data::rng::{Key, Purpose};

const NODES: u64 = 200;
const EDGES: u64 = 3000;

/// An edge of the dump: source, destination, type, class, split.
type Row = (i64, i64, &'static str, Option<i64>, &'static str);

/// The class of an edge depends on the groups of its ends: equal, consecutive or neither. One edge in ten has no class.
fn edges() -> Vec<Row> {
    let key = Key::new(5, Purpose::GenerateEdges);
    let edge = |e: u64| {
        let key = key.fold(e);
        let (head, tail) = (key.below(0, NODES), key.below(1, NODES));
        let class = [0, 1, 2, 2][((tail % 4 + 4 - head % 4) % 4) as usize];
        let labeled = key.below(2, 10) > 0;
        let split = if labeled { ["train", "train", "train", "val", "test"][key.below(3, 5) as usize] } else { "none" };
        let kind = ["rates", "sees"][key.below(4, 2) as usize];
        (head as i64, tail as i64, kind, labeled.then_some(class), split)
    };
    let mut seen = HashSet::new();
    (0..EDGES).map(edge).filter(|edge| edge.0 != edge.1 && seen.insert((edge.0, edge.1))).collect()
}

/// Writes a dump whose node features show the groups with noise. `unlabeled` adds a training edge without a class.
fn dump(place: &TestDir, unlabeled: bool) -> Vec<Row> {
    let key = Key::new(5, Purpose::GenerateNodes);
    let value = |v: u64, i: u64| 0.2 * key.fold(v).normal(i) as f32 + f32::from(u8::from(v % 4 == i));
    let rows = (0..NODES).map(|v| Some((0..8).map(move |i| Some(value(v, i)))));
    let ids = (0..NODES).map(|v| format!("node {v}"));
    place.parquet(
        "nodes.parquet",
        vec![
            ("node_id", Arc::new(StringArray::from_iter_values(ids))),
            ("features", Arc::new(ListArray::from_iter_primitive::<Float32Type, _, _>(rows))),
        ],
    );
    let mut edges = edges();
    if unlabeled {
        edges.push((3, 8, "rates", None, "train"));
    }
    let id = |of: &dyn Fn(&Row) -> i64| {
        Arc::new(StringArray::from_iter_values(edges.iter().map(|edge| format!("node {}", of(edge)))))
    };
    let word = |class: i64| ["same", "next", "neither"][class as usize];
    place.parquet(
        "edges.parquet",
        vec![
            ("src", id(&|edge| edge.0)),
            ("dst", id(&|edge| edge.1)),
            ("kind", Arc::new(StringArray::from_iter_values(edges.iter().map(|edge| edge.2)))),
            ("class", Arc::new(Int64Array::from_iter(edges.iter().map(|edge| edge.3)))),
            ("word", Arc::new(StringArray::from_iter(edges.iter().map(|edge| edge.3.map(word))))),
            ("part", Arc::new(StringArray::from_iter_values(edges.iter().map(|edge| edge.4)))),
        ],
    );
    edges
}

/// Writes a pipeline over the dump: columns of edges, lines of `[graph]`, `[train]` and `[train.edge]`.
fn pipeline(place: &TestDir, columns: &str, graph: &str, train: &str, edge: &str) {
    let text = format!(
        "[graph]\nnodes = 'nodes.parquet'\nedges = 'edges.parquet'\ncolumns = {{ {columns} }}\n{graph}\n\
         [partition]\nmethod = 'random'\nparts = 4\n[model]\nkind = 'sage'\nhidden = 16\nlayers = 2\ndropout = 0.0\n\
         [train]\ntask = 'edge-classification'\nepochs = 3\nbatch = 64\nfanouts = [5, 4]\nhash_blocks = true\n\
         optimizer = {{ lr = 0.02 }}\n{train}\n[train.edge]\n{edge}\n[infer]\npredictions = true\nscores = true\nembeddings = true\n"
    );
    place.write("p.toml", text);
}

#[test]
fn all_options_have_equal_bits_for_1_2_4_processes() {
    let place = TestDir::new();
    dump(&place, false);
    for (columns, graph, edge) in [
        ("edge_label = 'class', edge_split = 'part'", "", ""),
        ("edge_label = 'word'", "undirected = true", "num_decoder_layers = 1\nexclude_training_targets = false"),
        ("edge_label = 'class', edge_type = 'kind'", "reverse_edges = true", "target_etype = [0]"),
    ] {
        pipeline(&place, columns, graph, "", edge);
        let mut results = Vec::new();
        for (processes, topology) in
            [("1", "partitioned"), ("2", "partitioned"), ("4", "partitioned"), ("2", "replicated")]
        {
            let topology = format!("partition.topology={topology}");
            place.succeed(&[
                "run",
                "p.toml",
                "--run-dir",
                "run",
                "--quiet",
                "--processes",
                processes,
                "--set",
                &topology,
            ]);
            let summary = summary(&place, "run");
            let bits = ["model_sha256", "predictions_sha256", "blocks_sha256"].map(|name| summary[name].clone());
            assert!(bits.iter().all(|bits| bits.is_string()), "{summary}");
            let plan = plan(&place);
            assert_eq!(plan["training"]["steps_per_epoch"], epochs(&place.path("run"))[0]["steps"], "{plan}");
            results.push((bits, summary["train"].clone(), summary["val"].clone(), summary["test"].clone()));
            std::fs::remove_dir_all(place.path("run")).unwrap();
        }
        assert!(results.iter().all(|run| *run == results[0]), "{columns} {edge}: {results:#?}");
        for scores in [&results[0].1, &results[0].2, &results[0].3] {
            for metric in ["accuracy", "micro_f1", "macro_f1"] {
                assert!((0.0..=1.0).contains(&scores[metric].as_f64().unwrap()), "{scores}");
            }
        }
    }
}

#[test]
fn classes_are_learned_and_every_edge_has_a_prediction() {
    let place = TestDir::new();
    let edges = dump(&place, false);
    pipeline(&place, "edge_label = 'word', edge_split = 'part'", "", "metric = 'macro-f1'", "");
    place.succeed(&["run", "p.toml", "--run-dir", "run", "--quiet", "--processes", "2", "--set", "train.epochs=40"]);
    let (summary, table) = (summary(&place, "run"), read(&place, "run/predictions.parquet"));
    let names: Vec<&str> = table.schema_ref().fields().iter().map(|field| field.name().as_str()).collect();
    assert_eq!(names, ["src", "dst", "prediction", "label", "split", "scores"]);
    let ends = ["src", "dst"].map(|name| column::<arrow::array::LargeStringArray>(&table, name));
    let [prediction, label, split] = ["prediction", "label", "split"].map(|name| column::<StringArray>(&table, name));
    let (mut found, mut right) = (Vec::new(), HashMap::<&str, [u64; 2]>::new());
    for i in 0..table.num_rows() {
        let class = (!label.is_null(i)).then(|| label.value(i).to_owned());
        if class.is_some() {
            let counts = right.entry(split.value(i)).or_default();
            counts[0] += u64::from(prediction.value(i) == label.value(i));
            counts[1] += 1;
        }
        let [src, dst] = ends.map(|ends| ends.value(i).to_owned());
        found.push((src, dst, class, split.value(i).to_owned()));
    }
    let word = |class: i64| ["same", "next", "neither"][class as usize].to_owned();
    let wanted = edges
        .iter()
        .map(|edge| (format!("node {}", edge.0), format!("node {}", edge.1), edge.3.map(word), edge.4.to_owned()));
    let mut wanted: Vec<_> = wanted.collect();
    wanted.sort_unstable();
    found.sort_unstable();
    assert!(found == wanted, "every edge once, with its class and split");
    for name in ["train", "val", "test"] {
        let [right, all] = right[name];
        assert_eq!(summary[name]["nodes"].as_u64().unwrap(), all);
        assert!((summary[name]["accuracy"].as_f64().unwrap() - right as f64 / all as f64).abs() < 1e-12);
    }
    // Chance gives 0.5, because every second edge is in one class.
    assert!(summary["test"]["accuracy"].as_f64().unwrap() > 0.85, "{summary}");
    // The decoder is saved with the model.
    let weights = weights(&place, "run");
    let shape = |name: &str| [weights[name].len(), weights[name][0].len()];
    assert_eq!([shape("decoder.mlp.0.weight"), shape("decoder.mlp.1.weight")], [[16, 32], [3, 16]]);
}

#[test]
fn resumed_run_equals_an_uninterrupted_one() {
    let place = TestDir::new();
    dump(&place, false);
    pipeline(&place, "edge_label = 'class'", "", "", "");
    place.succeed(&["run", "p.toml", "--run-dir", "whole", "--quiet"]);
    place.succeed(&["run", "p.toml", "--run-dir", "parts", "--quiet", "--set", "train.epochs=2"]);
    place.succeed(&["run", "p.toml", "--run-dir", "parts", "--quiet", "--resume", "--processes", "2"]);
    for hash in ["model_sha256", "predictions_sha256", "blocks_sha256"] {
        assert_eq!(summary(&place, "whole")[hash], summary(&place, "parts")[hash], "{hash}");
    }
    // The resolved pipeline gives the same model.
    place.succeed(&["run", "whole/pipeline.toml", "--run-dir", "again", "--quiet"]);
    assert_eq!(summary(&place, "whole")["model_sha256"], summary(&place, "again")["model_sha256"]);
}

#[test]
fn invalid_settings_are_refused() {
    let place = TestDir::new();
    dump(&place, false);
    let refused = |columns: &str, train: &str, edge: &str, code: i32, words: &[&str]| {
        pipeline(&place, columns, "", train, edge);
        place.fail(&["run", "p.toml", "--run-dir", "run", "--quiet"], code, words);
    };
    let (label, split) = ("edge_label = 'class'", "edge_label = 'class', edge_split = 'part'");
    refused("", "", "", 2, &["train.task", "graph.columns.edge_label"]);
    refused("edge_label = 'clas'", "", "", 3, &["edges.parquet", "no column \"clas\"", "did you mean \"class\"?"]);
    refused(split, "", "split_fractions = [0.8, 0.1, 0.1]", 2, &["train.edge.split_fractions", "remove this key"]);
    refused(label, "", "split_fractions = [0.0, 0.5, 0.5]", 2, &["train.edge.split_fractions", "no edges to train"]);
    refused(label, "", "target_etype = ['rates']", 2, &["train.edge.target_etype[0]", "edges have no types"]);
    refused(label, "metric = 'mrr'", "", 2, &["train.metric", "ranked edges"]);
    refused(label, "metric = 'rmse'", "", 2, &["train.metric", "`accuracy`"]);
    refused(label, "sampler = 'temporal'", "", 2, &["train.sampler", "temporal"]);
    refused(label, "sampler = 'cluster'", "", 2, &["train.sampler"]);
    refused(label, "schedule = 'partition-parallel'", "", 2, &["train.schedule", "mini-batch"]);
    refused(label, "early_stop = 2", "split_fractions = [0.8, 0.0, 0.2]", 2, &["train.early_stop", "validation"]);
    pipeline(&place, label, "", "", "");
    place.fail(&["run", "p.toml", "--set", "train.task=link-prediction"], 2, &["train.edge", "edge-classification"]);
    let unlabeled = TestDir::new();
    dump(&unlabeled, true);
    pipeline(&unlabeled, split, "", "", "");
    let words = ["from node node 3 to node node 8", "no label", "graph.columns.edge_label"];
    unlabeled.fail(&["run", "p.toml", "--run-dir", "run", "--quiet"], 3, &words);
    // No edge to train on.
    let batch = read(&place, "edges.parquet");
    let none = ("part", Arc::new(StringArray::from(vec!["test"; batch.num_rows()])) as ArrayRef);
    let columns: Vec<(&str, ArrayRef)> =
        ["src", "dst", "class"].map(|name| (name, batch.column_by_name(name).unwrap().clone())).into();
    place.parquet("edges.parquet", columns.into_iter().chain([none]).collect());
    pipeline(&place, split, "", "", "");
    place.fail(&["run", "p.toml", "--run-dir", "run", "--quiet"], 3, &["no edge is left in the train split"]);
}
