//! Equal bits for 1, 2 and 4 processes, and for 1, 2 and 3 compute threads, which compute the partitions of a process at the same time.

use crate::common::{TestDir, hashes, planted, summary};

fn assert_same_bits(settings: &str) {
    let place = TestDir::new();
    planted(&place, "p.toml", settings);
    let mut expected: Option<Vec<String>> = None;
    for (processes, threads) in [("1", 1), ("1", 2), ("1", 3), ("2", 1), ("2", 2), ("4", 2)] {
        let (run, threads) = (format!("run-{processes}-{threads}"), format!("train.threads={threads}"));
        let args = ["run", "p.toml", "--quiet", "--processes", processes, "--run-dir", &run, "--set", &threads];
        let ended = place.run(&args);
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        let found = hashes(&summary(&place, &run));
        assert_eq!(&found, expected.get_or_insert_with(|| found.clone()), "{processes} processes, {threads}");
    }
}

#[test]
fn sampled_sage_has_equal_bits_for_1_2_4_processes() {
    assert_same_bits("[model]\nkind = 'sage'\nhidden = 32\n[train]\nepochs = 3\nbatch = 64\nfanouts = [5, 3]\n");
}

#[test]
fn pooled_sage_with_replacement_has_equal_bits_for_1_2_4_processes() {
    assert_same_bits(
        "[model]\nkind = 'sage'\naggregator = 'pool'\nhidden = 16\n[train]\nepochs = 2\nbatch = 64\nfanouts = [4, 4]\n\
         sampler.replace = true\noptimizer = { kind = 'sgd', lr = 0.05, momentum = 0.9 }\n",
    );
}

#[test]
fn gcn_over_all_neighbors_has_equal_bits_for_1_2_4_processes() {
    assert_same_bits("[model]\nkind = 'gcn'\nhidden = 16\n[train]\nepochs = 2\nbatch = 500\nfanouts = [-1, -1]\n");
}

#[test]
fn gat_has_equal_bits_for_1_2_4_processes() {
    assert_same_bits(
        "[model]\nkind = 'gat'\nhidden = 16\nheads = 4\nattention_dropout = 0.3\n[train]\nepochs = 2\nbatch = 100\n\
         fanouts = [6, 4]\noptimizer = { kind = 'adamw', lr = 0.01, weight_decay = 0.01 }\n",
    );
}

/// Features are copied into memory and layers kept there, unless features are read ahead or `train.memory` bounds the memory.
#[test]
fn rows_in_memory_and_in_files_have_equal_bits() {
    let place = TestDir::new();
    planted(
        &place,
        "p.toml",
        "[model]\nlayers = 3\nhidden = 16\n[train]\nepochs = 2\nbatch = 100\nfanouts = [4, 3, 3]\n",
    );
    let (bounded, files) = (["--set", "train.memory=1GiB"], ["--set", "train.read_ahead=true"]);
    let is_in_memory = |more: &[&str]| {
        let plan = place.succeed(&[&["run", "p.toml", "--dry-run", "--json"], more].concat());
        serde_json::from_str::<serde_json::Value>(&plan).unwrap()["rows_in_memory"] == "all"
    };
    assert!(is_in_memory(&[]) && !is_in_memory(&bounded) && !is_in_memory(&files));
    for (schedule, layout) in [
        ("mini-batch", "partition.features=shared"),
        ("mini-batch", "partition.features=partitioned"),
        ("partition-parallel", "partition.features=shared"),
    ] {
        let schedule = format!("train.schedule={schedule}");
        for processes in ["1", "2"] {
            let results = |run: &str, more: &[&str]| {
                let args = ["run", "p.toml", "--quiet", "--run-dir", run, "--processes", processes, "--set", &schedule];
                place.succeed(&[&args[..], &["--set", layout], more].concat());
                hashes(&summary(&place, run))
            };
            assert_eq!(results("memory", &[]), results("files", &bounded), "{schedule} {layout} {processes}");
        }
    }
    // An inference of all nodes, and one of some, which reads rows from files.
    let infer = |out: &str, more: &[&str]| {
        place.succeed(&[&["infer", "memory", "--out", out, "--quiet"], more].concat());
        std::fs::read(place.path(out).join("predictions.parquet")).unwrap()
    };
    assert!(infer("all", &[]) == infer("all-files", &files));
    assert!(infer("some", &["--split", "test"]) == infer("some-files", &[&["--split", "test"], &files[..]].concat()));
}

/// One process sums the rows of neighbors where they lie, several fetch them.
#[test]
fn rows_summed_in_place_and_fetched_have_equal_bits() {
    let (default, ladies) = ("fanouts = [4, 3]", "sampler = 'ladies'\nfanouts = [60, 90]");
    for (model, sampler, more) in [
        ("kind = 'gin'\nhidden = 16", default, "graph.feature_dtype=f32"),
        ("kind = 'sage'\nhidden = 32", default, "graph.feature_dtype=f32"),
        ("kind = 'sage'\nhidden = 32", default, "graph.feature_dtype=bf16"),
        ("kind = 'sage'\nresidual = true\nnorm = 'layer'\nhidden = 24", default, "graph.feature_dtype=bf16"),
        ("kind = 'sage'\njumping_knowledge = 'cat'\nhidden = 8", default, "graph.feature_dtype=f16"),
        // Edges of the blocks have weights.
        ("kind = 'sage'\nhidden = 32", ladies, "graph.feature_dtype=f32"),
        ("kind = 'sage'\nhidden = 32", "sampler = 'saint-node'", "graph.feature_dtype=f32"),
    ] {
        let place = TestDir::new();
        planted(&place, "p.toml", &format!("[model]\n{model}\n[train]\nepochs = 1\nbatch = 200\n{sampler}\n"));
        let results = |processes: &str| {
            let args = ["run", "p.toml", "--quiet", "--run-dir", processes, "--processes", processes, "--set", more];
            place.succeed(&args);
            let file = |name: &str| std::fs::read(place.path(processes).join(name)).unwrap();
            (hashes(&summary(&place, processes)), file("predictions.parquet"), file("embeddings.parquet"))
        };
        let one = results("1");
        for processes in ["2", "4"] {
            assert!(results(processes) == one, "{model}, {sampler}, {processes} processes");
        }
    }
}

#[test]
fn feature_cache_saves_bytes_and_keeps_equal_bits() {
    let place = TestDir::new();
    // GCN fetches degrees together with the features.
    planted(
        &place,
        "p.toml",
        "[model]\nkind = 'gcn'\nhidden = 16\n[train]\nepochs = 3\nbatch = 64\nfanouts = [5, 3]\n",
    );
    let run = |name: &str, settings: &[&str]| {
        let mut args = vec!["run", "p.toml", "--quiet", "--processes", "2", "--run-dir", name];
        args.extend(["--set", "partition.features=partitioned"]);
        settings.iter().for_each(|setting| args.extend(["--set", setting]));
        let ended = place.run(&args);
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        let summary = summary(&place, name);
        (hashes(&summary), summary)
    };
    let (expected, without) = run("without", &[]);
    assert!(without.get("cache").is_none());
    for policy in ["degree", "frequency", "dynamic"] {
        let policy_key = format!("train.schedule.cache_policy={policy}");
        let (found, with) = run(policy, &["train.schedule.cache=100kB", &policy_key]);
        assert_eq!(found, expected, "{policy}");
        let rate = with["cache"]["hit_rate"].as_f64().unwrap();
        let bytes = |summary: &serde_json::Value| summary["bytes_sent"].as_u64().unwrap();
        println!("{policy}: {rate:.2} hits, {} of {} bytes", bytes(&with), bytes(&without));
        assert!(rate > 0.1 && bytes(&with) < bytes(&without), "{policy}");
    }
}

#[test]
fn clipped_gradients_and_cosine_rates_have_equal_bits_for_1_2_4_processes() {
    assert_same_bits(
        "[model]\nkind = 'sage'\nhidden = 16\n[train]\nepochs = 4\nbatch = 100\nfanouts = [4, 4]\nclip_norm = 0.05\n\
         lr_schedule = { kind = 'cosine', warmup = 1, end = 0.1 }\n",
    );
}

#[test]
fn running_statistics_residuals_and_jumping_knowledge_have_equal_bits_for_1_2_4_processes() {
    assert_same_bits(
        "[model]\nkind = 'gatv2'\nhidden = 16\nheads = 2\nresidual = true\nnorm = 'batch'\njumping_knowledge = 'cat'\n\
         [train]\nepochs = 2\nbatch = 100\nfanouts = [6, 4]\n",
    );
}

#[test]
fn appnp_has_equal_bits_for_1_2_4_processes() {
    assert_same_bits(
        "[model]\nkind = 'appnp'\nlayers = 3\nhidden = 16\n[train]\nepochs = 2\nbatch = 100\nfanouts = [4, 3, 3]\n",
    );
}
