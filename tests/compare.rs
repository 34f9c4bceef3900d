//! `gnnflow compare` and the event files of runs.

use serde_json::Value;

use crate::common::{TestDir, planted, summary, weights};

const SETTINGS: &str = "[model]\nkind = 'sage'\nhidden = 16\n[train]\nepochs = 3\n";

fn run(place: &TestDir, name: &str, more: &[&str]) {
    let args = ["run", "p.toml", "--quiet", "--run-dir", name];
    place.succeed(&[&args[..], more].concat());
}

fn compare(place: &TestDir, args: &[&str]) -> Value {
    serde_json::from_str(&place.succeed(&[&["compare", "--json"], args].concat())).unwrap()
}

#[test]
fn runs_are_compared_by_the_keys_that_differ() {
    let place = TestDir::new();
    planted(&place, "p.toml", SETTINGS);
    run(&place, "runs/a", &[]);
    run(&place, "runs/b", &["--set", "model.hidden=32"]);
    run(&place, "runs/c", &["--set", "train.seed=9"]);
    run(&place, "runs/again", &["--processes", "2"]);
    let found = compare(&place, &["runs/a", "runs/b", "runs/c", "runs/again"]);
    assert_eq!(found["keys"], serde_json::json!(["model.hidden", "train.seed"]));
    assert_eq!(found["metric"], "accuracy");
    for (number, name) in ["runs/a", "runs/b", "runs/c", "runs/again"].into_iter().enumerate() {
        let (row, summary) = (&found["runs"][number], summary(&place, name));
        assert_eq!((&row["run"], &row["finished"]), (&name.into(), &true.into()));
        for key in ["epochs", "best_epoch", "val", "test", "model_sha256", "bytes_sent"] {
            assert_eq!(row[key], summary[key], "{name} {key}");
        }
        assert_eq!(row["seconds"], summary["seconds"]["train"]);
    }
    assert_eq!(found["runs"][1]["settings"]["model.hidden"], 32);
    // Two processes train the same model as one, so that run is no repetition of the first.
    assert_eq!(found["same_models"], serde_json::json!([[0, 3]]));
    let means = found["over_seeds"].as_array().unwrap();
    assert_eq!((means.len(), &means[0]["runs"]), (1, &serde_json::json!([0, 2])));
    let accuracy = |number: usize| found["runs"][number]["test"]["accuracy"].as_f64().unwrap();
    let mean = means[0]["test"]["mean"].as_f64().unwrap();
    assert!((mean - (accuracy(0) + accuracy(2)) / 2.0).abs() < 1e-12);

    let table = place.succeed(&["compare", "runs/a", "runs/b", "--html", "page.html"]);
    let words: Vec<&str> = table.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(words[..6], ["run", "model.hidden", "val", "accuracy", "test", "accuracy"], "{table}");
    let page = std::fs::read_to_string(place.path("page.html")).unwrap();
    assert!(page.matches("<svg").count() == 2 && page.contains("Validation: Accuracy"), "{page}");
}

#[test]
fn folders_without_a_run_are_refused() {
    let place = TestDir::new();
    place.write("empty/notes.txt", "of the user");
    place.fail(&["compare", "empty"], 3, &["empty is not a run folder: it has no pipeline.toml"]);
    place.fail(&["compare", "none"], 3, &["none is not a run folder"]);
    place.fail(
        &["compare", "empty/notes.txt"],
        3,
        &["empty/notes.txt is not a run folder, but a file; name run folders"],
    );
    place.write("broken/pipeline.toml", "name = ");
    place.fail(&["compare", "broken"], 3, &["broken/pipeline.toml"]);
    place.write("torn/pipeline.toml", "name = 'torn'");
    place.write("torn/summary.json", "{");
    place.fail(&["compare", "torn"], 3, &["torn/summary.json", "not a summary of a run"]);
    assert_eq!(place.run(&["compare"]).code, 2);
    place.write("new/pipeline.toml", "name = 'new'");
    place.fail(&["compare", "new", "--html", "missing/page.html"], 4, &["missing/page.html"]);
    // A run that has not finished an epoch.
    let row = &compare(&place, &["new"])["runs"][0];
    assert_eq!((&row["finished"], &row["epochs"]), (&false.into(), &0.into()));
}

/// Returns the data of all records of an event file.
fn records(bytes: &[u8]) -> Vec<&[u8]> {
    let (mut rest, mut found) = (bytes, Vec::new());
    while !rest.is_empty() {
        let length = u64::from_le_bytes(rest[..8].try_into().unwrap()) as usize;
        found.push(&rest[12..12 + length]);
        rest = &rest[16 + length..];
    }
    found
}

fn has(record: &[u8], text: &str) -> bool {
    record.windows(text.len()).any(|window| window == text.as_bytes())
}

#[test]
fn runs_write_event_files_for_tensorboard() {
    let place = TestDir::new();
    planted(&place, "p.toml", SETTINGS);
    let events = |folder: &str| {
        let entries = std::fs::read_dir(place.path(folder)).unwrap().map(|entry| entry.unwrap());
        let mut names: Vec<String> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
        names.retain(|name| name.starts_with("events.out.tfevents."));
        names.sort();
        names
    };
    run(&place, "run", &["--processes", "2"]);
    run(&place, "run", &["--resume", "--set", "train.epochs=5"]);
    let before = events("run");
    assert_eq!(before.len(), 2, "{before:?}");
    let [first, second] = [0, 1].map(|i: usize| std::fs::read(place.path("run").join(&before[i])).unwrap());
    // The version, the start, the pipeline; then an event per epoch.
    assert_eq!((records(&first).len(), records(&second).len()), (3 + 3, 3 + 2));
    assert!(has(records(&first)[2], "seed = 3"));
    for record in &records(&first)[3..] {
        for tag in ["loss/steps", "loss/val", "accuracy/val", "accuracy/test", "optimizer/learning_rate"] {
            assert!(has(record, tag), "{tag}");
        }
        assert!(!has(record, "parameters/"));
    }
    run(&place, "histograms", &["--set", "train.histograms=true", "--set", "train.schedule.kind=full-graph"]);
    let bytes = std::fs::read(place.path("histograms").join(&events("histograms")[0])).unwrap();
    for record in &records(&bytes)[3..] {
        let names = weights(&place, "histograms").into_keys();
        names.for_each(|name| assert!(has(record, &format!("parameters/{name}")), "{name}"));
    }
    // An earlier run keeps its files.
    run(&place, "run", &["--set", "train.seed=9"]);
    assert_eq!(events("run/earlier/1"), before);
    let now = events("run");
    assert!(now.len() == 1 && !before.contains(&now[0]), "{now:?}");
}
