//! Feature columns that are stored in different types.

use std::sync::Arc;

use crate::common::{TestDir, hashes, planted, succeed, summary};
use arrow::array::{Float32Array, Int64Array, ListArray, StringArray};
use arrow::datatypes::Float32Type;
use gnnflow_data::rng::{Key, Purpose};

const NODES: u64 = 600;
const EDGES: u64 = 5000;

/// Writes a dump with two feature columns: `coarse` has multiples of 1/8, which bf16 holds exactly, and `fine` others.
fn dump(place: &TestDir) {
    let key = Key::new(5, Purpose::GenerateNodes);
    let rows = (0..NODES).map(|v| Some((0..3).map(move |i| Some(key.fold(v).below(i, 64) as f32 / 8.0 - 4.0))));
    let split = |v: u64| ["train", "val", "test"][key.below(v, 3) as usize];
    place.parquet(
        "nodes.parquet",
        vec![
            ("node_id", Arc::new(Int64Array::from_iter_values(0..NODES as i64))),
            ("coarse", Arc::new(ListArray::from_iter_primitive::<Float32Type, _, _>(rows))),
            ("fine", Arc::new(Float32Array::from_iter_values((0..NODES).map(|v| key.fold(9).normal(v) as f32)))),
            ("label", Arc::new(Int64Array::from_iter_values((0..NODES).map(|v| v as i64 % 3)))),
            ("split", Arc::new(StringArray::from_iter_values((0..NODES).map(split)))),
        ],
    );
    let edges = Key::new(5, Purpose::GenerateEdges);
    let end = |side: u64| Int64Array::from_iter_values((0..EDGES).map(|e| edges.fold(e).below(side, NODES) as i64));
    place.parquet("edges.parquet", vec![("src", Arc::new(end(0))), ("dst", Arc::new(end(1)))]);
    let text = "[graph]\nnodes = 'nodes.parquet'\nedges = 'edges.parquet'\nduplicates = 'keep'\n\
         columns = { features = ['coarse', 'fine'] }\n\
         [partition]\nmethod = 'random'\nparts = 4\nout = 'dataset'\n\
         [model]\nkind = 'sage'\nhidden = 8\n\
         [train]\nepochs = 2\nbatch = 32\nfanouts = [4, 4]\nhash_blocks = true\n[infer]\nembeddings = true\n";
    place.write("p.toml", text);
}

/// Runs `p.toml` and returns the hashes of model and predictions.
fn run_hashes(place: &TestDir, run: &str, more: &[&str]) -> [String; 2] {
    let mut args = vec!["run", "p.toml", "--quiet", "--run-dir", run];
    args.extend(more);
    place.succeed(&args);
    let summary = summary(place, run);
    ["model_sha256", "predictions_sha256"].map(|key| summary[key].as_str().unwrap().to_owned())
}

#[test]
fn columns_of_two_types_give_the_results_of_f32() {
    let place = TestDir::new();
    dump(&place);
    let wide = run_hashes(&place, "wide", &[]);
    let mixed = ["--set", "graph.feature_dtype=[\"bf16\", \"f32\"]", "--set", "partition.out=mixed"];
    assert_eq!(run_hashes(&place, "one", &mixed), wide, "bf16 holds the coarse column exactly");
    let text = place.succeed(&["inspect", "mixed"]);
    assert!(text.contains("4 (3 × bf16, 1 × f32)"), "{text}");
    for (run, more) in [
        ("two", &["--processes", "2"][..]),
        (
            "cached",
            &[
                "--processes",
                "2",
                "--set",
                "train.schedule.cache=64KiB",
                "--set",
                "train.schedule.cache_policy=dynamic",
            ],
        ),
        ("halo", &["--processes", "4", "--set", "partition.halo=features"]),
    ] {
        for features in ["shared", "partitioned"] {
            let features = format!("partition.features={features}");
            let more = [&mixed[..], more, &["--set", &features]].concat();
            assert_eq!(run_hashes(&place, run, &more), wide, "{run}, {features}");
        }
    }
    // In bf16, the fine column loses precision.
    let lossy = ["--set", "graph.feature_dtype=[\"f32\", \"bf16\"]", "--set", "partition.out=lossy"];
    assert_ne!(run_hashes(&place, "lossy-run", &lossy), wide);
}

#[test]
fn processes_of_one_host_read_features_without_messages() {
    let place = TestDir::new();
    let run = |processes: &str, features: &str, topology: &str| {
        let sets = [format!("partition.features={features}"), format!("partition.topology={topology}")];
        succeed(&place, &["--processes", processes, "--set", &sets[0], "--set", &sets[1]])
    };
    // GCN also fetches degrees, in messages without rows.
    for model in ["sage", "gcn"] {
        let train =
            "hidden = 16\n[train]\nepochs = 2\nbatch = 50\nfanouts = [5, 3]\nschedule.seed_split = 'partition'\n";
        planted(&place, "p.toml", &format!("[model]\nkind = '{model}'\n{train}"));
        let one = hashes(&run("1", "shared", "partitioned"));
        for processes in ["2", "4"] {
            let (shared, fetched) =
                (run(processes, "shared", "partitioned"), run(processes, "partitioned", "partitioned"));
            assert_eq!(
                [hashes(&shared), hashes(&fetched)],
                [one.clone(), one.clone()],
                "{model}, {processes} processes"
            );
            let bytes = |summary: &serde_json::Value| summary["bytes_sent"].as_u64();
            assert!(bytes(&shared) < bytes(&fetched), "{model}: {shared}, {fetched}");
            // With the structure of all partitions, only GCN's degrees are requested.
            let local = run(processes, "shared", "replicated");
            assert_eq!(hashes(&local), one);
            assert_eq!(local["rounds_per_step"], if model == "gcn" { 2.0 } else { 0.0 }, "{model}");
        }
    }
}

#[test]
fn cache_that_has_no_effect_is_reported() {
    let place = TestDir::new();
    planted(&place, "p.toml", "[model]\nkind = 'sage'\nhidden = 16\n[train]\nepochs = 1\nschedule.cache = '1MiB'\n");
    let stderr = |more: &[&str]| {
        let ended = place.run(&[&["run", "p.toml", "--run-dir", "run"], more].concat());
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        ended.stderr
    };
    let words = "train.schedule.cache has no effect: all processes are on one host";
    let found = stderr(&["--processes", "2"]);
    assert_eq!(found.matches(words).count(), 1, "{found}");
    let found = stderr(&["--processes", "2", "--set", "partition.features=partitioned"]);
    assert!(!found.contains(words), "{found}");
}

#[test]
fn wrong_number_of_column_types_is_refused() {
    let place = TestDir::new();
    dump(&place);
    let args = ["prepare", "p.toml", "--set", "graph.feature_dtype=[\"bf16\", \"f32\", \"f16\"]"];
    let errors = place.fail(&args, 2, &["graph.feature_dtype: 3 types for 2 feature columns"]);
    assert_eq!(errors.len(), 1, "{errors:?}");
}
