//! All pipelines of `pipelines/` run, on one process and on several, and write their outputs.

use crate::common::{TestDir, ready_made, summary};
use serde_json::Value;
use std::path::Path;

/// Copies a ready-made pipeline into `place`, so that its dataset is written there.
fn copy(place: &TestDir, file: &Path) -> String {
    let name = file.file_name().unwrap().to_str().unwrap().to_owned();
    place.write(&name, std::fs::read(file).unwrap());
    name
}

#[test]
fn all_pipelines_have_a_plan() {
    let files = ready_made();
    assert!(files.len() >= 4, "{files:?}");
    let place = TestDir::new();
    for file in files {
        let name = copy(&place, &file);
        let stem = name.trim_end_matches(".toml");
        assert!(place.succeed(&["run", &name, "--dry-run"]).starts_with(&format!("plan        {stem}\n")));
    }
}

/// Runs a ready-made pipeline in the run folder `run`, and checks what it writes.
fn check_outputs(place: &TestDir, file: &Path, more: &[&str]) {
    let name = copy(place, file);
    let text = place.succeed(&[&["run", &name, "--run-dir", "run"], more].concat());
    let summary = summary(place, "run");
    assert_eq!(summary["schema"], 1);
    let stem = name.trim_end_matches(".toml");
    assert!(text.starts_with(&format!("{stem}: ")), "{text}");
    assert!(place.path("run/report.html").is_file() && place.path("run/pipeline.toml").is_file());
    let spec = std::fs::read_to_string(file).unwrap();
    assert_eq!(place.path("run/metrics.jsonl").is_file(), trains(file), "{name}");
    assert_eq!(place.path("run/predictions.parquet").is_file(), spec.contains("\npredictions = true"), "{name}");
    assert_eq!(place.path("run/embeddings.parquet").is_file(), spec.contains("\nembeddings = true"), "{name}");
    // The resolved pipeline runs from another folder.
    place.succeed(&["run", "run/pipeline.toml", "--dry-run"]);
    // `inspect` recognizes a run folder.
    let described = place.succeed(&["inspect", "run"]);
    assert!(described.starts_with(&format!("{stem}: ")));
    if place.path("run/model.safetensors").is_file() {
        assert_eq!(place.succeed(&["inspect", "run/model.safetensors"]), described, "the folder of the model");
    }
}

fn trains(file: &Path) -> bool {
    std::fs::read_to_string(file).unwrap().contains("\n[train]\n")
}

fn is_quickstart(file: &Path) -> bool {
    file.ends_with("quickstart.toml")
}

/// The first three epochs, except of the quickstart, which has a test of its own.
#[test]
fn all_pipelines_run_and_write_their_outputs() {
    for file in ready_made().iter().filter(|file| !is_quickstart(file)) {
        let few: &[&str] = if trains(file) { &["--set", "train.epochs=3"] } else { &[] };
        check_outputs(&TestDir::new(), file, few);
    }
}

#[test]
fn quickstart_beats_an_mlp_and_has_equal_bits_for_1_4_processes() {
    let file = ready_made().into_iter().find(|file| is_quickstart(file)).unwrap();
    let place = TestDir::new();
    check_outputs(&place, &file, &[]);
    let name = "quickstart.toml";
    place.succeed(&["run", name, "--run-dir", "four", "--quiet", "--processes", "4"]);
    place.succeed(&["run", name, "--run-dir", "mlp", "--quiet", "--set", "model.kind=mlp"]);
    let (one, four, mlp) = (summary(&place, "run"), summary(&place, "four"), summary(&place, "mlp"));
    for hash in ["model_sha256", "predictions_sha256"] {
        assert!(one[hash].is_string());
        assert_eq!(one[hash], four[hash], "{hash}");
    }
    let accuracy = |summary: &Value| summary["test"]["accuracy"].as_f64().unwrap();
    assert!(accuracy(&one) > accuracy(&mlp) + 0.1, "sage {}, mlp {}", accuracy(&one), accuracy(&mlp));
}
