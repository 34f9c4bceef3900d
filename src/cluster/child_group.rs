//! The child processes of one attempt: forwards their stderr, waits for them, and decides the exit code.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::child::prevents_restart;
use super::signals::{self, Signals};
use crate::stderr::print_of_child;

/// Time between two checks of the children.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// How a child ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ending {
    pub(crate) rank: usize,
    pub(crate) code: u8,
    signal: Option<i32>,
    /// Whether the parent's SIGKILL ended it.
    killed_by_parent: bool,
    /// The code of a program that is not gnnflow: of ssh, or of a shell.
    foreign_code: Option<i32>,
}

impl Ending {
    /// Returns whether the child can be started again: it has failed, and it may not fail in the same way. If a signal has ended the connection with
    /// a host, its process is lost.
    pub(crate) fn is_loss(&self) -> bool {
        self.foreign_code.is_some() || self.signal.is_some() || !prevents_restart(self.code)
    }

    /// Makes the end of a process of this program.
    #[cfg(test)]
    pub(crate) fn with_code(rank: usize, code: u8) -> Self {
        Self { rank, code, signal: None, killed_by_parent: false, foreign_code: None }
    }
}

/// What the ends of children mean for the others.
pub(crate) trait Losses {
    /// Returns whether the others end, too, because a child has ended. Only then its exit code counts. `interrupted` tells whether all children have
    /// received a signal.
    fn ends_others(&mut self, ending: &Ending, interrupted: bool) -> bool;

    /// Starts lost children again. Called all the time, but not after a signal, and not when the children end.
    fn mend(&mut self, group: &mut ChildGroup);
}

/// Every failure ends the others.
struct Final;

impl Losses for Final {
    fn ends_others(&mut self, ending: &Ending, _: bool) -> bool {
        ending.code != 0
    }

    fn mend(&mut self, _: &mut ChildGroup) {}
}

/// How the children of one attempt ended.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// The exit code of the attempt.
    pub(crate) code: u8,
    /// One message for each child that a signal killed, or that has lost its host.
    pub(crate) killed: Vec<String>,
}

/// Maximum bytes of a line of a child.
const LONGEST_LINE: u64 = 1 << 16;

/// A copy of a child's output to this process's stderr.
#[derive(Debug)]
pub(crate) struct Copied {
    /// Closes when the copying ends.
    end: Receiver<()>,
    last_line: Arc<Mutex<String>>,
}

impl Copied {
    /// Copies output of the process of rank `rank` to this process's stderr, line by line. In lines as text, each has `prefix`. `name` is that of the thread.
    ///
    /// # Errors
    /// If the system has no threads left.
    pub(crate) fn start(
        name: String,
        (rank, prefix): (usize, String),
        output: impl Read + Send + 'static,
    ) -> std::io::Result<Self> {
        Self::without(|_| false, name, (rank, prefix), output)
    }

    /// Copies output, as [`Copied::start`] does, without the lines that `is_taken` takes.
    ///
    /// # Errors
    /// If the system has no threads left.
    pub(crate) fn without(
        mut is_taken: impl FnMut(&[u8]) -> bool + Send + 'static,
        name: String,
        (rank, prefix): (usize, String),
        output: impl Read + Send + 'static,
    ) -> std::io::Result<Self> {
        let (sender, end) = channel::<()>();
        let last_line = Arc::<Mutex<String>>::default();
        let last = last_line.clone();
        std::thread::Builder::new().name(name).spawn(move || {
            let _sender = sender;
            let mut reader = BufReader::new(output);
            let mut line = Vec::new();
            // A longer line is printed in pieces, so that it takes bounded memory.
            let mut inside_line = false;
            while matches!((&mut reader).take(LONGEST_LINE).read_until(b'\n', &mut line), Ok(1..)) {
                let only_ends_line = inside_line && line == b"\n";
                inside_line = line.last() != Some(&b'\n');
                while matches!(line.last(), Some(b'\n' | b'\r')) {
                    line.pop();
                }
                if !only_ends_line && !is_taken(&line) {
                    print_of_child(rank, &prefix, &line);
                    *last.lock().unwrap_or_else(PoisonError::into_inner) = String::from_utf8_lossy(&line).into_owned();
                }
                line.clear();
            }
        })?;
        Ok(Self { end, last_line })
    }
}

/// Copies the stderr of a child on this machine. Lines of ranks above 0 begin with `[rank K]`.
///
/// # Errors
/// If the system has no threads left.
pub(super) fn copy_stderr(rank: usize, stderr: impl Read + Send + 'static) -> std::io::Result<Copied> {
    let prefix = if rank == 0 { String::new() } else { format!("[rank {rank}] ") };
    Copied::start(format!("launch:stderr-{rank}"), (rank, prefix), stderr)
}

/// A child that is connected with a process on another host.
#[derive(Debug)]
pub(crate) struct Remote {
    /// The program and its host, in messages.
    pub(crate) name: String,
    /// Receives the signals for the process. `None` after the end of the child.
    pub(crate) signals: Option<Sender<libc::c_int>>,
    /// The copy of the child's stderr.
    pub(crate) stderr: Copied,
    /// The copy of the child's stdout, unless that is the parent's.
    pub(crate) stdout: Option<Copied>,
}

/// The children of one attempt. Dropping it kills the remaining ones.
pub(crate) struct ChildGroup {
    pub(crate) children: Vec<Option<Child>>,
    pub(super) addresses: Vec<String>,
    /// Of children on this machine.
    pub(super) copies: Vec<Copied>,
    /// Of each child, or empty if all are on this machine.
    pub(crate) remotes: Vec<Remote>,
}

impl ChildGroup {
    /// Makes an empty group. `addresses` are by rank, or empty if the parent does not know them.
    pub(crate) fn new(addresses: Vec<String>) -> Self {
        ChildGroup { children: Vec::new(), addresses, copies: Vec::new(), remotes: Vec::new() }
    }

    /// Waits for all children. After a failure or a signal, kills those that still run after `grace`; after a signal only unless
    /// `waits_after_signal`.
    pub(crate) fn wait(self, grace: Duration, waits_after_signal: bool, signals: &Signals) -> Outcome {
        self.wait_with(&mut Final, grace, waits_after_signal, signals)
    }

    /// Waits as [`ChildGroup::wait`] does. `losses` decides which ends of children are failures, and may start these again.
    pub(crate) fn wait_with(
        mut self,
        losses: &mut dyn Losses,
        grace: Duration,
        waits_after_signal: bool,
        signals: &Signals,
    ) -> Outcome {
        let mut endings: Vec<Ending> = Vec::new();
        let mut kill_at: Option<Instant> = None;
        let (mut killed_by_parent, mut interrupted) = (false, false);
        while self.children.iter().any(Option::is_some) {
            for ending in self.ended(killed_by_parent) {
                if losses.ends_others(&ending, interrupted) {
                    endings.push(ending);
                    kill_at.get_or_insert(Instant::now() + grace);
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
            if kill_at.is_none() && !interrupted {
                losses.mend(&mut self);
            }
            if kill_at.is_some_and(|until| Instant::now() >= until) && !killed_by_parent {
                killed_by_parent = true;
                self.signal(libc::SIGKILL);
            }
            if self.children.iter().any(Option::is_some) {
                std::thread::sleep(POLL_INTERVAL);
            }
        }
        // Grandchildren may hold the pipes open.
        let until = Instant::now() + Duration::from_secs(1);
        let of_remotes = self.remotes.iter().flat_map(|remote| remote.stdout.iter().chain([&remote.stderr]));
        for copy in self.copies.iter().chain(of_remotes) {
            let _ = copy.end.recv_timeout(until.saturating_duration_since(Instant::now()));
        }
        if interrupted {
            return Outcome { code: 130, killed: Vec::new() };
        }
        Outcome { code: exit_code(&endings), killed: self.killed(&endings) }
    }

    /// Returns the children that have ended since the last call. They are no longer in the group.
    fn ended(&mut self, killed_by_parent: bool) -> Vec<Ending> {
        let mut endings = Vec::new();
        for (rank, slot) in self.children.iter_mut().enumerate() {
            let Some(child) = slot else { continue };
            match child.try_wait() {
                Ok(None) => continue,
                Ok(Some(status)) => {
                    endings.push(ending(rank, status, killed_by_parent, self.remotes.get(rank).is_some()))
                }
                // Another part of the program has waited for it, so its status is unknown.
                Err(_) => endings.push(Ending { rank, code: 5, signal: None, killed_by_parent, foreign_code: None }),
            }
            *slot = None;
            // A process that the child has left behind sees the end of its input.
            if let Some(remote) = self.remotes.get_mut(rank) {
                remote.signals = None;
            }
        }
        endings
    }

    /// Sends a signal to the process groups of all remaining children, or to the processes on other hosts. SIGKILL is for the children
    /// themselves: the other hosts notice that.
    fn signal(&self, signal: libc::c_int) {
        for (rank, child) in self.children.iter().enumerate().filter_map(|(rank, child)| Some((rank, child.as_ref()?)))
        {
            match self.remotes.get(rank) {
                // A receiver that has ended has no process.
                Some(remote) if signal != libc::SIGKILL => {
                    let _ = remote.signals.as_ref().map(|signals| signals.send(signal));
                }
                // SAFETY: a system call on integers. The child has not been waited for, so its process id, which is also its
                // group's id, is still valid.
                _ => unsafe {
                    libc::kill(-(child.id() as libc::pid_t), signal);
                },
            }
        }
    }

    /// Returns a message for each child that a signal killed, except the parent's SIGKILL, or that has lost its host.
    fn killed(&self, endings: &[Ending]) -> Vec<String> {
        let is_unexplained = |ending: &&Ending| {
            let lost_host = ending.foreign_code.is_some() && self.remotes.get(ending.rank).is_some();
            lost_host || ending.signal.is_some() && !ending.killed_by_parent
        };
        endings.iter().filter(is_unexplained).map(|ending| self.sentence(ending)).collect()
    }

    /// Returns how a child ended, in words. With the last line on its stderr if it was on another host.
    pub(crate) fn sentence(&self, ending: &Ending) -> String {
        let (remote, address) = (self.remotes.get(ending.rank), self.addresses.get(ending.rank));
        let who = match (remote, address) {
            (Some(remote), _) => remote.name.clone(),
            (None, Some(address)) => format!("rank {} ({address})", ending.rank),
            (None, None) => "the process".to_string(),
        };
        if let Some(signal) = ending.signal {
            let hint = if signal == libc::SIGKILL { ", which the system sends if memory runs out" } else { "" };
            return format!("{who} was killed by {} (signal {signal}){hint}", signals::name(signal));
        }
        let code = ending.foreign_code.unwrap_or_else(|| ending.code.into());
        let last = remote.map(|remote| remote.stderr.last_line.lock().unwrap_or_else(PoisonError::into_inner).clone());
        let last = last.filter(|last| !last.is_empty()).map_or(String::new(), |last| format!(": {last}"));
        format!("{who} ended with exit code {code}{last}")
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

fn ending(rank: usize, status: ExitStatus, killed_by_parent: bool, is_remote: bool) -> Ending {
    let signal = status.signal();
    let foreign_code = status.code().filter(|code| is_remote && !matches!(code, 0 | 2 | 3 | 4 | 5 | 70 | 130));
    let code = match (status.code(), signal) {
        (Some(_), _) if foreign_code.is_some() => 5,
        (Some(code), _) => u8::try_from(code).unwrap_or(70),
        // Interrupted before it had installed its handlers.
        (None, Some(libc::SIGINT | libc::SIGTERM)) => 130,
        (None, _) => 5,
    };
    let killed_by_parent = killed_by_parent && signal == Some(libc::SIGKILL);
    Ending { rank, code, signal, killed_by_parent, foreign_code }
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
        codes.iter().map(|&(rank, code)| Ending::with_code(rank, code)).collect()
    }

    #[test]
    fn exit_code_is_that_of_the_first_own_failure() {
        assert_eq!(exit_code(&endings(&[(0, 0), (1, 0)])), 0);
        assert_eq!(exit_code(&endings(&[(0, 5), (1, 3)])), 3);
        assert_eq!(exit_code(&endings(&[(1, 5), (0, 0)])), 5);
        assert_eq!(exit_code(&endings(&[(1, 70), (0, 3)])), 70);
        let killed = Ending { rank: 0, code: 5, signal: Some(9), killed_by_parent: true, foreign_code: None };
        assert_eq!(exit_code(&[killed, endings(&[(1, 4)])[0]]), 4);
        assert_eq!(exit_code(&[killed]), 5);
    }

    #[test]
    fn codes_of_other_programs_are_lost_hosts() {
        let of = |code: i32, is_remote| ending(1, ExitStatus::from_raw(code << 8), false, is_remote);
        assert_eq!((of(255, true).code, of(255, true).foreign_code), (5, Some(255)));
        assert_eq!((of(3, true).code, of(3, true).foreign_code), (3, None));
        assert_eq!((of(101, false).code, of(101, false).foreign_code), (101, None));
    }

    #[test]
    fn losses_are_failures_that_a_restart_may_mend() {
        let of = |status: i32| ending(1, ExitStatus::from_raw(status), false, true).is_loss();
        assert!([4, 5, 255, 137, 1].iter().all(|code| of(code << 8)));
        assert!([0, 2, 3, 70, 130].iter().all(|code| !of(code << 8)));
        // Of ssh itself.
        assert!(of(libc::SIGKILL) && of(libc::SIGTERM));
    }
}
