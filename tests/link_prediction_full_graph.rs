//! Edge tasks in full-graph and tensor-parallel training: equal bits for any number of processes, equality with
//! mini-batches, ranking quality, traffic and refused settings.

use crate::common::linked::{TYPED, dump};
use crate::common::{TestDir, column, data, losses, planted, read, summary, without_dropout};
use arrow::array::{AsArray, Int64Array, StringArray};
use arrow::datatypes::{Float32Type, Int64Type};
use serde_json::Value;

const SCHEDULES: [&str; 2] = ["full-graph", "tensor-parallel"];

/// Writes a pipeline over the dump: lines of `[graph]`, of `[model]`, of `[train]`, of `[train.link]`.
pub(crate) fn pipeline(place: &TestDir, graph: &str, model: &str, train: &str, link: &str) {
    place.write(
        "p.toml",
        format!(
            "[graph]\nnodes = 'nodes.parquet'\nedges = 'edges.parquet'\n{graph}\n[partition]\nmethod = 'random'\n\
             parts = 4\n[model]\nhidden = 16\nlayers = 2\n{model}\n[train]\ntask = 'link-prediction'\nepochs = 3\n{train}\n\
             [train.link]\n{link}\n[infer]\npredictions = true\nembeddings = true\n"
        ),
    );
}

fn succeed(place: &TestDir, sets: &[&str], more: &[&str]) -> Value {
    let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
    let ended = place.run(&[&["run", "p.toml", "--quiet", "--run-dir", "run"], &sets[..], more].concat());
    assert_eq!(ended.code, 0, "{sets:?} {more:?}: {}", ended.stderr);
    summary(place, "run")
}

fn bits(summary: &Value) -> [Value; 4] {
    ["model_sha256", "predictions_sha256", "val", "test"].map(|key| summary[key].clone())
}

/// Lines of `[graph]`, `[model]` and `[train.link]`.
const CASES: [[&str; 3]; 6] = [
    ["", "kind = 'gcn'\ninput_dropout = 0.2", "loss = 'binary-cross-entropy'"],
    [TYPED, "kind = 'rgcn'", "decoder = 'distmult'"],
    [TYPED, "kind = 'sage'", "decoder = 'distmult'\nloss = 'softmax-cross-entropy'\nnegative_sampler = 'joint'"],
    ["undirected = true", "kind = 'gin'\nnorm = 'batch'", "negative_sampler = 'in-batch'\nnum_negative_edges = 10"],
    [
        "reverse_edges = true\ncolumns = { edge_type = 'kind', node_type = 'kind' }",
        "kind = 'sage'\nresidual = true",
        "target_etype = ['likes']\nloss = 'binary-cross-entropy'\nnegative_sampler = 'degree'\nnum_negative_edges = 4\nnum_negative_edges_eval = 30",
    ],
    ["", "kind = 'gat'\nheads = 4\ninput_dropout = 0.2", "decoder = 'dot'"],
];

#[test]
fn all_options_have_equal_bits_for_1_2_4_processes() {
    let place = TestDir::new();
    dump(&place, true);
    for (index, [graph, model, link]) in CASES.into_iter().enumerate() {
        pipeline(&place, graph, model, "batch = 50\nschedule.intervals = 2", link);
        for (which, schedule) in SCHEDULES.into_iter().enumerate() {
            let schedule = format!("train.schedule.kind={schedule}");
            let one = succeed(&place, &[&schedule], &[]);
            assert!(one["test"]["mrr"].as_f64().is_some_and(|mrr| mrr > 0.0), "{one}");
            // Each schedule runs with 2 processes in half of the cases, and with 4 in the others.
            let processes = ["2", "4"][(index + which) % 2];
            let some = succeed(&place, &[&schedule], &["--processes", processes]);
            assert_eq!(bits(&some), bits(&one), "{model} {link} {schedule}: {processes} processes");
        }
        let pipe = succeed(&place, &["train.schedule.kind=full-graph"], &[]);
        let sync =
            succeed(&place, &["train.schedule.kind=full-graph", "train.schedule.mode=sync"], &["--processes", "2"]);
        assert_eq!(bits(&sync), bits(&pipe), "{model} {link}: sync");
    }
}

/// The reference is mini-batch training with one batch per partition and all neighbors, including target edges.
#[test]
fn epoch_equals_a_mini_batch_step_over_all_neighbors() {
    let place = TestDir::new();
    dump(&place, true);
    for (index, [graph, model, link]) in CASES.into_iter().enumerate() {
        let model = model.replace("input_dropout = 0.2", "").replace("norm = 'batch'", "");
        let model = without_dropout(&model);
        pipeline(&place, graph, &model, "batch = 100000", link);
        let sets = ["train.fanouts=[-1, -1]", "train.link.exclude_training_targets=false"];
        let by_batches = succeed(&place, &sets, &[]);
        let batches = losses(&place);
        for schedule in SCHEDULES {
            let schedule = format!("train.schedule.kind={schedule}");
            // A decoupled model computes another function.
            let plain = if index == 0 { "model.decoupled=false" } else { "train.epochs=3" };
            let whole = succeed(&place, &[&schedule, plain], &["--processes", "2"]);
            for (epoch, (whole, batches)) in losses(&place).iter().zip(&batches).enumerate() {
                let most = if epoch == 0 { 1e-6 } else { 2e-5 };
                let close = (whole - batches).abs() <= most * batches.abs();
                assert!(close, "{model} {link}: epoch {epoch} has loss {whole}, and {batches} with mini-batches");
            }
            let loss = |summary: &Value| summary["test"]["loss"].as_f64().unwrap();
            assert!((loss(&whole) / loss(&by_batches) - 1.0).abs() < 1e-4, "{model} {link}: evaluation");
        }
    }
}

/// Writes a pipeline that classifies edges as within a group or not: lines of `[model]` and `[train]`.
fn class_pipeline(place: &TestDir, model: &str, train: &str) {
    place.write(
        "p.toml",
        format!(
            "[graph]\nnodes = 'nodes.parquet'\nedges = 'edges.parquet'\nundirected = true\n\
             columns = {{ edge_label = 'alike', edge_split = 'part' }}\n[partition]\nmethod = 'random'\nparts = 4\n\
             [model]\nhidden = 16\nlayers = 2\n{model}\n[train]\ntask = 'edge-classification'\nepochs = 4\n\
             optimizer = {{ lr = 0.02 }}\n{train}\n[infer]\npredictions = true\nscores = true\nembeddings = true\n"
        ),
    );
}

/// Asserts that the average precision of class 1 on test edges equals that of the written probabilities.
fn assert_average_precision(place: &TestDir, summary: &Value) {
    let batch = read(place, "run/predictions.parquet");
    let (split, label) = (column::<StringArray>(&batch, "split"), column::<Int64Array>(&batch, "label"));
    let [scores, prediction] = [batch.column_by_name("scores").unwrap(), batch.column_by_name("prediction").unwrap()];
    let mut ranked = Vec::new();
    for row in 0..batch.num_rows() {
        let scores = scores.as_fixed_size_list().value(row);
        let [no, yes] = *scores.as_primitive::<Float32Type>().values().as_ref() else { panic!("two classes") };
        assert!((no + yes - 1.0).abs() < 1e-5, "{no} {yes}");
        assert_eq!(prediction.as_primitive::<Int64Type>().value(row), i64::from(yes > no));
        if split.value(row) == "test" {
            ranked.push((yes, label.value(row) == 1));
        }
    }
    ranked.sort_by(|a, b| b.0.total_cmp(&a.0));
    let (mut found, mut area) = (0.0, 0.0);
    for (rank, _) in ranked.iter().enumerate().filter(|(_, (_, alike))| *alike) {
        found += 1.0;
        area += found / (rank + 1) as f64;
    }
    let reported = summary["test"]["pr_auc"].as_f64().unwrap();
    assert!((reported - area / found).abs() < 1e-3, "{reported}, from predictions {}", area / found);
    assert_eq!(summary["positive_class"], "1");
}

/// Edge classification draws no negatives: a step does not depend on the chunks, and equals a step of mini-batches.
#[test]
fn edge_classification_in_chunks_equals_one_step() {
    let place = TestDir::new();
    dump(&place, true);
    for model in ["kind = 'gat'\nheads = 2", "kind = 'sage'"] {
        class_pipeline(&place, &without_dropout(model), "");
        let sets = ["train.batch=100000", "train.fanouts=[-1, -1]", "train.edge.exclude_training_targets=false"];
        assert_average_precision(&place, &succeed(&place, &sets, &[]));
        let batches = losses(&place);
        for schedule in SCHEDULES {
            let schedule = format!("train.schedule.kind={schedule}");
            for batch in ["train.batch=100000", "train.batch=61"] {
                let one = succeed(&place, &[&schedule, batch], &[]);
                let whole = losses(&place);
                for (epoch, (whole, batches)) in whole.iter().zip(&batches).enumerate() {
                    let close = (whole - batches).abs() <= 2e-5 * batches.abs();
                    assert!(close, "{model} {schedule} {batch}: {whole} in epoch {epoch}, {batches} with mini-batches");
                }
                assert_eq!(bits(&succeed(&place, &[&schedule, batch], &["--processes", "4"])), bits(&one), "{model}");
            }
            assert_average_precision(&place, &summary(&place, "run"));
        }
    }
    class_pipeline(&place, "kind = 'sage'", "");
    let accuracy = |summary: Value| summary["test"]["accuracy"].as_f64().unwrap();
    let sampled = accuracy(succeed(&place, &["train.epochs=30", "train.batch=200"], &[]));
    let whole = accuracy(succeed(
        &place,
        &["train.epochs=150", "train.evaluate_every=50", "train.schedule.kind=full-graph"],
        &["--processes", "2"],
    ));
    eprintln!("accuracy {whole}, {sampled} with mini-batches");
    assert!(whole > sampled - 0.03, "{whole} {sampled}");
}

/// Ranks held-out citations of Cora, one in ten, among all papers.
#[test]
fn mrr_on_cora_is_close_to_mini_batches() {
    let Some(data) = data() else { return };
    let (place, data) = (TestDir::new(), data.join("cora"));
    place.write(
        "p.toml",
        format!(
            "[graph]\nnodes = '{0}/nodes.parquet'\nedges = '{0}/edges.parquet'\nundirected = true\n[partition]\nparts = 2\n\
             [model]\nkind = 'sage'\nhidden = 64\nlayers = 2\ndropout = 0.0\n[train]\ntask = 'link-prediction'\n\
             evaluate_every = 0\noptimizer = {{ lr = 0.01 }}\nbatch = 500\n[train.link]\nloss = 'softmax-cross-entropy'\n\
             negative_sampler = 'joint'\nnum_negative_edges = 256\nnum_negative_edges_eval = 'all'\n",
            data.display()
        ),
    );
    let mrr = |summary: &Value| summary["test"]["mrr"].as_f64().unwrap();
    let untrained = mrr(&succeed(&place, &["train.optimizer.lr=1e-12", "train.epochs=1"], &[]));
    let batches = mrr(&succeed(&place, &["train.epochs=20", "train.fanouts=[10, 10]"], &[]));
    for schedule in SCHEDULES {
        let schedule = format!("train.schedule.kind={schedule}");
        let whole = mrr(&succeed(&place, &[&schedule, "train.epochs=60"], &["--processes", "2"]));
        eprintln!("{schedule}: mrr {whole}, {batches} with mini-batches, untrained {untrained}");
        assert!(whole > 0.9 * batches && whole > 4.0 * untrained, "{schedule}: {whole} {batches} {untrained}");
    }
}

#[test]
fn resumed_run_equals_an_uninterrupted_one() {
    let place = TestDir::new();
    dump(&place, true);
    pipeline(
        &place,
        TYPED,
        "kind = 'gcn'\ninput_dropout = 0.2",
        "batch = 100\nschedule.kind = 'full-graph'",
        "decoder = 'distmult'",
    );
    let whole = succeed(&place, &[], &[]);
    std::fs::remove_dir_all(place.path("run")).unwrap();
    succeed(&place, &["train.epochs=2"], &["--processes", "2"]);
    assert_eq!(bits(&succeed(&place, &[], &["--resume", "--processes", "4"])), bits(&whole));
}

/// `edges_per_epoch` limits the edges of an epoch, for any number of processes.
#[test]
fn epoch_of_some_edges_has_equal_bits_for_1_2_4_processes() {
    let place = TestDir::new();
    dump(&place, true);
    for (index, [graph, model, link]) in CASES.into_iter().enumerate() {
        pipeline(&place, graph, model, "batch = 50\nschedule.intervals = 2\ncheckpoint_every = 1", link);
        let schedule = format!("train.schedule.kind={}", SCHEDULES[index % 2]);
        let all = succeed(&place, &[&schedule], &[]);
        assert_eq!(
            bits(&succeed(&place, &[&schedule, "train.schedule.edges_per_epoch=100000"], &[])),
            bits(&all),
            "{model}"
        );
        let some = [&schedule[..], "train.schedule.edges_per_epoch=301"];
        let one = succeed(&place, &some, &[]);
        assert_ne!(bits(&one), bits(&all), "{model}");
        for processes in ["2", "4"] {
            let more = succeed(&place, &some, &["--processes", processes]);
            assert_eq!(bits(&more), bits(&one), "{model} {link}: {processes} processes");
        }
        std::fs::remove_dir_all(place.path("run")).unwrap();
        succeed(&place, &[some[0], some[1], "train.epochs=2"], &["--processes", "2"]);
        assert_eq!(bits(&succeed(&place, &some, &["--resume"])), bits(&one), "{model}: resumed");
        let plan: Vec<&str> = some.iter().flat_map(|set| ["--set", set]).collect();
        let plan = place.succeed(&[&["run", "p.toml", "--dry-run", "--json", "--processes", "2"], &plan[..]].concat());
        let plan: Value = serde_json::from_str(&plan).unwrap();
        assert!(plan["training"]["seeds"].as_u64().unwrap().abs_diff(301) <= 2, "{plan}");
    }
}

/// For a constant model, losses of sampled edges vary between epochs, and their mean is the loss of all edges.
#[test]
fn loss_of_some_edges_is_unbiased() {
    let place = TestDir::new();
    dump(&place, true);
    class_pipeline(&place, "kind = 'sage'\ndropout = 0.0", "");
    for schedule in SCHEDULES {
        let schedule = format!("train.schedule.kind={schedule}");
        let sets = [&schedule[..], "train.optimizer.lr=1e-12", "train.evaluate_every=0", "train.epochs=60"];
        succeed(&place, &sets, &[]);
        let all = losses(&place)[0];
        succeed(&place, &[&sets[..], &["train.schedule.edges_per_epoch=300"]].concat(), &["--processes", "2"]);
        let some = losses(&place);
        let mean = some.iter().sum::<f64>() / some.len() as f64;
        let deviation = (some.iter().map(|loss| (loss - mean).powi(2)).sum::<f64>() / some.len() as f64).sqrt();
        let error = deviation / (some.len() as f64).sqrt();
        assert!(deviation > 0.0 && (mean - all).abs() < 4.0 * error, "{mean} ± {error} of some, {all} of all");
    }
}

#[test]
fn bytes_and_rounds_of_an_epoch_match_the_plan() {
    let place = TestDir::new();
    for schedule in SCHEDULES {
        for link in
            ["num_negative_edges = 4", "negative_sampler = 'joint'\nnum_negative_edges = 300", "decoder = 'dot'"]
        {
            let some = if link.contains("'dot'") { "train.schedule.edges_per_epoch=3000" } else { "train.epochs=2" };
            let link = link.replace('\n', ", ");
            let train = format!(
                "[model]\nkind = 'gcn'\nhidden = 16\n[train]\ntask = 'link-prediction'\nschedule.kind = '{schedule}'\nepochs = 2\n\
                 batch = 200\nevaluate_every = 0\nlink = {{ {link} }}\n"
            );
            planted(&place, "p.toml", &train);
            let sets = ["partition.parts=2", "graph.undirected=true", some];
            let summary = succeed(&place, &sets, &["--processes", "2"]);
            let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
            let plan = [&["run", "p.toml", "--dry-run", "--json", "--processes", "2"], &sets[..]].concat();
            let plan: Value = serde_json::from_str(&place.succeed(&plan)).unwrap();
            let number = |value: &Value| value.as_f64().unwrap();
            let (planned, found) = (number(&plan["training"]["bytes_per_step"]), number(&summary["bytes_per_step"]));
            assert!((planned / found - 1.0).abs() < 0.05, "{schedule}, {link}: {planned} bytes planned, {found} sent");
            assert_eq!(plan["training"]["rounds_per_step"], number(&summary["rounds_per_step"]), "{schedule}, {link}");
            let memory = &plan["processes"][0]["memory"];
            assert!(number(&memory["tables"]) > 0.0 && number(&memory["batches"]) > 0.0, "{memory}");
        }
    }
}

#[test]
fn invalid_settings_are_refused() {
    let place = TestDir::new();
    dump(&place, true);
    pipeline(&place, "", "kind = 'gcn'", "schedule.kind = 'full-graph'", "");
    let refused = |sets: &[&str], words: &[&str]| {
        let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
        place.fail(&[&["run", "p.toml", "--quiet", "--run-dir", "run"], &sets[..]].concat(), 2, words);
    };
    let of_classes = ["train.task=edge-classification", "train.edge.exclude_training_targets=true"];
    let label = ["graph.columns.edge_label=alike", of_classes[0], of_classes[1]];
    refused(&label, &["train.edge.exclude_training_targets", "remove this key", "mini-batch"]);
    refused(&["train.schedule.mode=async"], &["train.schedule.mode", "use `pipe`"]);
    refused(
        &["train.link.exclude_training_targets=true"],
        &["exclude_training_targets", "remove this key", "mini-batch"],
    );
    refused(&["train.fanouts=[5, 5]"], &["train.fanouts", "samples nothing"]);
    refused(&["model.embedding.dim=8"], &["model.embedding", "these have 8"]);
    refused(&["model.embedding.mode=async"], &["model.embedding.mode", "mini-batch"]);
    refused(&["train.schedule.edges_per_epoch=0"], &["train.schedule.edges_per_epoch", "at least 1"]);
    refused(
        &["train.schedule=mini-batch", "train.schedule.edges_per_epoch=9"],
        &["train.schedule.edges_per_epoch", "full-graph"],
    );
    refused(&["train.schedule=partition-parallel"], &["train.schedule", "mini-batch"]);
}
