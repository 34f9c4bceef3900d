//! Starts several processes on one machine as children of this one.
//!
//! The parent runs the same program with the same arguments for every rank. Each child gets its rank in the environment, and a listening
//! socket, so that no other program can take its port. The parent forwards SIGINT and SIGTERM, and ends the other children after one has
//! failed. If the parent dies, the kernel ends the children.
//!
//! Across machines, each process can have such a parent, a supervisor, which restarts it if the run is lost.

use std::ffi::OsString;
use std::io::{IsTerminal, Read};
use std::net::TcpListener;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::child::{
    ADDRESSES, LISTENER, NOTICE_FD, Notice, RESTARTED, RUN, Restarted, USER_SECRET, bind_to_parent, prevents_restart,
};
use super::child_group::{ChildGroup, Outcome, copy_stderr};
use super::secret::random_hex;
use super::signals::Signals;
use super::{ClusterError, Secret};
use crate::stderr::{self, Level};

/// Starts the processes of a run on this machine, and restarts them after a failure.
///
/// ```no_run
/// use gnnflow::cluster::{Launcher, config_from_launcher};
///
/// // main() of a program that is both parent and child.
/// if let Some(config) = config_from_launcher().unwrap() {
///     println!("I am rank {} of {}", config.rank, config.size());
/// } else {
///     std::process::exit(Launcher::new(4).run().unwrap().into());
/// }
/// ```
#[derive(Debug, Clone)]
pub struct Launcher {
    /// Number of processes on this machine; 0 for a supervised rank of a hosts file, see [`Launcher::this_rank`].
    pub processes: usize,
    /// Maximum number of restarts from the last checkpoint.
    pub restarts: usize,
    /// Time for the other processes to end after the first failure, before they are killed.
    pub grace: Duration,
    /// Whether the processes may take as long as they need to end after a signal: they write a checkpoint. A second signal ends them.
    pub waits_after_signal: bool,
    /// Arguments of the children; by default those of this process.
    pub arguments: Vec<OsString>,
    /// The argument that a restart adds unless it is present: `--resume`.
    pub resume: OsString,
    /// The checkpoint file. A restart adds `resume` only if this run has written the file, or the first attempt's arguments contain
    /// `resume`: an unchanged older file belongs to another run. With `None`, every restart adds `resume`, and the processes check for a
    /// checkpoint.
    pub checkpoint: Option<PathBuf>,
    /// Whether the children print their results on stdout. Of several ranks, only the first does.
    pub shows_results: bool,
}

/// Identifies a version of a file: device, inode, time of the last change, length.
fn identity(path: &Path) -> Option<[u64; 5]> {
    let data = std::fs::metadata(path).ok()?;
    Some([data.dev(), data.ino(), data.mtime() as u64, data.mtime_nsec() as u64, data.len()])
}

impl Launcher {
    /// Makes a launcher of `processes` processes with this process's arguments, no restarts, and a grace time of three seconds.
    pub fn new(processes: usize) -> Self {
        Launcher {
            processes,
            restarts: 0,
            grace: Duration::from_secs(3),
            waits_after_signal: false,
            arguments: std::env::args_os().skip(1).collect(),
            resume: "--resume".into(),
            checkpoint: None,
            shows_results: true,
        }
    }

    /// Makes the supervisor of one rank of a run across machines. It has one child with the same arguments and environment, for which
    /// [`is_supervised`](super::is_supervised) is true.
    ///
    /// If a process is lost, all processes end, and all supervisors restart their children. After an error in the pipeline or the data, a
    /// bug or a signal, there is no restart.
    pub fn this_rank() -> Self {
        Launcher::new(0)
    }

    /// Runs all processes and returns the exit code for this one.
    ///
    /// The code is that of the first process that failed with its own error; 5 if only lost processes are known; 130 after SIGINT or
    /// SIGTERM. A failed run is restarted at most `restarts` times, with `--resume` if there is a checkpoint, unless the user (2, 3), a
    /// bug (70) or a signal (130) ended it. One line on stderr names the reason.
    ///
    /// Call it on the main thread: the kernel ends the children when the thread that started them ends.
    ///
    /// # Errors
    /// [`ClusterError::System`] if processes or sockets cannot be created.
    pub fn run(&self) -> Result<u8, ClusterError> {
        let signals = Signals::catch();
        let run = random_hex(8)?;
        let old_checkpoint = self.checkpoint.as_deref().and_then(identity);
        let (mut attempt, mut resume) = (0, false);
        // Whether the run has begun before, and why this rank is started again.
        let (mut begun, mut restarted) = (false, None);
        loop {
            let (Outcome { code, killed }, notices) = match self.processes {
                0 => self.attempt_alone((resume, restarted), &signals)?,
                _ => (self.attempt(&run, attempt, resume, &signals)?, Vec::new()),
            };
            let no_restart = prevents_restart(code) || notices.contains(&Notice::NoRestart);
            // A signal may have arrived after the end of the last child.
            let code = if code != 0 && signals.caught().is_some() { 130 } else { code };
            let rejoins = notices.contains(&Notice::Rejoin) && code != 130;
            begun |= notices.contains(&Notice::Joined);
            restarted = begun.then_some(if rejoins { Restarted::Returned } else { Restarted::Lost });
            if no_restart || code == 130 || (attempt >= self.restarts && !rejoins) {
                killed.iter().for_each(|line| print_line(line));
                return Ok(code);
            }
            let reason = if killed.is_empty() { failure_reason(code) } else { killed.join(", ") };
            let always_resume = self.arguments.contains(&self.resume);
            let now = self.checkpoint.as_deref().map(identity);
            resume = now.is_none_or(|now| now.is_some() && (always_resume || now != old_checkpoint));
            let from = match now {
                None => "",
                Some(_) if resume => " from the last checkpoint",
                Some(_) => " from the beginning",
            };
            // Not a failure of this attempt.
            if rejoins {
                print_line(&format!("a lost process has returned; starting again{from}"));
                continue;
            }
            attempt += 1;
            print_line(&format!("{reason}; starting again{from} (restart {attempt} of {})", self.restarts));
        }
    }

    /// Returns the command of a child: this program with its arguments. The child dies with the parent and inherits one descriptor.
    fn command(&self, resume: bool, inherited: RawFd) -> Command {
        let mut command = Command::new("/proc/self/exe");
        if let Some(name) = std::env::args_os().next() {
            command.arg0(name);
        }
        command.args(&self.arguments);
        if resume && !self.arguments.contains(&self.resume) {
            command.arg(&self.resume);
        }
        command.stdin(Stdio::null()).process_group(0);
        if !self.shows_results {
            command.stdout(Stdio::null());
        }
        let parent = std::process::id();
        // SAFETY: between fork and exec only async-signal-safe calls are made: prctl, getppid, fcntl, _exit. The callers
        // keep the descriptor open until the child is started.
        unsafe {
            command.pre_exec(move || bind_to_parent(parent, Some(inherited)));
        }
        command
    }

    /// Makes one attempt with all processes.
    fn attempt(&self, run: &str, attempt: usize, resume: bool, signals: &Signals) -> Result<Outcome, ClusterError> {
        let no_socket = |e| ClusterError::system("open a listening socket on 127.0.0.1", &e);
        let listeners: Vec<TcpListener> = (0..self.processes)
            .map(|_| TcpListener::bind(("127.0.0.1", 0)))
            .collect::<Result<_, _>>()
            .map_err(no_socket)?;
        let addresses: Vec<String> = listeners
            .iter()
            .map(|listener| listener.local_addr().map(|address| address.to_string()))
            .collect::<Result<_, _>>()
            .map_err(no_socket)?;
        let secret = Secret::random()?.to_text();

        let mut group = ChildGroup::new(addresses);
        for (rank, listener) in listeners.iter().enumerate() {
            let mut command = self.command(resume, listener.as_raw_fd());
            command
                .env("GNNFLOW_RANK", rank.to_string())
                .env("GNNFLOW_SIZE", self.processes.to_string())
                .env("GNNFLOW_SECRET", &secret)
                .envs(std::env::var_os("GNNFLOW_SECRET").map(|own| (USER_SECRET, own)))
                .env(ADDRESSES, group.addresses.join(","))
                .env(RUN, format!("{run}/{attempt}"))
                .env(LISTENER, listener.as_raw_fd().to_string());
            if rank > 0 {
                command.stdout(Stdio::null());
            }
            // Rank 0 needs a terminal for its progress bars. Without one, the parent copies whole lines.
            if rank > 0 || !std::io::stderr().is_terminal() {
                command.stderr(Stdio::piped());
            }
            // After an error, the drop of the group kills the children so far.
            let mut child = command.spawn().map_err(|e| ClusterError::system(format!("start process {rank}"), &e))?;
            let stderr = child.stderr.take();
            group.children.push(Some(child));
            if let Some(stderr) = stderr {
                group.copies.push(copy_stderr(rank, stderr).map_err(ClusterError::no_thread)?);
            }
        }
        // Only the children have the sockets now, so connections to a dead child are refused immediately.
        drop(listeners);
        Ok(group.wait(self.grace, self.waits_after_signal, signals))
    }

    /// Makes one attempt of a supervised rank. Returns its outcome, and what it has told.
    fn attempt_alone(
        &self,
        (resume, restarted): (bool, Option<Restarted>),
        signals: &Signals,
    ) -> Result<(Outcome, Vec<Notice>), ClusterError> {
        let no_pipe = |e| ClusterError::system("make a pipe", &e);
        let (mut reader, writer) = std::io::pipe().map_err(no_pipe)?;
        rustix::fs::fcntl_setfl(&reader, rustix::fs::OFlags::NONBLOCK).map_err(|e| no_pipe(e.into()))?;
        let mut command = self.command(resume, writer.as_raw_fd());
        command.env(NOTICE_FD, writer.as_raw_fd().to_string());
        match restarted {
            Some(why) => command.env(RESTARTED, why.word()),
            None => command.env_remove(RESTARTED),
        };
        let child = command.spawn().map_err(|e| ClusterError::system("start this rank's process", &e))?;
        drop(writer);
        let mut group = ChildGroup::new(Vec::new());
        group.children.push(Some(child));
        let outcome = group.wait(self.grace, self.waits_after_signal, signals);
        // Without a message from the child, the read returns nothing or an error.
        let mut bytes = [0; 16];
        let length = reader.read(&mut bytes).unwrap_or(0);
        Ok((outcome, bytes[..length].iter().filter_map(|&byte| Notice::of(byte)).collect()))
    }
}

/// Prints one line on stderr.
pub(crate) fn print_line(line: &str) {
    stderr::print(Level::Info, &format!("gnnflow: {line}"));
}

/// Returns the reason of an attempt's failure for its exit code.
fn failure_reason(code: u8) -> String {
    let why = match code {
        4 => "an error of this machine",
        5 => "a process was lost",
        _ => "see above",
    };
    format!("the run ended with exit code {code} ({why})")
}
