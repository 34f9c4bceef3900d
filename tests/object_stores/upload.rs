//! Results in object stores: `--upload`.

use super::proxy::{Faults, Proxy};
use super::server::Server;
use super::{command, run};
use crate::common::{Ended, TestDir, hosts_on, planted};
use serde_json::Value;
use std::net::SocketAddr;
use std::process::Stdio;
use std::time::{Duration, Instant};

const SETTINGS: &str = "[model]\nkind = 'sage'\nhidden = 16\n[train]\nepochs = 2\n";
const NAMES: [&str; 3] = ["summary.json", "predictions.parquet", "embeddings.parquet"];

/// Starts `moto_server` with the bucket `lake`, and trains `runs/p`.
pub(super) fn start() -> Option<(TestDir, Server)> {
    let server = Server::start("GNNFLOW_MOTO_SERVER", "moto_server", |port| {
        (vec!["-H".into(), "127.0.0.1".into(), "-p".into(), port.to_string()], &[])
    })?;
    server.put("/lake", b"", &[]);
    let place = TestDir::new();
    planted(&place, "p.toml", SETTINGS);
    let text = std::fs::read_to_string(place.path("p.toml")).unwrap();
    place.write("p.toml", text.replace("[graph]\n", "[graph]\nretry = '3s'\n"));
    place.succeed(&["run", "p.toml", "--quiet"]);
    Some((place, server))
}

/// Checks that the objects below `prefix` are the files in `folder`, and that `_SUCCESS` describes them.
fn assert_uploaded(place: &TestDir, server: &Server, (folder, prefix): (&str, &str), names: &[&str]) {
    let success: Value = serde_json::from_slice(&server.get(&format!("/lake/{prefix}/_SUCCESS")).unwrap()).unwrap();
    let files = success["files"].as_array().unwrap();
    let listed: Vec<&str> = files.iter().map(|file| file["name"].as_str().unwrap()).collect();
    assert_eq!(listed, names);
    for file in files {
        let name = file["name"].as_str().unwrap();
        let local = std::fs::read(place.path(folder).join(name)).unwrap();
        assert!(server.get(&format!("/lake/{prefix}/{name}")).unwrap() == local, "{name}");
        assert_eq!(
            (file["bytes"].as_u64().unwrap(), file["sha256"].as_str().unwrap()),
            (local.len() as u64, sha256(&local).as_str())
        );
    }
}

fn sha256(bytes: &[u8]) -> String {
    use sha2::Digest;
    gnnflow_data::format::hex(&sha2::Sha256::digest(bytes))
}

#[test]
fn results_are_uploaded_also_with_connection_faults() {
    let Some((place, server)) = start() else { return };
    let args = ["run", "p.toml", "--run-dir", "again", "--processes", "2", "--upload", "s3://lake/trained"];
    let ended = run(command(&place, &args, server.address()));
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(ended.stderr.contains("results of again uploaded to s3://lake/trained\n"), "{}", ended.stderr);
    assert_uploaded(
        &place,
        &server,
        ("again", "trained"),
        &["summary.json", "model.safetensors", "optimizer.safetensors", NAMES[1], NAMES[2]],
    );
    let proxy = Proxy::start(server.address());
    for faults in [
        Faults { refuse: 2, ..Faults::default() },
        Faults { busy: 3, ..Faults::default() },
        Faults { cut: Some((2, 20)), busy: 1, ..Faults::default() },
    ] {
        proxy.faults(faults.clone());
        let args = ["infer", "runs/p", "--out", "scores", "--upload", "s3://lake/scores/"];
        let ended = run(command(&place, &args, proxy.address()));
        assert_eq!(ended.code, 0, "{faults:?}: {}", ended.stderr);
        assert!(proxy.faults_are_over(), "{faults:?}");
        assert_uploaded(&place, &server, ("scores", "scores"), &NAMES);
    }
}

#[test]
fn large_files_are_sent_in_parts() {
    let Some((place, server)) = start() else { return };
    // More than one part of 8 MiB.
    let sets = [
        "graph.generate.nodes=60000",
        "graph.generate.edges=60000",
        "model.hidden=128",
        "train.epochs=1",
        "partition.out='large'",
        "graph.generate.out='large-graph'",
    ];
    let sets = sets.iter().flat_map(|set| ["--set", set]);
    let args: Vec<&str> =
        ["run", "p.toml", "--run-dir", "large-run", "--upload", "s3://lake/large"].into_iter().chain(sets).collect();
    let proxy = Proxy::start(server.address());
    proxy.faults(Faults { cut: Some((1, 20)), ..Faults::default() });
    let ended = run(command(&place, &args, proxy.address()));
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(std::fs::metadata(place.path("large-run/embeddings.parquet")).unwrap().len() > 8 << 20);
    assert_uploaded(
        &place,
        &server,
        ("large-run", "large"),
        &["summary.json", "model.safetensors", "optimizer.safetensors", NAMES[1], NAMES[2]],
    );
}

#[test]
fn parts_of_a_table_replace_former_objects() {
    let Some((place, server)) = start() else { return };
    let infer = |out: &str, more: &[&str]| {
        let args = [&["infer", "runs/p", "--out", out, "--upload", "s3://lake/day"], more].concat();
        let ended = run(command(&place, &args, server.address()));
        assert_eq!(ended.code, 0, "{}", ended.stderr);
    };
    infer("file", &[]);
    // A part of a dataset with more partitions, and objects of others.
    for name in ["predictions.parquet/part-00017.parquet", "predictions.parquet/notes.txt", "other.parquet"] {
        server.put(&format!("/lake/day/{name}"), b"x", &[]);
    }
    infer("parts", &["--set", "infer.parts=true", "--processes", "2"]);
    let parts = ["predictions", "embeddings"]
        .map(|table| (0..4).map(move |part| format!("{table}.parquet/part-0000{part}.parquet")));
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    let names: Vec<&str> = std::iter::once("summary.json").chain(parts.iter().map(String::as_str)).collect();
    assert_uploaded(&place, &server, ("parts", "day"), &names);
    let stored = |name: &str| server.get(&format!("/lake/day/{name}")).is_some();
    assert!(!stored("predictions.parquet") && !stored("predictions.parquet/part-00017.parquet"));
    assert!(stored("predictions.parquet/notes.txt") && stored("other.parquet"));
    infer("file", &[]);
    assert_uploaded(&place, &server, ("file", "day"), &NAMES);
    assert!(parts.iter().all(|name| !stored(name)));
}

/// Starts inference in parts on two hosts of this machine, each with its folder, and returns how both have ended.
fn infer_on_hosts(place: &TestDir, (outs, prefix): ([&str; 2], &str), more: &[&str], at: SocketAddr) -> [Ended; 2] {
    let hosts = hosts_on(place, &[0, 1]);
    let url = format!("s3://lake/{prefix}");
    let started = [0, 1].map(|rank| {
        let rank_word = rank.to_string();
        let args = ["infer", "runs/p", "--out", outs[rank], "--upload", &url, "--hosts", &hosts, "--rank", &rank_word];
        let args = [&args[..], &["--set", "infer.parts=true"], more].concat();
        let mut command = command(place, &args, at);
        command.env("GNNFLOW_SECRET", "a secret for the tests").stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    });
    started.map(|child| {
        let output = child.wait_with_output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Ended { code: output.status.code().unwrap_or(-1), stdout: text(output.stdout), stderr: text(output.stderr) }
    })
}

#[test]
fn each_host_uploads_the_parts_of_its_partitions() {
    let Some((place, server)) = start() else { return };
    let tables = ["predictions", "embeddings"];
    let parts = tables.map(|table| (0..4).map(move |part| format!("{table}.parquet/part-0000{part}.parquet")));
    let names: Vec<String> = std::iter::once("summary.json".to_owned()).chain(parts.into_iter().flatten()).collect();
    let assert_stored = |outs: [&str; 2], prefix: &str| {
        let success: Value = serde_json::from_slice(&server.get(&format!("/lake/{prefix}/_SUCCESS")).unwrap()).unwrap();
        let files = success["files"].as_array().unwrap();
        assert_eq!(files.iter().map(|file| file["name"].as_str().unwrap()).collect::<Vec<_>>(), names);
        for file in files {
            let name = file["name"].as_str().unwrap();
            // The first host has the first two partitions.
            let out = outs[usize::from(name.contains("part-00002") || name.contains("part-00003"))];
            let local = std::fs::read(place.path(out).join(name)).unwrap();
            assert!(server.get(&format!("/lake/{prefix}/{name}")).unwrap() == local, "{name}");
            assert_eq!(file["sha256"].as_str().unwrap(), sha256(&local), "{name}");
        }
    };
    // A former object of another partition.
    server.put("/lake/hosts/predictions.parquet/part-00017.parquet", b"x", &[]);
    let proxy = Proxy::start(server.address());
    proxy.faults(Faults { cut: Some((2, 20)), busy: 2, ..Faults::default() });
    for (outs, at) in [(["a", "b"], proxy.address()), (["shared", "shared"], server.address())] {
        let ended = infer_on_hosts(&place, (outs, "hosts"), &[], at);
        assert_eq!(ended.each_ref().map(|ended| ended.code), [0, 0], "{} {}", ended[0].stderr, ended[1].stderr);
        let said = ended.each_ref().map(|ended| ended.stderr.contains("uploaded to s3://lake/hosts"));
        assert_eq!(said, [true, false], "{} {}", ended[0].stderr, ended[1].stderr);
        assert_stored(outs, "hosts");
    }
    assert!(server.get("/lake/hosts/predictions.parquet/part-00017.parquet").is_none());
    // A store that fails ends both, and leaves the former results.
    let proxy = Proxy::start(server.address());
    proxy.faults(Faults { busy: u32::MAX, ..Faults::default() });
    let ended = infer_on_hosts(&place, (["c", "d"], "hosts"), &["--set", "infer.scores=true"], proxy.address());
    assert_eq!(ended.each_ref().map(|ended| ended.code), [5, 5], "{} {}", ended[0].stderr, ended[1].stderr);
    let words = "are complete, but not uploaded";
    assert!(ended.iter().any(|ended| ended.stderr.contains(words)), "{} {}", ended[0].stderr, ended[1].stderr);
    assert_stored(["shared", "shared"], "hosts");
    assert!(place.path("c/summary.json").is_file() && place.path("d/predictions.parquet/part-00003.parquet").is_file());
}

#[test]
fn failed_upload_does_not_restart_the_run() {
    let Some((place, _server)) = start() else { return };
    let args = [
        "run",
        "p.toml",
        "--run-dir",
        "again",
        "--processes",
        "2",
        "--set",
        "cluster.restarts=2",
        "--set",
        "graph.retry=1s",
    ];
    let mut failing =
        command(&place, &[&args[..], &["--upload", "s3://lake/x"]].concat(), SocketAddr::from(([127, 0, 0, 1], 1)));
    failing.env("AWS_ENDPOINT", "http://127.0.0.1:1");
    let ended = run(failing);
    assert_eq!(ended.code, 5, "{}", ended.stderr);
    assert!(
        ended.stderr.contains("the results in again are complete") && !ended.stderr.contains("restart"),
        "{}",
        ended.stderr
    );
    assert!(place.path("again/summary.json").is_file());
}

#[test]
fn failed_and_killed_uploads_leave_the_former_results() {
    let Some((place, server)) = start() else { return };
    let infer = |out: &str, more: &[&str], at: SocketAddr| {
        command(&place, &[&["infer", "runs/p", "--out", out, "--upload", "s3://lake/day"], more].concat(), at)
    };
    assert_eq!(run(infer("one", &[], server.address())).code, 0);
    let other = ["--set", "infer.scores=true", "--set", "infer.normalize=true"];
    let proxy = Proxy::start(server.address());
    for faults in [
        // No answer is complete.
        Faults { cut: Some((u32::MAX, 40)), ..Faults::default() },
        Faults { busy: u32::MAX, ..Faults::default() },
    ] {
        proxy.faults(faults.clone());
        let ended = run(infer("two", &other, proxy.address()));
        assert_eq!(ended.code, 5, "{faults:?}: {}", ended.stderr);
        for words in [
            "error: s3://lake/day/summary.json: ",
            "(graph.retry)",
            "; the results in two are complete, but not uploaded",
        ] {
            assert!(ended.stderr.contains(words), "{faults:?}: no {words:?} in {}", ended.stderr);
        }
        assert_uploaded(&place, &server, ("one", "day"), &NAMES);
    }
    // Every object is that of before or the new one, whenever the program is killed.
    for pause in [0, 3, 10, 20, 40] {
        let proxy = Proxy::start(server.address());
        let mut writer =
            infer("two", &other, proxy.address()).stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while proxy.take_bytes() == 0 && writer.try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline);
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(pause));
        crate::common::kill(writer.id());
        writer.wait().unwrap();
        for name in NAMES {
            let object = server.get(&format!("/lake/day/{name}")).unwrap();
            let same = |folder: &str| std::fs::read(place.path(folder).join(name)).is_ok_and(|file| file == object);
            // The summary has times, and is that of this writer or of an earlier one.
            assert!(name == "summary.json" || same("one") || same("two"), "{name} after {pause} ms");
        }
        let _: Value = serde_json::from_slice(&server.get("/lake/day/summary.json").unwrap()).unwrap();
    }
    assert_eq!(run(infer("two", &other, server.address())).code, 0);
    assert_uploaded(&place, &server, ("two", "day"), &NAMES);
}

#[test]
fn full_buckets_are_reported_without_retries() {
    let Some((place, server)) = start() else { return };
    let proxy = Proxy::start(server.address());
    for (status, code) in [
        ("403 Forbidden", "QuotaExceeded"),
        ("400 Bad Request", "XMinioAdminBucketQuotaExceeded"),
        ("507 Insufficient Storage", "XMinioStorageFull"),
    ] {
        proxy.faults(Faults { answer: Some((status, code)), ..Faults::default() });
        let args = ["infer", "runs/p", "--out", "out", "--upload", "s3://lake/full"];
        let ended = run(command(&place, &args, proxy.address()));
        assert_eq!(ended.code, 4, "{status}: {}", ended.stderr);
        let full = format!("the bucket is full (status {}, {code}: No room); remove objects", &status[..3]);
        for words in [&*full, "; the results in out are complete, but not uploaded"] {
            assert!(ended.stderr.contains(words), "{status}: no {words:?} in {}", ended.stderr);
        }
        assert!(!ended.stderr.contains("graph.retry"), "{}", ended.stderr);
    }
}

#[test]
fn wrong_targets_are_refused() {
    let Some((place, server)) = start() else { return };
    let upload = |url: &str, code: i32, words: &[&str]| {
        let args = ["infer", "runs/p", "--out", "out", "--upload", url];
        let ended = run(command(&place, &args, server.address()));
        assert_eq!(ended.code, code, "{url}: {}", ended.stderr);
        for word in words {
            assert!(ended.stderr.contains(word), "{url}: no {word:?} in {}", ended.stderr);
        }
    };
    // Before anything is computed.
    upload("scores", 2, &["error: --upload scores: not a URL of an object store"]);
    upload("https://host/scores", 2, &["cannot upload to this kind of URL; use s3://, gs:// or az://"]);
    upload("ftp://host/scores", 2, &["--upload ftp://host/scores: cannot upload"]);
    assert!(!place.path("out").exists());
    upload("s3://nowhere/scores", 3, &["there is no such bucket"]);
    let mut unreachable =
        command(&place, &["infer", "runs/p", "--out", "out", "--upload", "s3://lake/x"], server.address());
    unreachable.env("AWS_ENDPOINT", "http://127.0.0.1:1");
    let ended = run(unreachable);
    assert_eq!(ended.code, 5, "{}", ended.stderr);
    assert!(ended.stderr.contains("no connection"), "{}", ended.stderr);
}
