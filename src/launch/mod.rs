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
mod replace;
mod ssh;
mod start;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use gnnflow_data::format::hex;
use sha2::{Digest, Sha256};

use self::order::File;
use self::program::Program;
use self::replace::Replacing;
use self::start::Starter;
use crate::cluster::{ChildGroup, ClusterError, Failure, Outcome, Secret, Signals, print_line, read_hosts};
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
    /// Whether the run goes on without lost processes (`cluster.elastic`): they are started again.
    pub(crate) is_elastic: bool,
}

impl Launch {
    /// Starts all processes and returns the exit code for this one: that of the first cause. In an elastic run, that of rank 0, unless another process failed with an
    /// error that a restart does not mend.
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
        let starter = Starter {
            program: Program::this()?,
            folder: self.folder.clone(),
            files,
            environment,
            arguments: (0..hosts.len()).map(|rank| self.arguments_of(rank, &hosts_file)).collect(),
            hosts,
            ssh: self.ssh,
            is_elastic: self.is_elastic,
        };
        install(&starter)?;
        let signals = Signals::catch();
        let mut group = ChildGroup::new(Vec::new());
        let mut joined = Vec::new();
        for rank in 0..starter.hosts.len() {
            if signals.caught().is_some() {
                // The group ends those that have started.
                return Err(ClusterError::Own(Failure::new(130, "interrupted")).into());
            }
            let started = starter.start(rank)?;
            group.children.push(Some(started.child));
            group.remotes.push(started.remote);
            joined.push(started.joined);
        }
        let Outcome { code, killed } = match self.is_elastic {
            true => group.wait_with(&mut Replacing::new(starter.into(), joined), GRACE, true, &signals),
            false => group.wait(GRACE, true, &signals),
        };
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
}

/// Copies the program to all hosts that do not have it.
fn install(Starter { program, ssh, hosts, .. }: &Starter) -> Result<(), Error> {
    let mut distinct: Vec<&str> = hosts.iter().map(String::as_str).collect();
    distinct.sort_unstable();
    distinct.dedup();
    let results: Vec<Result<(), Failure>> = std::thread::scope(|scope| {
        let start = |host| {
            let name = format!("launch:copy-{host}");
            let thread = std::thread::Builder::new().name(name);
            thread.spawn_scoped(scope, move || program.install(ssh, host))
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

/// Returns the secret of this process's environment, or a new one.
fn secret() -> Result<String, ClusterError> {
    let own = Secret::find(|name| std::env::var(name).ok(), None)?;
    Ok(own.map_or_else(Secret::random, Ok)?.to_text())
}
