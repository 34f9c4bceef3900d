//! Partition-parallel training and the split of seeds: equal bits for any number of processes, and accuracy.

use crate::common::{TestDir, hashes, planted, succeed};

const SCHEDULE: &str = "schedule.kind = 'partition-parallel'\n";

fn settings(model: &str, train: &str) -> String {
    format!("{model}\n[train]\nepochs = 4\nbatch = 50\nfanouts = [5, 3]\n{train}")
}

#[test]
fn partition_parallel_has_equal_bits_for_1_2_4_processes() {
    let place = TestDir::new();
    for (model, train) in [
        ("[model]\nkind = 'sage'\nhidden = 16", ""),
        // GCN requests degrees of remote nodes; statistics of batch norm are averaged.
        (
            "[model]\nkind = 'gcn'\nhidden = 16\nnorm = 'batch'",
            "schedule.average_every = 3\nschedule.average_momentum = 0.5\nsampler = 'labor'\n",
        ),
        ("[model]\nkind = 'sage'\nhidden = 16", "optimizer = { kind = 'sgd', lr = 0.1, momentum = 0.9 }\n"),
    ] {
        planted(&place, "p.toml", &settings(model, &format!("{SCHEDULE}{train}")));
        let one = succeed(&place, &[]);
        for processes in ["2", "4"] {
            let some = succeed(&place, &["--processes", processes]);
            assert_eq!(hashes(&some), hashes(&one), "{model} {train}: {processes} processes");
            assert_eq!(some["rounds_per_step"], 0.0, "a step sends no requests");
        }
    }
}

/// Settings with a sampler of subgraphs, and with lines of `[train]` that all of them may have.
fn subgraphs(sampler: &str, train: &str) -> String {
    let batch = if sampler.contains("cluster") { "" } else { "batch = 50\n" };
    format!("[model]\nkind = 'sage'\nhidden = 16\n[train]\nepochs = 4\nsampler = {{ {sampler} }}\n{batch}{train}")
}

const SUBGRAPHS: [&str; 5] = [
    "kind = 'cluster', clusters = 12, clusters_per_batch = 4",
    "kind = 'saint-node', coverage = 10",
    "kind = 'saint-edge', coverage = 10",
    "kind = 'saint-walk', walk_length = 3, coverage = 10",
    "kind = 'saint-walk', walk_length = 3, p = 2.0, q = 0.5, coverage = 10",
];

#[test]
fn subgraphs_of_partitions_have_equal_bits_for_1_2_4_processes_and_need_no_messages() {
    let place = TestDir::new();
    let mut all_blocks = Vec::new();
    for (sampler, train) in SUBGRAPHS.into_iter().zip(["", "schedule.average_every = 3\n"].into_iter().cycle()) {
        planted(&place, "p.toml", &subgraphs(sampler, &format!("{SCHEDULE}{train}")));
        let one = succeed(&place, &[]);
        for (processes, threads) in [("1", "3"), ("2", "1"), ("4", "1")] {
            let threads = format!("train.threads={threads}");
            let some = succeed(&place, &["--processes", processes, "--set", &threads]);
            assert_eq!(hashes(&some), hashes(&one), "{sampler} {train}: {processes} processes");
            assert_eq!(some["rounds_per_step"], 0.0, "a step sends no requests");
        }
        assert!(!all_blocks.contains(&hashes(&one)[0]), "{sampler} draws the batches of another sampler");
        all_blocks.push(hashes(&one)[0].clone());
    }
}

#[test]
fn subgraphs_of_a_single_partition_equal_those_of_mini_batch_training() {
    let place = TestDir::new();
    for sampler in SUBGRAPHS {
        planted(&place, "p.toml", &subgraphs(sampler, ""));
        let batches = succeed(&place, &["--set", "partition.parts=1"]);
        let alone = succeed(&place, &["--set", "partition.parts=1", "--set", "train.schedule=partition-parallel"]);
        // The first hash is over blocks, in an order that the schedule defines.
        assert_eq!(hashes(&alone)[1..], hashes(&batches)[1..], "{sampler}");
    }
}

#[test]
fn subgraphs_of_partitions_learn_a_planted_graph() {
    let place = TestDir::new();
    let accuracy = |args: &[&str]| succeed(&place, args)["test"]["accuracy"].as_f64().unwrap();
    // After equal epochs, an average of models that saw random walks is 7 points behind.
    for (sampler, epochs) in [(SUBGRAPHS[0], "train.epochs=60"), (SUBGRAPHS[3], "train.epochs=200")] {
        planted(&place, "p.toml", &subgraphs(sampler, "evaluate_every = 5\n"));
        let sets = ["train.epochs=60", "partition.method=multilevel", "partition.out=multilevel"];
        let sets = sets.into_iter().flat_map(|set| ["--set", set]).collect::<Vec<_>>();
        let gradients = accuracy(&sets);
        let more = ["--set", epochs, "--set", "train.schedule=partition-parallel"];
        let weights = accuracy(&[&sets[..], &more].concat());
        println!("{sampler}: model averaging {weights}, gradient averaging {gradients}");
        assert!(weights > gradients - 0.04, "{sampler}: model averaging {weights}, gradient averaging {gradients}");
    }
}

#[test]
fn resumed_run_draws_the_subgraphs_of_an_uninterrupted_one() {
    let place = TestDir::new();
    planted(&place, "p.toml", &subgraphs(SUBGRAPHS[3], SCHEDULE));
    let whole = succeed(&place, &[]);
    std::fs::remove_dir_all(place.path("run")).unwrap();
    succeed(&place, &["--set", "train.epochs=2", "--processes", "2"]);
    assert_eq!(hashes(&succeed(&place, &["--resume", "--processes", "4"])), hashes(&whole));
}

#[test]
fn single_partition_equals_mini_batch_training() {
    let place = TestDir::new();
    let model = "[model]\nkind = 'gcn'\nhidden = 16\n";
    planted(&place, "p.toml", &settings(model, ""));
    let batches = succeed(&place, &["--set", "partition.parts=1"]);
    let alone = succeed(&place, &["--set", "partition.parts=1", "--set", "train.schedule=partition-parallel"]);
    assert_eq!(alone["model_sha256"], batches["model_sha256"]);
    assert_eq!(alone["predictions_sha256"], batches["predictions_sha256"]);
    // The average of one model changes nothing.
    let every = ["--set", "partition.parts=1", "--set", "train.schedule=partition-parallel"];
    let seldom = succeed(
        &place,
        &[&every[..], &["--set", "train.schedule.average_every=2", "--set", "train.evaluate_every=4"]].concat(),
    );
    let often = succeed(&place, &[&every[..], &["--set", "train.evaluate_every=4"]].concat());
    assert_eq!(seldom["model_sha256"], often["model_sha256"]);
}

#[test]
fn model_averaging_is_as_accurate_as_gradient_averaging() {
    let place = TestDir::new();
    let model = "[model]\nkind = 'sage'\nhidden = 32\n";
    planted(&place, "p.toml", &settings(model, ""));
    let epochs = ["--set", "train.epochs=120", "--set", "train.evaluate_every=5"];
    let accuracy = |summary: serde_json::Value| summary["test"]["accuracy"].as_f64().unwrap();
    let gradients = accuracy(succeed(&place, &epochs));
    let weights = accuracy(succeed(&place, &[&epochs[..], &["--set", "train.schedule=partition-parallel"]].concat()));
    assert!(weights > gradients - 0.03, "model averaging {weights}, gradient averaging {gradients}");
}

#[test]
fn resumed_run_equals_an_uninterrupted_one() {
    let place = TestDir::new();
    planted(
        &place,
        "p.toml",
        &settings(
            "[model]\nkind = 'sage'\nhidden = 16",
            &format!("{SCHEDULE}schedule.average_every = 2\nschedule.average_momentum = 0.3\n"),
        ),
    );
    let whole = succeed(&place, &[]);
    std::fs::remove_dir_all(place.path("run")).unwrap();
    succeed(&place, &["--set", "train.epochs=2", "--processes", "2"]);
    let resumed = succeed(&place, &["--resume", "--processes", "4"]);
    assert_eq!(hashes(&resumed), hashes(&whole));
    let lines = std::fs::read_to_string(place.path("run/metrics.jsonl")).unwrap();
    let evaluated: Vec<bool> = lines.lines().map(|line| line.contains("\"val\":{")).collect();
    assert_eq!(evaluated, [false, true, false, true], "models are evaluated after averaging");
}

#[test]
fn invalid_settings_are_refused() {
    let place = TestDir::new();
    planted(&place, "p.toml", &settings("[model]\nkind = 'sage'", SCHEDULE));
    let refused = |sets: &[&str], code: i32, words: &[&str]| {
        let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
        place.fail(&[&["run", "p.toml", "--quiet", "--run-dir", "run"], &sets[..]].concat(), code, words);
    };
    refused(&["partition.halo=ids"], 2, &["partition.halo", "needs the features of halo nodes"]);
    refused(&["partition.topology=replicated"], 2, &["partition.topology", "own edges"]);
    refused(&["train.schedule.cache=1MiB"], 2, &["train.schedule.cache", "only `mini-batch`"]);
    refused(&["train.schedule.average_every=0"], 2, &["train.schedule.average_every"]);
    refused(&["train.sampler=cluster"], 2, &["train.fanouts", "`cluster` has no fanouts"]);
    planted(&place, "p.toml", &subgraphs("kind = 'cluster', clusters = 600", SCHEDULE));
    refused(&[], 2, &["train.sampler.clusters: 600 clusters, but partition 0 has", "use at most"]);
    refused(&["train.schedule.seed_split=partition"], 2, &["train.schedule.seed_split", "only `mini-batch`"]);
    refused(&["train.sampler=saint-walk", "model.kind=gcn"], 2, &["train.sampler", "use `cluster`"]);
    planted(&place, "p.toml", &settings("[model]\nkind = 'sage'", SCHEDULE));
    refused(
        &["train.schedule=mini-batch", "train.schedule.average_every=2"],
        2,
        &["train.schedule.average_every", "partition-parallel"],
    );
}

#[test]
fn seeds_of_uneven_partitions_are_split_evenly_by_default() {
    let place = TestDir::new();
    planted(&place, "p.toml", &settings("[model]\nkind = 'sage'\nhidden = 16", ""));
    // Partitions of different sizes: 450 training nodes in total.
    let sets = ["--set", "partition.method=greedy", "--set", "train.batch=5", "--set", "train.epochs=1"];
    let steps = |args: &[&str]| {
        let summary = succeed(&place, &[&sets[..], args].concat());
        let line = std::fs::read_to_string(place.path("run/metrics.jsonl")).unwrap();
        let record: serde_json::Value = serde_json::from_str(line.lines().next().unwrap()).unwrap();
        (record["steps"].as_u64().unwrap(), hashes(&summary))
    };
    let (even, expected) = steps(&[]);
    let manifest: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(place.path("dataset/manifest.json")).unwrap()).unwrap();
    let train: Vec<u64> =
        manifest["partitions"].as_array().unwrap().iter().map(|part| part["train"].as_u64().unwrap()).collect();
    let (all, most) = (train.iter().sum::<u64>(), *train.iter().max().unwrap());
    assert_eq!(even, all.div_ceil(4).div_ceil(5), "{train:?}");
    assert!(most > all.div_ceil(4) + 5, "the partitions are too even for this test: {train:?}");
    // Some seeds are in batches of other partitions, and their labels on other processes.
    for processes in ["2", "4"] {
        assert_eq!(steps(&["--processes", processes]).1, expected, "{processes} processes");
    }
    let (own, other) = steps(&["--set", "train.schedule.seed_split=partition"]);
    assert_eq!(own, most.div_ceil(5));
    assert_ne!(other, expected);
    assert_eq!(steps(&["--set", "train.schedule.seed_split=partition", "--processes", "4"]).1, other);
}
