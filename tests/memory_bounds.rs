//! `partition.memory` bounds every process of a preparation and never changes the dataset. Plans bound the memory of
//! preparations, of mini-batch and of partition-parallel training.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, StringArray};
use serde_json::Value;

use crate::common::{TestDir, planted, succeed};

const MIB: u64 = 1 << 20;

/// A dump of an R-MAT graph, with ids as numbers or as strings.
fn dump(scale: &str, edges: &str, text: bool) -> TestDir {
    let place = TestDir::new();
    let size = ["--scale", scale, "--edges", edges, "--seed", "4"];
    place.succeed(&[&["generate", "rmat", "--out", "dump", "--quiet"][..], &size].concat());
    if text {
        // The same edges, between nodes whose ids are strings.
        let id = |id: Option<i64>| format!("https://example.org/node/{}", id.unwrap_or(-1));
        for (file, columns) in [("dump/nodes.parquet", &["node_id"][..]), ("dump/edges.parquet", &["src", "dst"])] {
            let batch = crate::common::read(&place, file);
            let strings = |name: &&str| {
                let ids: &Int64Array = crate::common::column(&batch, name);
                Arc::new(StringArray::from_iter_values(ids.iter().map(id))) as ArrayRef
            };
            place.parquet(file, columns.iter().map(|name| (*name, strings(name))).collect());
        }
    }
    place.write(
        "p.toml",
        "[graph]\nnodes = 'dump/nodes.parquet'\nedges = 'dump/edges.parquet'\nundirected = true\n[partition]\nparts = 4\nout = 'out'\n",
    );
    place
}

/// Prepares, and returns the largest memory of a process, and the files of the dataset without the reports.
fn prepare(place: &TestDir, sets: &[&str], processes: &str) -> (u64, BTreeMap<PathBuf, Vec<u8>>) {
    let _ = std::fs::remove_dir_all(place.path("out"));
    let sets = sets.iter().flat_map(|set| ["--set", set]);
    let args: Vec<&str> = ["prepare", "p.toml", "--json", "--processes", processes].into_iter().chain(sets).collect();
    let ended = place.run(&args);
    assert_eq!(ended.code, 0, "{args:?}: {}", ended.stderr);
    let report = std::fs::read_to_string(place.path("out/partition.json")).unwrap();
    let report: Value = serde_json::from_str(&report).unwrap();
    (report["peak_rss_bytes"].as_u64().unwrap(), files(&place.path("out")))
}

fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else if path.file_stem().is_some_and(|name| name != "partition") {
            found.insert(path.clone(), std::fs::read(&path).unwrap());
        }
    }
    found
}

/// Returns the MiB that a refused preparation names.
fn needed(place: &TestDir, processes: &str) -> u64 {
    // A dataset that is up to date needs no memory.
    let _ = std::fs::remove_dir_all(place.path("out"));
    let args = ["prepare", "p.toml", "--quiet", "--processes", processes, "--set", "partition.memory=1MB"];
    let errors = place.fail(&args, 2, &["partition.memory is", "use that or more"]);
    let amount = errors[0].split("needs ").nth(1).and_then(|rest| rest.split("MiB").next());
    amount.and_then(|amount| amount.parse().ok()).unwrap_or_else(|| panic!("{}", errors[0]))
}

#[test]
fn preparation_stays_below_every_budget_with_equal_bytes() {
    for text in [false, true] {
        let place = dump("15", "300000", text);
        let mut first = None;
        for processes in ["1", "2"] {
            let least = needed(&place, processes);
            for budget in [least, 2 * least] {
                let (peak, files) = prepare(&place, &[&format!("partition.memory={budget}MiB")], processes);
                eprintln!("text {text}, {processes} processes: {} of {budget} MiB", peak / MIB);
                assert!(peak <= budget * MIB, "text {text}, {processes} processes: {peak} bytes of {budget} MiB");
                assert!(
                    files == *first.get_or_insert(files.clone()),
                    "text {text}, {processes} processes, {budget} MiB"
                );
            }
        }
    }
}

#[test]
fn smaller_planned_memory_needs_less_and_cuts_otherwise() {
    let place = dump("16", "600000", false);
    let (usual, files) = prepare(&place, &[], "1");
    let (small, others) = prepare(&place, &["partition.method_memory=16MiB"], "1");
    eprintln!("{} and {} MiB", small / MIB, usual / MIB);
    assert!(small < usual, "{small} and {usual} bytes");
    assert!(files != others);
}

#[test]
fn plan_bounds_the_memory_of_preparing() {
    // METIS takes more memory than the program.
    let place = dump("16", "600000", false);
    for processes in ["1", "2"] {
        let plan = place.succeed(&["run", "p.toml", "--dry-run", "--json", "--processes", processes]);
        let plan: Value = serde_json::from_str(&plan).unwrap();
        let planned = plan["graph"]["prepare_bytes"].as_u64().unwrap();
        let (peak, _) = prepare(&place, &[], processes);
        eprintln!("preparing by {processes}: {} of {} MiB", peak / MIB, planned / MIB);
        assert!(peak <= planned && planned <= peak * 3 / 2, "{peak} bytes, where the plan says {planned}");
        std::fs::remove_dir_all(place.path("out")).unwrap();
    }
}

/// Bytes of a process in a plan. Training and inference take turns. The allocator keeps memory for a second after it is free,
/// so a peak may exceed the plan by a tenth.
fn planned_bytes(memory: &Value) -> u64 {
    let of = |key: &str| memory[key].as_u64().unwrap();
    let all: u64 = memory.as_object().unwrap().values().map(|bytes| bytes.as_u64().unwrap()).sum();
    all - (of("batches") + of("activations")).min(of("inference"))
}

#[test]
fn plan_bounds_the_memory_of_training_on_batches() {
    let place = TestDir::new();
    planted(
        &place,
        "p.toml",
        "[model]\nkind = 'sage'\nhidden = 256\n[train]\nthreads = 2\nbatch = 2000\nepochs = 2\nfanouts = [10, 10]\n",
    );
    let graph = ["graph.generate.nodes=150000", "graph.generate.edges=1000000", "graph.generate.features=128"];
    for (schedule, processes) in
        [("mini-batch", "1"), ("mini-batch", "2"), ("partition-parallel", "1"), ("partition-parallel", "2")]
    {
        let schedule_set = format!("train.schedule={schedule}");
        let sets: Vec<&str> = graph.into_iter().chain([&schedule_set[..]]).flat_map(|set| ["--set", set]).collect();
        // In a process of its own, so that its memory does not count.
        place.succeed(&[&["prepare", "p.toml", "--quiet"], &sets[..]].concat());
        let sets = [&sets[..], &["--processes", processes]].concat();
        let plan = place.succeed(&[&["run", "p.toml", "--dry-run", "--json"], &sets[..]].concat());
        let plan: Value = serde_json::from_str(&plan).unwrap();
        let summary = succeed(&place, &sets);
        for (rank, process) in plan["processes"].as_array().unwrap().iter().enumerate() {
            let planned = planned_bytes(&process["memory"]);
            let peak = summary["peak_rss_bytes"][rank].as_u64().unwrap();
            eprintln!("{schedule}, process {rank} of {processes}: {} of {} MiB", peak / MIB, planned / MIB);
            let case =
                format!("{schedule}, process {rank} of {processes}: {peak} bytes, where the plan says {planned}");
            assert!(peak <= planned + planned / 10 && planned <= peak * 3 / 2, "{case}: {}", process["memory"]);
        }
    }
}
