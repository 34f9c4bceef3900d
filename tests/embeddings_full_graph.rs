//! Learned rows of nodes in full-graph and tensor-parallel training: equal bits for any number of processes, equality
//! with mini-batches of all nodes, memory, accuracy and refused settings.

use std::collections::BTreeMap;

use crate::common::linked::{TYPED, dump};
use crate::common::{TestDir, data, learned_rows, losses, planted, run_with_kill, succeed, summary, without_dropout};
use crate::link_prediction_full_graph::pipeline as link_pipeline;
use serde_json::Value;

/// A graph without features.
const NO_FEATURES: &str = "graph.generate.features=0";
const SCHEDULES: [&str; 2] = ["train.schedule.kind=full-graph", "train.schedule.kind=tensor-parallel"];

fn settings(model: &str, embedding: &str, train: &str) -> String {
    // SGC has one linear layer and no hidden size.
    let hidden = if model.contains("'sgc'") { "" } else { "hidden = 16\n" };
    format!("[model]\n{model}\n{hidden}embedding = {{ {embedding} }}\n[train]\nepochs = 3\n{train}")
}

fn run(place: &TestDir, sets: &[&str], more: &[&str]) -> Value {
    let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
    succeed(place, &[&sets[..], more].concat())
}

/// Returns the hashes of model, rows and predictions.
fn hashes(summary: &Value) -> Vec<String> {
    let mut all = crate::common::hashes(summary);
    all.push(summary["node_embeddings"]["sha256"].as_str().unwrap().to_owned());
    all
}

/// Returns the maximum and the mean absolute difference of two tables.
fn differences(left: &BTreeMap<i64, Vec<f32>>, right: &BTreeMap<i64, Vec<f32>>) -> [f64; 2] {
    assert_eq!(left.len(), right.len());
    let pairs = left.iter().flat_map(|(node, row)| row.iter().zip(&right[node]));
    let differences: Vec<f64> = pairs.map(|(x, y)| f64::from((x - y).abs())).collect();
    [differences.iter().copied().fold(0.0, f64::max), differences.iter().sum::<f64>() / differences.len() as f64]
}

const SGD: &str = "dim = 12, optimizer = { kind = 'sgd', lr = 2.0 }";
const ADAGRAD: &str = "dim = 12, init = 'normal', optimizer = { kind = 'adagrad', lr = 0.1 }";
const ADAM: &str = "dim = 12, optimizer = { kind = 'adam', lr = 0.01 }";

/// Models, including ones whose first task has no parameters, is decoupled, or keeps the initial rows.
const MODELS: [&str; 8] = [
    "kind = 'gcn'",
    "kind = 'gcn'\ndecoupled = false\nlayers = 3\nresidual = true\nnorm = 'layer'",
    "kind = 'sage'",
    "kind = 'gin'\ntrain_eps = true",
    "kind = 'gat'\nheads = 4",
    "kind = 'sgc'",
    "kind = 'appnp'\nlayers = 3",
    "kind = 'mlp'",
];

#[test]
fn learned_rows_have_equal_bits_for_1_2_4_processes() {
    let place = TestDir::new();
    for (index, model) in MODELS.into_iter().enumerate() {
        let (embedding, train) = (
            [SGD, ADAGRAD, ADAM][index % 3],
            "schedule.intervals = 3\nclip_norm = 0.1\nlr_schedule = { kind = 'linear' }\n",
        );
        planted(&place, "p.toml", &settings(&format!("{model}\ninput_dropout = 0.3"), embedding, train));
        for (which, schedule) in SCHEDULES.into_iter().enumerate() {
            let graph = ["graph.undirected=false", "graph.undirected=true"][(index / 2 + which) % 2];
            let one = run(&place, &[NO_FEATURES, graph, schedule], &[]);
            // Each epoch updates every row once.
            assert_eq!(one["node_embeddings"]["rows_moved"], 3 * 1500, "{model}");
            assert_eq!(one["node_embeddings"]["staleness_max"], 0);
            // Each schedule runs with 2 processes for half of the models, and with 4 for the others.
            let processes = ["2", "4"][(index + which) % 2];
            let some = run(&place, &[NO_FEATURES, graph, schedule], &["--processes", processes]);
            assert_eq!(hashes(&some), hashes(&one), "{model}, {graph}, {schedule}: {processes} processes");
        }
    }
}

/// The reference is mini-batch training with one batch per partition and all neighbors.
#[test]
fn epoch_equals_a_mini_batch_step_over_all_neighbors() {
    let place = TestDir::new();
    for (index, model) in MODELS.into_iter().enumerate() {
        let layers = if model.contains("layers = 3") { 3 } else { 2 };
        for embedding in [SGD, ADAM] {
            let train = "evaluate_every = 0\nlr_schedule = { kind = 'exponential', gamma = 0.5 }\n";
            planted(&place, "p.toml", &settings(&without_dropout(model), embedding, train));
            let graph = ["graph.undirected=true", "graph.generate.split=[0.7, 0.1, 0.2]"][index % 2];
            let fanouts = format!("train.fanouts=[{}]", vec!["-1"; layers].join(", "));
            run(&place, &[graph, NO_FEATURES, "train.schedule=mini-batch", "train.batch=100000", &fanouts], &[]);
            let (wanted, wanted_rows) = (losses(&place), learned_rows(&place));
            for schedule in SCHEDULES {
                // A decoupled model computes another function.
                let plain = if model.contains("'gcn'") { "model.decoupled=false" } else { "train.epochs=3" };
                run(&place, &[graph, NO_FEATURES, schedule, plain], &["--processes", "2"]);
                for (epoch, (found, wanted)) in losses(&place).iter().zip(&wanted).enumerate() {
                    let close = (found - wanted).abs() <= 1e-5 * wanted.abs();
                    assert!(close, "{model}, {embedding}, {schedule}: epoch {epoch}: {found}, in batches {wanted}");
                }
                // Adam also scales up the rounding errors of small gradients, so only the mean is compared.
                let [most, mean] = differences(&learned_rows(&place), &wanted_rows);
                let within = if embedding == SGD { most < 1e-5 } else { mean < 1e-5 };
                assert!(within, "{model}, {embedding}, {schedule}: rows differ by {most}, {mean} on average");
            }
        }
    }
}

/// Writes the dump without node features.
fn dump_without_features(place: &TestDir) {
    use arrow::array::{ArrayRef, Int64Array};
    use std::sync::Arc;

    dump(place, true);
    let nodes = crate::common::linked::NODES as i64;
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values((0..nodes).map(|v| 1000 + v)));
    place.parquet("nodes.parquet", vec![("node_id", ids)]);
}

/// Lines of `[graph]`, `[model]` and `[train.link]`.
const LINK_CASES: [[&str; 3]; 4] = [
    [
        "undirected = true",
        "kind = 'gcn'",
        "loss = 'binary-cross-entropy'\nnegative_sampler = 'in-batch'\nnum_negative_edges = 10",
    ],
    [TYPED, "kind = 'rgcn'", "decoder = 'distmult'"],
    [TYPED, "kind = 'sage'", "decoder = 'distmult'\nloss = 'softmax-cross-entropy'\nnegative_sampler = 'joint'"],
    ["reverse_edges = true\ncolumns = { edge_type = 'kind' }", "kind = 'gat'\nheads = 2", "target_etype = ['likes']"],
];

#[test]
fn link_prediction_has_equal_bits_for_1_2_4_processes_and_matches_mini_batches() {
    let place = TestDir::new();
    dump_without_features(&place);
    for (index, [graph, model, link]) in LINK_CASES.into_iter().enumerate() {
        let embedding = [SGD, ADAM][index % 2];
        let model = format!("{model}\ndropout = 0.0\nembedding = {{ {embedding} }}");
        link_pipeline(&place, graph, &model, "batch = 100000\nevaluate_every = 0", link);
        run(&place, &["train.fanouts=[-1, -1]", "train.link.exclude_training_targets=false"], &[]);
        let (wanted, wanted_rows) = (losses(&place), learned_rows(&place));
        for schedule in SCHEDULES {
            let plain = if index == 0 { "model.decoupled=false" } else { "train.epochs=3" };
            let one = run(&place, &[schedule, plain], &[]);
            for (epoch, (found, wanted)) in losses(&place).iter().zip(&wanted).enumerate() {
                let close = (found - wanted).abs() <= 1e-5 * wanted.abs();
                assert!(close, "{model}, {link}, {schedule}: epoch {epoch}: {found}, in batches {wanted}");
            }
            let [most, mean] = differences(&learned_rows(&place), &wanted_rows);
            let within = if embedding == SGD { most < 1e-5 } else { mean < 1e-5 };
            assert!(within, "{model}, {link}, {schedule}: rows differ by {most}, {mean} on average");
            for processes in ["2", "4"] {
                let some = run(&place, &[schedule, plain], &["--processes", processes]);
                assert_eq!(hashes(&some), hashes(&one), "{model}, {schedule}: {processes} processes");
            }
            // Several chunks, each with a part of the epoch's examples.
            let chunks = [schedule, plain, "train.batch=50", "model.input_dropout=0.2"];
            let one = run(&place, &chunks, &[]);
            assert_eq!(
                hashes(&run(&place, &chunks, &["--processes", "4"])),
                hashes(&one),
                "{model}, {schedule}: chunks"
            );
        }
    }
}

/// Edge classification draws no negatives: all chunks of an epoch are one step, which updates rows once.
#[test]
fn chunks_of_edges_update_rows_once() {
    let place = TestDir::new();
    dump_without_features(&place);
    let text = "[graph]\nnodes = 'nodes.parquet'\nedges = 'edges.parquet'\nundirected = true\n\
                columns = { edge_label = 'alike', edge_split = 'part' }\n[partition]\nmethod = 'random'\nparts = 4\n\
                [model]\nkind = 'sage'\nhidden = 16\nlayers = 2\ndropout = 0.0\nembedding = { dim = 12, optimizer = { kind = 'sgd', lr = 2.0 } }\n\
                [train]\ntask = 'edge-classification'\nepochs = 4\nevaluate_every = 0\n";
    place.write("p.toml", text);
    run(&place, &["train.batch=100000", "train.fanouts=[-1, -1]", "train.edge.exclude_training_targets=false"], &[]);
    let (wanted, wanted_rows) = (losses(&place), learned_rows(&place));
    for schedule in SCHEDULES {
        for batch in ["train.batch=100000", "train.batch=61"] {
            run(&place, &[schedule, batch], &["--processes", "2"]);
            let close = losses(&place).iter().zip(&wanted).all(|(found, wanted)| (found / wanted - 1.0).abs() <= 1e-5);
            assert!(close, "{schedule}, {batch}: {:?}, in batches {wanted:?}", losses(&place));
            let [most, _] = differences(&learned_rows(&place), &wanted_rows);
            assert!(most < 1e-5, "{schedule}, {batch}: rows differ by {most}");
        }
    }
}

#[test]
fn resumed_or_killed_run_equals_an_uninterrupted_one() {
    let place = TestDir::new();
    let train = "schedule.intervals = 2\ncheckpoint_every = 1\n";
    planted(&place, "p.toml", &settings("kind = 'sage'\ninput_dropout = 0.2", ADAM, train));
    for schedule in SCHEDULES {
        let sets = [NO_FEATURES, schedule, "train.epochs=8"];
        let whole = run(&place, &sets, &[]);
        std::fs::remove_dir_all(place.path("run")).unwrap();
        run(&place, &[&sets[..2], &["train.epochs=3"]].concat(), &["--processes", "2"]);
        let resumed = run(&place, &sets, &["--resume", "--processes", "4"]);
        assert_eq!(hashes(&resumed), hashes(&whole), "{schedule}");
        assert_eq!((&resumed["best_epoch"], &resumed["test"]), (&whole["best_epoch"], &whole["test"]));

        let folder = format!("killed{}", schedule.len());
        let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
        run_with_kill(&place, &folder, &sets, 1, 3);
        assert_eq!(hashes(&summary(&place, &folder)), hashes(&whole), "{schedule}: killed");
    }
}

/// Compares the allocated tables, and the rows with their optimizer state, with the plan.
#[test]
fn memory_of_tables_and_rows_equals_the_plan() {
    let place = TestDir::new();
    for (model, embedding) in MODELS.into_iter().zip([SGD, ADAGRAD, ADAM].into_iter().cycle()) {
        planted(&place, "p.toml", &settings(model, embedding, ""));
        for schedule in SCHEDULES {
            let sets = [
                NO_FEATURES,
                schedule,
                "partition.parts=2",
                "graph.generate.classes=4",
                "graph.undirected=true",
                "graph.generate.split=[0.7, 0.1, 0.2]",
                "train.epochs=1",
                "train.evaluate_every=0",
            ];
            for processes in ["1", "2"] {
                let summary = run(&place, &sets, &["--processes", processes]);
                let plan: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
                let plan = [&["run", "p.toml", "--dry-run", "--json", "--processes", processes], &plan[..]].concat();
                let plan: Value = serde_json::from_str(&place.succeed(&plan)).unwrap();
                let workers = summary["workers"].as_array().unwrap();
                assert_eq!(plan["processes"].as_array().unwrap().len(), workers.len());
                for (process, worker) in plan["processes"].as_array().unwrap().iter().zip(workers) {
                    let memory = &process["memory"];
                    let case = format!("{model}, {embedding}, {schedule}, {processes} processes: {memory} {worker}");
                    assert_eq!(memory["tables"], worker["table_bytes"], "{case}");
                    assert_eq!(memory["embeddings"], worker["embedding_bytes"], "{case}");
                    assert!(memory["embeddings"].as_u64() > Some(0), "{case}");
                }
                let number = |value: &Value| value.as_f64().unwrap();
                assert_eq!(plan["training"]["rounds_per_step"], number(&summary["rounds_per_step"]), "{model}");
                // A perceptron exchanges only few parameters, and headers dominate the bytes.
                if processes == "2" && !model.contains("'mlp'") {
                    let planned = number(&plan["training"]["bytes_per_step"]);
                    let found = number(&summary["bytes_per_step"]);
                    assert!(
                        (planned / found - 1.0).abs() < 0.05,
                        "{model}, {schedule}: {planned} planned, {found} sent"
                    );
                }
            }
        }
    }
}

const HOMOPHILOUS: [&str; 4] =
    [NO_FEATURES, "graph.generate.homophily=0.9", "graph.undirected=true", "train.optimizer.lr=0.02"];

#[test]
fn rows_learn_from_exact_and_from_stale_neighbors() {
    let place = TestDir::new();
    let train = "schedule.kind = 'full-graph'\nschedule.intervals = 3\n";
    planted(&place, "p.toml", &settings("kind = 'gcn'", "dim = 32", train));
    let accuracy = |summary: &Value| summary["test"]["accuracy"].as_f64().unwrap();
    let sets = [&HOMOPHILOUS[..], &["train.epochs=60"]].concat();
    let exact = run(&place, &sets, &["--processes", "2"]);
    // Five classes, learned from edges only.
    assert!(accuracy(&exact) > 0.9, "{}", accuracy(&exact));
    let sets = [&sets[..], &["train.evaluate_every=0", "train.schedule.mode=async"]].concat();
    for staleness in [0u64, 1, 3] {
        let set = format!("train.schedule.staleness={staleness}");
        let stale = run(&place, &[&sets[..], &[&set]].concat(), &["--processes", "2"]);
        eprintln!("staleness {staleness}: {} at most, accuracy {}", stale["staleness_max"], accuracy(&stale));
        assert!(stale["staleness_max"].as_u64().unwrap() <= staleness, "{stale}");
        // Learned rows are never stale, and each epoch updates every row once.
        assert_eq!(stale["node_embeddings"]["staleness_max"], 0);
        assert_eq!(stale["node_embeddings"]["rows_moved"], 60 * 1500);
        assert!(accuracy(&stale) > accuracy(&exact) - 0.05, "{} of {}", accuracy(&stale), accuracy(&exact));
    }
    // One interval has no stale neighbors. The learning rate differs in each epoch.
    let alone = [
        NO_FEATURES,
        "partition.parts=1",
        "train.schedule.intervals=1",
        "train.lr_schedule.kind=cosine",
        "train.epochs=6",
    ];
    let alone = [&alone[..], &["train.evaluate_every=0"]].concat();
    let one = run(&place, &alone, &[]);
    for staleness in ["train.schedule.staleness=0", "train.schedule.staleness=1"] {
        let some = run(&place, &[&alone[..], &["train.schedule.mode=async", staleness]].concat(), &[]);
        if staleness == "train.schedule.staleness=0" {
            assert_eq!(hashes(&some), hashes(&one));
        }
        assert_eq!(some["node_embeddings"]["rows_moved"], 6 * 1500);
    }
}

#[test]
fn rows_with_tensor_workers_have_equal_bits() {
    let place = TestDir::new();
    let train = "schedule.kind = 'full-graph'\nschedule.intervals = 3\n";
    planted(&place, "p.toml", &settings("kind = 'sage'\ninput_dropout = 0.3", ADAM, train));
    let alone = run(&place, &[NO_FEATURES], &[]);
    let with_workers = run(
        &place,
        // Otherwise the processes may compute all tasks before the workers are ready.
        &[NO_FEATURES, "train.tensor_workers.workers=2", "train.tensor_workers.local_tasks=false"],
        &["--processes", "2"],
    );
    assert_eq!(hashes(&with_workers), hashes(&alone));
    assert_eq!(with_workers["tensor"]["local"], 0);
    assert!(with_workers["tensor"]["calls"].as_u64() > Some(0), "{with_workers}");
}

/// Predicts held-out friendships of LastFM Asia, one in ten, without node features.
#[test]
fn link_prediction_on_lastfm_beats_an_untrained_model() {
    let Some(data) = data() else { return };
    let (place, data) = (TestDir::new(), data.join("lastfm-asia"));
    place.write(
        "p.toml",
        format!(
            "[graph]\nnodes = '{0}/nodes.parquet'\nedges = '{0}/edges.parquet'\nundirected = true\nduplicates = 'drop'\n\
             [partition]\nmethod = 'random'\nparts = 2\n[model]\nkind = 'appnp'\nlayers = 2\nhidden = 32\nmlp_layers = 1\n\
             teleport = 0.3\ndropout = 0.0\nembedding = {{ dim = 32, optimizer = {{ lr = 0.02 }} }}\n\
             [train]\ntask = 'link-prediction'\nevaluate_every = 0\noptimizer = {{ lr = 0.02 }}\nbatch = 4096\n[train.link]\n\
             loss = 'softmax-cross-entropy'\nnegative_sampler = 'joint'\nnum_negative_edges = 256\nnum_negative_edges_eval = 500\n",
            data.display()
        ),
    );
    let mrr = |summary: &Value| summary["test"]["mrr"].as_f64().unwrap();
    let frozen = ["train.epochs=1", "train.optimizer.lr=1e-12", "model.embedding.optimizer.lr=1e-12"];
    let untrained = mrr(&run(&place, &[SCHEDULES[0], frozen[0], frozen[1], frozen[2]], &[]));
    // A random order of 501 nodes has a mean reciprocal rank of 0.0136.
    for schedule in SCHEDULES {
        let trained = mrr(&run(&place, &[schedule, "train.epochs=60"], &["--processes", "2"]));
        eprintln!("{schedule}: mrr {trained}, untrained {untrained}");
        assert!(trained > 20.0 * 0.0136 && trained > 1.2 * untrained, "{schedule}: {trained}, untrained {untrained}");
    }
}

#[test]
fn invalid_embedding_settings_are_refused() {
    let place = TestDir::new();
    let refused = |sets: &[&str], code: i32, words: &[&str]| {
        let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
        let errors = place.fail(&[&["run", "p.toml", "--quiet", "--run-dir", "run"], &sets[..]].concat(), code, words);
        assert_eq!(errors.len(), 1, "{errors:?}");
    };
    for schedule in SCHEDULES {
        planted(&place, "p.toml", &settings("kind = 'sage'", "dim = 8", ""));
        refused(&[schedule], 2, &["p.toml:10: model.embedding:", "these have 24", "leave model.embedding out"]);
        refused(
            &[schedule, NO_FEATURES, "model.embedding.mode=async"],
            2,
            &["model.embedding.mode:", "once an epoch", "`mini-batch`"],
        );
        refused(
            &[schedule, NO_FEATURES, "model.embedding.staleness=2"],
            2,
            &["model.embedding.staleness:", "\"async\""],
        );
        planted(&place, "p.toml", "[model]\nkind = 'sage'\n[train]\nepochs = 1\n");
        refused(
            &[schedule, NO_FEATURES],
            3,
            &["no features", "graph.columns.features", "model.embedding = { dim = 128 }"],
        );
    }
}
