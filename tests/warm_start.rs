//! `train.from`: training starts from the model of an earlier run.

use std::sync::Arc;

use arrow::array::{ArrayRef, FixedSizeListArray, Float32Array, Int64Array, StringArray};
use arrow::datatypes::{DataType, Field};

use crate::common::changes::{Changes, Counts, update};
use crate::common::{TestDir, Weights, learned_rows, losses, planted, summary, weights};

/// Options of one epoch that changes no parameter: a step of this length is lost in rounding.
const AT_REST: [&str; 6] = [
    "--set",
    "train.epochs=1",
    "--set",
    "train.optimizer={ kind = 'sgd', lr = 1e-30 }",
    "--set",
    "train.evaluate_every=0",
];

/// Trains in the run folder `run`. Returns the messages.
fn train(place: &TestDir, pipeline: &str, run: &str, more: &[&str]) -> String {
    let ended = place.run(&[&["run", pipeline, "--run-dir", run, "--set", "train.epochs=2"], more].concat());
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    ended.stderr
}

/// Whether parameters are equal, except for such a step from 0.
fn equal(a: &[Vec<f64>], b: &[Vec<f64>]) -> bool {
    a.len() == b.len() && a.iter().flatten().zip(b.iter().flatten()).all(|(a, b)| (a - b).abs() < 1e-20)
}

#[test]
fn all_parameters_and_learned_rows_are_those_of_the_model() {
    for (schedule, model) in [
        ("mini-batch", "kind = 'gat'"),
        ("partition-parallel", "kind = 'gin'\ntrain_eps = true"),
        ("full-graph", "kind = 'gcn'\nresidual = true"),
        ("tensor-parallel", "kind = 'gcn'"),
        ("mini-batch", "embedding = { dim = 8, optimizer = { kind = 'sgd', lr = 1e-30 } }"),
        ("full-graph", "embedding = { dim = 8, optimizer = { kind = 'sgd', lr = 1e-30 } }"),
    ] {
        let place = TestDir::new();
        planted(&place, "p.toml", &format!("[model]\n{model}\n[train]\nschedule = '{schedule}'\n"));
        let features: &[&str] = if model.contains("embedding") { &["--set", "graph.generate.features=0"] } else { &[] };
        // Rows are learned in the first run.
        let learns = ["--set", "model.embedding.optimizer.lr=0.01"];
        train(&place, "p.toml", "first", &[features, if features.is_empty() { &[] } else { &learns[..] }].concat());
        // Another number of partitions has nodes in another order.
        let other: &[&str] = &["--set", "partition.parts=3", "--set", "partition.out=three"];
        for (processes, dataset) in [("1", &[][..]), ("2", &[]), ("4", &[]), ("2", other)] {
            let args = [features, dataset, &AT_REST, &["--set", "train.from=first", "--processes", processes]].concat();
            let said = train(&place, "p.toml", "run", &args);
            assert!(!said.contains("drawn anew"), "{said}");
            let (before, after) = (weights(&place, "first"), weights(&place, "run"));
            assert!(before.keys().eq(after.keys()), "{schedule}, {model}");
            for (name, rows) in &before {
                // Weighted averages of equal numbers are rounded.
                let rounded = schedule == "partition-parallel";
                let close = |a: f64, b: f64| (a - b).abs() <= if rounded { 1e-6 * a.abs() } else { 1e-20 };
                let all = rows.iter().flatten().zip(after[name].iter().flatten()).all(|(&a, &b)| close(a, b));
                assert!(all, "{schedule}, {model}, {processes} processes: {name}");
            }
            let files = ["first", "run"].map(|run| summary(&place, run));
            assert!(files[0]["from_model"].is_null() && files[1]["from_model"].is_string());
            if !features.is_empty() {
                let after = learned_rows(&place);
                std::fs::copy(place.path("first/node_embeddings.parquet"), place.path("run/node_embeddings.parquet"))
                    .unwrap();
                let before = learned_rows(&place);
                assert_eq!(before.len(), 1500);
                let close =
                    |(id, row): (&i64, &Vec<f32>)| row.iter().zip(&after[id]).all(|(a, b)| (a - b).abs() < 1e-20);
                assert!(before.iter().all(close), "{schedule}, {processes} processes");
            }
            std::fs::remove_dir_all(place.path("run")).unwrap();
        }
    }
}

#[test]
fn inference_after_an_update_has_the_bits_of_a_run_that_starts_there_with_the_model() {
    for (seed, (schedule, model)) in (0..).zip([
        ("mini-batch", "kind = 'sage'"),
        ("mini-batch", "kind = 'gat'"),
        ("full-graph", "kind = 'gcn'"),
        ("tensor-parallel", "kind = 'sage'"),
    ]) {
        let place = TestDir::new();
        let settings = format!("[model]\n{model}\n[train]\nschedule = '{schedule}'\n");
        planted(&place, "monday.toml", &settings);
        train(&place, "monday.toml", "run", &[]);
        let counts = Counts { removed_edges: 20, added_edges: 30, new_nodes: 10, new_values: 10, removed_nodes: 5 };
        Changes::new(&place, seed).write(&place, "changes", counts);
        update(&place, "dataset", "changes", &["--out", "tuesday"]);
        // `--resume` needs the dataset of the run.
        let graph = "[graph]\ndataset = 'tuesday'\n";
        place.write("tuesday.toml", format!("{graph}{settings}from = 'run'\n[infer]\nembeddings = true\n"));
        train(&place, "tuesday.toml", "there", &AT_REST);
        let bytes = |folder: &str, file: &str| std::fs::read(place.path(folder).join(file)).unwrap();
        for processes in ["1", "2", "4"] {
            let args = ["infer", "run", "--dataset", "tuesday", "--out", "out", "--quiet", "--processes", processes];
            place.succeed(&args);
            let name = format!("{schedule}, {model}, {processes} processes");
            for file in ["predictions.parquet", "embeddings.parquet"] {
                assert!(bytes("out", file) == bytes("there", file), "{name}: {file}");
                assert!(bytes("out", file) != bytes("run", file), "{name}: {file}");
            }
            let [inferred, trained] = ["out", "there"].map(|folder| summary(&place, folder));
            for key in ["train", "val", "test", "by_class", "predictions_sha256"] {
                assert_eq!(inferred[key], trained[key], "{name}: {key}");
            }
        }
    }
}

#[test]
fn training_goes_on_with_equal_bits_and_after_a_resume() {
    let place = TestDir::new();
    planted(&place, "p.toml", "[model]\ndropout = 0.1\n[train]\nbatch = 64\ncheckpoint_every = 1\n");
    train(&place, "p.toml", "first", &[]);
    let bits =
        |run: &str| ["model_sha256", "predictions_sha256", "from_model"].map(|name| summary(&place, run)[name].clone());
    let from = ["--set", "train.from=first", "--set", "train.epochs=3"];
    train(&place, "p.toml", "run", &from);
    let later = losses(&place);
    let expected = bits("run");
    for processes in ["2", "4"] {
        train(&place, "p.toml", "again", &[&from[..], &["--processes", processes]].concat());
        assert_eq!(bits("again"), expected, "{processes} processes");
    }
    // It resumes from a checkpoint, or starts from the model if there is none yet.
    train(&place, "p.toml", "resumed", &["--set", "train.from=first", "--set", "train.epochs=1"]);
    train(&place, "p.toml", "resumed", &[&from[..], &["--resume", "--processes", "2"]].concat());
    assert_eq!(bits("resumed"), expected);
    std::fs::remove_dir_all(place.path("resumed")).unwrap();
    train(&place, "p.toml", "resumed", &[&from[..], &["--resume"]].concat());
    assert_eq!(bits("resumed"), expected);
    // The run without the model learns from the beginning.
    train(&place, "p.toml", "run", &["--set", "train.epochs=3"]);
    let fresh = losses(&place);
    assert!(later[0] < fresh[0] && bits("run") != expected, "{later:?}, {fresh:?}");
    // Its results come from its own folder only.
    std::fs::rename(place.path("first"), place.path("moved")).unwrap();
    place.succeed(&["infer", "again", "--out", "out", "--quiet"]);
    // A checkpoint belongs to the model from which its run has started.
    train(&place, "p.toml", "first", &["--set", "train.seed=4"]);
    let args = [&["run", "p.toml", "--run-dir", "resumed", "--quiet", "--resume"], &from[..]].concat();
    place.fail(&args, 3, &["belongs to another pipeline"]);
}

/// Returns the bits of the model that the run in folder `run` has trained.
fn model(place: &TestDir, run: &str) -> serde_json::Value {
    summary(place, run)["model_sha256"].clone()
}

#[test]
fn training_goes_on_with_the_state_of_the_optimizer() {
    for (model_keys, optimizer) in [
        ("kind = 'gcn'", "{ kind = 'adam', lr = 0.02 }"),
        ("kind = 'sage'\nnorm = 'batch'", "{ kind = 'adamw', lr = 0.02, weight_decay = 0.01 }"),
        ("kind = 'gin'", "{ kind = 'sgd', lr = 0.02, momentum = 0.9 }"),
    ] {
        let place = TestDir::new();
        // Nothing is drawn in an epoch, so that it does not depend on its number.
        let keys = format!(
            "[model]\n{model_keys}\ndropout = 0.0\n[train]\nschedule = 'full-graph'\noptimizer = {optimizer}\n"
        );
        planted(&place, "p.toml", &keys);
        let run = |run: &str, more: &[&str]| train(&place, "p.toml", run, more);
        let last = ["--set", "train.evaluate_every=0"];
        let epochs = |count: u64| format!("train.epochs={count}");
        run("first", &["--set", "train.epochs=6", "--processes", "2"]);
        let best = summary(&place, "first")["best_epoch"].as_u64().unwrap();
        run("whole", &[&last[..], &["--set", &epochs(best + 3)]].concat());
        let from = [&last[..], &["--set", "train.epochs=3", "--set", "train.from=first"]].concat();
        let with = [&from[..], &["--set", "train.from_optimizer=true"]].concat();
        for processes in ["1", "2", "4"] {
            run("later", &[&with[..], &["--processes", processes]].concat());
            assert_eq!(model(&place, "later"), model(&place, "whole"), "{model_keys}, {processes} processes");
        }
        run("without", &from);
        assert_ne!(model(&place, "without"), model(&place, "whole"), "{model_keys}");
        // A resumed run keeps the state of its best epoch.
        run("resumed", &["--set", "train.epochs=3", "--set", "train.checkpoint_every=1"]);
        run("resumed", &["--set", "train.epochs=6", "--resume", "--processes", "2"]);
        let state = |run: &str| std::fs::read(place.path(run).join("optimizer.safetensors")).unwrap();
        assert!(state("resumed") == state("first"), "{model_keys}");
    }
}

#[test]
fn states_of_averaged_models_and_of_other_classes_are_read() {
    let with = ["--set", "train.from=first", "--set", "train.from_optimizer=true"];
    // The momentum of averages is a vector of the state.
    let place = TestDir::new();
    let averaged = "[model]\n[train]\nschedule = { kind = 'partition-parallel', average_momentum = 0.5 }\n";
    planted(&place, "p.toml", averaged);
    train(&place, "p.toml", "first", &[]);
    train(&place, "p.toml", "second", &with);
    train(&place, "p.toml", "again", &[&with[..], &["--processes", "4"]].concat());
    assert_eq!(model(&place, "again"), model(&place, "second"));
    let other = ["--set", "train.schedule.average_momentum=0"];
    let errors = place.fail(
        &[&["run", "p.toml", "--run-dir", "other", "--quiet"], &with[..], &other].concat(),
        3,
        &[
            "first/optimizer.safetensors: train.from_optimizer: the state has",
            "average.velocity",
            "use the [train] of that run",
        ],
    );
    assert_eq!(errors.len(), 1);

    let place = TestDir::new();
    planted(&place, "p.toml", "[model]\nembedding = { dim = 8 }\n[train]\n");
    let rows = ["--set", "graph.generate.features=0"];
    train(&place, "p.toml", "first", &rows);
    let said = train(&place, "p.toml", "second", &[&rows[..], &with].concat());
    assert!(said.contains("note: the state of the optimizer of learned rows begins anew"), "{said}");

    // Rows of new classes have no state yet.
    let place = TestDir::new();
    named(&place, "few", &["ant", "bee"], "", false);
    named(&place, "many", &["bee", "cat", "ant"], "", false);
    train(&place, "few.toml", "first", &[]);
    let said = train(&place, "many.toml", "second", &with);
    assert!(said.contains("drawn anew, as a whole or in part"), "{said}");
}

#[test]
fn states_that_do_not_fit_are_refused_with_one_line() {
    let place = TestDir::new();
    planted(&place, "p.toml", "[model]\n[train]\n");
    train(&place, "p.toml", "first", &[]);
    let refused = |more: &[&str], code: i32, words: &[&str]| {
        let args = ["run", "p.toml", "--run-dir", "run", "--quiet", "--set", "train.from_optimizer=true"];
        let errors = place.fail(&[&args[..], more].concat(), code, words);
        assert_eq!(errors.len(), 1, "{errors:?}");
    };
    let from = ["--set", "train.from=first"];
    refused(&[], 2, &["train.from_optimizer", "has no effect without `train.from`"]);
    let sgd = ["--set", "train.optimizer={ kind = 'sgd', lr = 0.1 }"];
    refused(&[&from[..], &sgd].concat(), 2, &["train.from_optimizer", "`sgd` without momentum has no state"]);
    let other = ["--set", "train.optimizer={ kind = 'sgd', lr = 0.1, momentum = 0.5 }"];
    refused(
        &[&from[..], &other].concat(),
        3,
        &["the optimizer of that run is \"adam\"", "that of this pipeline \"sgd\""],
    );
    train(&place, "p.toml", "sgd", &sgd);
    let momentum = ["--set", "train.from=sgd", "--set", "train.optimizer={ kind = 'sgd', lr = 0.1, momentum = 0.9 }"];
    refused(
        &momentum,
        3,
        &["sgd/optimizer.safetensors", "the state has no vectors, and the optimizer of this pipeline sgd.velocity"],
    );
    let file = place.path("first/optimizer.safetensors");
    let bytes = std::fs::read(&file).unwrap();
    let mut damaged = bytes.clone();
    let at = bytes.len() - 9;
    damaged[at] ^= 4;
    std::fs::write(&file, &damaged).unwrap();
    refused(&from, 3, &["first/optimizer.safetensors", "is damaged", "leave train.from_optimizer out"]);
    train(&place, "p.toml", "second", &["--set", "train.seed=8"]);
    std::fs::copy(place.path("second/optimizer.safetensors"), &file).unwrap();
    refused(&from, 3, &["this is not the state of model.safetensors beside it"]);
    std::fs::remove_file(&file).unwrap();
    refused(&from, 3, &["first/optimizer.safetensors: train.from_optimizer: no such file"]);
}

/// Writes the nodes and edges of a ring, with names of classes, and a pipeline.
fn named(place: &TestDir, name: &str, classes: &[&str], model: &str, labels_edges: bool) {
    const NODES: i64 = 240;
    let ints = |values: Vec<i64>| Arc::new(Int64Array::from(values)) as ArrayRef;
    let class = |node: i64| classes[(node as usize * 7) % classes.len()];
    let values = (0..NODES * 4).map(|at| (at * at % 17) as f32 / 17.0);
    let item = Arc::new(Field::new("item", DataType::Float32, true));
    let features = FixedSizeListArray::new(item, 4, Arc::new(Float32Array::from_iter_values(values)), None);
    place.parquet(
        &format!("{name}/nodes.parquet"),
        vec![
            ("node_id", ints((0..NODES).collect())),
            ("features", Arc::new(features)),
            ("label", Arc::new(StringArray::from_iter_values((0..NODES).map(class)))),
            (
                "split",
                Arc::new(StringArray::from_iter_values(
                    (0..NODES).map(|node| if node % 3 > 0 { "train" } else { "val" }),
                )),
            ),
        ],
    );
    let pairs: Vec<(i64, i64)> =
        (0..NODES).flat_map(|node| [(node, (node + 1) % NODES), (node, (node * 5 + 2) % NODES)]).collect();
    place.parquet(
        &format!("{name}/edges.parquet"),
        vec![
            ("src", ints(pairs.iter().map(|pair| pair.0).collect())),
            ("dst", ints(pairs.iter().map(|pair| pair.1).collect())),
            ("kind", Arc::new(StringArray::from_iter_values(pairs.iter().map(|pair| class(pair.0 + pair.1))))),
        ],
    );
    let edges = if labels_edges { "edge_label = 'kind'" } else { "" };
    place.write(&format!("{name}.toml"), format!(
        "[graph]\nnodes = '{name}/nodes.parquet'\nedges = '{name}/edges.parquet'\nundirected = true\nduplicates = 'drop'\n\
         columns = {{ {edges} }}\n[partition]\nmethod = 'random'\nparts = 2\nout = '{name}/dataset'\n\
         [model]\nhidden = 16\n{model}\n[train]\nseed = 3\nevaluate_every = 0\n"
    ));
}

/// Returns the rows of classes by name: each vector, or the rows of all heads.
fn rows_of_classes(weights: &Weights, parameter: &str, classes: usize, class: usize) -> Vec<Vec<f64>> {
    let rows = &weights[parameter];
    match &rows[..] {
        [vector] => vec![vec![vector[class]]],
        _ if rows[0].len() == classes => rows.iter().map(|row| vec![row[class]]).collect(),
        _ => rows.iter().skip(class).step_by(classes).cloned().collect(),
    }
}

#[test]
fn classes_are_matched_by_name() {
    let (monday, tuesday) = (["cat", "dog", "emu"], ["ant", "dog", "emu", "fox"]);
    for (model, of_classes) in [
        ("kind = 'sage'\nlayers = 2", &["layers.1.self.weight", "layers.1.neighbor.weight", "layers.1.bias"][..]),
        (
            "kind = 'gat'\noutput_heads = 2",
            &["layers.1.weight", "layers.1.source", "layers.1.destination", "layers.1.bias"],
        ),
        ("kind = 'gcn'\njumping_knowledge = 'max'", &["readout.weight", "readout.bias"]),
        ("kind = 'appnp'", &["mlp.1.weight", "mlp.1.bias"]),
    ] {
        let place = TestDir::new();
        named(&place, "monday", &monday, model, false);
        named(&place, "tuesday", &tuesday, model, false);
        train(&place, "monday.toml", "first", &[]);
        train(&place, "tuesday.toml", "drawn", &AT_REST);
        let said = train(&place, "tuesday.toml", "run", &[&AT_REST[..], &["--set", "train.from=first"]].concat());
        let words = [
            "has not learned the classes ant, fox",
            "does not have the model's classes cat",
            "drawn anew, as a whole or in part: ",
        ];
        assert!(words.iter().all(|words| said.contains(words)), "{said}");
        let [first, drawn, run] = ["first", "drawn", "run"].map(|run| weights(&place, run));
        for (name, rows) in &run {
            if !of_classes.contains(&&name[..]) {
                assert!(equal(rows, &first[name]), "{model}: {name}");
                continue;
            }
            for (at, class) in tuesday.iter().enumerate() {
                let (source, classes, before) = match monday.iter().position(|known| known == class) {
                    Some(before) => (&first, 3, before),
                    None => (&drawn, 4, at),
                };
                let [now, expected] =
                    [rows_of_classes(&run, name, 4, at), rows_of_classes(source, name, classes, before)];
                assert!(equal(&now, &expected), "{model}: {name}, {class}");
            }
        }
        assert!(of_classes.iter().all(|name| run.contains_key(*name)), "{:?}", run.keys());
    }
}

#[test]
fn model_of_another_task_gives_the_parameters_before_the_results() {
    let place = TestDir::new();
    // The results of links are as wide as hidden rows, so the last layer has no map of its residual connection.
    named(&place, "monday", &["cat", "dog", "emu"], "kind = 'sage'\nresidual = true", true);
    train(&place, "monday.toml", "links", &["--set", "train.task=link-prediction"]);
    let links = weights(&place, "links");
    let next = |run: &str, task: &str, from: &[&str]| {
        train(&place, "monday.toml", run, &[&AT_REST[..], &["--set", &format!("train.task={task}")], from].concat())
    };
    let from = ["--set", "train.from=links"];
    next("drawn", "node-classification", &[]);
    let said = next("classes", "node-classification", &from);
    assert!(
        said.contains("the model was trained for link-prediction") && said.contains("layers.1.residual.weight"),
        "{said}"
    );
    let [drawn, classes] = ["drawn", "classes"].map(|run| weights(&place, run));
    for (name, rows) in &classes {
        let source = if name.starts_with("layers.0.") { &links } else { &drawn };
        assert!(equal(rows, &source[name]), "{name}");
    }
    // Tasks on edges read the same results, and have decoders of their own.
    let said = next("edges", "edge-classification", &from);
    assert!(said.contains("drawn anew, as a whole or in part: decoder."), "{said}");
    let edges = weights(&place, "edges");
    assert!(links.iter().all(|(name, rows)| equal(rows, &edges[name])));
}

#[test]
fn models_that_do_not_fit_are_refused() {
    let place = TestDir::new();
    planted(&place, "p.toml", "[model]\nhidden = 16\n[train]\n");
    train(&place, "p.toml", "first", &[]);
    let refused = |more: &[&str], code: i32, words: &[&str]| {
        for processes in ["1", "2"] {
            let args = ["run", "p.toml", "--quiet", "--processes", processes, "--set", "train.from=first"];
            let lines = place.fail(&[&args[..], more].concat(), code, words);
            assert_eq!(lines.len(), 1, "{lines:?}");
        }
    };
    refused(&["--set", "train.from=nothing"], 3, &["train.from: ", "nothing: no such folder"]);
    refused(
        &["--set", "train.from=graph"],
        3,
        &["graph has no model.safetensors", "name the folder of a finished run"],
    );
    refused(&["--run-dir", "first"], 2, &["train.from: ", "first is also the run folder", "--run-dir"]);
    refused(
        &["--set", "model.hidden=8"],
        3,
        &["the model has model.hidden = 16, and this pipeline = 8", "first/pipeline.toml"],
    );
    refused(&["--set", "model.kind=gcn"], 3, &["model.kind = \"sage\", and this pipeline = \"gcn\""]);
    let decoupled = ["--set", "model.kind=gcn", "--set", "train.schedule=tensor-parallel"];
    train(&place, "p.toml", "decoupled", &decoupled);
    let from = ["--set", "train.from=decoupled", "--set", "model.kind=gcn", "--set", "train.schedule=full-graph"];
    refused(&from, 3, &["model.kind = \"appnp\", and this pipeline = \"gcn\"", "set model.decoupled = true"]);
    refused(&["--set", "model.activation=elu"], 3, &["model.activation unset, and this pipeline = "]);
    let other = ["--set", "graph.generate.out=other", "--set", "partition.out=other-dataset", "--set"];
    let with = |set| [&other[..], &[set]].concat();
    refused(&with("graph.generate.features=8"), 3, &["nodes with 24 features, and the dataset has 8 features"]);
    refused(
        &with("graph.self_loops=drop"),
        3,
        &["graph.self_loops = \"keep\", and the dataset has graph.self_loops = \"drop\""],
    );
    let file = place.path("first/model.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&file, bytes).unwrap();
    refused(&[], 3, &["first/model.safetensors: the model is damaged"]);
    assert!(place.path("first/summary.json").exists() && !place.path("runs").exists());
}
