//! `train.schedule = "auto"`: the chosen schedule, its report, and its independence of the number of processes.

use crate::common::{TestDir, hashes, planted, succeed};
use serde_json::Value;

const MODEL: &str = "[model]\nkind = 'sage'\nlayers = 3\nhidden = 256\n[train]\nschedule = 'auto'\nepochs = 1\n";

fn plan(place: &TestDir, sets: &[&str]) -> Value {
    let text = place.succeed(&[&["run", "p.toml", "--dry-run", "--json"], sets].concat());
    serde_json::from_str(&text).unwrap()
}

/// Settings, and the schedule that `auto` chooses for them.
const CASES: [(&[&str], &str); 4] = [
    // Few training nodes: batches read a part of the graph.
    (
        &["graph.generate.split=[0.01, 0.3, 0.4]", "graph.generate.nodes=20000", "graph.generate.edges=60000"],
        "mini-batch",
    ),
    // Few edges between partitions.
    (
        &["graph.generate.split=[0.7, 0.1, 0.2]", "partition.method=multilevel", "graph.generate.homophily=1.0"],
        "full-graph",
    ),
    // Many edges between all partitions.
    (
        &["graph.generate.split=[0.7, 0.1, 0.2]", "graph.generate.nodes=6000", "graph.generate.edges=200000"],
        "tensor-parallel",
    ),
    // Fanouts, which only mini-batches support.
    (&["graph.generate.split=[0.7, 0.1, 0.2]", "train.fanouts=[2, 2, 2]"], "mini-batch"),
];

#[test]
fn schedule_for_each_graph_is_chosen_and_reported_with_its_reason() {
    for (keys, wanted) in CASES {
        let place = TestDir::new();
        planted(&place, "p.toml", MODEL);
        let sets: Vec<&str> = keys.iter().flat_map(|key| ["--set", key]).collect();
        place.succeed(&[&["prepare", "p.toml", "--quiet"], &sets[..]].concat());
        let dry_run = plan(&place, &sets);
        let auto = &dry_run["auto_schedule"];
        eprintln!("{keys:?}: {auto:#}");
        assert_eq!(auto["chosen"], wanted, "{keys:?}");
        assert_eq!(auto["candidates"].as_array().unwrap().len(), 3);
        assert!(dry_run["stages"].as_array().unwrap().iter().any(|stage| stage == &format!("train ({wanted})")));
        for processes in ["2", "4"] {
            let more = plan(&place, &[&sets[..], &["--processes", processes]].concat());
            assert_eq!(&more["auto_schedule"], auto, "{keys:?}: {processes} processes");
        }
        let text = place.succeed(&[&["run", "p.toml", "--dry-run"], &sets[..]].concat());
        let because = auto["because"].as_str().unwrap();
        assert!(text.contains(&format!("schedule    \"{wanted}\": {because}")), "{text}");

        let one = place.run(&[&["run", "p.toml", "--run-dir", "run"], &sets[..]].concat());
        assert_eq!(one.code, 0, "{}", one.stderr);
        let line = format!("train.schedule = \"auto\" chooses \"{wanted}\": {because}");
        assert_eq!(one.stderr.matches(&line).count(), 1, "{}", one.stderr);
        let summary = crate::common::summary(&place, "run");
        assert_eq!((&summary["schedule"], &summary["auto_schedule"]["because"]), (&wanted.into(), &because.into()));
        let resolved = std::fs::read_to_string(place.path("run/pipeline.toml")).unwrap();
        assert!(resolved.contains(&format!("schedule = \"{wanted}\"")), "{resolved}");
        // Two processes and the resolved pipeline give equal bits.
        let two = succeed(&place, &[&sets[..], &["--processes", "2"]].concat());
        assert_eq!(hashes(&two), hashes(&summary), "{keys:?}");
        place.write("again.toml", resolved);
        place.succeed(&["run", "again.toml", "--quiet", "--run-dir", "again"]);
        assert_eq!(hashes(&crate::common::summary(&place, "again")), hashes(&summary), "{keys:?}");
    }
}

/// Every schedule decouples the model exactly if the file does.
#[test]
fn decoupled_gat_is_estimated_as_decoupled() {
    let place = TestDir::new();
    let model = "kind = 'gat'\nlayers = 4\nhidden = 16\noutput_heads = 4\ndecoupled = true";
    planted(&place, "p.toml", &format!("[model]\n{model}\n[train]\nschedule = 'auto'\nepochs = 1\n"));
    place.succeed(&["prepare", "p.toml", "--quiet"]);
    let tensor_parallel_cost = |sets: &[&str]| {
        let dry_run = plan(&place, sets);
        let found = dry_run["auto_schedule"]["candidates"].as_array().unwrap();
        let found = found.iter().find(|candidate| candidate["schedule"] == "tensor-parallel").unwrap().clone();
        (found["rounds"].as_u64().unwrap(), found["bytes"].as_u64().unwrap())
    };
    let (decoupled, plain) = (tensor_parallel_cost(&[]), tensor_parallel_cost(&["--set", "model.decoupled=false"]));
    assert_eq!((decoupled.0, plain.0), (4, 16));
    assert!(decoupled.1 < plain.1, "{decoupled:?} {plain:?}");
    let hashes_by = |sets: &[&str]| hashes(&succeed(&place, sets));
    let chosen = hashes_by(&[]);
    assert_eq!(hashes_by(&["--processes", "2"]), chosen);
    let named = crate::common::summary(&place, "run")["schedule"].as_str().unwrap().to_owned();
    assert_eq!(hashes_by(&["--set", &format!("train.schedule={named}")]), chosen);
}

#[test]
fn settings_that_no_schedule_supports_are_refused() {
    let place = TestDir::new();
    planted(&place, "p.toml", MODEL);
    let sets = ["--set", "train.sampler=cluster", "--set", "model.kind=mlp"];
    let words = ["train.schedule", "mini-batch", "full-graph", "tensor-parallel", "train.sampler", "samples nothing"];
    place.fail(&[&["run", "p.toml", "--dry-run"], &sets[..]].concat(), 2, &words);
}
