//! `gnnflow sweep`: all combinations of some values.

use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::{TestDir, epochs, planted, wait_for_epochs};

const SETTINGS: &str = "[model]\nkind = 'sage'\nhidden = 16\n[train]\nepochs = 2\n";
const GRID: [&str; 6] = ["sweep", "p.toml", "--vary", "model.hidden=8,16", "--vary", "train.seed=1,2"];

fn sweep(place: &TestDir, args: &[&str]) -> (Value, String) {
    let ended = place.run(&[args, &["--json"]].concat());
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    (serde_json::from_str(&ended.stdout).unwrap(), ended.stderr)
}

#[test]
fn all_combinations_run_once_and_the_best_is_first() {
    let place = TestDir::new();
    planted(&place, "p.toml", SETTINGS);
    let (found, said) = sweep(&place, &[&GRID[..], &["--processes", "2"]].concat());
    assert!(
        said.contains("run 2 of 4: model.hidden=8 train.seed=2\n") && said.contains("4 of 4 runs finished"),
        "{said}"
    );
    let rows = found["runs"].as_array().unwrap();
    let scores: Vec<f64> = rows.iter().map(|row| row["val"]["accuracy"].as_f64().unwrap()).collect();
    assert!(rows.len() == 4 && scores.windows(2).all(|pair| pair[0] >= pair[1]), "{scores:?}");
    assert_eq!(found["over_seeds"].as_array().unwrap().len(), 2);
    for name in ["hidden=8,seed=1", "hidden=8,seed=2", "hidden=16,seed=1", "hidden=16,seed=2"] {
        assert_eq!(epochs(&place.path("runs/p-sweep").join(name)).len(), 2, "{name}");
    }
    assert!(place.path("runs/p-sweep/compare.html").is_file());
    // The folder of a sweep stands for its runs, but not every file in it is one.
    let compared: Value = serde_json::from_str(&place.succeed(&["compare", "runs/p-sweep", "--json"])).unwrap();
    assert_eq!(compared["runs"].as_array().unwrap().len(), 4);
    let files = ["compare", "runs/p-sweep/hidden=8,seed=1", "runs/p-sweep/compare.html"];
    place.fail(&files, 3, &["runs/p-sweep/compare.html is not a run folder, but a file", "the folder of a sweep"]);
    // The run of a sweep has the bits of a run by hand.
    let args = ["run", "p.toml", "--json", "--set", "model.hidden=8", "--set", "train.seed=2"];
    let by_hand: Value = serde_json::from_str(&place.succeed(&args)).unwrap();
    let row = rows.iter().find(|row| row["run"] == "runs/p-sweep/hidden=8,seed=2").unwrap();
    assert_eq!(row["model_sha256"], by_hand["model_sha256"]);

    // A longer sweep executes only what is new, and with another pipeline everything.
    let longer = [&GRID[..5], &["train.seed=1,2,3"]].concat();
    let (found, said) = sweep(&place, &longer);
    assert_eq!(
        (said.matches("has finished before").count(), found["runs"].as_array().unwrap().len()),
        (4, 6),
        "{said}"
    );
    // A run that the user has replaced by hand does not count.
    let by_hand = ["run", "p.toml", "--quiet", "--run-dir", "runs/p-sweep/hidden=8,seed=1", "--set", "train.epochs=1"];
    place.succeed(&by_hand);
    let (_, said) = sweep(&place, &GRID);
    assert_eq!(said.matches("has finished before").count(), 3, "{said}");
    // A run that has the results of another pipeline is moved first, also if the new one fails before it begins.
    let ended = place.run(&[&GRID[..], &["--set", "train.memory=1MB"]].concat());
    assert_eq!(ended.code, 2, "{}", ended.stderr);
    assert!(ended.stderr.contains("0 of 4 runs finished"), "{}", ended.stderr);
    let again = place.run(&[&GRID[..], &["--set", "train.memory=1MB"]].concat());
    assert!(again.code == 2 && !again.stderr.contains("has finished before"), "{}", again.stderr);
    let (_, said) = sweep(&place, &[&GRID[..], &["--set", "train.epochs=1"]].concat());
    assert_eq!(said.matches("has finished before").count(), 0, "{said}");
    assert_eq!(epochs(&place.path("runs/p-sweep/hidden=8,seed=1")).len(), 1);
    assert!(place.path("runs/p-sweep/hidden=8,seed=1/earlier/3/summary.json").is_file());
}

#[test]
fn interrupted_sweep_is_continued() {
    let place = TestDir::new();
    planted(&place, "p.toml", "[model]\nkind = 'sage'\nhidden = 16\n[train]\nepochs = 300\ncheckpoint_every = 1\n");
    let args = ["sweep", "p.toml", "--vary", "train.seed=1,2", "--out", "all"];
    let mut first = place.command(&args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_for_epochs(&place, "all/seed=1", 2, &mut first);
    let children = crate::common::children(first.id());
    crate::common::kill(first.id());
    first.wait().unwrap();
    // The kernel kills the run, which holds the lock of its folder.
    let deadline = Instant::now() + Duration::from_secs(30);
    let runs =
        |child: &u32| std::fs::read_to_string(format!("/proc/{child}/stat")).is_ok_and(|stat| !stat.contains(") Z "));
    while children.iter().any(runs) {
        assert!(Instant::now() < deadline, "{children:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
    let done = epochs(&place.path("all/seed=1")).len();
    assert!(done < 300);
    let (_, said) = sweep(&place, &args);
    assert!(said.contains("run 1 of 2: train.seed=1: resumes\n"), "{said}");
    place.succeed(&["run", "p.toml", "--quiet", "--run-dir", "whole", "--set", "train.seed=1"]);
    crate::common::assert_same_results(&place, "all/seed=1", "whole");
}

#[test]
fn failed_run_does_not_end_the_sweep() {
    let place = TestDir::new();
    planted(&place, "p.toml", SETTINGS);
    let args = ["sweep", "p.toml", "--vary", "train.memory=1MB,1GB", "--out", "all", "--json"];
    let ended = place.run(&args);
    assert_eq!(ended.code, 2, "{}", ended.stderr);
    assert!(ended.stderr.contains("run 1 of 2: train.memory=1MB: failed with exit code 2"), "{}", ended.stderr);
    let found: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!((found["runs"].as_array().unwrap().len(), &found["runs"][0]["run"]), (1, &"all/memory=1GB".into()));
}

#[test]
fn wrong_values_are_refused_before_the_first_run() {
    let place = TestDir::new();
    planted(&place, "p.toml", SETTINGS);
    let refused = |vary: &str, words: &[&str]| {
        place.fail(&["sweep", "p.toml", "--vary", vary], 2, words);
        assert!(!place.path("runs").exists());
    };
    refused("model.hidden", &["--vary model.hidden", "model.hidden=64,128"]);
    refused("model.hidden=8,,16", &["an empty key or value"]);
    refused("model.hidden=8,8", &["8 occurs twice"]);
    let twice = ["sweep", "p.toml", "--vary", "train.seed=1,2", "--vary", "train.seed=3"];
    place.fail(&twice, 2, &["--vary train.seed occurs twice"]);
    let set = ["sweep", "p.toml", "--vary", "train.seed=1,2", "--set", "train.seed=3"];
    place.fail(&set, 2, &["--set train.seed has no effect beside --vary train.seed"]);
    refused("model.hiden=8", &["did you mean \"hidden\""]);
    refused("train.epochs=2,0", &["train.epochs"]);
    refused("model.hidden=8,x", &["--vary model.hidden: expected an integer, found the string \"x\""]);
    refused("partition.out='a/b','a_b'", &["two runs would have the folder runs/p-sweep/out=a_b"]);
    let words = ["dataset: partition.parts=2 and partition.parts=3; remove partition.out", "--unset partition.out"];
    refused("partition.parts=2,3", &words);
    assert_eq!(place.run(&["sweep", "p.toml"]).code, 2);
}
