//! Starts the processes of a hosts file over ssh.
//!
//! ```text
//! launcher ─ ssh ─► remote-launch ─► gnnflow run … --hosts … --rank K
//!    stdin: the order, then signals; its end ends the process
//! ```
//!
//! ssh gives its arguments to a shell on the host, so the only one is a fixed text. All else is in the order.

mod order;
mod program;
mod remote;
mod ssh;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use gnnflow_data::format::hex;
use sha2::{Digest, Sha256};

use self::order::{File, Order};
use self::program::Program;
use crate::cluster::{
    ChildGroup, ClusterError, Copied, Failure, Outcome, Remote, Secret, Signals, print_line, read_hosts,
};
use crate::error::Error;
use crate::stderr::format_variable;

pub(crate) use self::remote::remote_launch;
pub(crate) use self::ssh::Ssh;

/// Time for the other processes to end after the first failure. They receive its cause at once, unless they still wait for that process.
const GRACE: Duration = Duration::from_secs(4);

/// Processes to start.
pub(crate) struct Launch {
    /// The hosts file.
    pub(crate) hosts: PathBuf,
    /// The program that connects with a host.
    pub(crate) ssh: Ssh,
    /// The working folder on each host: absolute, or below the login folder.
    pub(crate) folder: PathBuf,
    /// Variables for the processes.
    pub(crate) environment: BTreeMap<String, String>,
    /// The command and its arguments, without hosts file and rank.
    pub(crate) arguments: Vec<String>,
    /// The pipeline file that the command reads.
    pub(crate) pipeline: Option<PathBuf>,
}

impl Launch {
    /// Starts all processes and returns the exit code for this one: that of the first cause.
    ///
    /// # Errors
    /// If the files cannot be read, a host cannot be reached, or no process can be started.
    pub(crate) fn run(self) -> Result<u8, Error> {
        let addresses = read_hosts(&self.hosts)?;
        let hosts = addresses.iter().map(|address| ssh::host_of(address)).collect::<Result<Vec<String>, _>>()?;
        let mut environment = self.environment.clone();
        environment.insert("GNNFLOW_SECRET".into(), secret()?);
        environment.extend(format_variable());
        let (hosts_file, files) = self.files(&addresses)?;
        let program = Program::this()?;
        self.install(&program, &hosts)?;
        let signals = Signals::catch();
        let mut group = ChildGroup::new(Vec::new());
        for (rank, host) in hosts.iter().enumerate() {
            if signals.caught().is_some() {
                // The group ends those that have started.
                return Err(ClusterError::Own(Failure::new(130, "interrupted")).into());
            }
            let order = Order {
                program_sha256: program.sha256.clone(),
                folder: self.folder.clone(),
                files: files.clone(),
                arguments: self.arguments_of(rank, &hosts_file),
                environment: environment.clone(),
            };
            self.start(&mut group, rank, host, &program, &order)?;
        }
        let Outcome { code, killed } = group.wait(GRACE, true, &signals);
        killed.iter().for_each(|line| print_line(line));
        Ok(code)
    }

    /// Returns the name of the hosts file on the hosts, and the files to write there.
    fn files(&self, addresses: &[String]) -> Result<(String, Vec<File>), Error> {
        let mut files = Vec::new();
        if let Some(path) = &self.pipeline {
            let unreadable = |error| format!("{}: cannot read the pipeline file: {error}", path.display());
            let text = std::fs::read_to_string(path).map_err(|error| ClusterError::Usage(unreadable(error)))?;
            files.push(File { path: path.clone(), text });
        }
        let text: String = addresses.iter().map(|address| format!("{address}\n")).collect();
        // A launch with other hosts has another file.
        let name = format!(".gnnflow/hosts-{}.txt", hex(&Sha256::digest(&text)[..6]));
        files.push(File { path: name.clone().into(), text });
        Ok((name, files))
    }

    /// Returns the arguments of one process, whose hosts file is `hosts_file`.
    pub(crate) fn arguments_of(&self, rank: usize, hosts_file: &str) -> Vec<String> {
        let rank = ["--rank".into(), rank.to_string()];
        let hosts = match self.arguments.first().map(String::as_str) {
            Some("check-cluster") => vec![hosts_file.to_owned()],
            _ => vec!["--hosts".into(), hosts_file.to_owned()],
        };
        self.arguments.iter().cloned().chain(hosts).chain(rank).collect()
    }

    /// Copies the program to all hosts that do not have it.
    fn install(&self, program: &Program, hosts: &[String]) -> Result<(), Error> {
        let mut distinct: Vec<&str> = hosts.iter().map(String::as_str).collect();
        distinct.sort_unstable();
        distinct.dedup();
        let results: Vec<Result<(), Failure>> = std::thread::scope(|scope| {
            let start = |host| {
                let name = format!("launch:copy-{host}");
                let thread = std::thread::Builder::new().name(name);
                thread.spawn_scoped(scope, move || program.install(&self.ssh, host))
            };
            let threads: Vec<_> = distinct.iter().copied().map(start).collect();
            let wait = |thread: std::io::Result<std::thread::ScopedJoinHandle<'_, _>>| match thread {
                Ok(thread) => thread.join().unwrap_or_else(|_| Err(Failure::new(70, "the thread of a copy panicked"))),
                Err(error) => Err(ClusterError::no_thread(error).into()),
            };
            threads.into_iter().map(wait).collect()
        });
        let problems: Vec<Failure> = results.into_iter().filter_map(Result::err).collect();
        let Some(first) = problems.first() else { return Ok(()) };
        let lines: Vec<&str> = problems.iter().map(|problem| problem.message.as_str()).collect();
        Err(ClusterError::Own(Failure::new(first.code, lines.join("\n"))).into())
    }

    /// Starts one process.
    fn start(
        &self,
        group: &mut ChildGroup,
        rank: usize,
        host: &str,
        program: &Program,
        order: &Order,
    ) -> Result<(), Error> {
        let bytes = order.encode()?;
        let mut command = self.ssh.command(host, &program.start_script());
        command.stdin(Stdio::piped()).stderr(Stdio::piped());
        // The results of rank 0 are those of this program.
        command.stdout(if rank == 0 { Stdio::inherit() } else { Stdio::piped() });
        let mut child = command.spawn().map_err(|error| self.ssh.not_started(&error))?;
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        group.children.push(Some(child));
        let prefix = if rank == 0 { String::new() } else { format!("[{rank} {host}] ") };
        if let Some(stdout) = stdout {
            let copied = Copied::start(format!("launch:stdout-{rank}"), (rank, prefix.clone()), stdout);
            group.copies.push(copied.map_err(ClusterError::no_thread)?);
        }
        let (Some(stdin), Some(stderr)) = (stdin, stderr) else { return Ok(()) };
        let (signals, received) = channel();
        let name = format!("rank {rank}: {} to {host}", self.ssh.name());
        let stderr =
            Copied::start(format!("launch:stderr-{rank}"), (rank, prefix), stderr).map_err(ClusterError::no_thread)?;
        group.remotes.push(Remote { name, signals, stderr });
        let sender = std::thread::Builder::new().name(format!("launch:stdin-{rank}"));
        sender.spawn(move || send(stdin, &bytes, &received)).map_err(ClusterError::no_thread)?;
        Ok(())
    }
}

/// Writes an order, and the signals that follow it. The other side sees the end when the group is dropped.
fn send(mut stdin: impl std::io::Write, order: &[u8], signals: &Receiver<libc::c_int>) {
    // After an error, the program at the other end has ended, and its exit code says why.
    let mut write = |bytes: &[u8]| stdin.write_all(bytes).and_then(|()| stdin.flush()).is_ok();
    if write(order) {
        while let Ok(signal) = signals.recv() {
            if !write(&[signal as u8]) {
                return;
            }
        }
    }
}

/// Returns the secret of this process's environment, or a new one.
fn secret() -> Result<String, ClusterError> {
    let own = Secret::find(|name| std::env::var(name).ok(), None)?;
    Ok(own.map_or_else(Secret::random, Ok)?.to_text())
}
