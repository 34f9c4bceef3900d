//! Tensor workers and runs of the real binary, that tests start, listen to and kill.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use super::sets;
use crate::common::Place;

/// A tensor worker of the real binary, which ends with the test.
pub(crate) struct Worker {
    child: Child,
    pub(crate) address: String,
    said: BufReader<ChildStdout>,
}

impl Worker {
    pub(crate) fn start(place: &Place, secret: Option<&str>) -> Self {
        Self::with(place, secret, &["--listen", "127.0.0.1:0"])
    }

    pub(crate) fn with(place: &Place, secret: Option<&str>, args: &[&str]) -> Self {
        let mut command: Command = place.command(&[&["tensor-worker", "--threads", "1"], args].concat());
        command.env_remove("GNNFLOW_SECRET").envs(secret.map(|secret| ("GNNFLOW_SECRET", secret)));
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening at ").unwrap().to_owned();
        Self { child, address, said }
    }

    /// The next line that it says.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.said.read_line(&mut line).unwrap();
        line
    }

    /// What else it says, on both ways, and how it ends: by itself.
    pub(crate) fn ended(mut self) -> (Option<i32>, String) {
        let mut said = String::new();
        self.said.read_to_string(&mut said).unwrap();
        self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        (self.child.wait().unwrap().code(), said)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Process ids of the tensor workers that process `parent` has launched.
pub(crate) fn launched(parent: u32) -> Vec<u32> {
    let processes =
        std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let is = |&id: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        let behind_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        let line = std::fs::read_to_string(format!("/proc/{id}/cmdline")).unwrap_or_default();
        behind_name.split_whitespace().nth(1) == Some(&parent.to_string()) && line.contains("tensor-worker")
    };
    processes.filter(is).collect()
}

/// A run under way, in which at least one epoch is over.
pub(crate) fn under_way(place: &Place, args: &[&str], secret: Option<&str>) -> Child {
    let metrics = place.path("run/metrics.jsonl");
    let _ = std::fs::remove_file(&metrics);
    let mut command = place.command(&sets(args));
    command.env_remove("GNNFLOW_SECRET").envs(secret.map(|secret| ("GNNFLOW_SECRET", secret)));
    let run = command.stderr(Stdio::piped()).spawn().unwrap();
    let begin = Instant::now();
    while std::fs::read_to_string(&metrics).unwrap_or_default().lines().next().is_none() {
        assert!(begin.elapsed() < Duration::from_secs(120), "no epoch");
        std::thread::sleep(Duration::from_millis(2));
    }
    run
}

/// What a run has said, and its exit code.
pub(crate) fn ended(mut run: Child) -> (Option<i32>, String) {
    let mut said = String::new();
    run.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    (run.wait().unwrap().code(), said)
}

pub(crate) fn kill(child: u32) {
    // By its id, which is this test's own grandchild's.
    assert!(Command::new("kill").args(["-9", &child.to_string()]).status().unwrap().success());
}

/// An address of this machine that nobody listens at.
pub(crate) fn free() -> String {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}
