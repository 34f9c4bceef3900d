//! Starts the process of a rank on its host.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};

use super::order::{File, Order};
use super::program::Program;
use super::ssh::Ssh;
use crate::cluster::{ClusterError, Copied, Failure, JOINED, Remote, TELLS_LAUNCHER};

/// What all processes of a launch have in common, and the arguments of each.
pub(super) struct Starter {
    pub(super) ssh: Ssh,
    pub(super) program: Program,
    pub(super) folder: PathBuf,
    pub(super) files: Vec<File>,
    pub(super) environment: BTreeMap<String, String>,
    /// By rank.
    pub(super) hosts: Vec<String>,
    /// By rank.
    pub(super) arguments: Vec<Vec<String>>,
    /// Whether lost processes are started again.
    pub(super) is_elastic: bool,
}

/// A process that is started.
pub(super) struct Started {
    /// The connection with its host.
    pub(super) child: Child,
    pub(super) remote: Remote,
    /// Whether the run has begun with it. Only known in an elastic run, of ranks above 0.
    pub(super) joined: Arc<AtomicBool>,
}

impl Starter {
    /// Copies this program to the host of a rank, unless it has a copy.
    ///
    /// # Errors
    /// If the host cannot be reached.
    pub(super) fn install(&self, rank: usize) -> Result<(), Failure> {
        self.program.install(&self.ssh, &self.hosts[rank])
    }

    /// Starts the process of a rank. Its host has the program. Call it on the main thread: the kernel ends the connection with the thread.
    ///
    /// # Errors
    /// If the process here that connects with the host cannot be started.
    pub(super) fn start(&self, rank: usize) -> Result<Started, ClusterError> {
        let is_replaced = self.is_elastic && rank > 0;
        let mut environment = self.environment.clone();
        if is_replaced {
            environment.insert(TELLS_LAUNCHER.into(), "1".into());
        }
        let order = Order {
            program_sha256: self.program.sha256.clone(),
            folder: self.folder.clone(),
            files: self.files.clone(),
            arguments: self.arguments[rank].clone(),
            environment,
            is_replaced,
        };
        let bytes = order.encode()?;
        let mut command = self.ssh.command(&self.hosts[rank], &self.program.start_script());
        command.stdin(Stdio::piped()).stderr(Stdio::piped());
        // The results of rank 0 are those of this program.
        command.stdout(if rank == 0 { Stdio::inherit() } else { Stdio::piped() });
        let mut child = command.spawn().map_err(|error| self.ssh.not_started(&error))?;
        let joined = Arc::<AtomicBool>::default();
        match self.follow(rank, &mut child, bytes, Arc::clone(&joined)) {
            Ok(remote) => Ok(Started { child, remote, joined }),
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(error)
            }
        }
    }

    /// Sends the order to a process, and copies what it prints. Sets `joined` when it tells that.
    fn follow(
        &self,
        rank: usize,
        child: &mut Child,
        order: Vec<u8>,
        joined: Arc<AtomicBool>,
    ) -> Result<Remote, ClusterError> {
        let closed = || ClusterError::system("connect with the process", &std::io::ErrorKind::BrokenPipe.into());
        let (stdin, stderr) = child.stdin.take().zip(child.stderr.take()).ok_or_else(closed)?;
        let host = &self.hosts[rank];
        let source = (rank, if rank == 0 { String::new() } else { format!("[{rank} {host}] ") });
        let tells = self.is_elastic && rank > 0;
        let is_taken = move |line: &[u8]| {
            let is_taken = tells && line == JOINED.as_bytes();
            joined.fetch_or(is_taken, Ordering::Relaxed);
            is_taken
        };
        let copy = |stdout| Copied::without(is_taken, format!("launch:stdout-{rank}"), source.clone(), stdout);
        let stdout = child.stdout.take().map(copy).transpose().map_err(ClusterError::no_thread)?;
        let stderr = Copied::start(format!("launch:stderr-{rank}"), source.clone(), stderr);
        let stderr = stderr.map_err(ClusterError::no_thread)?;
        let (signals, received) = channel();
        let sender = std::thread::Builder::new().name(format!("launch:stdin-{rank}"));
        sender.spawn(move || send(stdin, &order, &received)).map_err(ClusterError::no_thread)?;
        let name = format!("rank {rank}: {} to {host}", self.ssh.name());
        Ok(Remote { name, signals: Some(signals), stderr, stdout })
    }
}

/// Writes an order, and the signals that follow it. The other side sees the end when the sender of the signals is dropped.
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
