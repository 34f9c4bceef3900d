//! Starts members and waits for their end, with a time limit.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Allowance for a slow, shared machine, added to every time limit.
pub(crate) const SLACK: Duration = Duration::from_secs(6);
/// A process that runs longer than this hangs.
pub(crate) const TIME_LIMIT: Duration = Duration::from_secs(60);

pub(crate) const SECRET: &str = "a secret for the tests";

/// Exit status, output and run time of an ended process.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) stderr: String,
    pub(crate) stdout: String,
    pub(crate) elapsed: Duration,
}

impl Ended {
    pub(crate) fn code(&self) -> Option<i32> {
        self.status.code()
    }

    /// Returns the error line of a failed process; panics unless there is exactly one.
    pub(crate) fn error(&self) -> String {
        let lines: Vec<&str> = self.stderr.lines().filter(|line| line.starts_with("error: ")).collect();
        assert_eq!(lines.len(), 1, "expected exactly one error line: {self:#?}");
        lines[0].to_string()
    }
}

/// A running process, killed when dropped.
pub(crate) struct Process {
    child: Child,
    since: Instant,
    stderr: Arc<Mutex<String>>,
    stdout: Arc<Mutex<String>>,
    readers: Vec<std::thread::JoinHandle<()>>,
}

impl Process {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (stderr, stdout) = (Arc::default(), Arc::default());
        let readers = vec![
            collect(child.stderr.take().unwrap(), Arc::clone(&stderr)),
            collect(child.stdout.take().unwrap(), Arc::clone(&stdout)),
        ];
        Process { child, since: Instant::now(), stderr, stdout, readers }
    }

    pub(crate) fn id(&self) -> i32 {
        self.child.id() as i32
    }

    pub(crate) fn stderr(&self) -> String {
        self.stderr.lock().unwrap().clone()
    }

    /// Waits until stderr contains `words`.
    pub(crate) fn wait_for(&self, words: &str) {
        let since = Instant::now();
        while !self.stderr().contains(words) {
            assert!(since.elapsed() < TIME_LIMIT, "no {words:?} on stderr: {}", self.stderr());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn signal(&self, signal: i32) {
        send(self.id(), signal);
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    pub(crate) fn end(mut self) -> Ended {
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(self.since.elapsed() < TIME_LIMIT, "hangs: {}", self.stderr());
            std::thread::sleep(Duration::from_millis(5));
        };
        let elapsed = self.since.elapsed();
        self.readers.drain(..).for_each(|reader| reader.join().unwrap());
        let (stderr, stdout) = (self.stderr(), self.stdout.lock().unwrap().clone());
        Ended { status, stderr, stdout, elapsed }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn collect(from: impl std::io::Read + Send + 'static, into: Arc<Mutex<String>>) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        for line in BufReader::new(from).split(b'\n').map_while(Result::ok) {
            let mut into = into.lock().unwrap();
            into.push_str(&String::from_utf8_lossy(&line));
            into.push('\n');
        }
    })
}

pub(crate) fn send(process: i32, signal: i32) {
    // SAFETY: a system call on integers; the process is a child of this one that has not been waited for.
    assert_eq!(unsafe { libc::kill(process, signal) }, 0);
}

/// Loopback addresses that no other test uses.
pub(crate) fn addresses(size: usize) -> Vec<String> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let (test, process) = (NEXT.fetch_add(1, Ordering::Relaxed), std::process::id());
    (0..size)
        .map(|rank| format!("127.{}.{}.{}:{}", 1 + process % 250, 1 + process / 250 % 250, 1 + test, 21000 + rank))
        .collect()
}

/// The members of one run, with their settings in the environment.
#[derive(Clone)]
pub(crate) struct Run {
    pub(crate) addresses: Vec<String>,
    settings: Vec<(String, String)>,
}

impl Run {
    pub(crate) fn new(size: usize) -> Self {
        Run { addresses: addresses(size), settings: Vec::new() }
            .set("SECRET", SECRET)
            .set("START_MS", "20000")
            .set("HEARTBEAT_MS", "2000")
            .set("STALL_MS", "30000")
            .set("EPOCHS", "30")
    }

    pub(crate) fn set(mut self, key: &str, value: impl ToString) -> Self {
        self.settings.retain(|(known, _)| known != key);
        self.settings.push((key.to_string(), value.to_string()));
        self
    }

    /// Sets the event of one rank at epoch 10: `kill`, `stop`, `panic`, `fail`, `sleep`, …
    pub(crate) fn event(self, rank: usize, what: &str) -> Self {
        self.set("EVENT", what).set("EVENT_RANK", rank)
    }

    /// The command of a member, or of a launcher.
    pub(crate) fn command(&self, role: &str) -> Command {
        // Programs inherit ignored interrupts, as in a script behind `&`. `env` restores the default.
        let mut command = Command::new("env");
        command.arg("--default-signal=INT").arg(std::env::current_exe().unwrap());
        self.configure(&mut command, role);
        command
    }

    /// Adds arguments and environment to a command that runs this binary.
    pub(crate) fn configure(&self, command: &mut Command, role: &str) {
        command.args(["member::process", "--exact", "--nocapture"]).env("MEMBER_ROLE", role);
        command.env("MEMBER_ADDRESSES", self.addresses.join(","));
        for (key, value) in &self.settings {
            command.env(format!("MEMBER_{key}"), value);
        }
    }

    pub(crate) fn start(&self, rank: usize) -> Process {
        self.start_as("member", rank)
    }

    pub(crate) fn start_as(&self, role: &str, rank: usize) -> Process {
        let mut command = self.command(role);
        command.env("MEMBER_RANK", rank.to_string());
        Process::start(command)
    }

    pub(crate) fn start_all(&self) -> Vec<Process> {
        (0..self.addresses.len()).map(|rank| self.start(rank)).collect()
    }

    /// The name of this rank in errors of other ranks.
    pub(crate) fn name(&self, rank: usize) -> String {
        format!("rank {rank} ({})", self.addresses[rank])
    }
}

pub(crate) fn end_all(processes: Vec<Process>) -> Vec<Ended> {
    processes.into_iter().map(Process::end).collect()
}
