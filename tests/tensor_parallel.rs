//! Tensor-parallel training: equal bits for any number of processes, equality with full-graph training, and rounds.

use crate::common::{TestDir, hashes, losses, planted, succeed};

fn settings(model: &str, train: &str) -> String {
    format!("[model]\n{model}\n[train]\nschedule.kind = 'tensor-parallel'\nepochs = 4\n{train}")
}

/// Lines of `[model]`, and rounds per epoch.
const SUMS: [(&str, f64); 10] = [
    ("kind = 'gcn'\nhidden = 16", 4.0),
    ("kind = 'gcn'\nhidden = 16\ndecoupled = false", 8.0),
    ("kind = 'sage'\nhidden = 32\nresidual = true\nnorm = 'layer'", 6.0),
    ("kind = 'gin'\nhidden = 16", 6.0),
    ("kind = 'appnp'\nhidden = 16", 4.0),
    ("kind = 'sgc'\nlayers = 3", 2.0),
    ("kind = 'sage'\nhidden = 16\naggregator = 'gcn'", 8.0),
    ("kind = 'sage'\nhidden = 16\naggregator = 'pool'", 8.0),
    ("kind = 'gcn'\nhidden = 16\nresidual = true\nnorm = 'layer'", 8.0),
    ("kind = 'gcn'\nhidden = 16\njumping_knowledge = 'mean'", 8.0),
];

/// As [`SUMS`].
const ATTENTION: [(&str, f64); 6] = [
    ("kind = 'gat'\nhidden = 16\nheads = 4", 8.0),
    // Heads that processes share, and attention dropout.
    ("kind = 'gat'\nhidden = 18\nheads = 3\nattention_dropout = 0.4\nresidual = true", 8.0),
    // Whole heads: in the last layer fewer than processes, or as many.
    ("kind = 'gatv2'\nhidden = 16\nheads = 4", 8.0),
    ("kind = 'gatv2'\nhidden = 18\nheads = 6\noutput_heads = 4\nattention_dropout = 0.4\nresidual = true", 8.0),
    // One attention for all propagations, with whole or cut heads.
    ("kind = 'gat'\nhidden = 16\nlayers = 3\noutput_heads = 4\ndecoupled = true", 4.0),
    ("kind = 'gat'\nhidden = 16\nattention_dropout = 0.4\ndecoupled = true", 4.0),
];

/// Graphs are undirected unless they are told otherwise.
const DIRECTED: [&str; 2] = ["--set", "graph.undirected=false"];

/// Enough training nodes that the last hop reaches all nodes.
const MANY_SEEDS: [&str; 2] = ["--set", "graph.generate.split=[0.7, 0.1, 0.2]"];

#[test]
fn sums_have_equal_bits_for_1_2_4_processes() {
    assert_equal_bits(&SUMS);
}

/// `debug.graph_on_device` does on the CPU what a GPU does: it copies shards and edges, sums chunk by chunk, and copies the sums back.
#[test]
fn sums_on_the_device_have_equal_bits_for_1_2_4_processes() {
    let place = TestDir::new();
    let device = ["--set", "debug.graph_on_device=true"];
    let chunks = [&device[..], &["--set", "train.schedule.chunk_memory=100KiB"]].concat();
    let at_once = [&chunks[..], &["--set", "train.schedule.pipelined=false"]].concat();
    for (index, &(model, _)) in SUMS.iter().enumerate() {
        planted(&place, "p.toml", &settings(&format!("{model}\ninput_dropout = 0.3"), "schedule.intervals = 3\n"));
        let graph = [&DIRECTED[..], &[]][index % 2];
        succeed(&place, graph);
        let of_cpu = losses(&place);
        let one = succeed(&place, &[graph, &device].concat());
        for (found, expected) in losses(&place).iter().zip(&of_cpu) {
            assert!((found / expected - 1.0).abs() < 1e-5, "{model}: {found} instead of {expected}");
        }
        for (processes, sets) in [("1", &chunks), ("2", &chunks), ("4", &at_once)] {
            let some = succeed(&place, &[graph, &["--processes", processes], sets].concat());
            assert_eq!(hashes(&some), hashes(&one), "{model} {graph:?}: {processes} processes, {sets:?}");
        }
    }
    // Rounded rows, with and without factors before the sum.
    for kind in ["gcn", "sage"] {
        planted(&place, "p.toml", &settings(&format!("kind = '{kind}'\nhidden = 16"), "schedule.row_dtype = 'bf16'\n"));
        let one = succeed(&place, &device);
        assert_eq!(hashes(&succeed(&place, &[&chunks[..], &["--processes", "2"]].concat())), hashes(&one), "{kind}");
    }
}

#[test]
fn attention_has_equal_bits_for_1_2_4_processes() {
    assert_equal_bits(&ATTENTION);
}

fn assert_equal_bits(models: &[(&str, f64)]) {
    let place = TestDir::new();
    let small = ["--set", "train.schedule.chunk_memory=100KiB"];
    let not_pipelined = [&small[..], &["--set", "train.schedule.pipelined=false"]].concat();
    // Each model runs on one of the two graphs, with each number of processes, and at one of these with small chunks.
    let several = [[("2", &small[..]), ("4", &[])], [("2", &[]), ("4", &not_pipelined)]];
    let graphs = [&DIRECTED[..], &[]];
    for (index, &(model, rounds)) in models.iter().enumerate() {
        planted(&place, "p.toml", &settings(&format!("{model}\ninput_dropout = 0.3"), "schedule.intervals = 3\n"));
        let graph = graphs[index % 2];
        let one = succeed(&place, &[graph, &["--set", "train.threads=1"]].concat());
        // Three threads, which compute intervals at the same time.
        let small = succeed(&place, &[graph, &small[..], &["--set", "train.threads=3"]].concat());
        assert_eq!(hashes(&small), hashes(&one), "{model} {graph:?}: small chunks");
        for (processes, sets) in several[index / 2 % 2] {
            let some = succeed(&place, &[graph, &["--processes", processes], sets].concat());
            assert_eq!(hashes(&some), hashes(&one), "{model} {graph:?}: {processes} processes, {sets:?}");
            assert!(!sets.is_empty() || some["rounds_per_step"] == rounds, "{model}");
        }
    }
}

#[test]
fn processes_without_columns_give_equal_bits() {
    let place = TestDir::new();
    let rounded = "schedule.row_dtype = 'bf16'\n";
    for (model, train) in [
        ("kind = 'gcn'\nhidden = 16", ""),
        ("kind = 'gcn'\nhidden = 3\ndecoupled = false", rounded),
        ("kind = 'appnp'\nhidden = 16", rounded),
        ("kind = 'sage'\nhidden = 16\naggregator = 'pool'", ""),
        ("kind = 'gat'\nhidden = 16\nheads = 4", ""),
    ] {
        planted(&place, "p.toml", &settings(model, train));
        // The last rows have a column per class, of which there are five.
        let parts = ["--set", "partition.parts=8"];
        let one = succeed(&place, &parts);
        let eight = succeed(&place, &[&parts[..], &["--processes", "8"]].concat());
        assert_eq!(hashes(&eight), hashes(&one), "{model}");
    }
}

#[test]
fn losses_of_sums_match_full_graph_training() {
    assert_losses_match_full_graph_training(&SUMS);
}

#[test]
fn losses_of_attention_match_full_graph_training() {
    assert_losses_match_full_graph_training(&ATTENTION);
}

fn assert_losses_match_full_graph_training(models: &[(&str, f64)]) {
    let place = TestDir::new();
    let graphs = [&DIRECTED[..], &[], &["--set", "graph.self_loops=add"], &MANY_SEEDS];
    for (index, &(model, _)) in models.iter().enumerate() {
        planted(&place, "p.toml", &settings(&format!("{model}\ninput_dropout = 0.2"), "schedule.intervals = 2\n"));
        // Each model on two of the graphs.
        for graph in [graphs[index % 4], graphs[(index + 2) % 4]] {
            succeed(&place, &[graph, &["--processes", "2"]].concat());
            let columns = losses(&place);
            let mut sets = vec!["--set", "train.schedule.kind=full-graph"];
            // A decoupled model is the default of tensor-parallel training only.
            if model == SUMS[0].0 {
                sets.extend(["--set", "model.decoupled=true"]);
            }
            succeed(&place, &[graph, &sets].concat());
            for (epoch, (columns, nodes)) in columns.iter().zip(losses(&place)).enumerate() {
                let close = (columns - nodes).abs() <= 2e-5 * nodes.abs();
                assert!(close, "{model} {graph:?}: epoch {epoch} has loss {columns}, and {nodes} node-parallel");
            }
        }
    }
}

#[test]
fn resumed_run_equals_an_uninterrupted_one() {
    let place = TestDir::new();
    planted(&place, "p.toml", &settings("kind = 'gcn'\nhidden = 16", ""));
    let whole = succeed(&place, &[]);
    std::fs::remove_dir_all(place.path("run")).unwrap();
    succeed(&place, &["--set", "train.epochs=2", "--processes", "2"]);
    assert_eq!(hashes(&succeed(&place, &["--resume", "--processes", "4"])), hashes(&whole));
}

#[test]
fn invalid_settings_are_refused() {
    let place = TestDir::new();
    planted(&place, "p.toml", &settings("kind = 'gcn'\nhidden = 16", ""));
    let refused = |sets: &[&str], words: &[&str]| {
        let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
        place.fail(&[&["run", "p.toml", "--quiet", "--run-dir", "run"], &sets[..]].concat(), 2, words);
    };
    refused(&["train.schedule.mode=async"], &["train.schedule.mode", "full-graph"]);
    refused(&["train.schedule.chunk_memory=1KiB"], &["train.schedule.chunk_memory", "set it to at least"]);
    let chunks = ["train.schedule.kind=full-graph", "train.schedule.chunk_memory=1MiB"];
    refused(&chunks, &["train.schedule.chunk_memory", "tensor-parallel"]);
    refused(&["model.kind=gine"], &["model.kind", "use `gin`"]);
    refused(&["model.decoupled=true", "model.norm=layer"], &["model.norm", "decoupled"]);
    refused(&["model.kind=sage", "model.decoupled=true"], &["model.decoupled", "`sage`", "use `gcn`"]);
}
