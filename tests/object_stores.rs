//! Graphs in object stores, read from real servers on this machine: the same datasets as from disk, also with faults of
//! connections, or one error line with an exit code.
//!
//! S3 is `moto_server` (PyPI: `moto flask flask-cors`), Azure is `azurite-blob` (npm: `azurite`), each found through
//! `GNNFLOW_MOTO_SERVER` and `GNNFLOW_AZURITE_BLOB` or on the `PATH`. Tests without their server are skipped unless
//! the variable is set.

mod azure;
mod dataset;
mod follow;
mod proxy;
mod server;
mod upload;

use crate::common::{Ended, TestDir};
use proxy::{Faults, Proxy};
use serde_json::Value;
use server::Server;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// Creates a folder with a graph, and prepares it from disk, with its edges twice.
fn graph() -> TestDir {
    let place = TestDir::new();
    place.write(
        "g.toml",
        "[graph]\ngenerate = { kind = 'planted', nodes = 3000, edges = 40000, features = 24, classes = 5, out = 'graph' }\n\
         [partition]\nmethod = 'random'\nparts = 3\nout = 'generated'\n",
    );
    place.succeed(&["prepare", "g.toml"]);
    let (nodes, edges) = ("'graph/nodes.parquet'", "['graph/edges.parquet', 'graph/edges.parquet']");
    pipeline(&place, "disk", nodes, edges, "2min");
    place.succeed(&["prepare", "disk.toml"]);
    place
}

fn pipeline(place: &TestDir, name: &str, nodes: &str, edges: &str, retry: &str) {
    let text = format!(
        "[graph]\nnodes = {nodes}\nedges = {edges}\nundirected = true\nretry = '{retry}'\n\
         [partition]\nmethod = 'random'\nparts = 3\nout = '{name}'\n"
    );
    place.write(&format!("{name}.toml"), text);
}

/// Starts `moto_server` with the graph's files in bucket `graphs`.
fn moto(place: &TestDir, variables: &[(&str, &str)]) -> Option<Server> {
    let server = Server::start("GNNFLOW_MOTO_SERVER", "moto_server", |port| {
        (vec!["-H".into(), "127.0.0.1".into(), "-p".into(), port.to_string()], variables)
    })?;
    let edges = std::fs::read(place.path("graph/edges.parquet")).unwrap();
    // Public objects can also be read without a signature.
    let public = [("x-amz-acl", "public-read")];
    server.put("/graphs", b"", &public);
    server.put("/graphs/nodes.parquet", &std::fs::read(place.path("graph/nodes.parquet")).unwrap(), &public);
    for name in ["a.parquet", "b.parquet"] {
        server.put(&format!("/graphs/dump/edges/{name}"), &edges, &public);
    }
    for name in ["_SUCCESS", ".c.parquet", "d.csv", "deeper/e.parquet"] {
        server.put(&format!("/graphs/dump/edges/{name}"), b"no Parquet", &public);
    }
    Some(server)
}

/// Returns a command with credentials for the server, without other settings of stores in its environment.
fn command(place: &TestDir, args: &[&str], endpoint: SocketAddr) -> Command {
    let mut command = place.command(args);
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if ["AWS_", "GOOGLE_", "AZURE", "HTTP", "http", "ALL_PROXY", "all_proxy"].iter().any(|p| name.starts_with(p)) {
            command.env_remove(name);
        }
    }
    let endpoint = format!("http://{endpoint}");
    command.envs([("AWS_ENDPOINT", endpoint.as_str()), ("AWS_ALLOW_HTTP", "true"), ("AWS_REGION", "us-east-1")]);
    command.envs([("AWS_ACCESS_KEY_ID", "testing"), ("AWS_SECRET_ACCESS_KEY", "testing")]);
    command
}

fn run(mut command: Command) -> Ended {
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ended { code: output.status.code().unwrap_or(-1), stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// Asserts that the command prepares the same dataset as from disk.
fn assert_same_as_disk(place: &TestDir, name: &str, command: Command) {
    let ended = run(command);
    assert_eq!(ended.code, 0, "{name}: {}", ended.stderr);
    let (disk, remote) = (contents(&place.path("disk")), contents(&place.path(name)));
    assert_eq!(disk.keys().collect::<Vec<_>>(), remote.keys().collect::<Vec<_>>());
    for (file, bytes) in &disk {
        assert!(remote[file] == *bytes, "{name}: {file} differs");
    }
    std::fs::remove_dir_all(place.path(name)).unwrap();
}

/// Reads all files of a dataset, without reports and without manifest keys that depend on inputs or time.
fn contents(dataset: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut folders = vec![dataset.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())) {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false => {
                    let name = path.strip_prefix(dataset).unwrap().display().to_string();
                    files.insert(name, std::fs::read(&path).unwrap());
                }
            }
        }
    }
    files.retain(|name, _| !["partition.json", "partition.html"].contains(&name.as_str()));
    let mut manifest: Value = serde_json::from_slice(&files["manifest.json"]).unwrap();
    let keys = manifest.as_object_mut().unwrap();
    keys.retain(|key, _| !["inputs", "fingerprint", "created", "seconds", "files", "crc32"].contains(&key.as_str()));
    files.insert("manifest.json".into(), manifest.to_string().into());
    files
}

/// Asserts that `prepare` exits with `code` and one error line with `words`, and writes no dataset.
fn fails(
    place: &TestDir,
    nodes: &str,
    code: i32,
    words: &[&str],
    change: impl FnOnce(&mut Command),
    endpoint: SocketAddr,
) {
    pipeline(place, "bad", &format!("'{nodes}'"), "'s3://graphs/dump/edges'", "1s");
    let mut command = command(place, &["prepare", "bad.toml", "--quiet"], endpoint);
    change(&mut command);
    let ended = run(command);
    let errors: Vec<&str> = ended.stderr.lines().filter(|line| line.starts_with("error: ")).collect();
    assert_eq!((ended.code, errors.len()), (code, 1), "{nodes}: {}", ended.stderr);
    println!("{}", errors[0]);
    for word in words {
        assert!(errors[0].contains(word), "{nodes}: no {word:?} in {}", errors[0]);
    }
    assert!(!place.path("bad").exists(), "{nodes}: a dataset was written");
}

#[test]
fn s3_with_connection_faults_gives_the_same_dataset_as_disk() {
    let place = graph();
    let Some(server) = moto(&place, &[]) else { return };
    // At the same time, because most of it is waiting before requests are repeated.
    std::thread::scope(|scope| {
        for (name, nodes, edges) in [
            ("prefix", "'s3://graphs/nodes.parquet'", "'s3://graphs/dump/edges'"),
            ("slash", "'s3://graphs/'", "'s3://graphs/dump/edges/'"),
            ("list", "'s3a://graphs/nodes.parquet'", "['s3://graphs/dump/edges/a.parquet', 'graph/edges.parquet']"),
        ] {
            pipeline(&place, name, nodes, edges, "20s");
            let (place, proxy) = (&place, Proxy::start(server.address()));
            scope.spawn(move || {
                for faults in [
                    Faults::default(),
                    Faults { refuse: 5, ..Faults::default() },
                    Faults { busy: 5, ..Faults::default() },
                    Faults { cut: Some((6, 700)), ..Faults::default() },
                    Faults { cut: Some((10, 20_000)), busy: 2, refuse: 2, ..Faults::default() },
                    Faults { delay: 150, ..Faults::default() },
                ] {
                    proxy.faults(faults.clone());
                    let begin = Instant::now();
                    assert_same_as_disk(
                        place,
                        name,
                        command(place, &["prepare", &format!("{name}.toml")], proxy.address()),
                    );
                    println!("{name}, {faults:?}: {:.1} s", begin.elapsed().as_secs_f64());
                    assert!(proxy.faults_are_over(), "{name}: {faults:?} did not happen");
                }
            });
        }
    });
    let proxy = Proxy::start(server.address());
    // Requests without a signature.
    let mut unsigned = command(&place, &["prepare", "prefix.toml"], proxy.address());
    unsigned.env_remove("AWS_ACCESS_KEY_ID").env_remove("AWS_SECRET_ACCESS_KEY").env("AWS_SKIP_SIGNATURE", "true");
    assert_same_as_disk(&place, "prefix", unsigned);
    // An unchanged graph is not prepared again. A new object below the prefix is a change.
    let prepare = || {
        let ended = run(command(&place, &["prepare", "prefix.toml"], proxy.address()));
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        std::fs::metadata(place.path("prefix/manifest.json")).unwrap().modified().unwrap()
    };
    let first = prepare();
    proxy.take_bytes();
    assert_eq!(prepare(), first);
    println!("{} bytes to see that nothing has changed", proxy.take_bytes());
    let edges = std::fs::read(place.path("graph/edges.parquet")).unwrap();
    server.put("/graphs/dump/edges/c.parquet", &edges, &[("x-amz-acl", "public-read")]);
    assert_ne!(prepare(), first);
}

#[test]
fn requests_may_take_longer_than_the_stall_timeout() {
    let place = graph();
    let Some(server) = moto(&place, &[]) else { return };
    let proxy = Proxy::start(server.address());
    proxy.faults(Faults { delay: 2500, ..Faults::default() });
    pipeline(&place, "slow", "'s3://graphs/nodes.parquet'", "'s3://graphs/dump/edges'", "20s");
    for processes in ["1", "2"] {
        let args = ["prepare", "slow.toml", "--processes", processes, "--set", "cluster.stall_timeout=1s"];
        assert_same_as_disk(&place, "slow", command(&place, &args, proxy.address()));
    }
}

#[test]
fn dumps_and_partition_files_in_s3_are_read() {
    let place = graph();
    let Some(server) = moto(&place, &[]) else { return };
    let inspect = |what: &str| {
        let ended = run(command(&place, &["inspect", what, "--json"], server.address()));
        assert_eq!(ended.code, 0, "{what}: {}", ended.stderr);
        serde_json::from_str::<Value>(&ended.stdout).unwrap()
    };
    let rows = |found: &Value| {
        found["tables"].as_array().unwrap().iter().map(|table| table["rows"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    let local = run(command(&place, &["inspect", "graph/edges.parquet", "--json"], server.address()));
    let local: Value = serde_json::from_str(&local.stdout).unwrap();
    let twice = inspect("s3://graphs/dump/edges");
    assert_eq!(rows(&twice), [2 * local["tables"][0]["rows"].as_u64().unwrap()]);
    assert_eq!(twice["tables"][0]["files"], 2);
    assert_eq!(rows(&inspect("s3://graphs/")), [3000], "only nodes.parquet is directly below the prefix");
    let one = inspect("s3://graphs/dump/edges/a.parquet");
    assert_eq!((&one["degrees"], rows(&one)), (&local["degrees"], rows(&local)));
    let none = run(command(&place, &["inspect", "s3://graphs/none"], server.address()));
    assert_eq!(none.code, 3, "{}", none.stderr);
    assert!(none.stderr.contains("s3://graphs/none: there is no such object (inspect)"), "{}", none.stderr);

    place.succeed(&["export", "disk", "--out", "out"]);
    let parts = std::fs::read(place.path("out/nodes.parquet")).unwrap();
    server.put("/graphs/parts.parquet", &parts, &[("x-amz-acl", "public-read")]);
    for (name, file) in [("here", "out/nodes.parquet"), ("there", "s3://graphs/parts.parquet")] {
        place.write(
            &format!("{name}.toml"),
            format!(
                "[graph]\nnodes = 'graph/nodes.parquet'\nedges = 'graph/edges.parquet'\nundirected = true\n\
                 [partition]\nmethod = 'file'\nparts = 3\nfile = '{file}'\nfile_columns = {{ part = 'partition' }}\nout = '{name}'\n"
            ),
        );
        let ended = run(command(&place, &["prepare", &format!("{name}.toml")], server.address()));
        assert_eq!(ended.code, 0, "{name}: {}", ended.stderr);
    }
    let files = |name: &str| {
        let mut files = contents(&place.path(name));
        files.remove("manifest.json");
        files
    };
    assert!(files("here") == files("there"));
}

#[test]
fn errors_of_s3_are_reported_in_one_line() {
    let place = graph();
    let Some(server) = moto(&place, &[]) else { return };
    let at = server.address();
    let none = |_: &mut Command| ();
    fails(
        &place,
        "s3://graphs/nope.parquet",
        3,
        &["s3://graphs/nope.parquet: there is no such object (graph.nodes)"],
        none,
        at,
    );
    fails(&place, "s3://nowhere/nodes.parquet", 3, &["there is no such bucket", "endpoint"], none, at);
    fails(&place, "s3://graphs/none/", 3, &["s3://graphs/none/: no *.parquet file in it (graph.nodes)"], none, at);
    fails(&place, "s3://graphs/dump/edges/d.csv", 3, &["not a complete Parquet file"], none, at);
    fails(
        &place,
        "ftp://graphs/nodes.parquet",
        2,
        &["graph.nodes: ftp://graphs/nodes.parquet: ", "s3, gs, az"],
        none,
        at,
    );
    let tls = |c: &mut Command| {
        c.env_remove("AWS_ALLOW_HTTP");
    };
    fails(&place, "s3://graphs/nodes.parquet", 2, &["AWS_ALLOW_HTTP=true"], tls, at);
    let wrong = |c: &mut Command| {
        c.env("AWS_ENDPOINT", format!("https://{at}"));
    };
    fails(&place, "s3://graphs/nodes.parquet", 5, &["TLS failed", "SSL_CERT_FILE"], wrong, at);
    let half = |c: &mut Command| {
        c.env_remove("AWS_SECRET_ACCESS_KEY");
    };
    fails(&place, "s3://graphs/nodes.parquet", 2, &["AWS_SECRET_ACCESS_KEY"], half, at);
    let proxy = Proxy::start(at);
    for faults in [
        Faults { refuse: u32::MAX, ..Faults::default() },
        Faults { busy: u32::MAX, ..Faults::default() },
        Faults { cut: Some((u32::MAX, 10)), ..Faults::default() },
        Faults { silent: true, ..Faults::default() },
    ] {
        proxy.faults(faults);
        let begin = Instant::now();
        let words = ["s3://graphs/nodes.parquet: ", "; tried ", "(graph.retry)"];
        fails(&place, "s3://graphs/nodes.parquet", 5, &words, none, proxy.address());
        assert!(begin.elapsed().as_secs() < 10, "{:?}", begin.elapsed());
    }
    let gone = at.port();
    drop(server);
    fails(&place, "s3://graphs/nodes.parquet", 5, &["no connection"], none, SocketAddr::from(([127, 0, 0, 1], gone)));
}

#[test]
fn unknown_credentials_of_s3_are_refused() {
    let place = graph();
    // moto checks credentials after the eight requests that upload the files.
    let Some(server) = moto(&place, &[("INITIAL_NO_AUTH_ACTION_COUNT", "8")]) else { return };
    let words = ["s3://graphs/nodes.parquet: access refused (status 403", "AWS_ACCESS_KEY_ID"];
    fails(&place, "s3://graphs/nodes.parquet", 3, &words, |_| (), server.address());
    let words = ["access refused (status 403, ", "InvalidAccessKeyId"];
    fails(&place, "s3://graphs/dump/", 3, &words, |_| (), server.address());
}

#[test]
fn tls_trusts_the_certificates_of_this_machine() {
    let place = TestDir::new();
    place.write("n.parquet", "");
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=gnnflow on loopback"]);
    openssl.args(["-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE"]);
    let (cert, key) = (place.path("cert.pem"), place.path("key.pem"));
    let made = openssl.arg("-keyout").arg(&key).arg("-out").arg(&cert).output();
    if !made.is_ok_and(|made| made.status.success()) {
        println!("skipped: no openssl to make a certificate with");
        return;
    }
    let server = Server::start("GNNFLOW_MOTO_SERVER", "moto_server", |port| {
        let (cert, key) = (cert.display().to_string(), key.display().to_string());
        let args = ["-H", "127.0.0.1", "-p", &port.to_string(), "-c", &cert, "-k", &key];
        (args.map(String::from).to_vec(), &[])
    });
    let Some(server) = server else { return };
    let at = server.address();
    let https = |c: &mut Command| {
        c.env("AWS_ENDPOINT", format!("https://{at}")).env_remove("AWS_ALLOW_HTTP");
    };
    fails(&place, "s3://graphs/n.parquet", 5, &["TLS failed (invalid peer certificate", "SSL_CERT_FILE"], https, at);
    let trusted = |c: &mut Command| {
        https(c);
        c.env("SSL_CERT_FILE", &cert);
    };
    fails(&place, "s3://graphs/n.parquet", 3, &["there is no such bucket"], trusted, at);
}

#[test]
fn google_cloud_storage_is_read_through_its_xml_interface() {
    // The XML interface equals that of S3, so moto serves it.
    let place = graph();
    let Some(server) = moto(&place, &[]) else { return };
    let key = format!(
        r#"{{"gcs_base_url": "http://{}", "disable_oauth": true, "client_email": "", "private_key": "", "private_key_id": ""}}"#,
        server.address()
    );
    pipeline(&place, "gcs", "'gs://graphs/nodes.parquet'", "'gs://graphs/dump/edges'", "5s");
    let mut command = command(&place, &["prepare", "gcs.toml"], server.address());
    command.env("GOOGLE_SERVICE_ACCOUNT_KEY", key).env("GOOGLE_ALLOW_HTTP", "true");
    assert_same_as_disk(&place, "gcs", command);
}

#[test]
fn azure_gives_the_same_dataset_as_disk() {
    let place = graph();
    let Some(server) = azure::start(&place) else { return };
    let prepare = |name: &str| {
        let mut command = command(&place, &["prepare", &format!("{name}.toml")], server.address());
        command.env("AZURE_STORAGE_USE_EMULATOR", "true");
        command.env("AZURITE_BLOB_STORAGE_URL", format!("http://{}", server.address()));
        command
    };
    pipeline(&place, "azure", "'az://graphs/nodes.parquet'", "'az://graphs/dump/edges'", "5s");
    assert_same_as_disk(&place, "azure", prepare("azure"));
    let emulator = |c: &mut Command| {
        c.env("AZURE_STORAGE_USE_EMULATOR", "true");
        c.env("AZURITE_BLOB_STORAGE_URL", format!("http://{}", server.address()));
    };
    crate::common::planted(&place, "p.toml", "[model]\nkind = 'sage'\nhidden = 8\n[train]\nepochs = 1\n");
    for args in [
        &["run", "p.toml", "--upload", "az://graphs/results/monday"][..],
        &["inspect", "az://graphs/results/monday/predictions.parquet"],
    ] {
        let mut command = command(&place, args, server.address());
        emulator(&mut command);
        let ended = run(command);
        assert_eq!(ended.code, 0, "{args:?}: {}", ended.stderr);
    }
    let at = server.address();
    fails(&place, "az://graphs/no.parquet", 3, &["there is no such object (graph.nodes)"], emulator, at);
    fails(&place, "az://nowhere/n.parquet", 3, &["there is no such container"], emulator, at);
    let words = ["access refused (status 403", "AZURE_STORAGE_ACCOUNT_KEY"];
    let wrong = |c: &mut Command| {
        emulator(c);
        c.env("AZURE_STORAGE_ACCOUNT_KEY", "d3Jvbmc=");
    };
    fails(&place, "az://graphs/nodes.parquet", 3, &words, wrong, at);
    fails(&place, "az://graphs/nodes.parquet", 2, &["AZURE_STORAGE_ACCOUNT_NAME"], |_| (), at);
}
