//! `train.schedule = "auto"`: the chosen schedule, its report, and its independence of the number of processes.

use crate::common::{TestDir, hashes, planted, succeed};
use serde_json::Value;

const MODEL: &str = "[model]\nkind = 'sage'\nlayers = 3\nhidden = 256\n[train]\nschedule = 'auto'\nepochs = 1\n";

fn plan(place: &TestDir, sets: &[&str]) -> Value {
    let text = place.succeed(&[&["run", "p.toml", "--dry-run", "--json"], sets].concat());
    serde_json::from_str(&text).unwrap()
}

/// Settings, and the schedule that `auto` chooses for them.
const CASES: [(&[&str], &str); 5] = [
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
    // Fanouts, which only batches support.
    (&["graph.generate.split=[0.7, 0.1, 0.2]", "train.fanouts=[2, 2, 2]"], "mini-batch"),
    // Fanouts and a slow network.
    (
        &[
            "graph.generate.split=[0.7, 0.1, 0.2]",
            "train.fanouts=[2, 2, 2]",
            "train.batch=20",
            "train.schedule.rates.bandwidth=1MB",
            "partition.halo=features",
        ],
        "partition-parallel",
    ),
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
        assert_eq!(auto["candidates"].as_array().unwrap().len(), 4);
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

/// An epoch of the full graph is one step, so that a run needs more of them to learn as much.
#[test]
fn keys_that_count_epochs_are_multiplied_for_the_chosen_schedule() {
    let place = TestDir::new();
    planted(&place, "p.toml", "[model]\nhidden = 8\n[train]\nschedule = 'auto'\n");
    let graph = ["graph.generate.nodes=20000", "graph.generate.edges=40000", "graph.generate.split=[0.9, 0.05, 0.05]"];
    let run = |sets: &[&str]| {
        let sets: Vec<&str> = graph.iter().chain(sets).flat_map(|set| ["--set", set]).collect();
        place.succeed(&[&["run", "p.toml", "--quiet", "--run-dir", "run"], &sets[..]].concat());
        let resolved = std::fs::read_to_string(place.path("run/pipeline.toml")).unwrap();
        let keys = ["epochs", "evaluate_every", "early_stop", "checkpoint_every", "warmup", "gamma"];
        let value = |key: &str| {
            let line = resolved.lines().find(|line| line.trim_start().starts_with(&format!("{key} = ")));
            line.map(|line| line.split_once(" = ").unwrap().1.to_owned())
        };
        (keys.map(|key| value(key).unwrap_or_default()), crate::common::summary(&place, "run"))
    };
    let lr = "train.lr_schedule={ kind = 'exponential', warmup = 1, gamma = 0.5 }";
    let keys = ["train.epochs=4", "train.evaluate_every=2", "train.early_stop=3", "train.checkpoint_every=2", lr];
    let asked = |kind: &str, more: &[&str]| {
        let candidates = format!("train.schedule.candidates=[{kind}]");
        run(&[&keys[..], &[candidates.as_str()], more].concat())
    };
    // Batches alone: as the file says.
    let (batches, summary) = asked("'mini-batch'", &[]);
    assert_eq!(batches, ["4", "2", "3", "2", "1", "0.5"].map(String::from));
    assert_eq!((&summary["auto_schedule"]["epoch_factor"], &summary["epochs"]), (&1.0.into(), &4.into()));
    // 18,000 training nodes of 4 partitions in batches of 1,000: 5 steps, which count as 5 to the power of 0.78, 3.51.
    let slow = ["train.schedule.rates.bandwidth=1kB", "train.schedule.rates.latency=9", "partition.method=multilevel"];
    let (full, summary) = asked("'mini-batch', 'full-graph'", &slow);
    let auto = &summary["auto_schedule"];
    assert_eq!((&auto["chosen"], &auto["steps_per_epoch"]), (&"full-graph".into(), &5.into()), "{auto:#}");
    assert_eq!(&full[..5], ["14", "7", "11", "7", "4"].map(String::from), "{auto:#}");
    assert!((full[5].parse::<f64>().unwrap() - 0.5f64.powf(1.0 / 3.5091)).abs() < 1e-4, "{full:?}");
    assert!(auto["because"].as_str().unwrap().contains("keys that count epochs are multiplied by 3.5"), "{auto:#}");
    // No batches to compare with.
    let (alone, _) = asked("'full-graph'", &[]);
    assert_eq!(alone, batches);
    // Epochs that are not given are those of batches, too: 500 steps in 100 epochs.
    let candidates = "train.schedule.candidates=['mini-batch', 'full-graph']";
    let (unset, _) = run(&[&slow[..], &[candidates, "train.early_stop=1"]].concat());
    assert_eq!(unset[0], "351");
}

#[test]
fn settings_that_no_schedule_supports_are_refused() {
    let place = TestDir::new();
    planted(&place, "p.toml", MODEL);
    let sets = ["--set", "train.sampler=cluster", "--set", "model.kind=mlp"];
    let words = ["train.schedule", "mini-batch", "full-graph", "tensor-parallel", "train.sampler", "samples nothing"];
    place.fail(&[&["run", "p.toml", "--dry-run"], &sets[..]].concat(), 2, &words);
}
