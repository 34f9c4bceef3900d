//! Starts, observes and kills tensor workers and runs of the real binary.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use super::sets;
use crate::common::TestDir;

/// A tensor worker of the real binary, killed when dropped.
pub(crate) struct Worker {
    child: Child,
    pub(crate) address: String,
    stdout: BufReader<ChildStdout>,
}

impl Worker {
    pub(crate) fn start(place: &TestDir, secret: Option<&str>) -> Self {
        Self::with_args(place, secret, &["--listen", "127.0.0.1:0"])
    }

    pub(crate) fn with_args(place: &TestDir, secret: Option<&str>, args: &[&str]) -> Self {
        let mut command: Command = place.command(&[&["tensor-worker", "--threads", "1"], args].concat());
        command.env_remove("GNNFLOW_SECRET").envs(secret.map(|secret| ("GNNFLOW_SECRET", secret)));
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening at ").unwrap().to_owned();
        Self { child, address, stdout }
    }

    /// Reads the next line of stdout.
    pub(crate) fn next_line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line
    }

    /// Waits until the worker exits. Returns its exit code, and the rest of stdout and stderr.
    pub(crate) fn finish(mut self) -> (Option<i32>, String) {
        let mut output = String::new();
        self.stdout.read_to_string(&mut output).unwrap();
        self.child.stderr.take().unwrap().read_to_string(&mut output).unwrap();
        (self.child.wait().unwrap().code(), output)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the process ids of the tensor workers that process `parent` has launched.
pub(crate) fn launched_workers(parent: u32) -> Vec<u32> {
    let processes =
        std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let is_worker = |&id: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        let line = std::fs::read_to_string(format!("/proc/{id}/cmdline")).unwrap_or_default();
        fields.split_whitespace().nth(1) == Some(&parent.to_string()) && line.contains("tensor-worker")
    };
    processes.filter(is_worker).collect()
}

/// Starts a run and waits until its first epoch is complete.
pub(crate) fn start_and_wait_for_epoch(place: &TestDir, args: &[&str], secret: Option<&str>) -> Child {
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

/// Waits for the end of a run. Returns its exit code and stderr.
pub(crate) fn wait_for_end(mut run: Child) -> (Option<i32>, String) {
    let mut stderr = String::new();
    run.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    (run.wait().unwrap().code(), stderr)
}

pub(crate) fn kill(child: u32) {
    // The process is a grandchild of this test.
    assert!(Command::new("kill").args(["-9", &child.to_string()]).status().unwrap().success());
}

/// Returns a local address at which no process listens.
pub(crate) fn free_address() -> String {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}
