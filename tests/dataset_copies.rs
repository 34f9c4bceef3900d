//! Runs over a dataset that is elsewhere: the results of a run that reads it in place, with only the files that each process needs.

use std::collections::BTreeSet;

use crate::common::member::{Member, start};
use crate::common::{TestDir, assert_same_results, hosts_on, planted, summary};

const SETTINGS: &str = "[model]\nkind = 'sage'\nhidden = 16\n[train]\nepochs = 2\nbatch = 64\nfanouts = [5, 3]\n";

/// Prepares a dataset of four partitions in `dataset`, and writes `p.toml`, which reads it.
fn prepared(settings: &str) -> TestDir {
    let place = TestDir::new();
    planted(&place, "dump.toml", SETTINGS);
    place.succeed(&["prepare", "dump.toml", "--set", "partition.halo=features"]);
    let text = format!(
        "[graph]\ndataset = 'dataset'\n{settings}hash_blocks = true\nseed = 3\n[infer]\npredictions = true\nembeddings = true\n"
    );
    place.write("p.toml", text);
    place
}

/// Returns the names of the copied files of partitions, which are those of the dataset.
fn copied(place: &TestDir, cache: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for part in 0..4 {
        let folder = format!("part-{part:05}");
        for entry in std::fs::read_dir(place.path(cache).join(&folder)).into_iter().flatten() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let bytes = |root: &str| std::fs::read(place.path(root).join(&folder).join(&name)).unwrap();
            assert!(bytes(cache) == bytes("dataset"), "{folder}/{name}");
            names.insert(format!("{part}/{}", name.trim_end_matches(".arrow")));
        }
    }
    names
}

/// Returns the files of partitions of which every process needs all but the halo.
fn parts(parts: std::ops::Range<usize>) -> BTreeSet<String> {
    parts.flat_map(|part| ["features", "nodes", "topology"].map(|name| format!("{part}/{name}"))).collect()
}

fn bytes_of(place: &TestDir, files: &BTreeSet<String>) -> u64 {
    let bytes = |file: &String| {
        let (part, name) = file.split_once('/').unwrap();
        std::fs::metadata(place.path(&format!("dataset/part-0000{part}/{name}.arrow"))).unwrap().len()
    };
    files.iter().map(bytes).sum()
}

/// The bytes that each process has copied.
fn copied_bytes(place: &TestDir, run: &str) -> Vec<u64> {
    summary(place, run)["workers"].as_array().unwrap().iter().map(|w| w["copied_bytes"].as_u64().unwrap()).collect()
}

#[test]
fn each_host_copies_the_files_of_its_partitions_once() {
    let place = prepared(SETTINGS);
    place.succeed(&["run", "p.toml", "--quiet", "--run-dir", "in-place"]);
    assert!(summary(&place, "in-place")["workers"][0].get("copied_bytes").is_none());
    for attempt in 0..2 {
        let (run, hosts) = (format!("run-{attempt}"), hosts_on(&place, &[0, 1]));
        let mut members: Vec<Member> = (0..2)
            .map(|rank| start(&place, &hosts, rank, &run, &["--set", &format!("graph.dataset_cache=cache-{rank}")]))
            .collect();
        for member in &mut members {
            let code = member.end();
            assert_eq!(code, 0, "{}", member.stderr());
        }
        assert_same_results(&place, "in-place", &run);
        let files = ["cache-0", "cache-1"].map(|cache| copied(&place, cache));
        for (files, own) in files.iter().zip([0..2, 2..4]) {
            assert!(files.is_superset(&parts(own.clone())), "{files:?}");
            // Halos with features are read, too, and training nodes move between partitions, with their labels.
            let is_more = |file: &String| match file.split_once('/').unwrap() {
                (part, "halo") => own.contains(&part.parse().unwrap()),
                (_, name) => name == "nodes",
            };
            assert!(files.difference(&parts(own.clone())).all(is_more), "{files:?}");
        }
        let expected: Vec<u64> =
            files.iter().map(|files| if attempt == 0 { bytes_of(&place, files) } else { 0 }).collect();
        assert_eq!(copied_bytes(&place, &run), expected);
    }
}

#[test]
fn every_schedule_copies_what_it_reads() {
    for (name, train, own) in [
        ("full", "schedule = 'full-graph'\n", true),
        ("tensor", "schedule = 'tensor-parallel'\n", false),
        ("local", "schedule = 'partition-parallel'\n", true),
    ] {
        let place = prepared(&format!("[model]\nkind = 'gcn'\nhidden = 16\n[train]\nepochs = 2\n{train}"));
        place.succeed(&["run", "p.toml", "--quiet", "--run-dir", "in-place"]);
        let args = [
            "run",
            "p.toml",
            "--quiet",
            "--processes",
            "2",
            "--run-dir",
            "copied",
            "--set",
            "graph.dataset_cache=cache",
        ];
        place.succeed(&args);
        assert_same_results(&place, "in-place", "copied");
        // The processes of a host share the folder, and one of them copies each file.
        let files = copied(&place, "cache");
        assert!(files.is_superset(&parts(0..4)), "{name}: {files:?}");
        let bytes = copied_bytes(&place, "copied");
        assert_eq!(bytes.iter().sum::<u64>(), bytes_of(&place, &files), "{name}");
        assert!(!own || bytes.iter().all(|&bytes| bytes > 0), "{name}: {bytes:?}");
    }
}

#[test]
fn inference_and_plans_use_the_copies() {
    let place = prepared(SETTINGS);
    let cache = ["--set", "graph.dataset_cache=cache"];
    let plan = place.succeed(&[&["run", "p.toml", "--dry-run"], &cache[..]].concat());
    assert!(plan.contains("open the prepared dataset") && copied(&place, "cache").is_empty(), "{plan}");
    place.succeed(&[&["run", "p.toml", "--quiet", "--run-dir", "run"], &cache[..]].concat());
    for out in ["scores", "again"] {
        place.succeed(&["infer", "run", "--quiet", "--out", out, "--processes", "2"]);
        assert_eq!(summary(&place, out)["predictions_sha256"], summary(&place, "run")["predictions_sha256"]);
    }
    assert_eq!(copied_bytes(&place, "again"), [0, 0]);

    // The copies follow the dataset.
    let other = ["--set", "partition.halo=features", "--set", "partition.seed=7"];
    place.succeed(&[&["prepare", "dump.toml", "--quiet"], &other[..]].concat());
    place.succeed(&["infer", "run", "--quiet", "--out", "later"]);
    place.succeed(&["infer", "run", "--quiet", "--out", "direct", "--dataset", "dataset"]);
    let sha = |out: &str| summary(&place, out)["predictions_sha256"].clone();
    assert_eq!(sha("later"), sha("direct"));
    assert!(copied(&place, "cache").is_superset(&parts(0..4)));

    // Of another dataset on a host that has its own folder.
    let elsewhere = ["infer", "run", "--quiet", "--dataset", "dataset", "--set", "graph.dataset_cache=other"];
    place.succeed(&[&elsewhere[..], &["--out", "copied"]].concat());
    assert_eq!(sha("copied"), sha("direct"));
    assert!(copied(&place, "other").is_superset(&parts(0..4)));
    // Results are neither in the dataset nor in its copies.
    for out in ["dataset/results", "cache/results"] {
        place.fail(&["infer", "run", "--quiet", "--out", out], 2, &["is in that of the dataset"]);
    }
}

#[test]
fn damage_and_folders_that_cannot_be_used_are_reported() {
    let place = prepared(SETTINGS);
    let run = |more: &[&str], code: i32, words: &[&str]| {
        place.fail(&[&["run", "p.toml", "--quiet", "--run-dir", "run"], more].concat(), code, words)
    };
    let cache = ["--set", "graph.dataset_cache=cache"];
    place.succeed(&[&["run", "p.toml", "--quiet", "--run-dir", "run"], &cache[..]].concat());
    // A damaged copy is replaced.
    let file = place.path("cache/part-00002/features.arrow");
    let mut bytes = std::fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    std::fs::write(&file, &bytes).unwrap();
    let ended = place.run(&[&["run", "p.toml", "--run-dir", "run"], &cache[..]].concat());
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(ended.stderr.contains("features.arrow is damaged and is copied again"), "{}", ended.stderr);
    assert_eq!(copied_bytes(&place, "run"), [bytes.len() as u64]);
    // A damaged dataset is not.
    std::fs::write(place.path("dataset/part-00002/features.arrow"), &bytes).unwrap();
    std::fs::remove_file(&file).unwrap();
    run(&cache, 3, &["dataset/part-00002/features.arrow: damaged: its checksum differs from the one in manifest.json"]);
    assert!(!file.exists() && !place.path("cache/part-00002/.features.arrow.part").exists());

    std::fs::create_dir(place.path("notes")).unwrap();
    place.write("notes/list.txt", "keep");
    run(
        &["--set", "graph.dataset_cache=notes"],
        2,
        &["graph.dataset_cache", "has other files than copies of a dataset"],
    );
    run(&["--set", "graph.dataset_cache=dataset"], 2, &["graph.dataset_cache", "is read in place; remove this key"]);
    run(
        &["--set", "graph.dataset=none", "--set", "graph.dataset_cache=new"],
        3,
        &["none/manifest.json", "graph.dataset"],
    );
    run(&["--set", "graph.dataset=ftp://host/x"], 2, &["graph.dataset", "cannot read ftp://"]);
    run(&["--set", "graph.dataset=https://host/x?sig=1"], 2, &["graph.dataset", "names one file"]);
    place.fail(
        &["run", "dump.toml", "--set", "graph.dataset_cache=cache"],
        2,
        &["graph.dataset_cache", "copies of `graph.dataset`, which is not set"],
    );
    place.fail(&["update", "cache", "--edges", "graph/edges.parquet"], 3, &["has copies of some files of the dataset"]);
    std::fs::create_dir(place.path("changes")).unwrap();
    let follow = ["follow", "run", "--changes", "changes", "--out", "results"];
    place.fail(&follow, 2, &["stored in the dataset, so it must be a folder without graph.dataset_cache"]);
}
