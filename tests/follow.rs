//! `gnnflow follow`: the results of batches are those of updates and of full inference.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, Float32Array, Int64Array};
use gnnflow_data::rng::{Key, Purpose};

use crate::common::changes::{Changes, Counts, Results, check_changed, damage, results, update, with_ids};
use crate::common::{TestDir, children, hosts_on, kill, planted, read};

/// Writes batches of random changes, with numbers as names.
struct Batches {
    changes: Changes,
    written: usize,
}

impl Batches {
    fn new(place: &TestDir, seed: u64) -> Self {
        Self { changes: Changes::new(place, seed), written: 0 }
    }

    /// Writes a batch. Returns its name.
    fn write(&mut self, place: &TestDir, counts: Counts) -> String {
        self.written += 1;
        let name = format!("{:04}", self.written);
        self.changes.write(place, &format!("incoming/{name}"), counts);
        place.write(&format!("incoming/{name}/_SUCCESS"), "");
        name
    }
}

fn bytes(path: PathBuf) -> Vec<u8> {
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Trains, and prepares a second dataset `plain` for plain updates.
fn train(place: &TestDir, model: &str, more: &[&str]) {
    planted(place, "p.toml", model);
    let args = ["--quiet", "--set", "graph.generate.edges=4000"];
    place.succeed(&[&["run", "p.toml", "--run-dir", "run", "--set", "train.epochs=2"], &args[..], more].concat());
    place.succeed(&[&["prepare", "p.toml", "--out", "plain"], &args[..], more].concat());
}

/// Updates the plain dataset with a batch, and infers all nodes.
fn update_plain(place: &TestDir, name: &str) {
    update(place, "plain", &format!("incoming/{name}"), &[]);
    place.succeed(&["infer", "run", "--dataset", "plain", "--out", "full", "--quiet"]);
}

/// Checks the results of a batch beside those of full inference before and after it.
fn check(place: &TestDir, out: &str, name: &str, before: &Results, what: &str) {
    let (folder, what) = (format!("{out}/batches/{name}"), format!("{what}, batch {name}"));
    let rows = check_changed(place, &format!("{folder}/changes.parquet"), (before, &results(place, "full")), &what);
    let manifest: serde_json::Value =
        serde_json::from_slice(&bytes(place.path(&folder).join("manifest.json"))).unwrap();
    assert_eq!(manifest["changed_nodes"], rows, "{what}");
}

/// The Arrow files of two datasets have equal bytes.
fn assert_same_dataset(place: &TestDir, a: &str, b: &str) {
    for part in 0..4 {
        for file in ["topology", "nodes", "features", "halo"] {
            let [a, b] = [a, b].map(|dataset| place.path(dataset).join(format!("part-{part:05}/{file}.arrow")));
            assert!(bytes(a) == bytes(b), "part {part}, {file}");
        }
    }
}

const CHANGES: [Counts; 8] = [
    Counts { added_edges: 1, ..Counts::NONE },
    Counts { removed_edges: 2, added_edges: 3, new_nodes: 2, new_values: 3, removed_nodes: 1 },
    Counts { removed_edges: 3, ..Counts::NONE },
    Counts { new_nodes: 1, ..Counts::NONE },
    Counts { removed_edges: 1, added_edges: 12, new_nodes: 3, new_values: 2, removed_nodes: 2 },
    Counts { removed_edges: 4, added_edges: 1, new_values: 1, ..Counts::NONE },
    Counts { new_values: 2, ..Counts::NONE },
    Counts { removed_nodes: 1, ..Counts::NONE },
];

#[test]
fn results_of_batches_are_those_of_updates_and_full_inference() {
    for (seed, (model, undirected)) in (0..).zip([
        ("[model]\nkind = 'sage'\n[train]\n", true),
        ("[model]\nkind = 'sage'\nlayers = 3\njumping_knowledge = 'cat'\n[train]\n", false),
        ("[model]\nkind = 'gat'\nnorm = 'batch'\n[train]\n", true),
        ("[model]\nkind = 'gcn'\n[train]\nschedule = 'full-graph'\n", true),
        ("[model]\nkind = 'gcn'\nnorm = 'layer'\n[train]\nschedule = 'full-graph'\n", false),
        ("[model]\nkind = 'mlp'\n[train]\n", true),
    ]) {
        let place = TestDir::new();
        let scaling = format!("graph.normalize_features={}", if seed % 2 == 0 { "standard" } else { "none" });
        train(&place, model, &["--set", &format!("graph.undirected={undirected}"), "--set", &scaling]);
        let mut batches = Batches::new(&place, seed);
        let names: Vec<String> = CHANGES.iter().map(|&changes| batches.write(&place, changes)).collect();
        // In one process, and with a store after every second batch in two.
        std::fs::create_dir(place.path("second")).unwrap();
        copy_folder(&place.path("dataset"), &place.path("second/dataset"));
        let follow = ["follow", "run", "--changes", "incoming", "--once", "--quiet"];
        place.succeed(&[&follow[..], &["--out", "followed"]].concat());
        let second = ["--dataset", "second/dataset", "--out", "second/out", "--processes", "2", "--store-every", "2"];
        place.succeed(&[&follow[..], &second].concat());
        place.succeed(&["infer", "run", "--dataset", "plain", "--out", "full", "--quiet"]);
        for name in &names {
            let before = results(&place, "full");
            update_plain(&place, name);
            check(&place, "followed", name, &before, model);
            let [one, two] = ["followed", "second/out"]
                .map(|out| bytes(place.path(out).join(format!("batches/{name}/changes.parquet"))));
            assert!(one == two, "{model}, batch {name}");
        }
        for (dataset, out) in [("dataset", "followed"), ("second/dataset", "second/out")] {
            assert_same_dataset(&place, dataset, "plain");
            for file in ["predictions.parquet", "embeddings.parquet"] {
                assert!(bytes(place.path(out).join(file)) == bytes(place.path("full").join(file)), "{model}: {file}");
            }
        }
        assert!(!place.path("followed/changes.parquet").exists());
        assert_eq!(std::fs::read_dir(place.path("followed/pending")).unwrap().count(), 0);
    }
}

#[test]
fn hosts_that_share_their_folders_have_equal_results() {
    let place = TestDir::new();
    train(&place, "[model]\nkind = 'gat'\n[train]\n", &["--set", "graph.undirected=true"]);
    let mut batches = Batches::new(&place, 5);
    let names: Vec<String> = CHANGES.iter().map(|&changes| batches.write(&place, changes)).collect();
    std::fs::create_dir(place.path("second")).unwrap();
    copy_folder(&place.path("dataset"), &place.path("second/dataset"));
    let follow = ["follow", "run", "--changes", "incoming", "--once", "--quiet", "--store-every", "3"];
    place.succeed(&[&follow[..], &["--out", "followed"]].concat());
    let hosts = hosts_on(&place, &[0, 1]);
    let members = ["0", "1"].map(|rank| {
        let at = ["--dataset", "second/dataset", "--out", "second/out", "--hosts", &hosts, "--rank", rank];
        let mut command = place.command(&[&follow[..], &at].concat());
        command.env("GNNFLOW_SECRET", "a secret for the tests").spawn().unwrap()
    });
    assert!(members.into_iter().all(|mut member| member.wait().unwrap().success()));
    for name in &names {
        let [one, two] = ["followed", "second/out"]
            .map(|out| bytes(place.path(out).join(format!("batches/{name}/changes.parquet"))));
        assert!(one == two, "batch {name}");
    }
    assert_same_dataset(&place, "dataset", "second/dataset");
    for file in ["predictions.parquet", "embeddings.parquet"] {
        assert!(bytes(place.path("followed").join(file)) == bytes(place.path("second/out").join(file)), "{file}");
    }
}

fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy_folder(&path, &target);
        } else {
            std::fs::copy(&path, &target).unwrap();
        }
    }
}

/// Returns the results of all batches: `changes.parquet`, and the description without seconds.
fn all_results(place: &TestDir, out: &str) -> BTreeMap<String, (Vec<u8>, serde_json::Value)> {
    let batches = place.path(out).join("batches");
    let names = std::fs::read_dir(&batches).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names
        .filter(|name| !name.starts_with('.'))
        .map(|name| {
            let folder = batches.join(&name);
            let mut manifest: serde_json::Value = serde_json::from_slice(&bytes(folder.join("manifest.json"))).unwrap();
            manifest.as_object_mut().unwrap().remove("seconds");
            (name, (bytes(folder.join("changes.parquet")), manifest))
        })
        .collect()
}

#[test]
fn killed_processes_lose_and_double_no_change() {
    let place = TestDir::new();
    train(&place, "[model]\n[train]\n", &[]);
    let mut batches = Batches::new(&place, 5);
    for batch in 0..12 {
        batches.write(&place, CHANGES[batch % CHANGES.len()]);
    }
    std::fs::create_dir(place.path("second")).unwrap();
    copy_folder(&place.path("dataset"), &place.path("second/dataset"));
    let follow = ["follow", "run", "--changes", "incoming", "--once", "--quiet", "--store-every", "3"];
    let begin = Instant::now();
    place.succeed(&[&follow[..], &["--out", "whole"]].concat());
    let whole = begin.elapsed();
    let mut kills = 0;
    for round in 0.. {
        let more = [
            "--dataset",
            "second/dataset",
            "--out",
            "second/out",
            "--processes",
            if round % 2 == 0 { "1" } else { "2" },
        ];
        let mut child = place.command(&[&follow[..], &more].concat()).spawn().unwrap();
        // Later and later, so that it ends.
        std::thread::sleep(whole.mul_f64(0.15 + 0.05 * f64::from(round) + 0.01 * f64::from(round % 3)));
        let victims = children(child.id());
        match (round % 3, victims.last()) {
            (1, Some(&victim)) => kill(victim),
            _ => kill(child.id()),
        }
        let status = child.wait().unwrap();
        if status.success() {
            break;
        }
        kills += 1;
        assert!(round < 100, "it never ends");
    }
    place.succeed(&[&follow[..], &["--dataset", "second/dataset", "--out", "second/out"]].concat());
    assert!(kills >= 3, "{kills} kills");
    let (expected, found) = (all_results(&place, "whole"), all_results(&place, "second/out"));
    assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    assert!(found == expected);
    assert_same_dataset(&place, "dataset", "second/dataset");
    let predictions = |out: &str| bytes(place.path(out).join("predictions.parquet"));
    assert!(predictions("whole") == predictions("second/out"));
}

#[test]
fn batches_are_applied_as_they_appear() {
    let place = TestDir::new();
    train(&place, "[model]\n[train]\n", &[]);
    std::fs::create_dir(place.path("incoming")).unwrap();
    let mut batches = Batches::new(&place, 6);
    let args = ["follow", "run", "--changes", "incoming", "--out", "followed", "--processes", "2", "--quiet"];
    let mut child = place.command(&args).spawn().unwrap();
    for changes in [CHANGES[1], CHANGES[5]] {
        let name = batches.write(&place, changes);
        let manifest = place.path("followed/batches").join(name).join("manifest.json");
        let begin = Instant::now();
        while !manifest.exists() {
            assert!(begin.elapsed() < Duration::from_secs(60), "the batch is not applied");
            assert!(child.try_wait().unwrap().is_none(), "the process has ended");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    // SAFETY: a signal to a child process that has not been waited for.
    unsafe { libc::kill(child.id() as i32, libc::SIGTERM) };
    assert_eq!(child.wait().unwrap().code(), Some(130));
    // The changes are not in the dataset yet; the next start applies them again.
    place.succeed(&[&args[..], &["--once"]].concat());
    for name in ["0001", "0002"] {
        update_plain(&place, name);
    }
    assert_same_dataset(&place, "dataset", "plain");
}

#[test]
fn damaged_rows_end_it_and_are_computed_at_the_next_start() {
    let place = TestDir::new();
    train(&place, "[model]\n[train]\n", &[]);
    std::fs::create_dir(place.path("incoming")).unwrap();
    let args = ["follow", "run", "--changes", "incoming", "--out", "followed", "--processes", "2", "--quiet"];
    let log = std::fs::File::create(place.path("stderr.txt")).unwrap();
    let mut child = place.command(&args).stderr(log).spawn().unwrap();
    let begin = Instant::now();
    let has_time = |what: &str| {
        assert!(begin.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    };
    while !place.path("followed/summary.json").exists() {
        has_time("no results before the first batch");
    }
    damage(&place, "f32");
    let mut batches = Batches::new(&place, 12);
    batches.write(&place, CHANGES[1]);
    let code = loop {
        if let Some(ended) = child.try_wait().unwrap() {
            break ended.code();
        }
        if begin.elapsed() > Duration::from_secs(50) {
            child.kill().unwrap();
        }
        has_time("the process does not end");
    };
    let stderr = std::fs::read_to_string(place.path("stderr.txt")).unwrap();
    assert_eq!(code, Some(3), "{stderr}");
    assert!(
        stderr.contains("stored rows of layers are damaged") && stderr.contains("run the command again"),
        "{stderr}"
    );
    place.succeed(&[&args[..], &["--once"]].concat());
    update_plain(&place, "0001");
    assert_same_dataset(&place, "dataset", "plain");
    place.succeed(&["infer", "run", "--dataset", "dataset", "--out", "full", "--quiet"]);
    let predictions = |out: &str| bytes(place.path(out).join("predictions.parquet"));
    assert!(predictions("followed") == predictions("full"));
}

/// Applies all batches, and kills the process before they are stored.
fn follow_and_kill(place: &TestDir, more: &[&str], last: &str) {
    let args = ["follow", "run", "--changes", "incoming", "--out", "followed", "--quiet"];
    let mut child = place.command(&[&args, more].concat()).spawn().unwrap();
    let begin = Instant::now();
    while !std::fs::read_to_string(place.path("followed/applied.txt"))
        .is_ok_and(|text| text.ends_with(&format!("{last}\n")))
    {
        assert!(begin.elapsed() < Duration::from_secs(60), "the batch is not applied");
        std::thread::sleep(Duration::from_millis(10));
    }
    kill(child.id());
    child.wait().unwrap();
}

#[test]
fn interrupted_steps_are_completed() {
    let place = TestDir::new();
    train(&place, "[model]\n[train]\n", &[]);
    let mut batches = Batches::new(&place, 8);
    let once = ["follow", "run", "--changes", "incoming", "--out", "followed", "--once", "--quiet"];
    for changes in [CHANGES[1], CHANGES[4]] {
        batches.write(&place, changes);
    }
    follow_and_kill(&place, &[], "0002");
    // Results with their name, but not listed yet; and the user has removed the batch.
    place.write("followed/applied.txt", "0001\n00");
    std::fs::rename(place.path("incoming/0002"), place.path("moved")).unwrap();
    copy_folder(&place.path("followed/pending"), &place.path("pending"));
    std::fs::remove_dir_all(place.path("followed/pending/0001")).unwrap();
    place.fail(&once, 3, &["batch 0001", "its copy in pending is gone"]);
    copy_folder(&place.path("pending/0001"), &place.path("followed/pending/0001"));
    // A damaged copy: another edge or value would be applied again.
    let copies = std::fs::read_dir(place.path("followed/pending/0001")).unwrap().map(|entry| entry.unwrap().path());
    for copy in copies.filter(|path| path.extension().is_some_and(|extension| extension == "parquet")) {
        let whole = std::fs::read(&copy).unwrap();
        for at in [5, whole.len() / 2] {
            let mut damaged = whole.clone();
            damaged[at] ^= 8;
            std::fs::write(&copy, damaged).unwrap();
            place.fail(&once, 3, &["pending/0001/", "is damaged: it is not the file that was applied"]);
        }
        std::fs::write(&copy, whole).unwrap();
    }
    place.succeed(&once);
    assert_eq!(std::fs::read_to_string(place.path("followed/applied.txt")).unwrap(), "0001\n0002\n");
    std::fs::rename(place.path("moved"), place.path("incoming/0002")).unwrap();
    for name in ["0001", "0002"] {
        update_plain(&place, name);
    }
    assert_same_dataset(&place, "dataset", "plain");
    // Stored batches whose copies are not removed yet; results that the user has removed.
    std::fs::remove_dir(place.path("followed/pending")).unwrap();
    std::fs::rename(place.path("pending"), place.path("followed/pending")).unwrap();
    std::fs::remove_dir_all(place.path("followed/batches/0001")).unwrap();
    place.succeed(&once);
    assert_same_dataset(&place, "dataset", "plain");
    assert!(!place.path("followed/batches/0001").exists());
    // A batch that was applied with another policy.
    std::fs::create_dir(place.path("incoming/0003")).unwrap();
    let ids = |id: i64| Arc::new(Int64Array::from(vec![id])) as ArrayRef;
    place.parquet("incoming/0003/remove.parquet", vec![("src", ids(3)), ("dst", ids(3))]);
    place.write("incoming/0003/_SUCCESS", "");
    follow_and_kill(&place, &["--missing", "ignore"], "0003");
    place.succeed(&once);
    // The dataset is updated, and the state is not written yet.
    batches.written += 1;
    let name = batches.write(&place, Counts { removed_edges: 2, added_edges: 2, ..Counts::NONE });
    follow_and_kill(&place, &[], &name);
    let file = |file: &str| format!("followed/pending/{name}/{file}.parquet");
    place.succeed(&["update", "dataset", "--remove", &file("remove"), "--edges", &file("edges"), "--quiet"]);
    place.succeed(&once);
    update_plain(&place, &name);
    assert_same_dataset(&place, "dataset", "plain");
}

#[test]
fn more_nodes_than_there_is_room_for_are_stored_first() {
    let place = TestDir::new();
    train(&place, "[model]\n[train]\n", &[]);
    let mut batches = Batches::new(&place, 9);
    batches.write(&place, CHANGES[1]);
    // There is room for 4,096 in each of four partitions.
    let rows = Int64Array::from_iter_values((0..20_000).map(|row| row % 1500));
    let rows = arrow::compute::take_record_batch(&read(&place, "graph/nodes.parquet"), &rows).unwrap();
    place.parquet("incoming/0002/nodes.parquet", with_ids(&rows, (5_000..25_000).collect()));
    place.write("incoming/0002/_SUCCESS", "");
    batches.written += 1;
    batches.write(&place, CHANGES[1]);
    place.succeed(&["follow", "run", "--changes", "incoming", "--out", "followed", "--once", "--quiet"]);
    place.succeed(&["infer", "run", "--dataset", "plain", "--out", "full", "--quiet"]);
    for name in ["0001", "0002", "0003"] {
        let before = results(&place, "full");
        update_plain(&place, name);
        check(&place, "followed", name, &before, "many nodes");
    }
    assert_same_dataset(&place, "dataset", "plain");
}

#[test]
fn more_edges_between_partitions_are_reported() {
    let place = TestDir::new();
    let ints = |values: &mut dyn Iterator<Item = i64>| Arc::new(values.collect::<Int64Array>()) as ArrayRef;
    // Two rings of 200 nodes.
    let next = |node: i64| node / 200 * 200 + (node + 1) % 200;
    let features = Float32Array::from_iter_values((0..400).map(|node| node as f32));
    place.parquet(
        "nodes.parquet",
        vec![
            ("node_id", ints(&mut (0..400))),
            ("features", Arc::new(features)),
            ("label", ints(&mut (0..400).map(|node| node % 2))),
        ],
    );
    place.parquet("edges.parquet", vec![("src", ints(&mut (0..400))), ("dst", ints(&mut (0..400).map(next)))]);
    place.write(
        "p.toml",
        "[graph]\nnodes = 'nodes.parquet'\nedges = 'edges.parquet'\nundirected = true\nsplit_fractions = [0.6, 0.2, 0.2]\n\
         [partition]\nparts = 2\nout = 'dataset'\n[model]\n[train]\nepochs = 1\n",
    );
    place.succeed(&["run", "p.toml", "--run-dir", "run", "--quiet"]);
    let follow = |name: &str, shift: i64| {
        let edges = vec![("src", ints(&mut (0..100))), ("dst", ints(&mut (shift..shift + 100)))];
        place.parquet(&format!("incoming/{name}/edges.parquet"), edges);
        place.write(&format!("incoming/{name}/_SUCCESS"), "");
        let ended = place.run(&["follow", "run", "--changes", "incoming", "--out", "followed", "--once"]);
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        ended.stderr
    };
    let within = follow("0001", 2);
    assert!(!within.contains("between partitions"), "{within}");
    let between = follow("0002", 200);
    assert!(between.contains("% of the edges are between partitions; they were 0."), "{between}");
    assert!(between.contains("at the beginning: prepare the graph again"), "{between}");
}

#[test]
fn types_that_the_dataset_does_not_have_are_refused() {
    let place = TestDir::new();
    let ints = |values: Vec<i64>| Arc::new(Int64Array::from(values)) as ArrayRef;
    let key = Key::new(1, Purpose::GenerateEdges);
    let x = (0..300).map(|node| key.normal(node) as f32).collect::<Vec<f32>>();
    place.parquet(
        "nodes.parquet",
        vec![
            ("node_id", ints((0..300).collect())),
            ("x", Arc::new(arrow::array::Float32Array::from(x)) as ArrayRef),
            ("label", ints((0..300).map(|node| node % 3).collect())),
        ],
    );
    let edges = |name: &str, pairs: &[(i64, i64)], kind: &dyn Fn(i64) -> i64| {
        let (src, dst): (Vec<i64>, Vec<i64>) = pairs.iter().copied().unzip();
        let kinds = src.iter().map(|&src| kind(src)).collect();
        place.parquet(name, vec![("src", ints(src)), ("dst", ints(dst)), ("kind", ints(kinds))]);
    };
    let draw = |at: u64| key.below(at, 300) as i64;
    let pairs: Vec<(i64, i64)> = (0..600).map(|edge| (draw(2 * edge), draw(2 * edge + 1))).collect();
    edges("edges.parquet", &pairs, &|src| src % 2);
    place.write(
        "p.toml",
        "[graph]\nnodes = 'nodes.parquet'\nedges = 'edges.parquet'\nduplicates = 'keep'\n\
         columns = { features = ['x'], label = 'label', edge_type = 'kind' }\nsplit_fractions = [0.5, 0.2, 0.3]\n\
         [partition]\nmethod = 'random'\nparts = 4\nout = 'dataset'\n[model]\nkind = 'rgcn'\nhidden = 8\n[train]\nepochs = 1\n\
         [infer]\nembeddings = true\n",
    );
    place.succeed(&["run", "p.toml", "--run-dir", "run", "--quiet"]);
    place.succeed(&["prepare", "p.toml", "--out", "plain", "--quiet"]);
    let batch = |name: &str| {
        std::fs::create_dir_all(place.path("incoming").join(name)).unwrap();
        place.write(&format!("incoming/{name}/_SUCCESS"), "");
    };
    // Removes edges of one type, and adds them again with the other; copies are kept.
    batch("1");
    edges("incoming/1/remove.parquet", &pairs[..5], &|src| src % 2);
    edges("incoming/1/edges.parquet", &[&pairs[..5], &pairs[3..8]].concat(), &|src| (src + 1) % 2);
    place.succeed(&["infer", "run", "--dataset", "plain", "--out", "full", "--quiet"]);
    let before = results(&place, "full");
    place.succeed(&[
        "follow",
        "run",
        "--changes",
        "incoming",
        "--out",
        "followed",
        "--once",
        "--quiet",
        "--processes",
        "2",
    ]);
    update_plain(&place, "1");
    check(&place, "followed", "1", &before, "rgcn");
    assert_same_dataset(&place, "dataset", "plain");
    batch("2");
    edges("incoming/2/edges.parquet", &pairs[..1], &|_| 7);
    place.fail(
        &["follow", "run", "--changes", "incoming", "--out", "followed", "--once", "--quiet"],
        3,
        &["incoming/2/edges.parquet", "kind", "7", "a type that the dataset has"],
    );
}

#[test]
fn refused_with_one_line() {
    let place = TestDir::new();
    train(&place, "[model]\n[train]\n", &[]);
    let mut batches = Batches::new(&place, 7);
    let follow = |more: &[&'static str]| {
        [&["follow", "run", "--changes", "incoming", "--out", "followed", "--once", "--quiet"], more].concat()
    };
    place.fail(&follow(&[]), 2, &["incoming", "there is no such folder"]);
    batches.write(&place, Counts { removed_edges: 1, added_edges: 1, ..Counts::NONE });
    place.fail(&follow(&["--out", "incoming/out"]), 2, &["cannot be used multiple times"]);
    for (changes, out, layers, words) in [
        ("incoming", "incoming/out", "l", ["--out incoming/out", "one of the folders is in the other"]),
        ("incoming", "out", "run/../incoming/l", ["--layers run/../incoming/l", "one of the folders is in the other"]),
        ("dataset", "out", "l", ["--changes dataset and --dataset", "one of the folders is in the other"]),
        ("incoming", "dataset/out", "l", ["--out dataset/out", "replaced as a whole"]),
        ("incoming", "out", "dataset/l", ["--layers dataset/l", "replaced as a whole"]),
    ] {
        let args = ["follow", "run", "--changes", changes, "--out", out, "--layers", layers, "--once"];
        place.fail(&args, 2, &words);
    }
    place.fail(&follow(&["--set", "model.hidden=3"]), 2, &["model.hidden", "only keys of"]);
    place.fail(&follow(&["--store-every", "0"]), 2, &["--store-every"]);
    place.fail(&follow(&["--processes", "0"]), 2, &["--processes"]);
    place.fail(&follow(&["--processes", "5"]), 2, &["more processes"]);
    place.fail(&follow(&["--missing", "maybe"]), 2, &["--missing", "fail, ignore"]);
    place.fail(&follow(&["--dataset", "graph"]), 3, &["graph", "manifest.json"]);
    place.fail(&follow(&["--set", "partition.topology=replicated"]), 2, &["partition.topology", "has no effect"]);
    place.succeed(&follow(&[]));

    // A batch that does not fit is named, and nothing is applied; the corrected batch is.
    let ids = |ids: &[i64]| Arc::new(Int64Array::from(ids.to_vec())) as ArrayRef;
    let write = |name: &str, file: &str, src: &[i64], dst: &[i64]| {
        std::fs::create_dir_all(place.path("incoming").join(name)).unwrap();
        place.parquet(&format!("incoming/{name}/{file}.parquet"), vec![("src", ids(src)), ("dst", ids(dst))]);
        place.write(&format!("incoming/{name}/_SUCCESS"), "");
    };
    let remove = |name: &str| std::fs::remove_dir_all(place.path("incoming").join(name)).unwrap();
    write("0002", "remove", &[3], &[3]);
    place.fail(&follow(&[]), 3, &["incoming/0002/remove.parquet", "there is no edge 3 → 3"]);
    place.fail(&follow(&["--processes", "2"]), 3, &["incoming/0002/remove.parquet", "there is no edge 3 → 3"]);
    place.succeed(&follow(&["--missing", "ignore"]));
    write("0003", "edges", &[3], &[987_654]);
    place.fail(&follow(&[]), 3, &["incoming/0003/edges.parquet", "987654"]);
    remove("0003");
    std::fs::create_dir_all(place.path("incoming/0003")).unwrap();
    place.parquet("incoming/0003/remove_nodes.parquet", vec![("node_id", ids(&[3, 987_654]))]);
    place.write("incoming/0003/_SUCCESS", "");
    place.fail(&follow(&[]), 3, &["incoming/0003/remove_nodes.parquet", "row 1", "no node 987654 to remove"]);
    remove("0003");
    write("0003", "edge", &[3], &[4]);
    let files = "nodes.parquet, values.parquet, remove.parquet, remove_nodes.parquet, edges.parquet only";
    place.fail(&follow(&[]), 3, &["edge.parquet", files]);
    remove("0003");
    place.write("incoming/0003/_SUCCESS", "");
    place.fail(&follow(&[]), 3, &["incoming/0003", "has none of"]);
    remove("0003");
    std::fs::create_dir(place.path("incoming/00\n03")).unwrap();
    place.fail(&follow(&[]), 3, &["00\\n03", "without control characters"]);
    std::fs::remove_dir(place.path("incoming/00\n03")).unwrap();
    // Order, and a batch without _SUCCESS.
    write("0001b", "edges", &[3], &[4]);
    place.fail(&follow(&[]), 3, &["0001b", "comes before \"0002\"", "a later name"]);
    remove("0001b");
    write("0003", "edges", &[3], &[4]);
    std::fs::remove_file(place.path("incoming/0003/_SUCCESS")).unwrap();
    write("0004", "edges", &[3], &[4]);
    let ended = place.run(&["follow", "run", "--changes", "incoming", "--out", "followed", "--once"]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(ended.stderr.contains("batch 0003 is not applied: it has no _SUCCESS yet"), "{}", ended.stderr);
    assert!(!place.path("followed/batches/0004").exists());
    place.write("incoming/0003/_SUCCESS", "");
    place.succeed(&follow(&[]));
    assert!(place.path("followed/batches/0004").exists());
    // Another model, and a dataset that another command has changed.
    // An updated dataset is not prepared again.
    let other =
        ["--set", "train.epochs=1", "--set", "graph.generate.edges=4000", "--set", "partition.out=other-dataset"];
    place.succeed(&[&["run", "p.toml", "--quiet", "--run-dir", "other"], &other[..]].concat());
    let predictions = bytes(place.path("followed/predictions.parquet"));
    place.fail(
        &["follow", "other", "--dataset", "dataset", "--changes", "incoming", "--out", "followed", "--once", "--quiet"],
        3,
        &["followed", "another model"],
    );
    assert!(bytes(place.path("followed/predictions.parquet")) == predictions, "nothing is computed before");
    place.fail(&follow(&["--after", "0002"]), 2, &["--after \"0002\"", "begun with other batches"]);
    write("0005", "edges", &[5], &[700]);
    place.succeed(&["update", "dataset", "--edges", "incoming/0005/edges.parquet", "--quiet"]);
    place.fail(&follow(&[]), 3, &["another command has changed the dataset", "--after", "those up to 0004"]);
    let again = ["follow", "run", "--changes", "incoming", "--out", "again", "--after", "0005", "--once", "--quiet"];
    place.succeed(&again);
    assert!(!place.path("again/batches").exists());
    write("0006", "edges", &[5], &[701]);
    place.succeed(&again);
    assert_eq!(std::fs::read_to_string(place.path("again/applied.txt")).unwrap(), "0006\n");
    let third = ["follow", "run", "--changes", "incoming", "--out", "third", "--once"];
    place.fail(&third, 3, &["incoming/0001", "contains this batch already", "--after"]);
    // The same folder, as nothing is applied there.
    let ended = place.run(&[&third[..], &["--after", "0006x"]].concat());
    let note = "note: --after 0006x: 6 batches are not applied, and no batch has this name";
    assert!(ended.code == 0 && ended.stderr.contains(note), "{}", ended.stderr);
    // It holds until another one is given.
    let ended = place.run(&third);
    assert!(ended.code == 0 && ended.stderr.contains(note), "{}", ended.stderr);
    std::fs::copy(place.path("incoming/0006/edges.parquet"), place.path("incoming/edges.parquet")).unwrap();
    place.fail(&third, 3, &["incoming/edges.parquet: a batch is a folder with nodes.parquet"]);
    std::fs::remove_file(place.path("incoming/edges.parquet")).unwrap();
    std::fs::rename(place.path("again/applied.txt"), place.path("moved.txt")).unwrap();
    place.fail(&again, 3, &["applied.txt lacks batch 0006"]);
    std::fs::remove_file(place.path("followed/follow.json")).unwrap();
    place.fail(&follow(&[]), 3, &["followed", "no follow.json"]);
    // Models whose results depend on more.
    place.succeed(&[
        "run",
        "p.toml",
        "--quiet",
        "--run-dir",
        "links",
        "--set",
        "train.task='link-prediction'",
        "--set",
        "train.epochs=1",
        "--set",
        "partition.out=other-dataset",
    ]);
    place.fail(
        &["follow", "links", "--changes", "incoming", "--out", "none", "--once", "--quiet"],
        2,
        &["links", "predicts edges"],
    );
}
