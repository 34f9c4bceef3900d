//! `gnnflow infer`: the results of a run from its model, results on an updated dataset, and refused models.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::array::{Array, AsArray, BooleanArray, Int64Array};
use arrow::datatypes::Int64Type;

use crate::common::{TestDir, embeddings, planted, read, summary, train};

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
            assert_eq!(files, ["embeddings.parquet", "predictions.parquet", "status.json", "summary.json"]);
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
    for processes in ["1", "2", "4"] {
        let args = ["infer", "run", "--dataset", "tuesday", "--quiet", "--out"];
        place.succeed(&[&args[..], &[&format!("out-{processes}"), "--processes", processes]].concat());
    }
    let bytes = |out: &str| std::fs::read(place.path(&format!("{out}/predictions.parquet"))).unwrap();
    assert!(bytes("out-1") == bytes("out-2") && bytes("out-1") == bytes("out-4"));
    let affected = read(&place, "tuesday/affected.parquet");
    let affected: BTreeSet<i64> = affected.column(0).as_primitive::<Int64Type>().values().iter().copied().collect();
    let (before, after) = (embeddings(&place, "run"), embeddings(&place, "out-1"));
    let changed: BTreeSet<i64> = before.iter().zip(&after).filter(|(a, b)| a != b).map(|(a, _)| *a.0).collect();
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
    refused(&["run", "--out", "p.toml"], 2, &["p.toml: this is a file", "--out"]);
    refused(&["run", "--out", "out", "--set", "graph.retry=3s"], 2, &["graph.retry", "no effect without --upload"]);
    refused(&["run", "--out", "dataset/out"], 2, &["--out dataset/out: the folder is in that of the dataset"]);
    let nothing = ["run", "--out", "out", "--set", "infer.predictions=false", "--set", "infer.embeddings=false"];
    refused(&nothing, 2, &["there is nothing to compute"]);
    refused(&["run", "--out", "out", "--set", "model.hidden=8"], 2, &["--set model.hidden", "the model is trained"]);
    refused(&["run", "--out", "out", "--set", "infer.scors=true"], 2, &["infer.scors: unknown key", "scores"]);
    refused(&["run", "--out", "out", "--dataset", "none"], 3, &["none"]);
    let errors =
        place.fail(&["infer", "run", "--out", "out", "--processes", "5", "--quiet"], 2, &["more processes (5)"]);
    let words = "dataset has partitions (4); use at most one process per partition";
    assert!(errors.len() == 1 && errors[0].contains(words), "{errors:?}");

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
        ("ids.parquet", &["ids.parquet", "row 1", "1500", "the id of a node of", "dataset; remove this row"][..]),
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
