//! The same bits from 1, 2 and 4 processes, and from 1 and 2 compute threads.

mod common;

use common::{Place, planted, summary};

/// Hashes of model, predictions and blocks of a run.
fn hashes(place: &Place, run: &str) -> [String; 3] {
    let summary = summary(place, run);
    ["model_sha256", "predictions_sha256", "blocks_sha256"].map(|key| summary[key].as_str().unwrap().to_owned())
}

fn same_bits(settings: &str) {
    let place = Place::new();
    planted(&place, "p.toml", settings);
    let mut expected: Option<[String; 3]> = None;
    for (processes, threads) in [("1", 1), ("1", 2), ("2", 1), ("4", 2)] {
        let (run, threads) = (format!("run-{processes}-{threads}"), format!("train.threads={threads}"));
        let args = ["run", "p.toml", "--quiet", "--processes", processes, "--run-dir", &run, "--set", &threads];
        let ended = place.run(&args);
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        let found = hashes(&place, &run);
        assert_eq!(&found, expected.get_or_insert_with(|| found.clone()), "{processes} processes, {threads}");
    }
}

#[test]
fn sampled_sage_has_the_same_bits_however_many_work_on_it() {
    same_bits("[model]\nkind = 'sage'\nhidden = 32\n[train]\nepochs = 3\nbatch = 64\nfanouts = [5, 3]\n");
}

#[test]
fn pooled_sage_with_replacement_has_the_same_bits_however_many_work_on_it() {
    same_bits(
        "[model]\nkind = 'sage'\naggregator = 'pool'\nhidden = 16\n[train]\nepochs = 2\nbatch = 64\nfanouts = [4, 4]\n\
         replace = true\noptimizer = { kind = 'sgd', lr = 0.05, momentum = 0.9 }\n",
    );
}

#[test]
fn gcn_over_all_neighbours_has_the_same_bits_however_many_work_on_it() {
    same_bits("[model]\nkind = 'gcn'\nhidden = 16\n[train]\nepochs = 2\nbatch = 500\nfanouts = [-1, -1]\n");
}

#[test]
fn gat_has_the_same_bits_however_many_work_on_it() {
    same_bits(
        "[model]\nkind = 'gat'\nhidden = 16\nheads = 4\nattention_dropout = 0.3\n[train]\nepochs = 2\nbatch = 100\n\
         fanouts = [6, 4]\noptimizer = { kind = 'adamw', lr = 0.01, weight_decay = 0.01 }\n",
    );
}
