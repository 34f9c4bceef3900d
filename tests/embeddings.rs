//! Learned rows of nodes in mini-batches: equal bits for 1, 2 and 4 processes, also resumed or killed; staleness of
//! asynchronous training; refused settings.

use crate::common::{TestDir, learned_rows, planted, run_with_kill, summary};

/// A graph without features.
const NO_FEATURES: &str = "graph.generate.features=0";
/// A graph whose edges are mostly within classes, and fanouts that sample enough of them.
const HOMOPHILOUS: [&str; 6] =
    ["--set", "graph.generate.homophily=0.9", "--set", "model.aggregator=gcn", "--set", "train.fanouts=[10,10]"];

fn settings(model: &str, embedding: &str, train: &str) -> String {
    format!("[model]\n{model}\nhidden = 16\nembedding = {{ {embedding} }}\n[train]\nfanouts = [5, 3]\n{train}")
}

fn run(place: &TestDir, args: &[&str]) -> serde_json::Value {
    let ended = place.run(&[&["run", "p.toml", "--quiet", "--run-dir", "run", "--set", NO_FEATURES], args].concat());
    assert_eq!(ended.code, 0, "{args:?}: {}", ended.stderr);
    summary(place, "run")
}

/// Returns the hashes of model, rows, predictions and blocks.
fn hashes(summary: &serde_json::Value) -> Vec<String> {
    let mut all = crate::common::hashes(summary);
    all.push(summary["node_embeddings"]["sha256"].as_str().unwrap().to_owned());
    all
}

#[test]
fn learned_rows_have_equal_bits_for_1_2_4_processes() {
    for (model, embedding, train) in [
        ("kind = 'sage'", "dim = 12", "epochs = 2\nbatch = 64\n"),
        (
            "kind = 'gcn'",
            "dim = 5, init = 'normal', optimizer = { kind = 'adagrad', lr = 0.1 }",
            "epochs = 2\nbatch = 100\nclip_norm = 0.1\nlr_schedule = { kind = 'linear' }\n",
        ),
        // Rows of 8 KB, which need several messages to each process.
        ("kind = 'gat'\nheads = 2", "dim = 2048, optimizer = { kind = 'sgd', lr = 1.0 }", "epochs = 1\nbatch = 150\n"),
    ] {
        let place = TestDir::new();
        planted(&place, "p.toml", &settings(model, embedding, train));
        let mut expected = None;
        for (processes, threads, window) in [("1", 1, 2), ("1", 2, 4), ("2", 1, 4), ("4", 2, 1)] {
            let (threads, window) = (format!("train.threads={threads}"), format!("train.window={window}"));
            let found = run(&place, &["--processes", processes, "--set", &threads, "--set", &window]);
            assert_eq!(found["node_embeddings"]["staleness_max"], 0);
            assert!(found["node_embeddings"]["rows_moved"].as_u64().unwrap() > 1000);
            let found = hashes(&found);
            assert_eq!(&found, expected.get_or_insert_with(|| found.clone()), "{model} on {processes}");
        }
    }
}

#[test]
fn rows_of_a_graph_without_features_learn_its_classes() {
    let place = TestDir::new();
    planted(&place, "p.toml", &settings("kind = 'sage'", "dim = 32", "epochs = 15\nbatch = 64\n"));
    let trained = run(&place, &HOMOPHILOUS);
    let accuracy = |summary: &serde_json::Value| summary["test"]["accuracy"].as_f64().unwrap();
    // Five classes, learned from edges only.
    assert!(accuracy(&trained) > 0.9, "{}", accuracy(&trained));
    let rows = learned_rows(&place);
    assert_eq!(rows.len(), 1500);
    assert!(rows.values().all(|row| row.len() == 32 && row.iter().all(|x| x.is_finite())));
    assert!(trained["best_epoch"].as_u64().unwrap() > 0);

    // The saved rows are those of the best epoch. A run that ends at this epoch saves the same rows.
    let best = trained["best_epoch"].to_string();
    let epochs = format!("train.epochs={best}");
    let early = run(&place, &[&HOMOPHILOUS[..], &["--set", &epochs]].concat());
    assert_eq!(hashes(&early)[3], hashes(&trained)[3]);
    assert_eq!(accuracy(&early), accuracy(&trained));
}

#[test]
fn run_resumed_with_another_number_of_processes_has_equal_bits() {
    let place = TestDir::new();
    planted(&place, "p.toml", &settings("kind = 'sage'", "dim = 8", "epochs = 6\nbatch = 64\ncheckpoint_every = 2\n"));
    let whole = run(&place, &[]);
    std::fs::remove_dir_all(place.path("run")).unwrap();
    run(&place, &["--processes", "4", "--set", "train.epochs=3"]);
    run(&place, &["--processes", "2", "--resume", "--set", "train.epochs=5"]);
    let last = run(&place, &["--resume", "--set", "train.keep_checkpoints=1"]);
    assert_eq!(hashes(&last), hashes(&whole));
    assert_eq!((&last["best_epoch"], &last["test"]), (&whole["best_epoch"], &whole["test"]));
    // Each partition has a shard of the last and one of the best epoch.
    let files = std::fs::read_dir(place.path("run/checkpoints")).unwrap().count();
    assert_eq!(files, 1 + 2 * 4);

    let refused = |args: &[&str], words: &[&str]| {
        place.fail(
            &[&["run", "p.toml", "--quiet", "--run-dir", "run", "--resume", "--set", NO_FEATURES], args].concat(),
            3,
            words,
        );
    };
    let fix = "set model.embedding.dim = 8";
    refused(
        &["--set", "model.embedding.dim=9"],
        &["last.safetensors: has learned rows of 8 numbers", "of 9 numbers", fix],
    );
    refused(&["--set", "model.embedding.optimizer.kind=sgd"], &["another pipeline"]);
    let mut shards = std::fs::read_dir(place.path("run/checkpoints")).unwrap().map(|entry| entry.unwrap().path());
    let shard = shards.find(|path| path.to_string_lossy().contains("embeddings-e6-p00003")).unwrap();
    let bytes = std::fs::read(&shard).unwrap();
    std::fs::write(&shard, &bytes[..bytes.len() / 2]).unwrap();
    refused(&[], &["e6-p00003.safetensors: is damaged"]);
    std::fs::remove_file(&shard).unwrap();
    refused(&["--processes", "2"], &["e6-p00003.safetensors: is missing"]);
}

#[test]
fn run_with_a_killed_process_has_equal_bits() {
    let place = TestDir::new();
    let train = "epochs = 12\nbatch = 32\ncheckpoint_every = 1\n";
    planted(&place, "p.toml", &settings("kind = 'sage'", "dim = 8", train));
    let whole = run(&place, &[]);
    for (victim, after) in [(1, 2), (0, 5)] {
        let folder = format!("killed-{victim}");
        run_with_kill(&place, &folder, &["--set", NO_FEATURES], victim, after);
        assert_eq!(hashes(&summary(&place, &folder)), hashes(&whole), "victim {victim}");
    }
}

#[test]
fn asynchronous_rows_stay_within_the_staleness_bound() {
    let place = TestDir::new();
    let embedding = "dim = 32, mode = 'async', staleness = 3";
    planted(&place, "p.toml", &settings("kind = 'sage'", embedding, "epochs = 15\nbatch = 32\n"));
    for (processes, window, most) in [("1", "4", 3), ("2", "8", 3), ("4", "2", 2)] {
        let window = format!("train.window={window}");
        let found = run(&place, &[&HOMOPHILOUS[..], &["--processes", processes, "--set", &window]].concat());
        let stale = &found["node_embeddings"];
        let (max, mean) = (stale["staleness_max"].as_u64().unwrap(), stale["staleness_mean"].as_f64().unwrap());
        let accuracy = found["test"]["accuracy"].as_f64().unwrap();
        println!("{processes} processes: at most {max} steps behind, {mean:.2} in the mean; accuracy {accuracy:.3}");
        assert!(max <= most && mean <= max as f64, "{max}, {mean}");
        assert!(accuracy > 0.9, "{accuracy}");
    }
    // Without `train.window`, the staleness bound determines the number of steps in flight.
    let plan = place.succeed(&["run", "p.toml", "--dry-run", "--set", NO_FEATURES]);
    assert!(plan.contains("4 steps in flight"), "{plan}");
    assert!(
        plan.contains("learned by adam, async, rows up to 3 steps behind: results differ from run to run"),
        "{plan}"
    );
}

#[test]
fn invalid_embedding_settings_are_refused() {
    let place = TestDir::new();
    let refused = |embedding: &str, train: &str, args: &[&str], code: i32, words: &[&str]| {
        planted(&place, "p.toml", &settings("kind = 'sage'", embedding, &format!("epochs = 1\n{train}")));
        place.fail(&[&["run", "p.toml", "--quiet", "--run-dir", "run"], args].concat(), code, words);
    };
    let none = ["--set", NO_FEATURES];
    refused("dim = 8", "", &[], 2, &["p.toml:10: model.embedding:", "these have 24", "leave model.embedding out"]);
    refused("staleness = 2", "", &none, 2, &["model.embedding.staleness:", "\"async\""]);
    refused("init = 'zeros', init_scale = 0.1", "", &none, 2, &["model.embedding.init_scale:"]);
    refused("dim = 0", "", &none, 2, &["model.embedding.dim: must be at least 1"]);
    refused("optimizer = { kind = 'sgd', eps = 1e-8 }", "", &none, 2, &["model.embedding.optimizer.eps:", "`adagrad`"]);
    refused("optimizer = { kind = 'adagrad', betas = [0.9, 0.9] }", "", &none, 2, &["only `adam`"]);
    refused("optimizer = { betas = [0.9, 1] }", "", &none, 2, &["optimizer.betas[1]:", "less than 1"]);
    refused("dim = 8", "schedule.cache = '1MB'\n", &none, 2, &["train.schedule.cache: learned rows change"]);
    refused("dim = 8", "schedule = 'partition-parallel'\n", &none, 2, &["model.embedding:", "use `mini-batch`"]);

    planted(&place, "p.toml", "[model]\nkind = 'sage'\n[train]\nepochs = 1\n");
    let neither = ["run", "p.toml", "--quiet", "--run-dir", "run", "--set", NO_FEATURES];
    place.fail(&neither, 3, &["no features", "graph.columns.features", "model.embedding = { dim = 128 }"]);
}
