//! `gnnflow infer`: the results of a run from its model, results on an updated dataset, and refused models.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::array::{Array, AsArray, BooleanArray, Float32Array, Int64Array, StringArray};
use arrow::datatypes::{Float32Type, Int64Type};

use crate::common::{TestDir, column, planted, read, summary};

/// Trains in the run folder `run`.
fn train(place: &TestDir, more: &[&str]) {
    let args = ["run", "p.toml", "--quiet", "--run-dir", "run", "--set", "train.epochs=2"];
    place.succeed(&[&args, more].concat());
}

/// Reads the rows of `embeddings.parquet` by node id.
fn embeddings(place: &TestDir, out: &str) -> BTreeMap<i64, Vec<f32>> {
    let read = read(place, &format!("{out}/embeddings.parquet"));
    let (ids, rows) = (column::<Int64Array>(&read, "node_id"), read.column_by_name("embedding").unwrap());
    let row = |at| rows.as_fixed_size_list().value(at).as_primitive::<Float32Type>().values().to_vec();
    ids.values().iter().enumerate().map(|(at, &id)| (id, row(at))).collect()
}

/// Writes edges to add.
fn added(place: &TestDir) {
    let ids = |ids: &[i64]| Arc::new(Int64Array::from(ids.to_vec())) as _;
    place.parquet("added.parquet", vec![("src", ids(&[0, 5, 9])), ("dst", ids(&[700, 1100, 1400]))]);
}

#[test]
fn results_equal_those_of_the_run() {
    for (schedule, model) in [
        ("mini-batch", "kind = 'sage'"),
        ("mini-batch", "kind = 'gat'\nnorm = 'batch'"),
        ("partition-parallel", "kind = 'gin'"),
        ("full-graph", "kind = 'gcn'"),
        ("full-graph", "kind = 'gat'"),
        ("tensor-parallel", "kind = 'gcn'"),
        ("tensor-parallel", "kind = 'sage'"),
        ("full-graph", "kind = 'appnp'"),
    ] {
        let place = TestDir::new();
        planted(&place, "p.toml", &format!("[model]\n{model}\n[train]\nschedule = '{schedule}'\n"));
        train(&place, &["--set", "infer.scores=true"]);
        let trained = summary(&place, "run");
        let bytes = |path: String| std::fs::read(place.path(&path)).unwrap();
        for processes in ["1", "2", "4"] {
            let out = format!("out-{processes}");
            place.succeed(&["infer", "run", "--out", &out, "--processes", processes, "--quiet"]);
            for file in ["predictions.parquet", "embeddings.parquet"] {
                let equal = bytes(format!("run/{file}")) == bytes(format!("{out}/{file}"));
                assert!(equal, "{schedule}, {model}: {file} of {processes} processes");
            }
            let inferred = summary(&place, &out);
            for key in ["train", "val", "test", "by_class", "model_sha256", "predictions_sha256"] {
                assert_eq!(inferred[key], trained[key], "{schedule}, {model}: {key}");
            }
            let mut files: Vec<String> = std::fs::read_dir(place.path(&out))
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .filter(|name| !name.starts_with('.'))
                .collect();
            files.sort();
            assert_eq!(files, ["embeddings.parquet", "predictions.parquet", "summary.json"]);
        }
    }
}

#[test]
fn nodes_whose_neighborhood_is_unchanged_have_equal_results_after_an_update() {
    let place = TestDir::new();
    planted(&place, "p.toml", "[model]\nkind = 'sage'\nlayers = 2\n[train]\n");
    train(&place, &[]);
    added(&place);
    place.succeed(&["update", "dataset", "--edges", "added.parquet", "--out", "tuesday", "--hops", "2", "--quiet"]);
    let results = |out: &str| {
        let read = read(&place, &format!("{out}/embeddings.parquet"));
        let ids = read.column_by_name("node_id").unwrap().as_primitive::<Int64Type>().values().to_vec();
        let rows = read.column_by_name("embedding").unwrap().as_fixed_size_list().clone();
        let row = |row| rows.value(row).as_primitive::<Float32Type>().values().to_vec();
        ids.into_iter().enumerate().map(|(at, id)| (id, row(at))).collect::<Vec<_>>()
    };
    for processes in ["1", "2", "4"] {
        let args = ["infer", "run", "--dataset", "tuesday", "--quiet", "--out"];
        place.succeed(&[&args[..], &[&format!("out-{processes}"), "--processes", processes]].concat());
    }
    let bytes = |out: &str| std::fs::read(place.path(&format!("{out}/predictions.parquet"))).unwrap();
    assert!(bytes("out-1") == bytes("out-2") && bytes("out-1") == bytes("out-4"));
    let affected = read(&place, "tuesday/affected.parquet");
    let affected: BTreeSet<i64> = affected.column(0).as_primitive::<Int64Type>().values().iter().copied().collect();
    let (before, after) = (results("run"), results("out-1"));
    let changed: BTreeSet<i64> = before.iter().zip(&after).filter(|(a, b)| a != b).map(|(a, _)| a.0).collect();
    assert_eq!(before.len(), after.len());
    assert!([700, 1100, 1400].iter().all(|id| changed.contains(id)), "{changed:?}");
    assert!(changed.is_subset(&affected) && affected.len() < before.len(), "{}", affected.len());
}

#[test]
fn nodes_need_no_labels() {
    for schedule in ["mini-batch", "full-graph"] {
        let place = TestDir::new();
        planted(&place, "p.toml", &format!("[model]\n[train]\nschedule = '{schedule}'\n"));
        train(&place, &[]);
        place.write("plain.toml", "[graph]\nnodes = 'graph/nodes.parquet'\nedges = 'graph/edges.parquet'\nundirected = true\n\
                                   [graph.columns]\nlabel = ''\nsplit = ''\n[partition]\nmethod = 'random'\nparts = 4\n");
        place.succeed(&["prepare", "plain.toml", "--out", "plain", "--quiet"]);
        let infer = |dataset: &str, out: &str, processes: &str| {
            place.succeed(&["infer", "run", "--dataset", dataset, "--out", out, "--processes", processes, "--quiet"]);
            read(&place, &format!("{out}/predictions.parquet"))
        };
        let (labeled, plain) = (infer("dataset", "labeled", "1"), infer("plain", "unlabeled", "1"));
        for name in ["node_id", "prediction"] {
            assert_eq!(labeled.column_by_name(name), plain.column_by_name(name), "{schedule}: {name}");
        }
        let label = plain.column_by_name("label").unwrap();
        assert_eq!(label.null_count(), plain.num_rows());
        assert_eq!(plain.schema(), labeled.schema());
        assert_eq!(infer("plain", "two", "2"), plain);
        assert!(summary(&place, "unlabeled")["test"].is_null());
    }
}

#[test]
fn old_results_are_replaced() {
    let place = TestDir::new();
    planted(&place, "p.toml", "[model]\n[train]\n");
    train(&place, &[]);
    let infer = |more: &[&str]| place.succeed(&[&["infer", "run", "--out", "out"], more].concat());
    let said = infer(&["--set", "infer.scores=true"]);
    assert!(said.contains("accuracy") && said.contains("results in out"), "{said}");
    assert!(read(&place, "out/predictions.parquet").column_by_name("scores").is_some());
    assert!(place.path("out/embeddings.parquet").exists());
    infer(&["--set", "infer.predictions=false"]);
    assert!(!place.path("out/predictions.parquet").exists());
    infer(&["--set", "infer.embeddings=false", "--set", "train.threads=1"]);
    assert!(read(&place, "out/predictions.parquet").column_by_name("scores").is_none());
    assert!(!place.path("out/embeddings.parquet").exists());
}

#[test]
fn models_that_do_not_fit_are_refused() {
    let place = TestDir::new();
    planted(&place, "p.toml", "[model]\n[train]\n");
    train(&place, &[]);
    let refused = |args: &[&str], code: i32, words: &[&str]| {
        for processes in ["1", "2"] {
            let args = [&["infer"], args, &["--quiet", "--processes", processes]].concat();
            let errors = place.fail(&args, code, words);
            assert_eq!(errors.len(), 1, "{errors:?}");
        }
    };
    refused(&["nothing", "--out", "out"], 2, &["nothing: no run folder", "pipeline.toml"]);
    refused(&["run", "--out", "run"], 2, &["--out run: the folder has a run"]);
    refused(&["run", "--out", "dataset"], 2, &["--out dataset: the folder is a prepared dataset"]);
    refused(&["run", "--out", "dataset/out"], 2, &["--out dataset/out: the folder is in that of the dataset"]);
    let nothing = ["run", "--out", "out", "--set", "infer.predictions=false", "--set", "infer.embeddings=false"];
    refused(&nothing, 2, &["there is nothing to compute"]);
    refused(&["run", "--out", "out", "--set", "model.hidden=8"], 2, &["--set model.hidden", "the model is trained"]);
    refused(&["run", "--out", "out", "--set", "infer.scors=true"], 2, &["infer.scors: unknown key", "scores"]);
    refused(&["run", "--out", "out", "--dataset", "none"], 3, &["none"]);
    let errors =
        place.fail(&["infer", "run", "--out", "out", "--processes", "5", "--quiet"], 2, &["more processes (5)"]);
    assert_eq!(errors.len(), 1);

    // Datasets with other columns or classes.
    for (key, words) in [
        ("graph.generate.features=25", "nodes with 24 features, and the dataset has 25 features"),
        ("graph.generate.classes=6", "5 classes, and the dataset has 6 classes"),
        ("graph.undirected=false", "graph.undirected = true, and the dataset has graph.undirected = false"),
    ] {
        let sets = ["--set", key, "--set", "graph.generate.out=other"];
        place.succeed(&[&["prepare", "p.toml", "--out", "other-dataset", "--quiet"], &sets[..]].concat());
        refused(&["run", "--out", "out", "--dataset", "other-dataset"], 3, &["run/model.safetensors", words]);
    }

    // A run whose model is missing, damaged or of another pipeline.
    let (model, pipeline) = (place.path("run/model.safetensors"), place.path("run/pipeline.toml"));
    let (bytes, text) = (std::fs::read(&model).unwrap(), std::fs::read_to_string(&pipeline).unwrap());
    let hidden = text.lines().find(|line| line.starts_with("hidden = ")).unwrap();
    std::fs::write(&pipeline, text.replace(hidden, "hidden = 7")).unwrap();
    refused(&["run", "--out", "out"], 3, &["run/model.safetensors", "has the shape", "different runs"]);
    std::fs::write(&pipeline, &text).unwrap();
    let mut damaged = bytes.clone();
    *damaged.last_mut().unwrap() ^= 1;
    std::fs::write(&model, damaged).unwrap();
    refused(&["run", "--out", "out"], 3, &["run/model.safetensors: the model is damaged", "restore it"]);
    std::fs::remove_file(&model).unwrap();
    refused(&["run", "--out", "out"], 3, &["run has no model.safetensors", "let the run finish, with --resume"]);
    std::fs::write(&model, bytes).unwrap();
    assert!(!place.path("out/predictions.parquet").exists());
    refused(
        &["run", "--out", "out", "--unseen", "mean"],
        2,
        &["--unseen: the model of run has no learned rows; leave the option out"],
    );
    place.succeed(&["infer", "run", "--out", "out", "--quiet"]);
}

#[test]
fn learned_rows_belong_to_the_nodes_with_their_ids() {
    for schedule in ["mini-batch", "full-graph"] {
        let place = TestDir::new();
        let settings = format!("[model]\nembedding = {{ dim = 8 }}\n[train]\nschedule = '{schedule}'\n");
        planted(&place, "p.toml", &settings);
        let no_features = ["--set", "graph.generate.features=0"];
        train(&place, &no_features);
        // A dataset with other partitions has its nodes in another order.
        let other = ["prepare", "p.toml", "--out", "other", "--quiet", "--set", "partition.method=range"];
        place.succeed(&[&other[..], &no_features].concat());
        for processes in ["1", "2", "4"] {
            place.succeed(&["infer", "run", "--out", "out", "--processes", processes, "--quiet"]);
            let bytes = |path: &str| std::fs::read(place.path(path)).unwrap();
            for file in ["predictions.parquet", "embeddings.parquet"] {
                assert!(bytes(&format!("run/{file}")) == bytes(&format!("out/{file}")), "{schedule}: {file}");
            }
            assert!(!place.path("out/node_embeddings.parquet").exists());
        }
        place.succeed(&["infer", "run", "--dataset", "other", "--out", "range", "--processes", "2", "--quiet"]);
        let predictions = |out: &str| {
            let batch = read(&place, &format!("{out}/predictions.parquet"));
            let [ids, classes] = ["node_id", "prediction"].map(|name| batch.column_by_name(name).unwrap().clone());
            let classes = classes.as_primitive::<Int64Type>().clone();
            let ids = ids.as_primitive::<Int64Type>().values().to_vec();
            ids.into_iter().zip(classes.values().to_vec()).collect::<BTreeMap<_, _>>()
        };
        let (own, range) = (predictions("out"), predictions("range"));
        let different = own.iter().filter(|(id, class)| range[*id] != **class).count();
        assert!(different * 100 < own.len(), "{schedule}: {different}, from sums in another order");

        // A node without a row, and rows of another model.
        place.parquet(
            "more.parquet",
            vec![
                ("node_id", Arc::new(Int64Array::from(vec![9000])) as _),
                ("label", Arc::new(Int64Array::from(vec![1])) as _),
                ("split", Arc::new(arrow::array::StringArray::from(vec!["none"])) as _),
            ],
        );
        place.succeed(&["update", "dataset", "--nodes", "more.parquet", "--out", "grown", "--quiet"]);
        let args = ["infer", "run", "--dataset", "grown", "--out", "out", "--quiet"];
        place.fail(
            &args,
            3,
            &[
                "run/node_embeddings.parquet: has no learned row for 1 node of the dataset, such as 9000",
                "--unseen mean",
            ],
        );
        let ids = |ids: [i64; 3]| Arc::new(Int64Array::from_iter_values(ids)) as _;
        place.parquet("edges.parquet", vec![("src", ids([9000; 3])), ("dst", ids([3, 500, 501]))]);
        place.succeed(&["update", "grown", "--edges", "edges.parquet", "--quiet"]);
        let grown = |policy: &str, processes: &str| {
            let more = ["--dataset", "grown", "--out", "grown-out", "--unseen", policy, "--processes", processes];
            let ended = place.run(&[&["infer", "run"], &more[..]].concat());
            assert_eq!(ended.code, 0, "{}", ended.stderr);
            let note = "note: the model has no learned rows for 1 node of 1,501 nodes; uses ";
            assert!(ended.stderr.contains(note), "{}", ended.stderr);
            std::fs::read(place.path("grown-out/embeddings.parquet")).unwrap()
        };
        let mean = grown("mean", "1");
        assert!(mean == grown("mean", "4") && mean == grown("mean", "2"), "{schedule}");
        assert!(grown("zero", "2") != mean, "{schedule}");
        let args = ["infer", "run", "--dataset", "grown", "--out", "out", "--quiet", "--unseen"];
        place.fail(&[&args[..], &["refuse"]].concat(), 3, &["has no learned row for 1 node"]);
        place.fail(&[&args[..], &["random"]].concat(), 2, &["--unseen", "refuse, zero, mean"]);
        std::fs::write(place.path("run/node_embeddings.parquet"), "no rows").unwrap();
        let words = ["run/node_embeddings.parquet: these are not the learned rows of model.safetensors"];
        place.fail(&["infer", "run", "--out", "out", "--quiet"], 3, &words);
    }
}

#[test]
fn held_out_edges_have_the_results_of_the_run() {
    // Numbers as edge types, with reverses.
    let place = TestDir::new();
    let pairs: Vec<(i64, i64)> =
        (0..240).flat_map(|node| [(node, (node * 7 + 1) % 240), (node, (node + 2) % 240)]).collect();
    let ints = |values: Vec<i64>| Arc::new(Int64Array::from(values)) as _;
    place.parquet("nodes.parquet", vec![("node_id", ints((0..240).collect()))]);
    let of = |value: fn(&(i64, i64)) -> i64| ints(pairs.iter().map(value).collect());
    let edges =
        vec![("src", of(|pair| pair.0)), ("dst", of(|pair| pair.1)), ("kind", of(|pair| (pair.0 + pair.1) % 2))];
    place.parquet("edges.parquet", edges);
    for (schedule, target) in [("mini-batch", "target_etype = ['0']"), ("mini-batch", ""), ("full-graph", "")] {
        place.write("p.toml", format!(
            "[graph]\nnodes = 'nodes.parquet'\nedges = 'edges.parquet'\nreverse_edges = true\ncolumns = {{ edge_type = 'kind' }}\n\
             [partition]\nmethod = 'random'\nparts = 4\n[model]\nkind = 'rgcn'\nhidden = 8\nembedding = {{ dim = 8 }}\n\
             [train]\nschedule = '{schedule}'\ntask = 'link-prediction'\n[train.link]\ndecoder = 'distmult'\n{target}\n\
             [infer]\nembeddings = true\n"
        ));
        train(&place, &[]);
        place.fail(
            &["infer", "run", "--out", "out", "--unseen", "mean"],
            2,
            &["--unseen: the model of run predicts edges"],
        );
        for processes in ["1", "2", "4"] {
            place.succeed(&["infer", "run", "--out", "out", "--processes", processes, "--quiet"]);
            let bytes = |path: &str| std::fs::read(place.path(path)).unwrap();
            for file in ["predictions.parquet", "embeddings.parquet"] {
                assert!(bytes(&format!("run/{file}")) == bytes(&format!("out/{file}")), "{schedule} {target}: {file}");
            }
            assert_eq!(summary(&place, "out")["test"], summary(&place, "run")["test"]);
        }
        // Another dataset has other held-out edges.
        place.succeed(&["prepare", "p.toml", "--out", "other", "--quiet", "--set", "partition.method=range"]);
        let args = ["infer", "run", "--dataset", "other", "--out", "out", "--quiet"];
        place.fail(&args, 3, &["only on the dataset of its run"]);
        std::fs::remove_dir_all(place.path("run")).unwrap();
    }
}

#[test]
fn pipelines_without_training_are_refused() {
    let place = TestDir::new();
    place.write("prepare.toml", "[graph]\ngenerate = { kind = 'planted', nodes = 100, edges = 300 }\n");
    place.succeed(&["run", "prepare.toml", "--run-dir", "prepared", "--quiet"]);
    place.fail(&["infer", "prepared", "--out", "out", "--quiet"], 2, &["prepared: the run", "trained no model"]);
}

#[test]
fn listed_nodes_and_splits_have_the_results_of_all_nodes() {
    for (schedule, model, directed) in [
        ("mini-batch", "kind = 'sage'\nlayers = 3\njumping_knowledge = 'cat'", true),
        ("full-graph", "kind = 'appnp'", false),
        ("mini-batch", "kind = 'mlp'", false),
        ("mini-batch", "kind = 'gcn'\nlayers = 1", true),
    ] {
        let place = TestDir::new();
        planted(&place, "p.toml", &format!("[model]\n{model}\n[train]\nschedule = '{schedule}'\n"));
        let of_graph = format!("graph.undirected={}", !directed);
        train(&place, &["--set", "infer.scores=true", "--set", &of_graph]);
        let all = read(&place, "run/predictions.parquet");
        let embeddings = read(&place, "run/embeddings.parquet");
        let [ids, splits] = ["node_id", "split"].map(|name| all.column_by_name(name).unwrap().clone());
        let ids = ids.as_primitive::<Int64Type>();
        let of_rows =
            |keep: &dyn Fn(usize) -> bool| (0..ids.len()).map(|row| Some(keep(row))).collect::<BooleanArray>();
        // Twice, and in another order than the dataset.
        let listed: Vec<i64> = [1203, 7, 640, 7, 3].to_vec();
        place.parquet("ids.parquet", vec![("node_id", Arc::new(Int64Array::from(listed.clone())) as _)]);
        let few = of_rows(&|row| listed.contains(&ids.value(row)));
        let tests = of_rows(&|row| splits.as_string::<i32>().value(row) == "test");
        for (option, value, rows) in [("--nodes", "ids.parquet", &few), ("--split", "test", &tests)] {
            for processes in ["1", "2", "4"] {
                let args = ["infer", "run", "--out", "out", option, value, "--processes", processes];
                let said = place.succeed(&args);
                let expected = |batch| arrow::compute::filter_record_batch(batch, rows).unwrap();
                let case = format!("{model}, {option}, {processes} processes");
                assert!(read(&place, "out/predictions.parquet") == expected(&all), "{case}");
                assert!(read(&place, "out/embeddings.parquet") == expected(&embeddings), "{case}");
                let (inferred, trained) = (summary(&place, "out"), summary(&place, "run"));
                let computed = inferred["chosen"]["computed_rows"].as_u64().unwrap();
                assert_eq!(inferred["chosen"]["nodes"], rows.true_count());
                let reads_all = computed == inferred["chosen"]["all_rows"].as_u64().unwrap();
                assert!(!reads_all || option == "--split", "{case}: {computed}");
                assert!(inferred["train"].is_null() && inferred["val"].is_null(), "{case}");
                match option {
                    "--split" => assert_eq!(inferred["test"], trained["test"], "{case}"),
                    _ => assert!(inferred["test"].is_null() && said.contains("results of 4 nodes, from "), "{said}"),
                }
            }
        }
    }
    let place = TestDir::new();
    planted(&place, "p.toml", "[model]\n[train]\n");
    train(&place, &[]);
    let ids = |ids: &[i64]| Arc::new(Int64Array::from(ids.to_vec())) as _;
    place.parquet("ids.parquet", vec![("node_id", ids(&[3, 1500, 9000]))]);
    place.parquet("other.parquet", vec![("node", ids(&[3]))]);
    place.parquet("text.parquet", vec![("node_id", Arc::new(arrow::array::StringArray::from(vec!["3"])) as _)]);
    place.parquet("empty.parquet", vec![("node_id", ids(&[]))]);
    for (file, words) in [
        ("ids.parquet", &["ids.parquet", "row 1", "1500", "the id of a node"][..]),
        ("other.parquet", &["other.parquet", "no column \"node_id\" (--nodes)"]),
        ("text.parquet", &["text.parquet", "column \"node_id\"", "--nodes needs integers"]),
        ("nothing.parquet", &["nothing.parquet", "there is no such file or folder (--nodes)"]),
    ] {
        let lines = place.fail(&["infer", "run", "--out", "out", "--nodes", file, "--quiet"], 3, words);
        assert_eq!(lines.len(), 1, "{lines:?}");
    }
    place.succeed(&["infer", "run", "--out", "out", "--nodes", "empty.parquet", "--quiet"]);
    assert_eq!(read(&place, "out/predictions.parquet").num_rows(), 0);
    place.fail(
        &["infer", "run", "--out", "out", "--nodes", "ids.parquet", "--split", "val"],
        2,
        &["cannot be used with"],
    );
    place.fail(&["infer", "run", "--out", "out", "--split", "all"], 2, &["[possible values: train, val, test]"]);
}

/// Writes tables of `nodes` nodes in `folder`, with two feature columns, classes by name, and edges of two types among the first 200 nodes, and a
/// pipeline file for them. Nodes from 200 on have other features. `class` is the label of each node, if it has one.
fn tables(place: &TestDir, folder: &str, nodes: i64, class: impl Fn(i64) -> Option<&'static str>, graph: &str) {
    let float = |value: fn(i64) -> f32| Arc::new((0..nodes).map(value).collect::<Float32Array>()) as _;
    let (ids, classes) = ((0..nodes).collect::<Int64Array>(), (0..nodes).map(class).collect::<StringArray>());
    let split =
        |node: i64| if node < 200 { [Some("train"), Some("val"), Some("test")][node as usize % 3] } else { None };
    place.parquet(
        &format!("{folder}/nodes.parquet"),
        vec![
            ("node_id", Arc::new(ids) as _),
            ("age", float(|node| if node < 200 { (node * 37 % 90) as f32 } else { 1000.0 })),
            ("size", float(|node| if node < 200 { (node % 3) as f32 * 5.0 + 0.25 } else { -70.0 })),
            ("label", Arc::new(classes) as _),
            ("split", Arc::new((0..nodes).map(split).collect::<StringArray>()) as _),
        ],
    );
    let ends =
        |factor: i64, add: i64| Arc::new((0..900).map(|edge| (edge * factor + add) % 200).collect::<Int64Array>());
    let types = (0..900).map(|edge| Some(["likes", "knows"][edge % 2])).collect::<StringArray>();
    let edges = vec![("src", ends(7, 1) as _), ("dst", ends(31, 13) as _), ("type", Arc::new(types) as _)];
    place.parquet(&format!("{folder}/edges.parquet"), edges);
    let text = format!(
        "[graph]\nnodes = '{folder}/nodes.parquet'\nedges = '{folder}/edges.parquet'\nnormalize_features = 'standard'\n{graph}\n\
         [graph.columns]\nfeatures = ['age', 'size']\nedge_type = 'type'\n\
         [partition]\nparts = 4\nmethod = 'random'\nout = '{folder}/dataset'\n"
    );
    place.write(&format!("{folder}.toml"), text);
}

/// The class of a node by its second feature.
fn class_of(node: i64) -> Option<&'static str> {
    Some(["ant", "bee", "cat"][node as usize % 3])
}

#[test]
fn tables_of_a_pipeline_are_encoded_like_those_of_the_run() {
    let place = TestDir::new();
    tables(&place, "monday", 200, class_of, "");
    let text = std::fs::read_to_string(place.path("monday.toml")).unwrap();
    place.write(
        "p.toml",
        format!("{text}[model]\nkind = 'rgcn'\nlayers = 2\nhidden = 16\n[train]\n[infer]\nembeddings = true\n"),
    );
    train(&place, &[]);
    // Tuesday has more nodes, which change the means, and fewer classes.
    let tuesday = |node: i64| if node < 30 { class_of(node).filter(|class| *class != "bee") } else { None };
    tables(&place, "tuesday", 260, tuesday, "");
    let infer = |out: &str, more: &[&str]| place.succeed(&[&["infer", "run", "--quiet", "--out", out], more].concat());
    for processes in ["1", "2", "4"] {
        infer(&format!("out-{processes}"), &["--pipeline", "tuesday.toml", "--processes", processes]);
    }
    let bytes = |out: &str, file: &str| std::fs::read(place.path(&format!("{out}/{file}.parquet"))).unwrap();
    for file in ["predictions", "embeddings"] {
        assert!(bytes("out-1", file) == bytes("out-2", file) && bytes("out-1", file) == bytes("out-4", file), "{file}");
    }
    // The nodes of Monday have their results, but for the order of sums.
    let (trained, scored) = (embeddings(&place, "run"), embeddings(&place, "out-1"));
    assert_eq!((trained.len(), scored.len()), (200, 260));
    for (id, row) in &trained {
        let near = row.iter().zip(&scored[id]).all(|(a, b)| (a - b).abs() <= 1e-4 * (1.0 + a.abs()));
        assert!(near, "node {id}: {row:?} and {:?}", scored[id]);
    }
    let summary = summary(&place, "out-1");
    assert_eq!(summary["train"]["nodes"], 10);
    let classes = summary["by_class"]["train"]["classes"].as_array().unwrap();
    let counts: Vec<_> =
        classes.iter().map(|class| (class["class"].as_str().unwrap(), class["nodes"].as_u64().unwrap())).collect();
    assert_eq!(counts, [("ant", 10), ("bee", 0), ("cat", 0)]);
    // The dataset is current, and a prepared one with the key in its pipeline is the same.
    let prepared = std::fs::metadata(place.path("tuesday/dataset/manifest.json")).unwrap().modified().unwrap();
    infer("again", &["--pipeline", "tuesday.toml", "--set", "partition.out=tuesday/dataset"]);
    assert_eq!(prepared, std::fs::metadata(place.path("tuesday/dataset/manifest.json")).unwrap().modified().unwrap());
    tables(&place, "wednesday", 260, tuesday, "encode_like = 'monday/dataset'");
    place.succeed(&["prepare", "wednesday.toml", "--quiet"]);
    infer("wednesday-out", &["--dataset", "wednesday/dataset"]);
    assert!(bytes("out-1", "predictions") == bytes("wednesday-out", "predictions"));
    // With the means of its own tables, the dataset does not fit.
    tables(&place, "own", 260, class_of, "");
    place.succeed(&["prepare", "own.toml", "--quiet"]);
    place.fail(&["infer", "run", "--dataset", "own/dataset", "--out", "x"], 3, &["graph.encode_like"]);
}

#[test]
fn tables_that_do_not_fit_the_model_are_refused() {
    let place = TestDir::new();
    tables(&place, "monday", 200, class_of, "");
    let text = std::fs::read_to_string(place.path("monday.toml")).unwrap();
    place.write("p.toml", format!("{text}[model]\nkind = 'rgcn'\nlayers = 1\n[train]\n"));
    train(&place, &[]);
    tables(&place, "other", 210, |_| Some("dog"), "");
    let fail = |code: i32, more: &[&str], words: &[&str]| {
        place.fail(&[&["infer", "run", "--out", "x", "--pipeline", "other.toml"], more].concat(), code, words)
    };
    fail(3, &[], &["nodes.parquet", "\"label\"", "row 0", "\"dog\" is not a class", "ant, bee, cat"]);
    let set = |key: &str| ["--set".to_owned(), key.to_owned()];
    for (key, words) in [
        ("graph.columns.features=['size','age']", "2 features: age, size, and the tables have 2 features: size, age"),
        ("graph.columns.features=['size']", "the tables have 1 feature: size"),
        ("graph.undirected=true", "graph.undirected = false, and this pipeline true"),
        ("graph.normalize_features=none", "graph.normalize_features = \"standard\", and this pipeline \"none\""),
        ("graph.encode_like=nowhere", "name the folder of a finished run or of a prepared dataset"),
    ] {
        fail(2, &set(key).each_ref().map(String::as_str), &[words]);
    }
    fail(2, &["--dataset", "monday/dataset"], &["cannot be used with"]);
    let before = std::fs::read(place.path("monday/dataset/manifest.json")).unwrap();
    for out in ["monday/dataset", "./monday/../monday/dataset"] {
        fail(2, &["--set", &format!("partition.out={out}")], &["would replace", "that of the run", "partition.out"]);
    }
    assert!(before == std::fs::read(place.path("monday/dataset/manifest.json")).unwrap());
    fail(2, &["--set", "train.epochs=3"], &["train.epochs"]);
}

#[test]
fn results_of_samples_do_not_depend_on_processes_or_the_wanted_nodes() {
    for (model, layers) in [
        ("kind = 'sage'\nlayers = 2", 2),
        ("kind = 'gat'\nlayers = 2\nnorm = 'batch'", 2),
        ("kind = 'gcn'\nlayers = 3\njumping_knowledge = 'cat'", 3),
    ] {
        let place = TestDir::new();
        planted(&place, "p.toml", &format!("[model]\n{model}\n[train]\n"));
        train(&place, &["--set", "infer.scores=true"]);
        let infer = |out: &str, fanout: &str, more: &[&str]| {
            let fanouts = vec![fanout; layers].join(",");
            let args = ["infer", "run", "--quiet", "--out", out, "--fanouts", &fanouts];
            place.succeed(&[&args, more].concat());
            ["predictions", "embeddings"]
                .map(|file| std::fs::read(place.path(&format!("{out}/{file}.parquet"))).unwrap())
        };
        let exact = ["predictions", "embeddings"]
            .map(|file| std::fs::read(place.path(&format!("run/{file}.parquet"))).unwrap());
        // Fanouts that no node exceeds are exact.
        assert!(infer("all", "-1", &[]) == exact && infer("many", "100000", &["--processes", "2"]) == exact, "{model}");
        let drawn = infer("drawn", "3", &[]);
        assert!(drawn != exact, "{model}");
        for processes in ["2", "4"] {
            assert!(
                infer("again", "3", &["--processes", processes, "--set", "infer.batch=100"]) == drawn,
                "{model}: {processes}"
            );
        }
        let notes = summary(&place, "drawn")["notes"].to_string();
        assert!(notes.contains("--fanouts 3,3") && notes.contains("not exact"), "{notes}");
        assert!(summary(&place, "run").get("notes").is_none_or(|notes| !notes.to_string().contains("--fanouts")));
        // With more neighbors, predictions are close to those of all.
        infer("close", "8", &[]);
        let accuracy = |out: &str| summary(&place, out)["test"]["accuracy"].as_f64().unwrap();
        let (close, all) = (accuracy("close"), accuracy("run"));
        assert!((close - all).abs() < 0.15, "{model}: {close} {all}");
        // A list of nodes has their results.
        let all = embeddings(&place, "drawn");
        place.parquet("some.parquet", vec![("node_id", Arc::new(Int64Array::from(vec![3, 700, 701])) as _)]);
        for processes in ["1", "2", "4"] {
            infer("some", "3", &["--nodes", "some.parquet", "--processes", processes]);
            let some = embeddings(&place, "some");
            assert_eq!(some.keys().copied().collect::<Vec<_>>(), [3, 700, 701]);
            assert!(some.iter().all(|(id, row)| all[id] == *row), "{model}: {processes}");
        }
    }
}

#[test]
fn fanouts_that_do_not_fit_are_refused() {
    let place = TestDir::new();
    planted(&place, "p.toml", "[model]\nkind = 'sage'\nlayers = 2\n[train]\n");
    train(&place, &[]);
    let fail =
        |fanouts: &str, words: &str| place.fail(&["infer", "run", "--out", "x", "--fanouts", fanouts], 2, &[words]);
    fail("3", "--fanouts has 1 number, and the model reads neighbors 2 times");
    fail("3,0", "-1 for all in-neighbors");
    fail("3,-2", "-1 for all in-neighbors");
    fail("3,x", "-1 for all in-neighbors");
    planted(&place, "mlp.toml", "[model]\nkind = 'mlp'\n[train]\nschedule = 'full-graph'\n");
    place.succeed(&["run", "mlp.toml", "--quiet", "--run-dir", "mlp", "--set", "train.epochs=1"]);
    place.fail(&["infer", "mlp", "--out", "x", "--fanouts", "3"], 2, &["reads no neighbors"]);
    place.fail(&["refresh", "run", "--out", "x", "--fanouts", "3,3"], 2, &["unexpected argument"]);
}

#[test]
fn moved_model_describes_itself() {
    let place = TestDir::new();
    tables(&place, "monday", 200, class_of, "");
    let text = std::fs::read_to_string(place.path("monday.toml")).unwrap();
    place.write("p.toml", format!("{text}[model]\nkind = 'rgcn'\nlayers = 2\nhidden = 16\n[train]\nseed = 7\n"));
    train(&place, &[]);
    let epoch = summary(&place, "run")["best_epoch"].as_u64().unwrap();
    let accuracy = format!("validation accuracy {:.4}", summary(&place, "run")["val"]["accuracy"].as_f64().unwrap());
    std::fs::create_dir(place.path("moved")).unwrap();
    for file in ["model.safetensors", "pipeline.toml"] {
        std::fs::copy(place.path("run").join(file), place.path("moved").join(file)).unwrap();
    }
    for folder in ["run", "moved"] {
        let text = place.succeed(&["inspect", folder]);
        for words in [
            "rgcn, 2 layers for node-classification",
            &format!("epoch {epoch}, {accuracy}; pipeline p, seed 7, gnnflow "),
            "2 features: age, size, each column with mean 0 and variance 1",
            "the classes ant, bee, cat",
            "2 types: knows, likes",
        ] {
            assert!(text.contains(words), "{folder}: no {words:?} in {text}");
        }
    }
    let found: serde_json::Value = serde_json::from_str(&place.succeed(&["inspect", "moved", "--json"])).unwrap();
    assert_eq!((&found["schema"], &found["provenance"]["seed"]), (&3.into(), &7.into()));
    let args = ["infer", "moved", "--dataset", "monday/dataset", "--out", "out", "--quiet"];
    place.succeed(&args);
    let bytes = |folder: &str| std::fs::read(place.path(folder).join("predictions.parquet")).unwrap();
    place.succeed(&["infer", "run", "--out", "again", "--quiet"]);
    assert!(bytes("out") == bytes("again"));
}
