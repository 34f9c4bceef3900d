//! Edge features in training, and features of halo nodes stored with partitions: equal bits for 1, 2 and 4 processes.

use std::sync::Arc;

use crate::common::{TestDir, hashes, planted, succeed};
use arrow::array::{Float32Array, Int64Array, ListArray, StringArray};
use arrow::datatypes::Float32Type;
use gnnflow_data::rng::{Key, Purpose};

const NODES: u64 = 500;
const EDGES: u64 = 6000;

/// Writes a dump in which only the features of a node's in-edges show its class.
fn dump(place: &TestDir) {
    let key = Key::new(5, Purpose::GenerateNodes);
    let class = |v: u64| key.fold(7).below(v, 2) as i64;
    let rows = (0..NODES).map(|v| Some((0..4).map(move |i| Some(key.fold(v).normal(i) as f32))));
    let split = |v: u64| ["train", "val", "test"][key.below(v, 3) as usize];
    place.parquet(
        "nodes.parquet",
        vec![
            ("node_id", Arc::new(Int64Array::from_iter_values(0..NODES as i64))),
            ("features", Arc::new(ListArray::from_iter_primitive::<Float32Type, _, _>(rows))),
            ("label", Arc::new(Int64Array::from_iter_values((0..NODES).map(class)))),
            ("split", Arc::new(StringArray::from_iter_values((0..NODES).map(split)))),
        ],
    );
    let edges = Key::new(5, Purpose::GenerateEdges);
    let end = |side: u64, e: u64| edges.fold(side).below(e, NODES);
    let amount = |e: u64| (2 * class(end(1, e)) - 1) as f64 + edges.fold(2).normal(e);
    let pair = |e: u64| Some([edges.fold(3).normal(e) as f32, amount(e) as f32].map(Some));
    place.parquet(
        "edges.parquet",
        vec![
            ("src", Arc::new(Int64Array::from_iter_values((0..EDGES).map(|e| end(0, e) as i64)))),
            ("dst", Arc::new(Int64Array::from_iter_values((0..EDGES).map(|e| end(1, e) as i64)))),
            ("pair", Arc::new(ListArray::from_iter_primitive::<Float32Type, _, _>((0..EDGES).map(pair)))),
            ("noise", Arc::new(Float32Array::from_iter_values((0..EDGES).map(|e| edges.fold(4).normal(e) as f32)))),
        ],
    );
}

fn pipeline(place: &TestDir, columns: &str, model: &str, train: &str) {
    let text = format!(
        "[graph]\nnodes = 'nodes.parquet'\nedges = 'edges.parquet'\nduplicates = 'keep'\ncolumns = {{ {columns} }}\n\
         [partition]\nmethod = 'random'\nparts = 4\nhalo = 'features'\n[model]\n{model}\nhidden = 16\ndropout = 0.0\n\
         [train]\nepochs = 12\nbatch = 32\nhash_blocks = true\nfanouts = [8, 4]\noptimizer = {{ lr = 0.02 }}\n{train}\n\
         [infer]\npredictions = true\n"
    );
    place.write("p.toml", text);
}

const EDGE_FEATURES: &str = "edge_features = ['pair', 'noise']";

fn run(place: &TestDir, more: &[&str]) -> serde_json::Value {
    let summary = succeed(place, more);
    std::fs::remove_dir_all(place.path("run")).unwrap();
    summary
}

#[test]
fn layers_with_edge_features_have_equal_bits_for_1_2_4_processes() {
    let place = TestDir::new();
    dump(&place);
    for (model, train) in [
        ("kind = 'gine'", ""),
        ("kind = 'gine'\ntrain_eps = true\nresidual = true", "sampler = 'labor'"),
        ("kind = 'gatv2'\nheads = 2\nedge_features = true", ""),
        ("kind = 'gine'\nnorm = 'layer'", "schedule = 'partition-parallel'"),
    ] {
        pipeline(&place, EDGE_FEATURES, model, train);
        let one = run(&place, &[]);
        for processes in ["2", "4"] {
            assert_eq!(hashes(&run(&place, &["--processes", processes])), hashes(&one), "{model} {train}: {processes}");
        }
        if train.is_empty() {
            let replicated = run(&place, &["--processes", "2", "--set", "partition.topology=replicated"]);
            assert_eq!(hashes(&replicated), hashes(&one), "{model}: replicated");
        }
        let accuracy = one["test"]["accuracy"].as_f64().unwrap();
        if model == "kind = 'gine'" {
            assert!(accuracy > 0.8, "accuracy {accuracy} with edge features");
        }
    }
    pipeline(&place, EDGE_FEATURES, "kind = 'gin'", "");
    let accuracy = run(&place, &[])["test"]["accuracy"].as_f64().unwrap();
    assert!(accuracy < 0.7, "accuracy {accuracy} without edge features");
}

#[test]
fn graphs_or_layers_without_edge_features_are_refused() {
    let place = TestDir::new();
    dump(&place);
    let refused = |columns: &str, model: &str, code: i32, words: &[&str]| {
        pipeline(&place, columns, model, "");
        place.fail(&["run", "p.toml", "--quiet", "--run-dir", "run"], code, words);
    };
    refused("", "kind = 'gine'", 3, &["model.kind = \"gine\"", "graph.columns.edge_features"]);
    refused("", "kind = 'gatv2'\nedge_features = true", 3, &["model.edge_features", "graph.columns.edge_features"]);
    refused(EDGE_FEATURES, "kind = 'sage'\nedge_features = true", 2, &["p.toml:12: model.edge_features:", "`gatv2`"]);
}

#[test]
fn stored_halo_features_save_bytes_and_keep_equal_bits() {
    let place = TestDir::new();
    let sections = |model: &str| {
        format!("[model]\nkind = '{model}'\nhidden = 16\n[train]\nepochs = 2\nbatch = 50\nfanouts = [5, 3]\n")
    };
    // GCN also fetches degrees.
    for model in ["sage", "gcn"] {
        planted(&place, "p.toml", &sections(model));
        let run = |halo: &str, processes: &str| {
            let halo = format!("partition.halo={halo}");
            let fetched = ["--set", "partition.features=partitioned"];
            run(&place, &[&["--processes", processes, "--set", &halo], &fetched[..]].concat())
        };
        let one = run("ids", "1");
        for processes in ["2", "4"] {
            let (ids, features) = (run("ids", processes), run("features", processes));
            assert_eq!(hashes(&ids), hashes(&one));
            assert_eq!(hashes(&features), hashes(&one), "{model}, {processes} processes");
            let bytes = |summary: &serde_json::Value| summary["bytes_sent"].as_u64().unwrap();
            assert!(bytes(&features) < bytes(&ids), "{model}: {} bytes, without {}", bytes(&features), bytes(&ids));
        }
    }
}
