//! Batches of changes in an object store: `gnnflow follow --changes s3://…`.

use super::proxy::{Faults, Proxy};
use super::server::Server;
use super::upload::start;
use super::{command, run};
use crate::common::changes::{Changes, Counts};
use crate::common::{Ended, TestDir};
use std::net::SocketAddr;
use std::path::Path;

/// Uploads all files of the local batch `name`, except `_SUCCESS`.
fn put(place: &TestDir, server: &Server, name: &str) {
    let batch = place.path("incoming").join(name);
    let mut folders = vec![batch.clone()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let below = path.strip_prefix(&batch).unwrap().display().to_string();
            match path.is_dir() {
                true => folders.push(path),
                false if below == "_SUCCESS" => {}
                false => server.put(&format!("/lake/changes/{name}/{below}"), &std::fs::read(&path).unwrap(), &[]),
            }
        }
    }
}

fn follow(place: &TestDir, changes: &str, endpoint: SocketAddr) -> Ended {
    let args = ["follow", "runs/p", "--dataset", "second", "--changes", changes, "--out", "remote", "--once"];
    run(command(place, &args, endpoint))
}

fn bytes(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn batches_in_a_store_have_the_results_of_those_in_a_folder() {
    let Some((place, server)) = start() else { return };
    place.succeed(&["prepare", "p.toml", "--out", "second", "--quiet"]);
    let mut changes = Changes::new(&place, 5);
    let first = Counts { removed_edges: 1, added_edges: 3, new_nodes: 1, new_values: 2, removed_nodes: 1 };
    let second = Counts { removed_edges: 2, added_edges: 4, new_nodes: 0, new_values: 3000, removed_nodes: 2 };
    for (name, counts) in [("0001", first), ("0002", second)] {
        changes.write(&place, &format!("incoming/{name}"), counts);
        place.write(&format!("incoming/{name}/_SUCCESS"), "");
    }
    // A folder of files, and files that are ignored.
    let edges = place.path("incoming/0002/edges.parquet");
    let table = bytes(&edges);
    std::fs::remove_file(&edges).unwrap();
    std::fs::create_dir(&edges).unwrap();
    std::fs::write(edges.join("a.parquet"), table).unwrap();
    std::fs::write(edges.join("notes.txt"), "none").unwrap();
    place.succeed(&["follow", "runs/p", "--changes", "incoming", "--out", "local", "--once", "--quiet"]);

    put(&place, &server, "0001");
    put(&place, &server, "0002");
    // Some tools write objects that stand for folders.
    for folder in ["", "0002/", "0002/edges.parquet/"] {
        server.put(&format!("/lake/changes/{folder}"), b"", &[]);
    }
    server.put("/lake/changes/0001/_SUCCESS", b"", &[]);
    let proxy = Proxy::start(server.address());
    proxy.faults(Faults { busy: 2, ..Faults::default() });
    let ended = follow(&place, "s3://lake/changes", proxy.address());
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(proxy.faults_are_over());
    assert!(ended.stderr.contains("note: batch 0002 is not applied: it has no _SUCCESS yet"), "{}", ended.stderr);
    assert!(place.path("remote/batches/0001").exists() && !place.path("remote/batches/0002").exists());

    server.put("/lake/changes/0002/_SUCCESS", b"", &[]);
    // Cuts within a table: answers about folders are shorter.
    assert!(std::fs::metadata(place.path("incoming/0002/values.parquet")).unwrap().len() > 80_000);
    proxy.faults(Faults { refuse: 1, cut: Some((2, 30_000)), ..Faults::default() });
    let ended = follow(&place, "s3://lake/changes/", proxy.address());
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(proxy.faults_are_over());
    for file in ["batches/0001/changes.parquet", "batches/0002/changes.parquet", "predictions.parquet"] {
        let [local, remote] = ["local", "remote"].map(|out| bytes(&place.path(out).join(file)));
        assert!(local == remote, "{file}");
    }

    for (name, file, words) in [
        ("0006", "edge.parquet", "s3://lake/changes/0006/edge.parquet: a batch has the files nodes.parquet"),
        ("0005", "edges.parquet/part.csv", "edges.parquet: no *.parquet file in it"),
        ("0004", "_notes", "s3://lake/changes/0004: the batch has none of nodes.parquet"),
        ("0000", "edges.parquet", "s3://lake/changes/0000: the batch comes before \"0002\", which is applied already"),
    ] {
        server.put(&format!("/lake/changes/{name}/{file}"), &bytes(&place.path("incoming/0001/edges.parquet")), &[]);
        server.put(&format!("/lake/changes/{name}/_SUCCESS"), b"", &[]);
        let ended = follow(&place, "s3://lake/changes", server.address());
        assert!(ended.code == 3 && ended.stderr.contains(words), "{}: {}", ended.code, ended.stderr);
    }
}

#[test]
fn results_of_batches_are_uploaded_before_they_count_as_applied() {
    let Some((place, server)) = start() else { return };
    let mut changes = Changes::new(&place, 6);
    let counts = Counts { added_edges: 3, new_nodes: 1, ..Counts::NONE };
    for name in ["0001", "0002"] {
        changes.write(&place, &format!("incoming/{name}"), counts);
        place.write(&format!("incoming/{name}/_SUCCESS"), "");
    }
    let follow = |more: &[&str], endpoint: SocketAddr| {
        let args = ["follow", "runs/p", "--changes", "incoming", "--out", "followed", "--once"];
        run(command(&place, &[&args, more].concat(), endpoint))
    };
    let upload = ["--upload", "s3://lake/live", "--set", "graph.retry=2s"];
    let stored = |name: &str, file: &str| server.get(&format!("/lake/live/batches/{name}/{file}"));
    let check = |name: &str| {
        let folder = place.path("followed/batches").join(name);
        for file in ["changes.parquet", "manifest.json"] {
            assert!(stored(name, file).unwrap() == bytes(&folder.join(file)), "{name}: {file}");
        }
        assert!(String::from_utf8(stored(name, "_SUCCESS").unwrap()).unwrap().contains("changes.parquet"));
    };
    let proxy = Proxy::start(server.address());
    proxy.faults(Faults { busy: u32::MAX, ..Faults::default() });
    let ended = follow(&upload, proxy.address());
    let words = "error: s3://lake/live/batches/0001/";
    assert!(ended.code == 5 && ended.stderr.contains(words), "{}: {}", ended.code, ended.stderr);
    assert!(!place.path("followed/batches/0001").exists());
    proxy.faults(Faults { cut: Some((2, 20)), busy: 1, ..Faults::default() });
    let ended = follow(&upload, proxy.address());
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    ["0001", "0002"].iter().for_each(|name| check(name));
    let ended = follow(&[], server.address());
    let words = "--upload: followed was begun with s3://lake/live; do the same";
    assert!(ended.code == 2 && ended.stderr.contains(words), "{}: {}", ended.code, ended.stderr);
    let ended = follow(&["--upload", "live"], server.address());
    assert!(ended.code == 2 && ended.stderr.contains("--upload live: not a URL"), "{}: {}", ended.code, ended.stderr);
}

#[test]
fn places_that_cannot_be_listed_are_refused() {
    let Some((place, server)) = start() else { return };
    place.succeed(&["prepare", "p.toml", "--out", "second", "--quiet"]);
    for (changes, code, words) in [
        ("s3://nolake/changes", 3, "s3://nolake/changes/: "),
        (
            "https://host/changes",
            2,
            "--changes https://host/changes: cannot list folders of this kind of URL; use s3://",
        ),
    ] {
        let ended = follow(&place, changes, server.address());
        assert!(ended.code == code && ended.stderr.contains(words), "{}: {}", ended.code, ended.stderr);
    }
}
