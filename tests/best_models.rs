//! The models of the best epochs: `train.keep_best`.

use std::collections::BTreeMap;

use crate::common::{TestDir, planted, run_with_kill, summary};

const SETTINGS: &str = "[model]\nkind = 'sage'\nhidden = 16\n[train]\nepochs = 8\nbatch = 100\nfanouts = [4, 3]\nkeep_best = 3\n\
                        checkpoint_every = 1\n";

/// Returns the validation accuracy and loss of each epoch.
fn validation(place: &TestDir, run: &str) -> BTreeMap<u64, (f64, f64)> {
    let lines = std::fs::read_to_string(place.path(run).join("metrics.jsonl")).unwrap();
    let records = lines.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let number = |value: &serde_json::Value| value.as_f64().unwrap();
    records
        .map(|record| {
            (record["epoch"].as_u64().unwrap(), (number(&record["val"]["accuracy"]), number(&record["val"]["loss"])))
        })
        .collect()
}

/// Returns the epochs that a reader of `metrics.jsonl` would call the best, from the best on.
fn best_epochs(place: &TestDir, run: &str, count: usize) -> Vec<u64> {
    let mut epochs: Vec<_> = validation(place, run).into_iter().collect();
    epochs.sort_by(|(a, (accuracy, loss)), (b, (other, other_loss))| {
        other.total_cmp(accuracy).then(loss.total_cmp(other_loss)).then(a.cmp(b))
    });
    epochs.into_iter().take(count).map(|(epoch, _)| epoch).collect()
}

/// Returns the files in the folders of the best models.
fn files(place: &TestDir, run: &str) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    for folder in std::fs::read_dir(place.path(run).join("best")).unwrap().map(|entry| entry.unwrap().path()) {
        for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            let name = path.strip_prefix(place.path(run)).unwrap().to_str().unwrap().to_owned();
            found.insert(name, std::fs::read(&path).unwrap());
        }
    }
    found
}

#[test]
fn models_of_the_best_epochs_are_kept_and_usable() {
    let place = TestDir::new();
    planted(&place, "p.toml", SETTINGS);
    place.succeed(&["run", "p.toml", "--quiet", "--run-dir", "run"]);
    let best = best_epochs(&place, "run", 3);
    let mut names: Vec<String> = best
        .iter()
        .flat_map(|epoch| {
            ["model.safetensors", "optimizer.safetensors", "pipeline.toml"].map(|file| format!("best/e{epoch}/{file}"))
        })
        .collect();
    names.sort();
    assert!(files(&place, "run").keys().eq(&names), "{:?} instead of {names:?}", files(&place, "run").keys());
    let of_epoch = validation(&place, "run");
    for epoch in &best {
        let (run, out) = (format!("run/best/e{epoch}"), format!("out-{epoch}"));
        place.succeed(&["infer", &run, "--out", &out, "--quiet"]);
        let inferred = summary(&place, &out);
        assert_eq!(inferred["val"]["accuracy"].as_f64().unwrap(), of_epoch[epoch].0, "epoch {epoch}");
        let is_best = inferred["model_sha256"] == summary(&place, "run")["model_sha256"];
        assert_eq!(is_best, *epoch == best[0], "epoch {epoch}");
    }
    let from = format!("train.from=run/best/e{}", best[2]);
    place.succeed(&[
        "run",
        "p.toml",
        "--quiet",
        "--run-dir",
        "further",
        "--set",
        &from,
        "--set",
        "train.from_optimizer=true",
    ]);
}

#[test]
fn interrupted_run_keeps_the_same_models() {
    for embedding in ["", "embedding = { dim = 6 }\n"] {
        let place = TestDir::new();
        planted(&place, "p.toml", &SETTINGS.replace("hidden = 16\n", &format!("hidden = 16\n{embedding}")));
        let features = if embedding.is_empty() { "graph.generate.features=24" } else { "graph.generate.features=0" };
        let run = |folder: &str, args: &[&str]| {
            place.succeed(&[&["run", "p.toml", "--quiet", "--run-dir", folder, "--set", features], args].concat());
        };
        run("whole", &["--processes", "2"]);
        let whole = files(&place, "whole");
        assert_eq!(whole.len(), if embedding.is_empty() { 9 } else { 12 });
        run_with_kill(&place, "parts", &["--set", features], 1, 4);
        let parts = files(&place, "parts");
        assert!(parts.keys().eq(whole.keys()), "{:?} instead of {:?}", parts.keys(), whole.keys());
        for (name, bytes) in whole.iter().filter(|(name, _)| !name.ends_with("pipeline.toml")) {
            assert!(*bytes == parts[name], "{name}");
        }
        // A process that was killed after its last checkpoint may leave folders.
        for name in ["e9", "e500", "paper"] {
            std::fs::create_dir_all(place.path("parts/best").join(name)).unwrap();
            place.write(&format!("parts/best/{name}/part"), "");
        }
        run("parts", &["--resume", "--set", "train.epochs=9"]);
        let best = best_epochs(&place, "parts", 3);
        let mut found = files(&place, "parts");
        assert!(found.remove("best/paper/part").is_some(), "a folder of the user");
        assert_eq!(found.len(), whole.len());
        for epoch in best {
            assert!(found.contains_key(&format!("best/e{epoch}/model.safetensors")), "{epoch}: {:?}", found.keys());
        }
    }
}
