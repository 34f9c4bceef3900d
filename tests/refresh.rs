//! `gnnflow refresh`: after any change of the dataset, the files of `gnnflow infer`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{ArrayRef, Int64Array};
use gnnflow_data::rng::{Key, Purpose};

use crate::common::changes::{Changes, Counts, Results, add_types, check_changed, damage, results, update, with_ids};
use crate::common::{TestDir, kill, planted, read, summary, train};

/// Runs `refresh` and `infer` on `dataset` with this number of processes. Their files must have equal bytes. Returns the summary of `refresh`.
fn refresh(place: &TestDir, dataset: &str, processes: &str, more: &[&str], name: &str) -> serde_json::Value {
    let args = ["run", "--dataset", dataset, "--processes", processes, "--quiet", "--out"];
    place.succeed(&[&["refresh"], &args[..], &["new"], more].concat());
    place.succeed(&[&["infer"], &args[..], &["full"]].concat());
    for file in ["predictions.parquet", "embeddings.parquet"] {
        let bytes = |out: &str| std::fs::read(place.path(out).join(file)).unwrap();
        assert!(bytes("new") == bytes("full"), "{name}: {file}");
    }
    let (new, full) = (summary(place, "new"), summary(place, "full"));
    for key in ["train", "val", "test", "by_class", "model_sha256", "predictions_sha256"] {
        assert_eq!(new[key], full[key], "{name}: {key}");
    }
    new
}

/// Updates `dataset` with random changes.
fn change(place: &TestDir, changes: &mut Changes, counts: Counts, more: &[&str]) {
    changes.write(place, "changes", counts);
    update(place, "dataset", "changes", more);
}

/// Checks `changes.parquet` of the folder `new` beside the results before.
fn check_changes(place: &TestDir, before: &Results, refreshed: &serde_json::Value, name: &str) {
    let rows = check_changed(place, "new/changes.parquet", (before, &results(place, "new")), name);
    assert_eq!(refreshed["changed_nodes"], rows, "{name}");
}

#[test]
fn files_are_those_of_inference_after_random_changes() {
    for (seed, (schedule, model, undirected)) in (0..).zip([
        ("mini-batch", "kind = 'sage'", true),
        ("mini-batch", "kind = 'sage'\nlayers = 3\njumping_knowledge = 'cat'", false),
        ("mini-batch", "kind = 'gat'\nnorm = 'batch'", true),
        ("partition-parallel", "kind = 'gin'", false),
        ("full-graph", "kind = 'gcn'", true),
        ("full-graph", "kind = 'gcn'\nnorm = 'layer'", false),
        ("full-graph", "kind = 'appnp'\nlayers = 3", true),
    ]) {
        let place = TestDir::new();
        planted(&place, "p.toml", &format!("[model]\n{model}\n[train]\nschedule = '{schedule}'\n"));
        let direction = format!("graph.undirected={undirected}");
        // Updates keep the means and deviations of standardized features.
        let scaling = format!("graph.normalize_features={}", if seed % 2 == 0 { "none" } else { "standard" });
        train(&place, &["--set", &direction, "--set", "graph.generate.edges=4000", "--set", &scaling]);
        let mut graph = Changes::new(&place, seed);
        let name = format!("{schedule}, {model}, undirected {undirected}");
        // The first time, all rows are computed.
        let first = refresh(&place, "dataset", "2", &[], &name);
        assert!(first["refreshed"]["changed_nodes"].is_null() && first["refreshed"]["because"].is_string());
        assert!(!place.path("new/changes.parquet").exists());
        let mut saved = 0;
        for (round, (changes, processes)) in [
            (Counts { added_edges: 1, ..Counts::NONE }, "1"),
            (Counts { removed_edges: 2, added_edges: 3, new_nodes: 2, new_values: 2, removed_nodes: 1 }, "2"),
            (Counts { removed_edges: 3, ..Counts::NONE }, "4"),
            (Counts { new_nodes: 1, ..Counts::NONE }, "1"),
            (Counts { new_values: 2, ..Counts::NONE }, "2"),
            (Counts { removed_edges: 1, added_edges: 1, new_nodes: 3, new_values: 1, ..Counts::NONE }, "4"),
            (Counts { removed_nodes: 2, ..Counts::NONE }, "2"),
        ]
        .into_iter()
        .enumerate()
        {
            let before = results(&place, "new");
            change(&place, &mut graph, changes, &[]);
            // Rows do not depend on the number of nodes in a chunk.
            let batch = ["--set", "infer.batch=64"];
            let more = if round % 2 == 0 { &batch[..] } else { &[] };
            let name = format!("{name}, round {round}");
            let now = refresh(&place, "dataset", processes, more, &name);
            let refreshed = &now["refreshed"];
            check_changes(&place, &before, refreshed, &name);
            let (computed, all) =
                (refreshed["computed_rows"].as_u64().unwrap(), refreshed["all_rows"].as_u64().unwrap());
            assert_eq!(refreshed["because"].is_null(), computed < all, "{name}: {refreshed}");
            saved += u64::from(2 * computed < all);
        }
        assert!(saved >= 3, "{name}: {saved} of 7 refreshes computed less than half of the rows");
        // Nothing has changed.
        let same = refresh(&place, "dataset", "2", &[], &name);
        assert_eq!(same["refreshed"]["computed_rows"], 0, "{name}");
        assert_eq!(read(&place, "new/changes.parquet").num_rows(), 0, "{name}");
    }
}

/// A graph whose size, degrees and partitions are drawn.
struct RandomGraph {
    seed: u64,
    undirected: bool,
    /// Whether nodes and edges have types, and edges a feature.
    typed: bool,
}

impl RandomGraph {
    /// Writes the graph, and a pipeline over it. Returns the number of nodes of a partition.
    fn write(&self, place: &TestDir, schedule: &str, model: &str) -> usize {
        let &Self { seed, undirected, typed } = self;
        let key = Key::new(seed, Purpose::GenerateNodes);
        let (nodes, parts) = (400 + key.below(0, 1200), 2 + key.below(1, 5));
        let edges = nodes * (1 + key.below(2, 4));
        let degree_exponent = 2.1 + key.unit(3);
        let [nodes_text, edges_text, seed_text] = [nodes, edges, seed].map(|number| number.to_string());
        place.succeed(&[
            "generate",
            "planted",
            "--out",
            "graph",
            "--features",
            "8",
            "--classes",
            "3",
            "--nodes",
            &nodes_text,
            "--edges",
            &edges_text,
            "--degree-exponent",
            &degree_exponent.to_string(),
            "--seed",
            &seed_text,
            "--quiet",
        ]);
        if typed {
            add_types(place, key);
        }
        let columns = if typed { "node_type = 'node_type', edge_type = 'kind', edge_features = ['w']" } else { "" };
        let duplicates = ["drop", "keep"][key.below(4, 2) as usize];
        // Updates keep the means and deviations of standardized features.
        let scaling = ["none", "standard"][key.below(5, 2) as usize];
        place.write(
            "p.toml",
            format!(
                "[graph]\nnodes = 'graph/nodes.parquet'\nedges = 'graph/edges.parquet'\nundirected = {undirected}\n\
                 duplicates = '{duplicates}'\nnormalize_features = '{scaling}'\ncolumns = {{ {columns} }}\n\
                 [partition]\nmethod = 'random'\nparts = {parts}\nout = 'dataset'\n[model]\nhidden = 8\n{model}\n\
                 [train]\nschedule = '{schedule}'\n[infer]\nembeddings = true\n"
            ),
        );
        (nodes / parts) as usize
    }

    /// Refreshes the results of a model after random changes.
    fn check(&self, schedule: &str, model: &str) {
        let place = TestDir::new();
        let nodes_of_partition = self.write(&place, schedule, model);
        train(&place, &[]);
        let mut changes = Changes::new(&place, self.seed);
        let name = format!("{schedule}, {model}, undirected {}", self.undirected);
        refresh(&place, "dataset", "2", &[], &name);
        let mut partial = 0;
        for round in 0..7 {
            let counts = match round {
                0 => Counts { added_edges: 1, ..Counts::NONE },
                3 => Counts { new_nodes: nodes_of_partition, ..Counts::NONE },
                _ => changes.counts(),
            };
            let before = results(&place, "new");
            change(&place, &mut changes, counts, &[]);
            let name = format!("{name}, round {round}: {counts:?}");
            let now = refresh(&place, "dataset", if round % 2 == 0 { "1" } else { "2" }, &[], &name);
            let refreshed = &now["refreshed"];
            check_changes(&place, &before, refreshed, &name);
            // In a directed graph, no old node reads a new one.
            let must_be_partial = round == 3 && !self.undirected;
            assert!(!must_be_partial || refreshed["because"].is_null(), "{name}: {refreshed}");
            partial += u32::from(refreshed["because"].is_null());
        }
        assert!(partial >= 4, "{name}: {partial} of 7 refreshes computed a part of the rows");
    }
}

#[test]
fn files_are_those_of_inference_on_random_graphs() {
    for (seed, (schedule, model)) in (0u64..).zip([
        ("mini-batch", "kind = 'sage'"),
        ("partition-parallel", "kind = 'sage'\nlayers = 3"),
        ("full-graph", "kind = 'gcn'"),
        ("mini-batch", "kind = 'gcn'\nnorm = 'layer'"),
        ("mini-batch", "kind = 'gat'"),
        ("full-graph", "kind = 'gat'\nnorm = 'batch'"),
    ]) {
        for undirected in [true, false] {
            let seed = 2 * seed + u64::from(undirected);
            RandomGraph { seed, undirected, typed: false }.check(schedule, model);
        }
    }
}

#[test]
fn files_are_those_of_inference_on_random_graphs_with_types() {
    for (seed, (schedule, model)) in (50u64..).zip([
        ("mini-batch", "kind = 'rgcn'"),
        ("full-graph", "kind = 'rgcn'\nlayers = 3\nnum_bases = 2"),
        ("tensor-parallel", "kind = 'rgcn'\nnorm = 'batch'"),
        ("partition-parallel", "kind = 'rgcn'"),
        ("mini-batch", "kind = 'gine'"),
        ("mini-batch", "kind = 'gatv2'\nedge_features = true"),
    ]) {
        for undirected in [true, false] {
            let seed = 2 * seed + u64::from(undirected);
            RandomGraph { seed, undirected, typed: true }.check(schedule, model);
        }
    }
}

#[test]
fn types_weights_and_features_of_edges_count_as_changes() {
    for (model, column) in [("kind = 'rgcn'", "edge_type = 'kind'"), ("kind = 'gine'", "edge_features = ['w']")] {
        let place = TestDir::new();
        let key = Key::new(1, Purpose::GenerateEdges);
        let ints = |values: Vec<i64>| Arc::new(Int64Array::from(values)) as ArrayRef;
        let floats = |values: Vec<f32>| Arc::new(arrow::array::Float32Array::from(values)) as ArrayRef;
        let nodes = 600;
        place.parquet(
            "nodes.parquet",
            vec![
                ("node_id", ints((0..nodes).collect())),
                ("x", floats((0..nodes).map(|node| key.normal(node as u64) as f32).collect())),
                ("label", ints((0..nodes).map(|node| node % 3).collect())),
            ],
        );
        let edges = |name: &str, pairs: &[(i64, i64)], kind: i64| {
            let of = |value: &dyn Fn(&(i64, i64)) -> i64| ints(pairs.iter().map(value).collect());
            place.parquet(
                name,
                vec![
                    ("src", of(&|pair| pair.0)),
                    ("dst", of(&|pair| pair.1)),
                    ("kind", of(&|pair| (pair.0 + kind) % 2)),
                    ("w", floats(pairs.iter().map(|pair| (pair.0 + 3 * kind) as f32 / 100.0).collect())),
                ],
            );
        };
        let pairs: Vec<(i64, i64)> =
            (0..900).map(|edge| (key.below(2 * edge, 600) as i64, key.below(2 * edge + 1, 600) as i64)).collect();
        edges("edges.parquet", &pairs, 0);
        place.write(
            "p.toml",
            format!(
                "[graph]\nnodes = 'nodes.parquet'\nedges = 'edges.parquet'\nduplicates = 'keep'\n\
             columns = {{ features = ['x'], label = 'label', {column} }}\nsplit_fractions = [0.5, 0.2, 0.3]\n\
             [partition]\nmethod = 'random'\nparts = 4\nout = 'dataset'\n[model]\n{model}\nhidden = 8\n[train]\n\
             [infer]\nembeddings = true\n"
            ),
        );
        train(&place, &[]);
        refresh(&place, "dataset", "1", &[], model);
        for (round, processes) in ["2", "1"].into_iter().enumerate() {
            let before = results(&place, "new");
            // Removes an edge, and adds it again with another type or feature.
            edges("removed.parquet", &pairs[5 * round..5 * round + 2], 0);
            edges("added.parquet", &pairs[5 * round..5 * round + 2], 1);
            place.succeed(&["update", "dataset", "--remove", "removed.parquet", "--quiet"]);
            place.succeed(&["update", "dataset", "--edges", "added.parquet", "--quiet"]);
            let now = refresh(&place, "dataset", processes, &[], model);
            check_changes(&place, &before, &now["refreshed"], model);
            assert!(now["refreshed"]["because"].is_null() && now["refreshed"]["changed_nodes"].as_u64().unwrap() > 0);
        }
    }
}

#[test]
fn stored_rows_that_do_not_fit_are_not_used() {
    let place = TestDir::new();
    planted(&place, "p.toml", "[model]\n[train]\n");
    train(&place, &[]);
    let note = |dataset: &str, more: &[&str]| {
        let ended = place.run(&[&["refresh", "run", "--dataset", dataset, "--out", "noted"], more].concat());
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        ended.stderr.lines().find(|line| line.starts_with("note: all rows are computed")).map(str::to_owned)
    };
    assert!(note("dataset", &[]).unwrap().contains("no rows are stored yet"));
    assert_eq!(note("dataset", &[]), None);
    let stored = |file: &str| -> Vec<PathBuf> {
        let model = std::fs::read_dir(place.path("dataset.layers")).unwrap().next().unwrap().unwrap().path();
        (0..4).map(|part| model.join(format!("part-0000{part}")).join(file)).collect()
    };
    // A refresh that ended early, a damaged description, another build, a missing file of rows.
    let description = stored("layers.json").remove(2);
    let text = std::fs::read_to_string(&description).unwrap();
    std::fs::remove_file(&description).unwrap();
    assert!(note("dataset", &["--processes", "2"]).unwrap().contains("the stored rows are incomplete"));
    assert_eq!(std::fs::read_to_string(&description).unwrap(), text);
    for damaged in ["{", &text.replace("\"build\": \"", "\"build\": \"9")] {
        std::fs::write(&description, damaged).unwrap();
        assert!(note("dataset", &[]).unwrap().contains("another build of gnnflow"));
    }
    std::fs::remove_file(stored("stage-0.f32").remove(1)).unwrap();
    assert!(note("dataset", &[]).unwrap().contains("the stored rows are incomplete"));
    assert_eq!(note("dataset", &[]), None);
    // A dataset with other partitions has its nodes in another order.
    place.succeed(&["prepare", "p.toml", "--out", "other", "--quiet", "--set", "partition.method=range"]);
    assert!(note("other", &["--layers", "dataset.layers"]).unwrap().contains("a dataset that is no earlier version"));
    assert!(note("other", &[]).unwrap().contains("no rows are stored yet"));
    assert!(note("dataset", &[]).unwrap().contains("a dataset that is no earlier version"));
    // Rows of another folder: an update that keeps the old dataset.
    let mut graph = Changes::new(&place, 3);
    assert_eq!(note("dataset", &[]), None);
    let counts = Counts { added_edges: 2, new_nodes: 1, removed_nodes: 1, ..Counts::NONE };
    change(&place, &mut graph, counts, &["--out", "tuesday"]);
    refresh(&place, "tuesday", "2", &["--layers", "dataset.layers"], "tuesday");
    assert!(summary(&place, "new")["refreshed"]["because"].is_null());
    // Back to the smaller dataset, and an error before anything is computed.
    place.fail(
        &["refresh", "run", "--out", "noted", "--quiet", "--processes", "9", "--layers", "dataset.layers"],
        2,
        &["more processes"],
    );
    assert!(note("dataset", &["--layers", "dataset.layers"]).unwrap().contains("a dataset that is no earlier version"));
    refresh(&place, "tuesday", "1", &["--layers", "dataset.layers"], "tuesday again");
    // Another model has rows of its own.
    place.succeed(&["run", "p.toml", "--quiet", "--run-dir", "second", "--set", "train.epochs=1"]);
    place.succeed(&[
        "refresh",
        "second",
        "--dataset",
        "tuesday",
        "--out",
        "noted",
        "--layers",
        "dataset.layers",
        "--quiet",
    ]);
    assert_eq!(std::fs::read_dir(place.path("dataset.layers")).unwrap().count(), 2);
}

#[test]
fn damaged_rows_are_computed_anew() {
    let place = TestDir::new();
    planted(&place, "p.toml", "[model]\nkind = 'sage'\n[train]\n");
    train(&place, &["--set", "graph.generate.edges=4000"]);
    let mut graph = Changes::new(&place, 5);
    refresh(&place, "dataset", "2", &[], "first");
    for (extension, added_edges, processes) in [("f32", 1, "1"), ("crc32", 1, "2"), ("f32", 0, "4"), ("crc32", 0, "2")]
    {
        if added_edges > 0 {
            change(&place, &mut graph, Counts { added_edges, ..Counts::NONE }, &[]);
        }
        damage(&place, extension);
        let args = ["refresh", "run", "--dataset", "dataset", "--processes", processes, "--out", "new"];
        let ended = place.run(&args);
        assert_eq!(ended.code, 0, "{extension}: {}", ended.stderr);
        let warning = "warning: all rows are computed: stored rows differ from their checksums";
        assert!(ended.stderr.contains(warning), "{extension}: {}", ended.stderr);
        let refreshed = &summary(&place, "new")["refreshed"];
        assert_eq!(refreshed["computed_rows"], refreshed["all_rows"]);
        // Nothing has changed since, and the rows are whole.
        let same = refresh(&place, "dataset", "2", &[], extension);
        assert_eq!(same["refreshed"]["computed_rows"], 0, "{extension}");
    }
    // The results of a removed node before are part of the changes.
    change(&place, &mut graph, Counts { removed_nodes: 1, ..Counts::NONE }, &[]);
    damage(&place, "f32");
    let removed = refresh(&place, "dataset", "2", &[], "removed");
    assert!(removed["refreshed"]["because"].as_str().unwrap().contains("they are damaged"));
    assert!(removed["refreshed"]["changed_nodes"].is_null() && !place.path("new/changes.parquet").exists());
}

/// Writes a table of node ids.
fn listed(place: &TestDir, name: &str, ids: Vec<i64>) {
    place.parquet(name, vec![("node_id", Arc::new(Int64Array::from(ids)) as ArrayRef)]);
}

#[test]
fn node_that_is_removed_and_added_again_is_listed_once() {
    let place = TestDir::new();
    planted(&place, "p.toml", "[model]\n[train]\n");
    train(&place, &[]);
    refresh(&place, "dataset", "2", &[], "first");
    let nodes = read(&place, "graph/nodes.parquet");
    for (round, id) in [3, 700, 701].into_iter().enumerate() {
        listed(&place, "gone.parquet", vec![id, id + 50]);
        let row = nodes.slice(id as usize + 1, 1);
        place.parquet("again.parquet", with_ids(&row, vec![id]));
        place.succeed(&["update", "dataset", "--remove-nodes", "gone.parquet", "--quiet"]);
        place.succeed(&["update", "dataset", "--nodes", "again.parquet", "--quiet"]);
        let processes = ["1", "4", "2"][round];
        let now = refresh(&place, "dataset", processes, &[], &format!("node {id}"));
        let changes = read(&place, "new/changes.parquet");
        assert_eq!(now["refreshed"]["changed_nodes"], changes.num_rows());
        let ids = changes.column_by_name("node_id").unwrap();
        let ids = arrow::array::AsArray::as_primitive::<arrow::datatypes::Int64Type>(&**ids).values().to_vec();
        let rows = |wanted: i64| -> Vec<usize> {
            ids.iter().enumerate().filter(|(_, found)| **found == wanted).map(|(row, _)| row).collect()
        };
        let is_null = |name: &str, row: usize| changes.column_by_name(name).unwrap().is_null(row);
        let (again, gone) = (rows(id), rows(id + 50));
        assert!(again.len() == 1 && !is_null("prediction", again[0]), "node {id}: {again:?}");
        assert!(gone.len() == 1 && is_null("prediction", gone[0]) && !is_null("old_prediction", gone[0]), "{gone:?}");
    }
}

#[test]
fn partition_that_loses_all_nodes_is_refreshed_and_followed() {
    let place = TestDir::new();
    planted(&place, "p.toml", "[model]\n[train]\n");
    train(&place, &["--set", "graph.generate.edges=4000"]);
    refresh(&place, "dataset", "1", &[], "first");
    let dataset = gnnflow_data::Dataset::open(place.path("dataset")).unwrap();
    let nodes = dataset.nodes(1).unwrap();
    let ids = (0..nodes.len()).map(|local| nodes.ids().display(local).to_string().parse().unwrap()).collect();
    listed(&place, "gone.parquet", ids);
    place.succeed(&["update", "dataset", "--remove-nodes", "gone.parquet", "--quiet"]);
    assert_eq!(gnnflow_data::Dataset::open(place.path("dataset")).unwrap().manifest().partitions[1].nodes, 0);
    // With the rows of the partition, and with new ones.
    for (processes, more) in [("1", &[][..]), ("2", &["--layers", "rows"]), ("4", &["--layers", "rows"])] {
        refresh(&place, "dataset", processes, more, "an empty partition");
    }
    assert!(summary(&place, "new")["refreshed"]["because"].is_null(), "the rows are used again");
    std::fs::create_dir_all(place.path("incoming/1")).unwrap();
    let mut graph = Changes::new(&place, 4);
    graph.write(&place, "incoming/1", Counts { new_nodes: 2, ..Counts::NONE });
    std::fs::remove_file(place.path("incoming/1/edges.parquet")).unwrap();
    place.write("incoming/1/_SUCCESS", "");
    let follow =
        ["follow", "run", "--changes", "incoming", "--out", "followed", "--once", "--quiet", "--layers", "more"];
    place.succeed(&[&follow[..], &["--processes", "2"]].concat());
    place.succeed(&["infer", "run", "--out", "full", "--quiet"]);
    let bytes = |out: &str| std::fs::read(place.path(out).join("predictions.parquet")).unwrap();
    assert!(bytes("followed") == bytes("full"));
    // No batch removes all nodes.
    let all = read(&place, "full/predictions.parquet");
    std::fs::create_dir_all(place.path("incoming/2")).unwrap();
    place.parquet("incoming/2/remove_nodes.parquet", vec![("node_id", all.column_by_name("node_id").unwrap().clone())]);
    place.write("incoming/2/_SUCCESS", "");
    place.fail(&follow, 3, &["incoming/2/remove_nodes.parquet: no node of the dataset would be left"]);
    assert!(!place.path("followed/batches/2").exists());
}

#[test]
fn killed_refreshes_leave_no_wrong_rows() {
    let place = TestDir::new();
    planted(&place, "p.toml", "[model]\nlayers = 3\n[train]\n");
    train(&place, &[]);
    refresh(&place, "dataset", "2", &[], "first");
    let mut graph = Changes::new(&place, 9);
    let model = std::fs::read_dir(place.path("dataset.layers")).unwrap().next().unwrap().unwrap().path();
    let description = model.join("part-00003/layers.json");
    let counts = Counts { removed_edges: 1, added_edges: 2, new_nodes: 1, new_values: 1, removed_nodes: 1 };
    for round in 0..8 {
        change(&place, &mut graph, counts, &[]);
        let args = ["refresh", "run", "--dataset", "dataset", "--out", "killed", "--quiet", "--processes", "1"];
        let mut child = place.command(&args).spawn().unwrap();
        if round % 2 == 0 {
            std::thread::sleep(Duration::from_millis(10 + 12 * round));
        } else {
            // It removes the descriptions just before it changes rows.
            while description.exists() && child.try_wait().unwrap().is_none() {}
        }
        kill(child.id());
        child.wait().unwrap();
        refresh(&place, "dataset", if round % 2 == 0 { "2" } else { "1" }, &[], &format!("kill {round}"));
    }
}

#[test]
fn refused_with_one_line() {
    let place = TestDir::new();
    planted(&place, "p.toml", "[model]\n[train]\n");
    train(&place, &[]);
    let refused = |args: &[&str], code: i32, words: &[&str]| {
        let errors = place.fail(&[&["refresh"], args, &["--quiet"]].concat(), code, words);
        assert_eq!(errors.len(), 1, "{errors:?}");
    };
    refused(&["nothing", "--out", "out"], 2, &["nothing: no run folder"]);
    refused(&["run", "--out", "run"], 2, &["--out run: the folder has a run"]);
    refused(
        &["run", "--out", "out", "--layers", "dataset"],
        2,
        &["--layers dataset: the folder is a prepared dataset"],
    );
    refused(&["run", "--out", "dataset/out"], 2, &["--out dataset/out: the folder is in that of the dataset"]);
    refused(
        &["run", "--out", "out", "--layers", "dataset/layers"],
        2,
        &["--layers dataset/layers: the folder is in that of the dataset"],
    );
    refused(&["run", "--out", "out", "--set", "model.hidden=8"], 2, &["--set model.hidden", "the model is trained"]);
    place.write("file", "");
    refused(&["run", "--out", "out", "--layers", "file"], 2, &["--layers file: this is a file; choose a folder"]);
    let graph = &["--layers graph: the folder has other files; choose a new folder"];
    refused(&["run", "--out", "out", "--layers", "graph"], 2, graph);
    // Another process uses the rows.
    place.succeed(&["refresh", "run", "--out", "out", "--quiet"]);
    let model = std::fs::read_dir(place.path("dataset.layers")).unwrap().next().unwrap().unwrap().path();
    let lock = std::fs::File::create(model.join("part-00001/lock")).unwrap();
    lock.lock().unwrap();
    refused(&["run", "--out", "out"], 4, &["dataset.layers", "another process uses these rows", "--layers"]);
    drop(lock);
    // Without predictions, only changes are written.
    place.succeed(&[
        "refresh",
        "run",
        "--out",
        "out",
        "--quiet",
        "--set",
        "infer.predictions=false",
        "--set",
        "infer.embeddings=false",
    ]);
    assert!(place.path("out/changes.parquet").exists() && !place.path("out/predictions.parquet").exists());
    // Tasks on edges.
    place.write(
        "links.toml",
        "[graph]\ngenerate = { kind = 'planted', nodes = 300, edges = 900, features = 8, out = 'links' }\n\
                               [partition]\nparts = 2\n[model]\n[train]\nepochs = 1\ntask = 'link-prediction'\n",
    );
    place.succeed(&["run", "links.toml", "--quiet", "--run-dir", "links-run"]);
    refused(&["links-run", "--out", "out"], 2, &["links-run: the model predicts edges"]);
}
