//! Several processes on one machine: this process as the parent of all others.
//!
//! The parent runs the same program again for every rank, with the same arguments, and gives each child its rank in the
//! environment and an already listening socket, so that no port can be lost in between. It waits for the children by
//! process id, passes SIGINT and SIGTERM on, and ends the others once one has failed. When the parent dies, however it
//! dies, the kernel ends the children.
//!
//! Across machines every process can have such a parent of its own, which starts it again when the run is lost.

use std::ffi::OsString;
use std::io::{IsTerminal, Read, Write};
use std::net::TcpListener;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::child::{ADDRESSES, HOPELESS, LISTENER, OWN_SECRET, RUN, belong_to, is_hopeless};
use super::child_group::{ChildGroup, Outcome, pass_on};
use super::secret::random_hex;
use super::signals::Signals;
use super::{ClusterError, Secret};

/// A run of several processes on this machine, as its parent sees it.
///
/// ```no_run
/// use gnnflow::cluster::{Launcher, seat_from_launcher};
///
/// // main() of a program that is parent and child alike.
/// if let Some(config) = seat_from_launcher().unwrap() {
///     println!("I am rank {} of {}", config.rank, config.size());
/// } else {
///     std::process::exit(Launcher::new(4).run().unwrap().into());
/// }
/// ```
#[derive(Debug, Clone)]
pub struct Launcher {
    /// Number of processes on this machine; 0 for a supervised rank of a hosts file, see
    /// [`Launcher::this_rank`].
    pub processes: usize,
    /// How often a failed run is started again from its last checkpoint.
    pub restarts: usize,
    /// After a first failure, the time that the others have to end by themselves.
    pub grace: Duration,
    /// Arguments of the children: by default those of this process.
    pub arguments: Vec<OsString>,
    /// What a restart adds to the arguments, unless it is there already: `--resume`.
    pub resume: OsString,
    /// The checkpoint that a restart goes on from. A file that was there before the first attempt, and is unchanged, is of
    /// another run: a restart goes on from it only if the arguments of the first attempt said so. `None`: every restart adds
    /// `resume`, and the processes themselves find out whether there is a checkpoint.
    pub checkpoint: Option<PathBuf>,
}

/// What tells a file from another one of the same name: device, inode, time of the last change, length.
fn identity(path: &Path) -> Option<[u64; 5]> {
    let data = std::fs::metadata(path).ok()?;
    Some([data.dev(), data.ino(), data.mtime() as u64, data.mtime_nsec() as u64, data.len()])
}

impl Launcher {
    /// As many processes with this process's own arguments, no restarts, and three seconds of grace.
    pub fn new(processes: usize) -> Self {
        Launcher {
            processes,
            restarts: 0,
            grace: Duration::from_secs(3),
            arguments: std::env::args_os().skip(1).collect(),
            resume: "--resume".into(),
            checkpoint: None,
        }
    }

    /// The supervisor of one rank of a run across machines: one child, which finds its rank and the hosts file in the same
    /// arguments and environment as this process, and knows by [`is_supervised`](super::is_supervised) that it is the child.
    ///
    /// When a process is lost, all end, and all supervisors start their child again. A rank that ended because of the
    /// user's pipeline or data, a bug or a signal is not started again, and neither are the others, who are told the cause.
    pub fn this_rank() -> Self {
        Launcher::new(0)
    }

    /// Runs all processes to their end and returns the exit code for this one.
    ///
    /// The code is that of the first process that failed for a reason of its own; 5 when all that is known is that a
    /// process was lost; 130 after SIGINT or SIGTERM. A failed run is started again, with `--resume` where there is a
    /// checkpoint, as often as `restarts` says, unless the user (2, 3), a bug (70) or a signal (130) ended it. One line on
    /// stderr says why.
    ///
    /// Call it on the main thread: the kernel ends the children when the thread that started them ends.
    ///
    /// # Errors
    /// [`ClusterError::System`] when processes or sockets cannot be made.
    pub fn run(&self) -> Result<u8, ClusterError> {
        let signals = Signals::catch();
        let run = random_hex(8)?;
        let before = self.checkpoint.as_deref().and_then(identity);
        let (mut attempt, mut resume) = (0, false);
        loop {
            let (Outcome { code, killed }, hopeless) = match self.processes {
                0 => self.attempt_alone(resume, &signals)?,
                _ => {
                    let outcome = self.attempt(&run, attempt, resume, &signals)?;
                    let hopeless = is_hopeless(outcome.code);
                    (outcome, hopeless)
                }
            };
            // A signal may have come after the end of the last child.
            let code = if code != 0 && signals.caught().is_some() { 130 } else { code };
            if hopeless || code == 130 || attempt >= self.restarts {
                killed.iter().for_each(|line| say(line));
                return Ok(code);
            }
            attempt += 1;
            let reason = if killed.is_empty() { of_exit_code(code) } else { killed.join(", ") };
            let given = self.arguments.contains(&self.resume);
            let now = self.checkpoint.as_deref().map(identity);
            resume = now.is_none_or(|now| now.is_some() && (given || now != before));
            let from = match now {
                None => "",
                Some(_) if resume => " from the last checkpoint",
                Some(_) => " from the beginning",
            };
            say(&format!("{reason}; starting again{from} (restart {attempt} of {})", self.restarts));
        }
    }

    /// This program once more, with its arguments, dying with the parent and keeping the descriptor `kept`.
    fn command(&self, resume: bool, kept: RawFd) -> Command {
        let mut command = Command::new("/proc/self/exe");
        if let Some(name) = std::env::args_os().next() {
            command.arg0(name);
        }
        command.args(&self.arguments);
        if resume && !self.arguments.contains(&self.resume) {
            command.arg(&self.resume);
        }
        command.stdin(Stdio::null()).process_group(0);
        let parent = std::process::id();
        // SAFETY: between fork and exec only async-signal-safe calls are made: prctl, getppid, fcntl, _exit. The callers
        // keep the descriptor open until the child is started.
        unsafe {
            command.pre_exec(move || belong_to(parent, kept));
        }
        command
    }

    /// One attempt of a whole family.
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

        let mut family = ChildGroup::new(addresses);
        for (rank, listener) in listeners.iter().enumerate() {
            let mut command = self.command(resume, listener.as_raw_fd());
            command
                .env("GNNFLOW_RANK", rank.to_string())
                .env("GNNFLOW_SIZE", self.processes.to_string())
                .env("GNNFLOW_SECRET", &secret)
                .envs(std::env::var_os("GNNFLOW_SECRET").map(|own| (OWN_SECRET, own)))
                .env(ADDRESSES, family.addresses.join(","))
                .env(RUN, format!("{run}/{attempt}"))
                .env(LISTENER, listener.as_raw_fd().to_string());
            if rank > 0 {
                command.stdout(Stdio::null());
            }
            // Rank 0 keeps a terminal, for its progress bars; otherwise its lines pass here, so that lines stay whole.
            if rank > 0 || !std::io::stderr().is_terminal() {
                command.stderr(Stdio::piped());
            }
            // An error leaves `family`, whose end is the end of the children so far.
            let mut child = command.spawn().map_err(|e| ClusterError::system(format!("start process {rank}"), &e))?;
            let stderr = child.stderr.take();
            family.children.push(Some(child));
            if let Some(stderr) = stderr {
                family.console.push(pass_on(rank, stderr).map_err(ClusterError::no_thread)?);
            }
        }
        // Only the children hold the sockets now: dialling a dead one is refused at once.
        drop(listeners);
        Ok(family.wait(self.grace, signals))
    }

    /// One attempt of one rank: how it ended, and whether another attempt is hopeless.
    fn attempt_alone(&self, resume: bool, signals: &Signals) -> Result<(Outcome, bool), ClusterError> {
        let no_pipe = |e| ClusterError::system("make a pipe", &e);
        let (mut word, pipe) = std::io::pipe().map_err(no_pipe)?;
        rustix::fs::fcntl_setfl(&word, rustix::fs::OFlags::NONBLOCK).map_err(|e| no_pipe(e.into()))?;
        let mut command = self.command(resume, pipe.as_raw_fd());
        command.env(HOPELESS, pipe.as_raw_fd().to_string());
        let child = command.spawn().map_err(|e| ClusterError::system("start this rank's process", &e))?;
        drop(pipe);
        let mut family = ChildGroup::new(Vec::new());
        family.children.push(Some(child));
        let outcome = family.wait(self.grace, signals);
        // A pipe without a word is an error, or nothing is read.
        let told = matches!(word.read(&mut [0]), Ok(1));
        let hopeless = is_hopeless(outcome.code) || told;
        Ok((outcome, hopeless))
    }
}

/// Says one line on stderr. A closed stderr is no reason to end.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "gnnflow: {line}");
}

/// Why an attempt ended whose processes ended with `code`.
fn of_exit_code(code: u8) -> String {
    let why = match code {
        4 => "this machine failed it",
        5 => "a process was lost",
        _ => "see above",
    };
    format!("the run ended with exit code {code} ({why})")
}
