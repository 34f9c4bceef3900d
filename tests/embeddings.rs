//! Learnt rows of nodes by the real program: the same bits from 1, 2 and 4 processes, resumed, killed and exported; asynchronous
//! training within its bound; and what is refused.

use std::collections::BTreeMap;

use crate::common::{Place, killed, planted, summary};
use arrow::array::AsArray;
use arrow::datatypes::{Float32Type, Int64Type};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

/// A planted graph without features.
const NONE: &str = "graph.generate.features=0";
/// One whose edges say much of classes, and batches that see enough of them.
const TELLING: [&str; 6] =
    ["--set", "graph.generate.homophily=0.9", "--set", "model.aggregator=gcn", "--set", "train.fanouts=[10,10]"];

fn settings(model: &str, embedding: &str, train: &str) -> String {
    format!("[model]\n{model}\nhidden = 16\nembedding = {{ {embedding} }}\n[train]\nfanouts = [5, 3]\n{train}")
}

fn run(place: &Place, args: &[&str]) -> serde_json::Value {
    let ended = place.run(&[&["run", "p.toml", "--quiet", "--run-dir", "run", "--set", NONE], args].concat());
    assert_eq!(ended.code, 0, "{args:?}: {}", ended.stderr);
    summary(place, "run")
}

/// Hashes of model, rows, predictions and blocks.
fn hashes(summary: &serde_json::Value) -> Vec<String> {
    let mut all = crate::common::hashes(summary);
    all.push(summary["node_embeddings"]["sha256"].as_str().unwrap().to_owned());
    all
}

/// Rows by the user's ids.
fn rows(place: &Place, run: &str) -> BTreeMap<i64, Vec<f32>> {
    let file = std::fs::File::open(place.path(run).join("node_embeddings.parquet")).unwrap();
    let mut all = BTreeMap::new();
    for batch in ParquetRecordBatchReaderBuilder::try_new(file).unwrap().build().unwrap() {
        let batch = batch.unwrap();
        let ids = batch.column_by_name("node_id").unwrap().as_primitive::<Int64Type>();
        let rows = batch.column_by_name("embedding").unwrap().as_fixed_size_list();
        for row in 0..batch.num_rows() {
            let values = rows.value(row).as_primitive::<Float32Type>().values().to_vec();
            assert!(all.insert(ids.value(row), values).is_none());
        }
    }
    all
}

#[test]
fn learnt_rows_have_the_same_bits_however_many_work_on_them() {
    for (model, embedding, train) in [
        ("kind = 'sage'", "dim = 12", "epochs = 2\nbatch = 64\n"),
        (
            "kind = 'gcn'",
            "dim = 5, init = 'normal', optimizer = { kind = 'adagrad', lr = 0.1 }",
            "epochs = 2\nbatch = 100\nclip_norm = 0.1\nlr_schedule = { kind = 'linear' }\n",
        ),
        // More than a message to each: rows of 8 KB.
        ("kind = 'gat'\nheads = 2", "dim = 2048, optimizer = { kind = 'sgd', lr = 1.0 }", "epochs = 1\nbatch = 150\n"),
    ] {
        let place = Place::new();
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
fn rows_learn_what_a_graph_without_features_has_to_say() {
    let place = Place::new();
    planted(&place, "p.toml", &settings("kind = 'sage'", "dim = 32", "epochs = 15\nbatch = 64\n"));
    let learnt = run(&place, &TELLING);
    let accuracy = |summary: &serde_json::Value| summary["test"]["accuracy"].as_f64().unwrap();
    // Five classes, by edges alone.
    assert!(accuracy(&learnt) > 0.9, "{}", accuracy(&learnt));
    let rows = rows(&place, "run");
    assert_eq!(rows.len(), 1500);
    assert!(rows.values().all(|row| row.len() == 32 && row.iter().all(|x| x.is_finite())));
    assert!(learnt["best_epoch"].as_u64().unwrap() > 0);

    // The rows are those of the best epoch: a run that ends there leaves the same.
    let best = learnt["best_epoch"].to_string();
    let epochs = format!("train.epochs={best}");
    let early = run(&place, &[&TELLING[..], &["--set", &epochs]].concat());
    assert_eq!(hashes(&early)[3], hashes(&learnt)[3]);
    assert_eq!(accuracy(&early), accuracy(&learnt));
}

#[test]
fn a_run_goes_on_with_another_number_of_processes() {
    let place = Place::new();
    planted(&place, "p.toml", &settings("kind = 'sage'", "dim = 8", "epochs = 6\nbatch = 64\ncheckpoint_every = 2\n"));
    let whole = run(&place, &[]);
    std::fs::remove_dir_all(place.path("run")).unwrap();
    run(&place, &["--processes", "4", "--set", "train.epochs=3"]);
    run(&place, &["--processes", "2", "--resume", "--set", "train.epochs=5"]);
    let last = run(&place, &["--resume"]);
    assert_eq!(hashes(&last), hashes(&whole));
    assert_eq!((&last["best_epoch"], &last["test"]), (&whole["best_epoch"], &whole["test"]));
    // Of each partition, rows after the last epoch and rows of the best one.
    let files = std::fs::read_dir(place.path("run/checkpoints")).unwrap().count();
    assert_eq!(files, 1 + 2 * 4);

    let refused = |args: &[&str], words: &[&str]| {
        place.fail(
            &[&["run", "p.toml", "--quiet", "--run-dir", "run", "--resume", "--set", NONE], args].concat(),
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
fn a_killed_process_changes_nothing() {
    let place = Place::new();
    let train = "epochs = 12\nbatch = 32\ncheckpoint_every = 1\n";
    planted(&place, "p.toml", &settings("kind = 'sage'", "dim = 8", train));
    let whole = run(&place, &[]);
    for (victim, after) in [(1, 2), (0, 5)] {
        let folder = format!("killed-{victim}");
        killed(&place, &folder, &["--set", NONE], victim, after);
        assert_eq!(hashes(&summary(&place, &folder)), hashes(&whole), "victim {victim}");
    }
}

#[test]
fn asynchronous_rows_are_never_staler_than_the_bound() {
    let place = Place::new();
    let embedding = "dim = 32, mode = 'async', staleness = 3";
    planted(&place, "p.toml", &settings("kind = 'sage'", embedding, "epochs = 15\nbatch = 32\n"));
    for (processes, window, most) in [("1", "4", 3), ("2", "8", 3), ("4", "2", 2)] {
        let window = format!("train.window={window}");
        let found = run(&place, &[&TELLING[..], &["--processes", processes, "--set", &window]].concat());
        let stale = &found["node_embeddings"];
        let (max, mean) = (stale["staleness_max"].as_u64().unwrap(), stale["staleness_mean"].as_f64().unwrap());
        let accuracy = found["test"]["accuracy"].as_f64().unwrap();
        println!("{processes} processes: at most {max} steps behind, {mean:.2} in the mean; accuracy {accuracy:.3}");
        assert!(max <= most && mean <= max as f64, "{max}, {mean}");
        assert!(accuracy > 0.9, "{accuracy}");
    }
    // Without a window of its own, a run has as many steps under way as the bound allows to matter.
    let plan = place.succeed(&["run", "p.toml", "--dry-run", "--set", NONE]);
    assert!(plan.contains("4 steps in flight"), "{plan}");
    assert!(
        plan.contains("learned by adam, async, rows up to 3 steps behind: results differ from run to run"),
        "{plan}"
    );
}

#[test]
fn what_cannot_be_learnt_is_refused() {
    let place = Place::new();
    let refused = |embedding: &str, train: &str, args: &[&str], code: i32, words: &[&str]| {
        planted(&place, "p.toml", &settings("kind = 'sage'", embedding, &format!("epochs = 1\n{train}")));
        place.fail(&[&["run", "p.toml", "--quiet", "--run-dir", "run"], args].concat(), code, words);
    };
    let none = ["--set", NONE];
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
    let neither = ["run", "p.toml", "--quiet", "--run-dir", "run", "--set", NONE];
    place.fail(&neither, 3, &["no features", "graph.columns.features", "model.embedding = { dim = 128 }"]);
}
