//! A process of a run across hosts, on this machine.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::relay::Relay;
use super::{TestDir, children, hosts_on};

/// A member that runs longer than this hangs.
pub(crate) const TIME_LIMIT: Duration = Duration::from_secs(90);

/// The process of one line of a hosts file, and the file with its stderr. It is killed when dropped.
pub(crate) struct Member {
    pub(crate) child: Child,
    stderr: PathBuf,
}

impl Member {
    /// Starts a command whose stderr goes to a file.
    pub(crate) fn new(command: &mut Command, stderr: PathBuf) -> Self {
        Self { child: command.stderr(File::create(&stderr).unwrap()).spawn().unwrap(), stderr }
    }

    pub(crate) fn stderr(&self) -> String {
        std::fs::read_to_string(&self.stderr).unwrap()
    }

    /// Waits for the worker, which is the child of the supervisor, and returns its process id.
    pub(crate) fn worker(&mut self) -> u32 {
        let since = Instant::now();
        loop {
            if let Some(&worker) = children(self.child.id()).first() {
                return worker;
            }
            assert!(self.child.try_wait().unwrap().is_none() && since.elapsed() < TIME_LIMIT, "{}", self.stderr());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits until stderr contains `words`.
    pub(crate) fn wait_for(&mut self, words: &str) {
        let since = Instant::now();
        while !self.stderr().contains(words) {
            let ended = self.child.try_wait().unwrap();
            assert!(
                ended.is_none() && since.elapsed() < TIME_LIMIT,
                "no {words:?} on stderr: {ended:?} {}",
                self.stderr()
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(self.child.id() as i32).unwrap();
        let _ = rustix::process::kill_process(pid, signal);
    }

    /// Waits for the end. Returns the exit code, or -1 after a signal.
    pub(crate) fn end(&mut self) -> i32 {
        let since = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code().unwrap_or(-1);
            }
            assert!(since.elapsed() < TIME_LIMIT, "hangs: {}", self.stderr());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Member {
    /// Kills it, and with it the process that it has started.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Starts the process of line `rank` of a hosts file.
pub(crate) fn start(place: &TestDir, hosts: &str, rank: usize, run: &str, args: &[&str]) -> Member {
    let rank = rank.to_string();
    let stderr = place.path(&format!("stderr-{run}-{rank}"));
    let all = ["run", "p.toml", "--quiet", "--hosts", hosts, "--rank", &rank, "--run-dir", run];
    // A shell may have started the tests in the background, where SIGINT is ignored.
    let mut command = Command::new("env");
    command.arg("--default-signal=INT").arg(env!("CARGO_BIN_EXE_gnnflow")).args(all).args(args);
    command.current_dir(place.path("")).stdin(Stdio::null()).stdout(Stdio::null());
    Member::new(command.env("GNNFLOW_SECRET", "a secret for the tests"), stderr)
}

/// Starts two processes. Rank 1 reaches rank 0 through the returned relay.
pub(crate) fn start_with_relay(place: &TestDir, run: &str, args: [&[&str]; 2]) -> (Relay, [Member; 2]) {
    let hosts = hosts_on(place, &[0, 1]);
    let lines = std::fs::read_to_string(place.path(&hosts)).unwrap();
    let (first, second) = lines.trim().split_once('\n').unwrap();
    let relay = Relay::to(first);
    let through = format!("{hosts}-relay");
    place.write(&through, format!("{}\n{second}\n", relay.address));
    let members = [start(place, &hosts, 0, run, args[0]), start(place, &through, 1, run, args[1])];
    (relay, members)
}
