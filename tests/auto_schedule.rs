//! `train.schedule = "auto"`: which schedule comes out, where it is said, and that processes have no say in it.

use crate::common::{Place, hashes, planted, succeed};
use serde_json::Value;

const MODEL: &str = "[model]\nkind = 'sage'\nlayers = 3\nhidden = 256\n[train]\nschedule = 'auto'\nepochs = 1\n";

fn plan(place: &Place, sets: &[&str]) -> Value {
    let text = place.succeed(&[&["run", "p.toml", "--dry-run", "--json"], sets].concat());
    serde_json::from_str(&text).unwrap()
}

/// Keys, and the schedule that they lead to.
const CASES: [(&[&str], &str); 4] = [
    // Few are trained on: batches see a part of the graph.
    (
        &["graph.generate.split=[0.01, 0.3, 0.4]", "graph.generate.nodes=20000", "graph.generate.edges=60000"],
        "mini-batch",
    ),
    // Partitions that hardly touch.
    (
        &["graph.generate.split=[0.7, 0.1, 0.2]", "partition.method=multilevel", "graph.generate.homophily=1.0"],
        "full-graph",
    ),
    // Partitions that all touch one another.
    (
        &["graph.generate.split=[0.7, 0.1, 0.2]", "graph.generate.nodes=6000", "graph.generate.edges=200000"],
        "tensor-parallel",
    ),
    // What only batches can do.
    (&["graph.generate.split=[0.7, 0.1, 0.2]", "train.fanouts=[2, 2, 2]"], "mini-batch"),
];

#[test]
fn graphs_lead_to_each_and_the_run_says_why() {
    for (keys, wanted) in CASES {
        let place = Place::new();
        planted(&place, "p.toml", MODEL);
        let sets: Vec<&str> = keys.iter().flat_map(|key| ["--set", key]).collect();
        place.succeed(&[&["prepare", "p.toml", "--quiet"], &sets[..]].concat());
        let told = plan(&place, &sets);
        let auto = &told["auto_schedule"];
        eprintln!("{keys:?}: {auto:#}");
        assert_eq!(auto["chosen"], wanted, "{keys:?}");
        assert_eq!(auto["candidates"].as_array().unwrap().len(), 3);
        assert!(told["stages"].as_array().unwrap().iter().any(|stage| stage == &format!("train ({wanted})")));
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
        // It is the schedule that was named, whoever does it, and the resolved file does the same.
        let two = succeed(&place, &[&sets[..], &["--processes", "2"]].concat());
        assert_eq!(hashes(&two), hashes(&summary), "{keys:?}");
        place.write("again.toml", resolved);
        place.succeed(&["run", "again.toml", "--quiet", "--run-dir", "again"]);
        assert_eq!(hashes(&crate::common::summary(&place, "again")), hashes(&summary), "{keys:?}");
    }
}

/// What the file decouples is decoupled by every schedule, and only then.
#[test]
fn a_decoupled_gat_is_weighed_as_what_it_is() {
    let place = Place::new();
    let model = "kind = 'gat'\nlayers = 4\nhidden = 16\noutput_heads = 4\ndecoupled = true";
    planted(&place, "p.toml", &format!("[model]\n{model}\n[train]\nschedule = 'auto'\nepochs = 1\n"));
    place.succeed(&["prepare", "p.toml", "--quiet"]);
    let columns = |sets: &[&str]| {
        let told = plan(&place, sets);
        let found = told["auto_schedule"]["candidates"].as_array().unwrap();
        let found = found.iter().find(|candidate| candidate["schedule"] == "tensor-parallel").unwrap().clone();
        (found["rounds"].as_u64().unwrap(), found["bytes"].as_u64().unwrap())
    };
    let (decoupled, plain) = (columns(&[]), columns(&["--set", "model.decoupled=false"]));
    assert_eq!((decoupled.0, plain.0), (4, 16));
    assert!(decoupled.1 < plain.1, "{decoupled:?} {plain:?}");
    let hashes_by = |sets: &[&str]| hashes(&succeed(&place, sets));
    let chosen = hashes_by(&[]);
    assert_eq!(hashes_by(&["--processes", "2"]), chosen);
    let named = crate::common::summary(&place, "run")["schedule"].as_str().unwrap().to_owned();
    assert_eq!(hashes_by(&["--set", &format!("train.schedule={named}")]), chosen);
}

#[test]
fn what_no_schedule_can_do_is_refused() {
    let place = Place::new();
    planted(&place, "p.toml", MODEL);
    let sets = ["--set", "train.sampler=cluster", "--set", "model.kind=mlp"];
    let words = ["train.schedule", "mini-batch", "full-graph", "tensor-parallel", "train.sampler", "samples nothing"];
    place.fail(&[&["run", "p.toml", "--dry-run"], &sets[..]].concat(), 2, &words);
}
