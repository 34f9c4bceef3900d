//! Messages of a run on stderr besides its progress.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::common::{TestDir, planted};

const SETTINGS: &str = "[model]\nkind = 'sage'\nhidden = 16\n[train]\nepochs = 1\n";

/// Writes the pipeline and hosts file of a run of two hosts, of which only rank 0 is started. Returns its port.
fn write_run_of_two_hosts(place: &TestDir) -> u16 {
    planted(place, "p.toml", SETTINGS);
    let [first, second] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap());
    place.write("hosts", format!("{first}\n{second}\n"));
    first.port()
}

/// The arguments of rank 0.
const RANK_0: [&str; 10] =
    ["run", "p.toml", "--run-dir", "run", "--hosts", "hosts", "--rank", "0", "--set", "cluster.start_timeout=4s"];

#[test]
fn waiting_and_refused_connections_are_reported() {
    let place = TestDir::new();
    let port = write_run_of_two_hosts(&place);
    let mut run = place.command(&RANK_0);
    let secret = place.write("secret", "0123456789abcdef0123456789abcdef");
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o644)).unwrap();
    let run = run.args(["--set", "cluster.secret_file=secret"]).env_remove("GNNFLOW_SECRET").stderr(Stdio::piped());
    let run = run.spawn().unwrap();
    let begin = Instant::now();
    loop {
        if let Ok(mut stranger) = TcpStream::connect(("127.0.0.1", port)) {
            stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
            break;
        }
        assert!(begin.elapsed() < Duration::from_secs(30), "rank 0 does not listen");
        std::thread::sleep(Duration::from_millis(10));
    }
    let ended = run.wait_with_output().unwrap();
    let stderr = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(5), "{stderr}");
    for line in
        ["warning: rank 0 waits for 1 of 2 processes", "warning: refused a connection from 127.0.0.1", "chmod 600"]
    {
        assert!(stderr.contains(line), "no {line:?} in {stderr}");
    }
}

#[test]
fn quiet_run_reports_errors_only() {
    let place = TestDir::new();
    write_run_of_two_hosts(&place);
    let secret = ("GNNFLOW_SECRET", "0123456789abcdef0123456789abcdef");
    let ended = place.command(&RANK_0).arg("--quiet").envs([secret]).output().unwrap();
    let stderr = String::from_utf8(ended.stderr).unwrap();
    assert!(stderr.starts_with("error: ") && stderr.lines().count() == 1, "{stderr}");
}

#[test]
fn log_level_comes_from_the_environment() {
    let place = TestDir::new();
    planted(&place, "p.toml", SETTINGS);
    let run = |level: &str| {
        let args = ["run", "p.toml", "--run-dir", level, "--processes", "2"];
        place.command(&args).env("GNNFLOW_LOG", level).output().unwrap()
    };
    let stderr_of = |level: &str| String::from_utf8(run(level).stderr).unwrap();
    assert!(stderr_of("info").contains("all 2 processes are connected"));
    assert!(!stderr_of("warn").contains("all 2 processes are connected"));
    let refused = run("loud");
    assert_eq!(refused.status.code(), Some(2));
    let stderr = String::from_utf8(refused.stderr).unwrap();
    assert!(stderr.contains("GNNFLOW_LOG = `loud`") && stderr.lines().count() == 1, "{stderr}");
}

/// Returns the lines on stderr of a command with lines as JSON, which all are objects with the keys of a line.
fn json_lines(place: &TestDir, args: &[&str]) -> (Option<i32>, Vec<serde_json::Value>) {
    let ended = place.command(args).env("GNNFLOW_LOG_FORMAT", "json").env("GNNFLOW_LOG", "info").output().unwrap();
    let stderr = String::from_utf8(ended.stderr).unwrap();
    let parse = |line: &str| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert!(line["time"].is_string() && line["message"].is_string() && line["rank"].is_u64(), "{line}");
        assert!(["error", "warning", "info"].contains(&line["level"].as_str().unwrap()), "{line}");
        line
    };
    (ended.status.code(), stderr.lines().map(parse).collect())
}

#[test]
fn lines_as_json_have_numbers_as_fields() {
    let place = TestDir::new();
    planted(&place, "p.toml", SETTINGS);
    for processes in ["1", "2"] {
        let args = ["run", "p.toml", "--run-dir", "run", "--set", "train.epochs=3", "--processes", processes];
        let (code, lines) = json_lines(&place, &args);
        assert_eq!(code, Some(0), "{lines:?}");
        let epochs: Vec<&serde_json::Value> =
            lines.iter().map(|line| &line["fields"]).filter(|fields| fields["epoch"].is_u64()).collect();
        assert_eq!(epochs.iter().map(|fields| fields["epoch"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 2, 3]);
        for fields in epochs {
            assert!(fields["loss"].is_f64() && fields["val"]["accuracy"].is_f64(), "{fields}");
            assert_eq!((&fields["metric"], &fields["epochs"]), (&"accuracy".into(), &3.into()));
        }
        if processes == "2" {
            let ranks = lines.iter().filter(|line| line["message"] == "all 2 processes are connected");
            let mut ranks: Vec<u64> = ranks.map(|line| line["rank"].as_u64().unwrap()).collect();
            ranks.sort_unstable();
            assert_eq!(ranks, [0, 1]);
        }
    }
}

#[test]
fn errors_are_json_too() {
    let place = TestDir::new();
    planted(&place, "p.toml", SETTINGS);
    for (args, code, words) in [
        (&["run", "p.toml", "--set", "train.epochs=0"][..], 2, "train.epochs"),
        (&["run", "p.toml", "--epochs", "3"], 2, "--epochs"),
        (&["run", "p.toml", "--processes", "2", "--run-dir", "run", "--set", "train.memory=1MB"], 2, "train.memory"),
    ] {
        let (found, lines) = json_lines(&place, args);
        assert_eq!(found, Some(code), "{lines:?}");
        let is_it =
            |line: &serde_json::Value| line["level"] == "error" && line["message"].as_str().unwrap().contains(words);
        assert!(lines.iter().any(is_it), "{words}: {lines:?}");
    }
    let ended = place.command(&["run", "p.toml"]).env("GNNFLOW_LOG_FORMAT", "yaml").output().unwrap();
    assert_eq!(ended.status.code(), Some(2));
    assert!(String::from_utf8(ended.stderr).unwrap().contains("GNNFLOW_LOG_FORMAT = `yaml`"));
}
