//! `gnnflow simulate`: predictions from traced runs, and refusals.

use serde_json::Value;

use crate::common::{TestDir, planted, summary};

const SCHEDULES: [&str; 6] = [
    "'mini-batch'",
    "'partition-parallel'",
    "'full-graph'",
    "{ kind = 'full-graph', mode = 'async', staleness = 1 }",
    "{ kind = 'full-graph', mode = 'sync' }",
    "'tensor-parallel'",
];

/// Runs two processes with a trace. Most of the time, they compute.
fn traced(place: &TestDir, schedule: &str) {
    let train = format!(
        "[model]\nhidden = 128\n[train]\nepochs = 4\nevaluate_every = 0\ntrace = true\nschedule = {schedule}\n"
    );
    planted(place, "p.toml", &train);
    let sets = ["--set", "partition.parts=2", "--set", "partition.features=partitioned"];
    place.succeed(&[&["run", "p.toml", "--quiet", "--processes", "2", "--run-dir", "run"], &sets[..]].concat());
}

/// Simulates the run with `options`, and returns the only prediction.
fn predict(place: &TestDir, options: &[&str]) -> Value {
    let printed = place.succeed(&[&["simulate", "run", "--json", "--quiet"], options].concat());
    let printed: Value = serde_json::from_str(&printed).unwrap();
    assert!(printed["measured_epoch_seconds"].as_f64().unwrap() > 0.0);
    printed["predictions"][0].clone()
}

fn seconds(prediction: &Value) -> f64 {
    prediction["epoch_seconds"].as_f64().unwrap()
}

/// Returns the seconds of a part of the critical path.
fn part(prediction: &Value, name: &str) -> f64 {
    let parts = prediction["critical_path"].as_array().unwrap();
    parts.iter().filter(|part| part["name"] == name).filter_map(|part| part["seconds"].as_f64()).sum()
}

#[test]
fn predictions_of_all_schedules_follow_the_described_cluster() {
    for schedule in SCHEDULES {
        let place = TestDir::new();
        traced(&place, schedule);
        let ideal = ["--hosts", "2", "--cores", "64", "--bandwidth", "1000GB", "--latency", "0"];
        let with = |more: &[&str]| predict(&place, &[&ideal, more].concat());
        let (one, two) = (predict(&place, &["--processes", "1", "--cores", "64"]), with(&[]));
        assert_eq!((&one["processes"], &two["processes"], &two["hosts"]), (&1.into(), &2.into(), &2.into()));
        assert!(seconds(&one) > seconds(&two), "{schedule}: two hosts share the work of one");
        // The parts of the critical path are the whole time.
        let parts = two["critical_path"].as_array().unwrap();
        let sum: f64 = parts.iter().filter_map(|part| part["seconds"].as_f64()).sum();
        assert!((sum / seconds(&two) - 1.0).abs() < 1e-3, "{schedule}: {sum} of {two}");
        // Hosts of half the speed need twice the time.
        let slow = with(&["--slow", "0=0.5", "--slow", "1=0.5"]);
        assert!((seconds(&slow) / seconds(&two) / 2.0 - 1.0).abs() < 0.01, "{schedule}: {slow} for {two}");
        // On a slow link, the bytes determine the time.
        let bytes = summary(&place, "run")["bytes_sent"].as_f64().unwrap();
        let thin = predict(&place, &["--hosts", "2", "--bandwidth", "10KB", "--latency", "0"]);
        assert!(seconds(&thin) > 0.02 * bytes / 4.0 / 1e4, "{schedule}: {thin} for {bytes} bytes in 4 epochs");
        assert!(
            part(&thin, "bytes of messages") + part(&thin, "waiting for the link") > 0.9 * seconds(&thin),
            "{thin}"
        );
        let far = predict(&place, &["--hosts", "2", "--latency", "200"]);
        assert!(part(&far, "latency of messages") > 0.19, "{schedule}: {far}");
    }
}

#[test]
fn tables_have_a_row_for_each_number_of_hosts() {
    let place = TestDir::new();
    traced(&place, "'full-graph'");
    let table = place.succeed(&["simulate", "run", "--hosts", "1,2", "--cores", "4"]);
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert!(rows[0][0] == "recorded" && table.contains("2 processes of "), "{table}");
    assert_eq!(
        (&rows[2][..3], &rows[3][..2], &rows[4][..2]),
        (&["hosts", "processes", "threads"][..], &["1", "1"][..], &["2", "2"][..])
    );
    assert!(table.contains('%'), "{table}");
}

#[test]
fn runs_and_clusters_that_do_not_fit_are_refused() {
    let place = TestDir::new();
    let refused = |args: &[&str], code, words: &[&str]| place.fail(&[&["simulate"], args].concat(), code, words);
    refused(&["nowhere"], 3, &["nowhere: this is not a run folder"]);
    traced(&place, "'mini-batch'");
    refused(&["run", "--processes", "3"], 2, &["3 processes cannot be simulated", "the run has 2", "`--processes 3`"]);
    refused(&["run", "--hosts", "2", "--processes", "1"], 2, &["2 hosts for 1 process"]);
    refused(&["run", "--slow", "1=0.5"], 2, &["--slow 1=0.5", "no such host", "from 0 to 0"]);
    refused(&["run", "--slow", "0=0"], 2, &["a speed above 0"]);
    refused(&["run", "--hosts", "2", "--bandwidth", "0"], 2, &["--bandwidth", "at least 1 byte"]);
    refused(&["run", "--hosts", "2", "--latency=-1"], 2, &["--latency", "at least 0"]);
    refused(&["run", "--bandwidth", "1GB"], 2, &["--bandwidth: one host has no network"]);
    refused(&["run", "--latency", "1"], 2, &["--latency: one host has no network"]);
    refused(&["run", "--threads", "1", "--scaling", "run"], 2, &["--scaling: has no effect on one thread"]);
    refused(
        &["run", "--threads", "2", "--scaling", "run"],
        2,
        &["a run of 2 processes of 1 thread", "does not tell how well jobs use several threads"],
    );
    place.succeed(&["run", "p.toml", "--quiet", "--run-dir", "other", "--set", "model.hidden=8"]);
    refused(&["run", "--threads", "2", "--scaling", "other"], 2, &["the two runs have different pipelines"]);
    let run = |more: &[&str]| place.succeed(&[&["run", "p.toml", "--quiet", "--run-dir", "run"], more].concat());
    run(&["--set", "train.epochs=2", "--processes", "2"]);
    refused(&["run", "--hosts", "2"], 2, &["shared features", "`--set partition.features=partitioned`"]);
    place.succeed(&["simulate", "run", "--processes", "2"]);
    run(&["--set", "train.trace=false"]);
    refused(&["run"], 3, &["worker-0-work.json: not found", "`--set train.trace=true`"]);
    run(&["--set", "train.task=link-prediction", "--set", "train.epochs=1"]);
    refused(&["run"], 2, &["a run that trains on edges cannot be simulated yet"]);
}
