//! Errors of runs with several processes, and their exit codes.

use std::path::PathBuf;

use gnnflow_data::error::FEWER_THREADS;
use gnnflow_pipelines::REJOIN;
use serde::{Deserialize, Serialize};

/// Maximum bytes of a message to other processes. Longer ones are truncated.
const MESSAGE_BYTES: usize = 4096;

/// The cause of a run's failure.
///
/// Values have text instead of source errors, because several threads share the first cause and it is sent to all processes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClusterError {
    /// The hosts file cannot be read, or a line of it is invalid. Line 0 is the file as a whole.
    #[error("{}{}: {problem}", path.display(), if *line > 0 { format!(":{line}") } else { String::new() })]
    Hosts {
        /// The hosts file.
        path: PathBuf,
        /// Line, counted from 1.
        line: usize,
        /// The problem.
        problem: String,
    },
    /// Rank, size, secret or addresses are invalid.
    #[error("{0}")]
    Usage(String),
    /// This process cannot listen at its address.
    #[error("rank {rank} cannot listen at {address}: {problem}; {advice}")]
    Listen {
        /// This process.
        rank: usize,
        /// The address from the hosts file.
        address: String,
        /// The system's message, with errno.
        problem: String,
        /// Advice to the user.
        advice: String,
    },
    /// A system call that does not concern a peer failed.
    #[error("cannot {what}: {problem}")]
    System {
        /// The operation that failed.
        what: String,
        /// The system's message, with errno.
        problem: String,
    },
    /// A peer is lost: it died, sends no heartbeats, makes no progress, or did not join.
    #[error("lost rank {rank} ({address}): {why}")]
    Lost {
        /// The lost or failed peer.
        rank: usize,
        /// Its address.
        address: String,
        /// The observed problem.
        why: String,
    },
    /// No worker completes any work: all wait for each other, or for a lost thread or message.
    #[error(
        "the run is stalled: no process has completed any work for {after} (cluster.stall_timeout); raise the timeout if a \
         single task takes longer, otherwise please report this as a bug in gnnflow"
    )]
    Stalled {
        /// The stall timeout, with its unit.
        after: String,
    },
    /// This process is stuck in long local work.
    #[error(
        "\"{work}\" has read, written and computed nothing for {after} ({factor} times cluster.stall_timeout); check the disks, servers and devices \
         that it uses, or raise the timeout"
    )]
    Stuck {
        /// The name of the work.
        work: String,
        /// How long, with its unit.
        after: String,
        /// How many stall timeouts that is.
        factor: u32,
    },
    /// The other processes count this one as lost, for example because it was stopped for long.
    #[error("the other processes went on without this one (rank {rank}): {why}")]
    GivenUp {
        /// This process.
        rank: usize,
        /// The problem that the others observed.
        why: String,
    },
    /// A peer has the secret, but another version, pipeline, dataset, rank or number of processes.
    #[error("rank {rank} ({address}) has another {what}: {theirs} there, {ours} here{}", remedy(what))]
    Mismatch {
        /// The name of the difference.
        what: String,
        /// The peer.
        rank: usize,
        /// Its address.
        address: String,
        /// The value of this process.
        ours: String,
        /// The value of the peer.
        theirs: String,
    },
    /// A peer at a configured address has another shared secret.
    #[error("rank {rank} ({address}) has another shared secret than this process; use the same one in all processes")]
    WrongSecret {
        /// The peer.
        rank: usize,
        /// Its address.
        address: String,
    },
    /// Another process has already joined with this rank.
    #[error("rank {rank} is taken: another process joined {address} with this rank; give every process its own --rank")]
    RankTaken {
        /// The rank of both processes.
        rank: usize,
        /// Address of the peer that reported it.
        address: String,
    },
    /// A tensor worker cannot find the run at which it registers, or was refused.
    #[error("--connect {address}: the run {why}")]
    NotRegistered {
        /// Address of the run's first process.
        address: String,
        /// The observed problem.
        why: String,
    },
    /// A peer reported its own failure.
    #[error("rank {rank} ({address}) failed: {message}")]
    Peer {
        /// The lost or failed peer.
        rank: usize,
        /// Its address.
        address: String,
        /// The peer's exit code.
        code: u8,
        /// The peer's message.
        message: String,
    },
    /// This process failed.
    #[error("{}", .0.message)]
    Own(Failure),
    /// A panic, which is a bug in gnnflow.
    #[error("internal error: {message} (thread {thread}, {location}); this is a bug in gnnflow, please report it")]
    Bug {
        /// The panic's message.
        message: String,
        /// Name of the thread.
        thread: String,
        /// File, line and column.
        location: String,
    },
    /// The run went on without this process, and has ended.
    #[error("the run has ended without this process, which was lost; its results are complete")]
    Finished,
    /// A signal ended this process.
    #[error("interrupted by {0}")]
    Interrupted(&'static str),
}

impl ClusterError {
    /// Returns the exit code: 2 usage, 4 this machine, 5 the cluster, 70 bug in gnnflow, 130 interrupted, or the code of the
    /// worker's failure.
    pub fn exit_code(&self) -> u8 {
        match self {
            ClusterError::Hosts { .. } | ClusterError::Usage(_) => 2,
            ClusterError::Listen { .. } | ClusterError::System { .. } | ClusterError::Stuck { .. } => 4,
            ClusterError::Lost { .. }
            | ClusterError::GivenUp { .. }
            | ClusterError::Mismatch { .. }
            | ClusterError::WrongSecret { .. }
            | ClusterError::RankTaken { .. }
            | ClusterError::NotRegistered { .. }
            | ClusterError::Peer { .. } => 5,
            ClusterError::Own(failure) => failure.code,
            ClusterError::Stalled { .. } | ClusterError::Bug { .. } => 70,
            ClusterError::Interrupted(_) => 130,
            ClusterError::Finished => 0,
        }
    }

    /// Whether the run pauses at a checkpoint, to take back a lost process.
    pub(crate) fn is_rejoin(&self) -> bool {
        match self {
            ClusterError::Own(failure) => failure.code == REJOIN,
            ClusterError::Peer { code, .. } => *code == REJOIN,
            _ => false,
        }
    }

    pub(crate) fn system(what: impl Into<String>, problem: &std::io::Error) -> Self {
        ClusterError::System { what: what.into(), problem: problem.to_string() }
    }

    /// Makes the error for a thread that cannot be started.
    pub(crate) fn no_thread(problem: impl std::fmt::Display) -> Self {
        ClusterError::System { what: "start a thread".into(), problem: format!("{problem}; {FEWER_THREADS}") }
    }

    /// Returns the cause to send to the other processes.
    pub(super) fn to_cause(&self, own_rank: usize, own_address: &str) -> Cause {
        let (kind, culprit, address, code, message) = match self {
            ClusterError::Lost { rank, address, why } => (CauseKind::Lost, *rank, &address[..], 5, why.clone()),
            // Sent as received, so that all other processes print the same text.
            ClusterError::GivenUp { rank, why } => (CauseKind::Lost, *rank, own_address, 5, why.clone()),
            ClusterError::Stalled { after } => (CauseKind::Stalled, own_rank, own_address, 70, after.clone()),
            ClusterError::Peer { rank, address, code, message } => {
                (CauseKind::Failed, *rank, &address[..], *code, message.clone())
            }
            own => (CauseKind::Failed, own_rank, own_address, own.exit_code(), own.to_string()),
        };
        Cause { kind, culprit, address: address.to_string(), code, message: truncate(&message) }
    }

    /// Returns the error of a cause that another process has sent.
    pub(super) fn from_cause(cause: Cause, own_rank: usize) -> Self {
        let Cause { kind, culprit, address, code, message } = cause;
        match kind {
            CauseKind::Stalled => ClusterError::Stalled { after: message },
            _ if culprit == own_rank => ClusterError::GivenUp { rank: own_rank, why: message },
            CauseKind::Lost => ClusterError::Lost { rank: culprit, address, why: message },
            CauseKind::Failed => ClusterError::Peer { rank: culprit, address, code, message },
        }
    }
}

/// A worker's failure: a message of one line and an exit code. The program's error types convert into it, and it is sent to the other
/// processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Exit code: 2 usage, 3 input data, 4 this machine, 5 the cluster, 70 bug in gnnflow.
    pub code: u8,
    /// One line for the user.
    pub message: String,
}

impl Failure {
    /// Makes a failure with an exit code and a message of one line.
    pub fn new(code: u8, message: impl Into<String>) -> Self {
        Failure { code, message: message.into() }
    }
}

impl From<ClusterError> for Failure {
    fn from(error: ClusterError) -> Self {
        Failure { code: error.exit_code(), message: error.to_string() }
    }
}

impl From<gnnflow_data::Error> for Failure {
    fn from(error: gnnflow_data::Error) -> Self {
        Failure { code: error.fault().exit_code(), message: error.to_string() }
    }
}

impl From<gnnflow_pipelines::Error> for Failure {
    fn from(error: gnnflow_pipelines::Error) -> Self {
        Failure { code: error.exit_code(), message: error.to_string() }
    }
}

/// The first cause as a message on control connections.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Cause {
    pub(super) kind: CauseKind,
    pub(super) culprit: usize,
    pub(super) address: String,
    pub(super) code: u8,
    pub(super) message: String,
}

/// The kind of a cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum CauseKind {
    /// Other processes have lost the culprit.
    Lost,
    /// The culprit reported its failure.
    Failed,
    /// The run is stalled; there is no culprit.
    Stalled,
}

/// Returns what to do if processes differ in `what`.
fn remedy(what: &str) -> &'static str {
    match what {
        "build of gnnflow" | "protocol version" => "; copy one program file to all hosts",
        "number of processes" => "; give all processes the same hosts file",
        "rank" => "; give all processes the same hosts file, and each the --rank of its own line",
        "pipeline" => "; start the same command on all hosts, with the same pipeline file and options",
        "prepared dataset" => {
            "; copy the dataset of one host to the others, or prepare it with the same settings from the same files"
        }
        "cluster.encrypt" => "; use the same value for all processes",
        _ => "",
    }
}

fn truncate(message: &str) -> String {
    match message.char_indices().map(|(at, _)| at).find(|at| *at >= MESSAGE_BYTES) {
        Some(at) => format!("{}…", &message[..at]),
        None => message.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cause_is_equal_at_all_processes_except_the_culprit() {
        let lost = ClusterError::Lost { rank: 2, address: "b:1".into(), why: "silent".into() };
        let cause = lost.to_cause(0, "a:1");
        assert_eq!(ClusterError::from_cause(cause.clone(), 1), lost);
        let given_up = ClusterError::from_cause(cause, 2);
        assert_eq!(given_up, ClusterError::GivenUp { rank: 2, why: "silent".into() });
        assert_eq!(ClusterError::from_cause(given_up.to_cause(2, "b:1"), 1), lost);
        let stalled = ClusterError::Stalled { after: "9 s".into() };
        assert_eq!(ClusterError::from_cause(stalled.to_cause(0, "a:1"), 0), stalled);

        let own = ClusterError::Own(Failure::new(3, "label out of range"));
        let cause = ClusterError::from_cause(own.to_cause(1, "b:1"), 0);
        assert_eq!(cause.to_string(), "rank 1 (b:1) failed: label out of range");
        assert_eq!((own.exit_code(), cause.exit_code()), (3, 5));
    }

    #[test]
    fn long_messages_are_cut_between_characters() {
        let own = ClusterError::Own(Failure::new(3, "ü".repeat(5000)));
        assert!(own.to_cause(0, "a:1").message.len() < MESSAGE_BYTES + 8);
    }
}
