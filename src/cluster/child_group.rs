//! The child processes of one attempt: forwards their stderr, waits for them, and decides the exit code.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use super::signals::{self, Signals};

/// Time between two checks of the children.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// How a child ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ending {
    rank: usize,
    code: u8,
    signal: Option<i32>,
    /// Whether the parent's SIGKILL ended it.
    killed_by_parent: bool,
}

/// How the children of one attempt ended.
#[derive(Debug)]
pub(super) struct Outcome {
    /// The exit code of the attempt.
    pub(super) code: u8,
    /// One message for each child that a signal killed.
    pub(super) killed: Vec<String>,
}

/// Copies a child's stderr to this process's stderr, line by line. Lines of ranks above 0 begin with `[rank K]`. The returned channel
/// closes when the copying ends.
///
/// # Errors
/// If the system has no threads left.
pub(super) fn forward_stderr(rank: usize, stderr: impl Read + Send + 'static) -> std::io::Result<Receiver<()>> {
    let (sender, receiver) = channel::<()>();
    std::thread::Builder::new().name(format!("launch:stderr-{rank}")).spawn(move || {
        let _sender = sender;
        let mut reader = BufReader::new(stderr);
        let mut line = Vec::new();
        let prefix = if rank == 0 { String::new() } else { format!("[rank {rank}] ") };
        while matches!(reader.read_until(b'\n', &mut line), Ok(1..)) {
            while matches!(line.last(), Some(b'\n' | b'\r')) {
                line.pop();
            }
            let text = [prefix.as_bytes(), &line, b"\n"].concat();
            let _ = std::io::stderr().lock().write_all(&text);
            line.clear();
        }
    })?;
    Ok(receiver)
}

/// The children of one attempt. Dropping it kills the remaining ones.
pub(super) struct ChildGroup {
    pub(super) children: Vec<Option<Child>>,
    pub(super) addresses: Vec<String>,
    pub(super) stderr_copies: Vec<Receiver<()>>,
}

impl ChildGroup {
    /// Makes an empty group. `addresses` are by rank, or empty if the parent does not know them.
    pub(super) fn new(addresses: Vec<String>) -> Self {
        ChildGroup { children: Vec::new(), addresses, stderr_copies: Vec::new() }
    }

    /// Waits for all children. After a failure or a signal, kills those that still run after `grace`; after a signal only unless
    /// `waits_after_signal`.
    pub(super) fn wait(mut self, grace: Duration, waits_after_signal: bool, signals: &Signals) -> Outcome {
        let mut endings: Vec<Ending> = Vec::new();
        let mut kill_at: Option<Instant> = None;
        let (mut killed_by_parent, mut interrupted) = (false, false);
        while self.children.iter().any(Option::is_some) {
            for (rank, slot) in self.children.iter_mut().enumerate() {
                let Some(child) = slot else { continue };
                match child.try_wait() {
                    Ok(None) => {}
                    Ok(Some(status)) => {
                        *slot = None;
                        endings.push(ending(rank, status, killed_by_parent));
                    }
                    // Another part of the program has waited for it, so its status is unknown.
                    Err(_) => {
                        *slot = None;
                        endings.push(Ending { rank, code: 5, signal: None, killed_by_parent });
                    }
                }
            }
            if let Some(signal) = signals.caught()
                && !interrupted
            {
                interrupted = true;
                if !waits_after_signal {
                    kill_at.get_or_insert(Instant::now() + grace);
                }
                self.signal(signal);
            }
            if endings.iter().any(|ending| ending.code != 0) {
                kill_at.get_or_insert(Instant::now() + grace);
            }
            if kill_at.is_some_and(|until| Instant::now() >= until) && !killed_by_parent {
                killed_by_parent = true;
                self.signal(libc::SIGKILL);
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        // Grandchildren may hold the pipes open.
        let until = Instant::now() + Duration::from_secs(1);
        for copy in self.stderr_copies.drain(..) {
            let _ = copy.recv_timeout(until.saturating_duration_since(Instant::now()));
        }
        if interrupted {
            return Outcome { code: 130, killed: Vec::new() };
        }
        Outcome { code: exit_code(&endings), killed: self.killed(&endings) }
    }

    /// Sends a signal to the process groups of all remaining children.
    fn signal(&self, signal: libc::c_int) {
        for child in self.children.iter().flatten() {
            // SAFETY: a system call on integers. The child has not been waited for, so its process id, which is also its
            // group's id, is still valid.
            unsafe {
                libc::kill(-(child.id() as libc::pid_t), signal);
            }
        }
    }

    /// Returns a message for each child that a signal killed, except the parent's SIGKILL.
    fn killed(&self, endings: &[Ending]) -> Vec<String> {
        let sentence = |ending: &Ending| {
            let signal = ending.signal.filter(|_| !ending.killed_by_parent)?;
            let hint = if signal == libc::SIGKILL { ", which the system sends if memory runs out" } else { "" };
            let name = signals::name(signal);
            let who = match self.addresses.get(ending.rank) {
                Some(address) => format!("rank {} ({address})", ending.rank),
                None => "the process".to_string(),
            };
            Some(format!("{who} was killed by {name} (signal {signal}){hint}"))
        };
        endings.iter().filter_map(sentence).collect()
    }
}

impl Drop for ChildGroup {
    fn drop(&mut self) {
        self.signal(libc::SIGKILL);
        for child in self.children.iter_mut().flatten() {
            let _ = child.wait();
        }
    }
}

fn ending(rank: usize, status: ExitStatus, killed_by_parent: bool) -> Ending {
    let signal = status.signal();
    let code = match (status.code(), signal) {
        (Some(code), _) => u8::try_from(code).unwrap_or(70),
        // Interrupted before it had installed its handlers.
        (None, Some(libc::SIGINT | libc::SIGTERM)) => 130,
        (None, _) => 5,
    };
    Ending { rank, code, signal, killed_by_parent: killed_by_parent && signal == Some(libc::SIGKILL) }
}

/// Returns the exit code of the attempt: that of the first child that failed with a code other than 5, else of the first that failed.
///
/// Processes that have lost a peer end with 5, possibly before that peer ends.
fn exit_code(endings: &[Ending]) -> u8 {
    let failed = || endings.iter().filter(|ending| ending.code != 0 && !ending.killed_by_parent);
    failed()
        .find(|ending| ending.code != 5)
        .or_else(|| failed().next())
        .or_else(|| endings.iter().find(|ending| ending.code != 0))
        .map_or(0, |ending| ending.code)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endings(codes: &[(usize, u8)]) -> Vec<Ending> {
        codes.iter().map(|&(rank, code)| Ending { rank, code, signal: None, killed_by_parent: false }).collect()
    }

    #[test]
    fn exit_code_is_that_of_the_first_own_failure() {
        assert_eq!(exit_code(&endings(&[(0, 0), (1, 0)])), 0);
        assert_eq!(exit_code(&endings(&[(0, 5), (1, 3)])), 3);
        assert_eq!(exit_code(&endings(&[(1, 5), (0, 0)])), 5);
        assert_eq!(exit_code(&endings(&[(1, 70), (0, 3)])), 70);
        let killed = Ending { rank: 0, code: 5, signal: Some(9), killed_by_parent: true };
        assert_eq!(exit_code(&[killed, endings(&[(1, 4)])[0]]), 4);
        assert_eq!(exit_code(&[killed]), 5);
    }
}
