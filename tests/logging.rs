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
