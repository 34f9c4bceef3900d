//! `train.trace`: a file of events for each process, and a table of times in the report.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::common::{TestDir, assert_same_results, planted};

/// Runs with and without a trace; returns the events of both processes and the report.
fn traced(schedule: &str) -> (Vec<Vec<Value>>, String) {
    let place = TestDir::new();
    planted(&place, "p.toml", &format!("[model]\n[train]\nepochs = 3\nschedule = '{schedule}'\n"));
    let run = |folder: &str, trace: &str| {
        place.succeed(&["run", "p.toml", "--quiet", "--processes", "2", "--run-dir", folder, "--set", trace]);
    };
    run("traced", "train.trace=true");
    run("plain", "train.trace=false");
    assert_same_results(&place, "traced", "plain");
    assert!(!place.path("plain/trace").exists());
    let events = |rank: usize| {
        let text = std::fs::read_to_string(place.path(&format!("traced/trace/worker-{rank}.json"))).unwrap();
        serde_json::from_str(&text).unwrap()
    };
    let processes = (0..2).map(events).collect();
    let report = std::fs::read_to_string(place.path("traced/report.html")).unwrap();
    // An earlier trace is kept with its run.
    run("traced", "train.trace=false");
    assert!(place.path("traced/earlier/1/trace/worker-1.json").exists() && !place.path("traced/trace").exists());
    (processes, report)
}

/// Returns the names of the pieces of work of a thread.
fn names(events: &[Value], thread: u64) -> BTreeSet<&str> {
    let of_thread = |event: &&Value| event["ph"] == "X" && event["tid"] == thread;
    events.iter().filter(of_thread).filter_map(|event| event["name"].as_str()).collect()
}

#[test]
fn batches_are_traced_by_operator_and_task() {
    let (processes, report) = traced("mini-batch");
    for (rank, events) in processes.iter().enumerate() {
        assert!(names(events, 0).contains("waiting"), "{:?}", names(events, 0));
        assert!(names(events, 1).contains("gradient"), "{:?}", names(events, 1));
        for event in events.iter().filter(|event| event["ph"] == "X") {
            assert!(event["pid"] == rank && event["dur"].as_f64().unwrap() >= 20.0, "{event}");
        }
        // The pieces of the compute thread follow one another.
        let ends: Vec<[f64; 2]> = events
            .iter()
            .filter(|event| event["ph"] == "X" && event["tid"] == 1)
            .map(|event| [&event["ts"], &event["dur"]].map(|value| value.as_f64().unwrap()))
            .collect();
        assert!(ends.windows(2).all(|pair| pair[0][0] + pair[0][1] <= pair[1][0] + 1.0));
    }
    for words in
        ["Threads", "waiting for the compute thread", "waiting for sampling or messages", "gradient", "process 1"]
    {
        assert!(report.contains(words), "{words}");
    }
}

#[test]
fn stages_of_whole_graph_schedules_are_traced_by_name() {
    let (processes, report) = traced("full-graph");
    for stage in ["forward 1", "loss", "backward 2"] {
        assert!(processes.iter().all(|events| names(events, 1).contains(stage)), "{stage}");
        assert!(report.contains(stage), "{stage}");
    }
    let (processes, _) = traced("tensor-parallel");
    for stage in ["aggregate 1", "aggregate backward 2"] {
        assert!(processes.iter().all(|events| names(events, 1).contains(stage)), "{:?}", names(&processes[0], 1));
    }
}

#[test]
fn resumed_run_has_no_trace_of_the_run_before() {
    let place = TestDir::new();
    planted(&place, "p.toml", "[model]\n[train]\nepochs = 2\n");
    let run = |more: &[&str]| {
        place.succeed(&[&["run", "p.toml", "--quiet", "--run-dir", "run", "--set"], more].concat());
        std::fs::read_to_string(place.path("run/report.html")).unwrap().contains("Threads")
    };
    assert!(run(&["train.trace=true"]));
    assert!(!run(&["train.epochs=3", "--resume"]));
    assert!(!place.path("run/trace").exists());
}
