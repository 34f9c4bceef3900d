//! Learnt rows of nodes by passes over the whole graph: the bits that any number of processes comes to, that they are those of
//! batches of all nodes, what they take, how well they learn, and what is refused.

use std::collections::BTreeMap;

use crate::common::linked::{TYPED, dump};
use crate::common::{Place, data, killed, losses, planted, succeed, summary};
use arrow::array::AsArray;
use arrow::datatypes::{Float32Type, Int64Type};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde_json::Value;

/// A planted graph without features.
const NONE: &str = "graph.generate.features=0";
const BOTH: [&str; 2] = ["train.schedule.kind=full-graph", "train.schedule.kind=tensor-parallel"];

fn settings(model: &str, embedding: &str, train: &str) -> String {
    // Where one map is all, nothing is hidden.
    let hidden = if model.contains("'sgc'") { "" } else { "hidden = 16\n" };
    format!("[model]\n{model}\n{hidden}embedding = {{ {embedding} }}\n[train]\nepochs = 3\n{train}")
}

fn run(place: &Place, sets: &[&str], more: &[&str]) -> Value {
    let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
    succeed(place, &[&sets[..], more].concat())
}

/// Hashes of model, rows and predictions.
fn hashes(summary: &Value) -> Vec<String> {
    let mut all = crate::common::hashes(summary);
    all.push(summary["node_embeddings"]["sha256"].as_str().unwrap().to_owned());
    all
}

/// Rows by the user's ids.
fn rows(place: &Place) -> BTreeMap<i64, Vec<f32>> {
    let file = std::fs::File::open(place.path("run/node_embeddings.parquet")).unwrap();
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

/// How far two tables are from one another: at most, and in the mean.
fn apart(left: &BTreeMap<i64, Vec<f32>>, right: &BTreeMap<i64, Vec<f32>>) -> [f64; 2] {
    assert_eq!(left.len(), right.len());
    let pairs = left.iter().flat_map(|(node, row)| row.iter().zip(&right[node]));
    let apart: Vec<f64> = pairs.map(|(x, y)| f64::from((x - y).abs())).collect();
    [apart.iter().copied().fold(0.0, f64::max), apart.iter().sum::<f64>() / apart.len() as f64]
}

const SGD: &str = "dim = 12, optimizer = { kind = 'sgd', lr = 2.0 }";
const ADAGRAD: &str = "dim = 12, init = 'normal', optimizer = { kind = 'adagrad', lr = 0.1 }";
const ADAM: &str = "dim = 12, optimizer = { kind = 'adam', lr = 0.01 }";

/// Models, among them those whose first task learns nothing, is decoupled, or keeps what nodes held at first.
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
fn the_bits_do_not_depend_on_how_many_work_on_them() {
    let place = Place::new();
    for (way, model) in MODELS.into_iter().enumerate() {
        let (embedding, train) = (
            [SGD, ADAGRAD, ADAM][way % 3],
            "schedule.intervals = 3\nclip_norm = 0.1\nlr_schedule = { kind = 'linear' }\n",
        );
        planted(&place, "p.toml", &settings(&format!("{model}\ndropout = 0.3"), embedding, train));
        for (which, schedule) in BOTH.into_iter().enumerate() {
            let graph = ["graph.undirected=false", "graph.undirected=true"][(way / 2 + which) % 2];
            let one = run(&place, &[NONE, graph, schedule], &[]);
            // Every row, once an epoch.
            assert_eq!(one["node_embeddings"]["rows_moved"], 3 * 1500, "{model}");
            assert_eq!(one["node_embeddings"]["staleness_max"], 0);
            for processes in ["2", "4"] {
                let some = run(&place, &[NONE, graph, schedule], &["--processes", processes]);
                assert_eq!(hashes(&some), hashes(&one), "{model}, {graph}, {schedule}: {processes} processes");
            }
        }
    }
}

/// The obvious other program: one batch of each partition, with all neighbors, by the table of batches.
#[test]
fn an_epoch_is_a_step_of_mini_batches_with_all_neighbours() {
    let place = Place::new();
    for (way, model) in MODELS.into_iter().enumerate() {
        let layers = if model.contains("layers = 3") { 3 } else { 2 };
        for embedding in [SGD, ADAM] {
            let train = "evaluate_every = 0\nlr_schedule = { kind = 'exponential', gamma = 0.5 }\n";
            planted(&place, "p.toml", &settings(&format!("{model}\ndropout = 0.0"), embedding, train));
            let graph = ["graph.undirected=true", "graph.generate.split=[0.7, 0.1, 0.2]"][way % 2];
            let fanouts = format!("train.fanouts=[{}]", vec!["-1"; layers].join(", "));
            run(&place, &[graph, NONE, "train.schedule=mini-batch", "train.batch=100000", &fanouts], &[]);
            let (wanted, wanted_rows) = (losses(&place), rows(&place));
            for schedule in BOTH {
                // A decoupled model is another one.
                let plain = if model.contains("'gcn'") { "model.decoupled=false" } else { "train.epochs=3" };
                run(&place, &[graph, NONE, schedule, plain], &["--processes", "2"]);
                for (epoch, (found, wanted)) in losses(&place).iter().zip(&wanted).enumerate() {
                    let close = (found - wanted).abs() <= 1e-5 * wanted.abs();
                    assert!(close, "{model}, {embedding}, {schedule}: epoch {epoch}: {found}, by batches {wanted}");
                }
                // Adam divides a number's gradient by its size, however close to rounding that is.
                let [most, mean] = apart(&rows(&place), &wanted_rows);
                let within = if embedding == SGD { most < 1e-5 } else { mean < 1e-5 };
                assert!(within, "{model}, {embedding}, {schedule}: rows {most} apart, {mean} in the mean");
            }
        }
    }
}

/// A pipeline over the small graph of links: lines of `[graph]`, of `[model]`, of `[train]`, of `[train.link]`.
fn links(place: &Place, graph: &str, model: &str, train: &str, link: &str) {
    place.write(
        "p.toml",
        format!(
            "[graph]\nnodes = 'nodes.parquet'\nedges = 'edges.parquet'\n{graph}\n[partition]\nmethod = 'random'\n\
             parts = 4\n[model]\nhidden = 16\nlayers = 2\n{model}\n[train]\ntask = 'link-prediction'\nepochs = 3\n{train}\n\
             [train.link]\n{link}\n[infer]\npredictions = true\nembeddings = true\n"
        ),
    );
}

/// The dump without the features that its nodes have.
fn bare(place: &Place) {
    use arrow::array::{ArrayRef, Int64Array};
    use std::sync::Arc;

    dump(place, true);
    let nodes = crate::common::linked::NODES as i64;
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values((0..nodes).map(|v| 1000 + v)));
    place.parquet("nodes.parquet", vec![("node_id", ids)]);
}

/// Lines of `[graph]`, `[model]` and `[train.link]`.
const WAYS: [[&str; 3]; 4] = [
    ["undirected = true", "kind = 'gcn'", "negative_sampler = 'in-batch'\nnum_negative_edges = 10"],
    [TYPED, "kind = 'rgcn'", "decoder = 'distmult'"],
    [TYPED, "kind = 'sage'", "decoder = 'distmult'\nloss = 'softmax-cross-entropy'\nnegative_sampler = 'joint'"],
    ["reverse_edges = true\ncolumns = { edge_type = 'kind' }", "kind = 'gat'\nheads = 2", "target_etype = ['likes']"],
];

#[test]
fn links_are_learnt_with_the_same_bits_and_as_by_batches() {
    let place = Place::new();
    bare(&place);
    for (way, [graph, model, link]) in WAYS.into_iter().enumerate() {
        let embedding = [SGD, ADAM][way % 2];
        let model = format!("{model}\ndropout = 0.0\nembedding = {{ {embedding} }}");
        links(&place, graph, &model, "batch = 100000\nevaluate_every = 0", link);
        run(&place, &["train.fanouts=[-1, -1]", "train.link.exclude_training_targets=false"], &[]);
        let (wanted, wanted_rows) = (losses(&place), rows(&place));
        for schedule in BOTH {
            let plain = if way == 0 { "model.decoupled=false" } else { "train.epochs=3" };
            let one = run(&place, &[schedule, plain], &[]);
            for (epoch, (found, wanted)) in losses(&place).iter().zip(&wanted).enumerate() {
                let close = (found - wanted).abs() <= 1e-5 * wanted.abs();
                assert!(close, "{model}, {link}, {schedule}: epoch {epoch}: {found}, by batches {wanted}");
            }
            let [most, mean] = apart(&rows(&place), &wanted_rows);
            let within = if embedding == SGD { most < 1e-5 } else { mean < 1e-5 };
            assert!(within, "{model}, {link}, {schedule}: rows {most} apart, {mean} in the mean");
            for processes in ["2", "4"] {
                let some = run(&place, &[schedule, plain], &["--processes", processes]);
                assert_eq!(hashes(&some), hashes(&one), "{model}, {schedule}: {processes} processes");
            }
            // In several chunks, each of which has some of an epoch's examples.
            let chunks = [schedule, plain, "train.batch=50", "model.dropout=0.2"];
            let one = run(&place, &chunks, &[]);
            assert_eq!(
                hashes(&run(&place, &chunks, &["--processes", "4"])),
                hashes(&one),
                "{model}, {schedule}: chunks"
            );
        }
    }
}

/// Edges whose classes are learned have no draws: chunks are one step, of rows too.
#[test]
fn chunks_of_edges_move_rows_once() {
    let place = Place::new();
    bare(&place);
    let text = "[graph]\nnodes = 'nodes.parquet'\nedges = 'edges.parquet'\nundirected = true\n\
                columns = { edge_label = 'alike', edge_split = 'part' }\n[partition]\nmethod = 'random'\nparts = 4\n\
                [model]\nkind = 'sage'\nhidden = 16\nlayers = 2\ndropout = 0.0\nembedding = { dim = 12, optimizer = { kind = 'sgd', lr = 2.0 } }\n\
                [train]\ntask = 'edge-classification'\nepochs = 4\nevaluate_every = 0\n";
    place.write("p.toml", text);
    run(&place, &["train.batch=100000", "train.fanouts=[-1, -1]", "train.edge.exclude_training_targets=false"], &[]);
    let (wanted, wanted_rows) = (losses(&place), rows(&place));
    for schedule in BOTH {
        for batch in ["train.batch=100000", "train.batch=61"] {
            run(&place, &[schedule, batch], &["--processes", "2"]);
            let close = losses(&place).iter().zip(&wanted).all(|(found, wanted)| (found / wanted - 1.0).abs() <= 1e-5);
            assert!(close, "{schedule}, {batch}: {:?}, by batches {wanted:?}", losses(&place));
            let [most, _] = apart(&rows(&place), &wanted_rows);
            assert!(most < 1e-5, "{schedule}, {batch}: rows {most} apart");
        }
    }
}

#[test]
fn it_goes_on_where_it_was_left_or_killed() {
    let place = Place::new();
    let train = "schedule.intervals = 2\ncheckpoint_every = 1\n";
    planted(&place, "p.toml", &settings("kind = 'sage'\ndropout = 0.2", ADAM, train));
    for schedule in BOTH {
        let sets = [NONE, schedule, "train.epochs=8"];
        let whole = run(&place, &sets, &[]);
        std::fs::remove_dir_all(place.path("run")).unwrap();
        run(&place, &[&sets[..2], &["train.epochs=3"]].concat(), &["--processes", "2"]);
        let resumed = run(&place, &sets, &["--resume", "--processes", "4"]);
        assert_eq!(hashes(&resumed), hashes(&whole), "{schedule}");
        assert_eq!((&resumed["best_epoch"], &resumed["test"]), (&whole["best_epoch"], &whole["test"]));

        let folder = format!("killed{}", schedule.len());
        let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
        killed(&place, &folder, &sets, 1, 3);
        assert_eq!(hashes(&summary(&place, &folder)), hashes(&whole), "{schedule}: killed");
    }
}

/// Tables of the passes, and the rows with their optimizer's state, are counted as they are made.
#[test]
fn tables_and_rows_take_what_the_plan_says() {
    let place = Place::new();
    for (model, embedding) in MODELS.into_iter().zip([SGD, ADAGRAD, ADAM].into_iter().cycle()) {
        planted(&place, "p.toml", &settings(model, embedding, ""));
        for schedule in BOTH {
            let sets = [
                NONE,
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
                // Of a perceptron only its few parameters move, mostly headers.
                if processes == "2" && !model.contains("'mlp'") {
                    let told = number(&plan["training"]["bytes_per_step"]);
                    let found = number(&summary["bytes_per_step"]);
                    assert!((told / found - 1.0).abs() < 0.05, "{model}, {schedule}: {told} planned, {found} sent");
                }
            }
        }
    }
}

const TELLING: [&str; 4] = [NONE, "graph.generate.homophily=0.9", "graph.undirected=true", "train.optimizer.lr=0.02"];

#[test]
fn rows_learn_what_a_graph_without_features_has_to_say_also_of_stale_neighbours() {
    let place = Place::new();
    let train = "schedule.kind = 'full-graph'\nschedule.intervals = 3\n";
    planted(&place, "p.toml", &settings("kind = 'gcn'", "dim = 32", train));
    let accuracy = |summary: &Value| summary["test"]["accuracy"].as_f64().unwrap();
    let sets = [&TELLING[..], &["train.epochs=60"]].concat();
    let exact = run(&place, &sets, &["--processes", "2"]);
    // Five classes, by edges alone.
    assert!(accuracy(&exact) > 0.9, "{}", accuracy(&exact));
    let sets = [&sets[..], &["train.evaluate_every=0", "train.schedule.mode=async"]].concat();
    for staleness in [0u64, 1, 3] {
        let set = format!("train.schedule.staleness={staleness}");
        let stale = run(&place, &[&sets[..], &[&set]].concat(), &["--processes", "2"]);
        eprintln!("staleness {staleness}: {} at most, accuracy {}", stale["staleness_max"], accuracy(&stale));
        assert!(stale["staleness_max"].as_u64().unwrap() <= staleness, "{stale}");
        // Rows of their own nodes are never behind, and each moves once an epoch all the same.
        assert_eq!(stale["node_embeddings"]["staleness_max"], 0);
        assert_eq!(stale["node_embeddings"]["rows_moved"], 60 * 1500);
        assert!(accuracy(&stale) > accuracy(&exact) - 0.05, "{} of {}", accuracy(&stale), accuracy(&exact));
    }
    // One interval, which has no neighbors that could be behind; and epochs that each have their learning rate.
    let alone =
        [NONE, "partition.parts=1", "train.schedule.intervals=1", "train.lr_schedule.kind=cosine", "train.epochs=6"];
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
fn tensor_workers_tell_the_gradient_of_rows() {
    let place = Place::new();
    let train = "schedule.kind = 'full-graph'\nschedule.intervals = 3\n";
    planted(&place, "p.toml", &settings("kind = 'sage'\ndropout = 0.3", ADAM, train));
    let alone = run(&place, &[NONE], &[]);
    let elsewhere =
        run(&place, &[NONE, "train.tensor_workers.workers=2", "train.tensor_workers.threads=1"], &["--processes", "2"]);
    assert_eq!(hashes(&elsewhere), hashes(&alone));
    assert!(elsewhere["tensor"]["calls"].as_u64() > Some(0), "{elsewhere}");
}

/// Friendships between listeners, one in ten of them to be found again: there are no features.
#[test]
fn friendships_are_found_again() {
    let Some(data) = data() else { return };
    let (place, data) = (Place::new(), data.join("lastfm-asia"));
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
    let drawn = ["train.epochs=1", "train.optimizer.lr=1e-12", "model.embedding.optimizer.lr=1e-12"];
    let untrained = mrr(&run(&place, &[BOTH[0], drawn[0], drawn[1], drawn[2]], &[]));
    // Among 501 nodes in no order, a rank's inverse is 0.0136 in the mean.
    for schedule in BOTH {
        let learnt = mrr(&run(&place, &[schedule, "train.epochs=60"], &["--processes", "2"]));
        eprintln!("{schedule}: mrr {learnt}, untrained {untrained}");
        assert!(learnt > 20.0 * 0.0136 && learnt > 1.2 * untrained, "{schedule}: {learnt}, untrained {untrained}");
    }
}

#[test]
fn what_cannot_be_learnt_is_refused() {
    let place = Place::new();
    let refused = |sets: &[&str], code: i32, words: &[&str]| {
        let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
        let errors = place.fail(&[&["run", "p.toml", "--quiet", "--run-dir", "run"], &sets[..]].concat(), code, words);
        assert_eq!(errors.len(), 1, "{errors:?}");
    };
    for schedule in BOTH {
        planted(&place, "p.toml", &settings("kind = 'sage'", "dim = 8", ""));
        refused(&[schedule], 2, &["p.toml:10: model.embedding:", "these have 24", "leave model.embedding out"]);
        refused(
            &[schedule, NONE, "model.embedding.mode=async"],
            2,
            &["model.embedding.mode:", "once an epoch", "`mini-batch`"],
        );
        refused(&[schedule, NONE, "model.embedding.staleness=2"], 2, &["model.embedding.staleness:", "\"async\""]);
        planted(&place, "p.toml", "[model]\nkind = 'sage'\n[train]\nepochs = 1\n");
        refused(&[schedule, NONE], 3, &["no features", "graph.columns.features", "model.embedding = { dim = 128 }"]);
    }
}
