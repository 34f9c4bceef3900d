//! Preparation by several processes, after kills, and its reports.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::Int64Array;

use crate::common::TestDir;

/// A pipeline over the dump in five partitions.
const PIPELINE: &str = "[graph]\nnodes = 'dump/nodes.parquet'\nedges = 'dump/edges.parquet'\nundirected = true\n\
                        self_loops = 'add'\nnormalize_features = 'standard'\n[partition]\nparts = 5\n";

fn place() -> TestDir {
    place_of("60000")
}

fn place_of(edges: &str) -> TestDir {
    let place = TestDir::new();
    let args = ["generate", "planted", "--out", "dump", "--nodes", "4000", "--edges", edges, "--features", "8"];
    let ended = place.run(&[&args[..], &["--classes", "5", "--seed", "3", "--quiet"]].concat());
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    place.write("p.toml", PIPELINE);
    place
}

/// Reads all files of a dataset except its reports, which contain times. A kill can leave an unfinished `.partition.html.new`.
fn files(dataset: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![dataset.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy();
            if path.is_dir() {
                folders.push(path);
            } else if !name.trim_start_matches('.').starts_with("partition.") {
                found.insert(path.strip_prefix(dataset).unwrap().to_path_buf(), std::fs::read(&path).unwrap());
            }
        }
    }
    found
}

fn prepare(place: &TestDir, out: &str, more: &[&str]) -> BTreeMap<PathBuf, Vec<u8>> {
    let ended = place.run(&[&["prepare", "p.toml", "--quiet", "--out", out][..], more].concat());
    assert_eq!(ended.code, 0, "{more:?}: {}", ended.stderr);
    files(&place.path(out))
}

/// Prepares anew within the least accepted memory, so that the edges of a large graph are sorted on disk.
fn prepare_tightly(place: &TestDir, out: &str, more: &[&str]) -> BTreeMap<PathBuf, Vec<u8>> {
    let _ = std::fs::remove_dir_all(place.path(out));
    let least = needed(place, &[&["prepare", "p.toml", "--quiet", "--out", out][..], more].concat());
    prepare(place, out, &[more, &["--set", &format!("partition.memory={least}MiB")]].concat())
}

#[test]
fn dataset_has_equal_bytes_for_1_2_4_processes() {
    let place = place_of("600000");
    for (method, planned) in [("random", None), ("spring", None), ("multilevel", Some("2MiB")), ("hdrf", Some("2MiB"))]
    {
        let method = format!("partition.method={method}");
        let planned = planned.map(|planned| format!("partition.method_memory={planned}"));
        let mut set = vec!["--set", &method, "--set", "partition.halo=features"];
        set.extend(planned.iter().flat_map(|planned| ["--set", planned]));
        let alone = prepare_tightly(&place, "alone", &set);
        assert_eq!(alone.len(), 1 + 5 * 4, "a manifest, and four files per partition");
        for processes in ["2", "4"] {
            let together = prepare_tightly(&place, "together", &[&set[..], &["--processes", processes]].concat());
            assert!(alone == together, "{method}, {processes} processes");
        }
    }
}

#[test]
fn killed_preparation_resumes_to_equal_bytes() {
    let place = place_of("600000");
    let set = ["--set", "partition.method=multilevel", "--set", "partition.method_memory=2MiB"];
    let whole = prepare(&place, "whole", &set);
    for processes in ["1", "2"] {
        let args = ["prepare", "p.toml", "--quiet", "--out", "killed", "--processes", processes];
        let memory = format!("partition.memory={}MiB", needed(&place, &[&args[..], &set].concat()));
        let set = [&set[..], &["--set", &memory]].concat();
        let args = [&args[..], &set[..]].concat();
        let (mut kills, mut resumed) = (0, 0);
        // Kills are spread over the whole run at any speed of the machine. The last run is not killed.
        let mut milliseconds = 3;
        while kills < 20 {
            let mut child = place.command(&args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            std::thread::sleep(Duration::from_millis(milliseconds));
            milliseconds = (milliseconds * 7 + 11) % 223;
            let running = child.try_wait().unwrap().is_none();
            child.kill().unwrap();
            child.wait().unwrap();
            kills += 1;
            resumed += usize::from(running && place.path(".killed.tmp/scratch").exists());
            let dataset = place.path("killed");
            if dataset.exists() {
                let found = files(&dataset);
                let differ: Vec<_> =
                    found.keys().chain(whole.keys()).filter(|&file| found.get(file) != whole.get(file)).collect();
                assert!(differ.is_empty(), "{processes} processes, kill {kills}, {milliseconds} ms: {differ:?} differ");
                std::fs::remove_dir_all(&dataset).unwrap();
            }
        }
        assert!(prepare(&place, "killed", &[&["--processes", processes][..], &set[..]].concat()) == whole);
        println!("{processes} processes: {resumed} of {kills} kills left work to go on with");
        std::fs::remove_dir_all(place.path("killed")).unwrap();
    }
}

#[test]
fn report_has_quality_passes_and_halos() {
    let place = place();
    prepare(&place, "out", &["--set", "partition.method=spring"]);
    let text = std::fs::read_to_string(place.path("out/partition.json")).unwrap();
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    let halo: Vec<Vec<u64>> = serde_json::from_value(report["halo"].clone()).unwrap();
    assert_eq!((halo.len(), halo[0].len(), halo[2][2]), (5, 5, 0));
    let foreign: u64 = halo.iter().flatten().sum();
    let replication = report["replication_factor"].as_f64().unwrap();
    assert!((replication - (4000 + foreign) as f64 / 4000.0).abs() < 1e-9);
    let passes: Vec<&str> = report["passes"].as_array().unwrap().iter().map(|p| p["name"].as_str().unwrap()).collect();
    assert!(passes.contains(&"reading edges") && passes.contains(&"writing nodes"), "{passes:?}");
    assert!(std::fs::read_to_string(place.path("out/partition.html")).unwrap().contains("<svg"));
}

#[test]
fn number_of_partitions_is_chosen_for_the_worker_memory() {
    let place = place();
    let set = ["--set", "partition.parts=auto", "--set", "partition.worker_memory=900kB"];
    let ended = place.run(&[&["run", "p.toml", "--dry-run"][..], &set].concat());
    assert!(
        ended.stdout.contains("chosen for") && ended.stdout.contains("879 KiB"),
        "{}{}",
        ended.stdout,
        ended.stderr
    );
    let found = prepare(&place, "auto", &set);
    // 4,000 × (8 + 32) bytes of offsets and features, and 4 × 2 × 60,000 of edges, at 300 kB per worker.
    assert_eq!(found.keys().filter(|path| path.ends_with("nodes.arrow")).count(), 3);
}

#[test]
fn memory_that_is_too_small_is_refused_with_the_amount_that_suffices() {
    let place = place();
    for method in ["random", "multilevel", "metis", "hdrf"] {
        let method = format!("partition.method={method}");
        let args = ["prepare", "p.toml", "--quiet", "--out", "out", "--set", &method];
        let needed = needed(&place, &args);
        assert!(!place.path("out").exists());
        place.succeed(&[&args[..], &["--set", &format!("partition.memory={needed}MiB")]].concat());
        std::fs::remove_dir_all(place.path("out")).unwrap();
        let one_less = format!("partition.memory={}MiB", needed - 1);
        place.fail(&[&args[..], &["--set", &one_less]].concat(), 2, &[&format!("needs {needed}MiB")]);
    }
}

/// Returns the MiB that a refused preparation names.
fn needed(place: &TestDir, args: &[&str]) -> u64 {
    let errors = place.fail(&[args, &["--set", "partition.memory=1MB"]].concat(), 2, &["partition.memory is", "needs"]);
    assert_eq!(errors.len(), 1);
    let amount = errors[0].split("needs ").nth(1).and_then(|rest| rest.split("MiB").next());
    amount.and_then(|amount| amount.parse().ok()).unwrap_or_else(|| panic!("{}", errors[0]))
}

/// Returns the listings of one language in partitioners.md.
fn blocks(language: &str) -> Vec<String> {
    let text =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/book/src/partitioners.md")).unwrap();
    let until = |block: &str| block.split("\n```").next().unwrap_or_default().to_owned();
    text.split(&format!("\n```{language}\n")).skip(1).map(until).collect()
}

#[test]
fn commands_in_the_book_run() {
    let place = TestDir::new();
    place.write("dump.toml", &blocks("toml file=dump.toml")[0]);
    let commands: Vec<String> =
        blocks("sh").iter().flat_map(|block| block.lines().map(String::from).collect::<Vec<_>>()).collect();
    assert!(commands.len() >= 4);
    for command in commands {
        let words: Vec<&str> = command.split_whitespace().collect();
        assert_eq!(words[0], "gnnflow");
        place.succeed(&words[1..]);
    }
}

#[test]
fn exported_dataset_is_prepared_to_equal_partitions() {
    let place = place();
    prepare(&place, "first", &["--set", "partition.method=spring"]);
    place.succeed(&["export", "first", "--out", "back", "--quiet"]);
    place.succeed(&["prepare", "back/pipeline.toml", "--out", "second", "--quiet"]);
    let read = |name: &str, file: &str| std::fs::read(place.path(name).join(file)).unwrap();
    for part in 0..5 {
        for file in ["nodes.arrow", "topology.arrow", "halo.arrow"] {
            let file = format!("part-{part:05}/{file}");
            assert!(read("first", &file) == read("second", &file), "{file}");
        }
    }
    // A dump of gnnflow is replaced, a changed pipeline file is kept, and tables of others are refused.
    place.write("back/pipeline.toml", "mine");
    let ended = place.run(&["export", "first", "--out", "back", "--file-rows", "2"]);
    assert!(ended.stderr.contains("note: back/pipeline.toml.old: the previous pipeline file"), "{}", ended.stderr);
    place.succeed(&["export", "first", "--out", "back", "--file-rows", "2"]);
    place.parquet("back/nodes.parquet/part-00001.parquet", vec![("x", Arc::new(Int64Array::from(vec![1])))]);
    let words = ["back/nodes.parquet/part-00001.parquet: would be replaced, but gnnflow did not write it", "--out"];
    place.fail(&["export", "first", "--out", "back"], 3, &words);
    // A dataset with other settings is replaced with a note.
    let ended = place.run(&["prepare", "p.toml", "--out", "first", "--set", "partition.parts=2"]);
    assert!(ended.stderr.contains("note: first: this dataset is replaced; partition."), "{}", ended.stderr);
}
