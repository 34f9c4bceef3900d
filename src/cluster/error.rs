//! What can go wrong between processes, and whose fault it is.

use std::path::PathBuf;

use gnnflow_data::error::FEWER_THREADS;
use serde::{Deserialize, Serialize};

/// Longest message that crosses the control connections; longer ones are cut.
const MESSAGE_BYTES: usize = 4096;

/// Why a run of several processes could not start or had to end.
///
/// Values are cheap to copy and hold text instead of sources, because the same first cause is kept by several threads and
/// travels to every other process.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClusterError {
    /// The hosts file cannot be read or has a line that makes no sense (line 0: the file as a whole).
    #[error("{}{}: {problem}", path.display(), if *line > 0 { format!(":{line}") } else { String::new() })]
    Hosts {
        /// The hosts file.
        path: PathBuf,
        /// Line, counted from 1.
        line: usize,
        /// What is wrong.
        problem: String,
    },
    /// Rank, size, secret or addresses were given wrongly.
    #[error("{0}")]
    Usage(String),
    /// This process cannot listen at its own address.
    #[error("rank {rank} cannot listen at {address}: {problem}; {advice}")]
    Listen {
        /// This process.
        rank: usize,
        /// The address from the hosts file.
        address: String,
        /// The system's words, with errno.
        problem: String,
        /// What the user can do.
        advice: String,
    },
    /// The operating system refused something that has nothing to do with a peer.
    #[error("cannot {what}: {problem}")]
    System {
        /// What was tried.
        what: String,
        /// The system's words, with errno.
        problem: String,
    },
    /// A peer is gone: it died, fell silent, stands still, or never came.
    #[error("lost rank {rank} ({address}): {why}")]
    Lost {
        /// The culprit.
        rank: usize,
        /// Its address.
        address: String,
        /// What was seen.
        why: String,
    },
    /// No worker completes anything: they wait for each other, or for a thread or message that is lost.
    #[error(
        "the run is stalled: no process has completed any work for {after} (cluster.stall_timeout); raise the timeout if a \
         single task takes longer, otherwise please report this as a bug in gnnflow"
    )]
    Stalled {
        /// The stall timeout, in words.
        after: String,
    },
    /// The others have given this process up, for example after it had been stopped for long.
    #[error("the other processes went on without this one (rank {rank}): {why}")]
    GivenUp {
        /// This process.
        rank: usize,
        /// What the others saw.
        why: String,
    },
    /// A peer proved the secret but is not part of the same run: another version, pipeline, dataset, rank or size.
    #[error("rank {rank} ({address}) has another {what}: {theirs} there, {ours} here")]
    Mismatch {
        /// What differs, in words.
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
    /// A peer at a configured address does not know the shared secret of this process.
    #[error("rank {rank} ({address}) has another shared secret than this process")]
    WrongSecret {
        /// The peer.
        rank: usize,
        /// Its address.
        address: String,
    },
    /// Another process already takes part under this rank.
    #[error(
        "rank {rank} is taken: another process joined {address} under this rank; give every process its own --rank"
    )]
    RankTaken {
        /// The rank that both claim.
        rank: usize,
        /// Who said so.
        address: String,
    },
    /// A tensor worker has found no run where it was to enlist, or was refused there.
    #[error("--connect {address}: the run there {why}")]
    NotRegistered {
        /// Where the run's first process was looked for.
        address: String,
        /// What was seen.
        why: String,
    },
    /// A peer ended for a reason of its own, which it told.
    #[error("rank {rank} ({address}) failed: {message}")]
    Peer {
        /// The culprit.
        rank: usize,
        /// Its address.
        address: String,
        /// The exit code of the culprit.
        code: u8,
        /// Its own words.
        message: String,
    },
    /// This process failed for a reason of its own.
    #[error("{}", .0.message)]
    Own(Failure),
    /// A panic: our bug.
    #[error("internal error: {message} (thread {thread}, {location}); this is a bug in gnnflow, please report it")]
    Bug {
        /// The panic's message.
        message: String,
        /// Name of the thread.
        thread: String,
        /// File, line and column.
        location: String,
    },
    /// A signal asked this process to end.
    #[error("interrupted by {0}")]
    Interrupted(&'static str),
}

impl ClusterError {
    /// The process's exit code: 2 usage, 4 this machine, 5 the cluster, 70 our bug, 130 interrupted, or the code of the
    /// worker's own failure.
    pub fn exit_code(&self) -> u8 {
        match self {
            ClusterError::Hosts { .. } | ClusterError::Usage(_) => 2,
            ClusterError::Listen { .. } | ClusterError::System { .. } => 4,
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
        }
    }

    pub(super) fn system(what: impl Into<String>, problem: &std::io::Error) -> Self {
        ClusterError::System { what: what.into(), problem: problem.to_string() }
    }

    /// The system has no thread to give.
    pub(super) fn no_thread(problem: impl std::fmt::Display) -> Self {
        ClusterError::System { what: "start a thread".into(), problem: format!("{problem}; {FEWER_THREADS}") }
    }

    /// What the other processes are told.
    pub(super) fn to_cause(&self, me: usize, my_address: &str) -> Cause {
        let (kind, culprit, address, code, message) = match self {
            ClusterError::Lost { rank, address, why } => (CauseKind::Lost, *rank, &address[..], 5, why.clone()),
            // Passed on as it came: whoever hears it first from the culprit itself reads the same as the others.
            ClusterError::GivenUp { rank, why } => (CauseKind::Lost, *rank, my_address, 5, why.clone()),
            ClusterError::Stalled { after } => (CauseKind::Stalled, me, my_address, 70, after.clone()),
            ClusterError::Peer { rank, address, code, message } => {
                (CauseKind::Failed, *rank, &address[..], *code, message.clone())
            }
            own => (CauseKind::Failed, me, my_address, own.exit_code(), own.to_string()),
        };
        Cause { kind, culprit, address: address.to_string(), code, message: cut(&message) }
    }

    /// What a cause told by another process means here.
    pub(super) fn from_cause(cause: Cause, me: usize) -> Self {
        let Cause { kind, culprit, address, code, message } = cause;
        match kind {
            CauseKind::Stalled => ClusterError::Stalled { after: message },
            _ if culprit == me => ClusterError::GivenUp { rank: me, why: message },
            CauseKind::Lost => ClusterError::Lost { rank: culprit, address, why: message },
            CauseKind::Failed => ClusterError::Peer { rank: culprit, address, code, message },
        }
    }
}

/// A worker's own failure: one line for the user and the exit code of the process.
///
/// Error types of the program convert into it; it is what the other processes are told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Exit code: 2 usage, 3 input data, 4 this machine, 5 the cluster, 70 our bug.
    pub code: u8,
    /// One line for the user.
    pub message: String,
}

impl Failure {
    /// A failure with its exit code and its line.
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

/// The first cause as it crosses the control connections.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Cause {
    pub(super) kind: CauseKind,
    pub(super) culprit: usize,
    pub(super) address: String,
    pub(super) code: u8,
    pub(super) message: String,
}

/// How a cause became known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum CauseKind {
    /// Others saw it.
    Lost,
    /// The culprit told it.
    Failed,
    /// Nobody is the culprit.
    Stalled,
}

fn cut(message: &str) -> String {
    match message.char_indices().map(|(at, _)| at).find(|at| *at >= MESSAGE_BYTES) {
        Some(at) => format!("{}…", &message[..at]),
        None => message.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_reads_the_same_everywhere_but_at_the_culprit() {
        let lost = ClusterError::Lost { rank: 2, address: "b:1".into(), why: "silent".into() };
        let told = lost.to_cause(0, "a:1");
        assert_eq!(ClusterError::from_cause(told.clone(), 1), lost);
        let given_up = ClusterError::from_cause(told, 2);
        assert_eq!(given_up, ClusterError::GivenUp { rank: 2, why: "silent".into() });
        assert_eq!(ClusterError::from_cause(given_up.to_cause(2, "b:1"), 1), lost);
        let stalled = ClusterError::Stalled { after: "9 s".into() };
        assert_eq!(ClusterError::from_cause(stalled.to_cause(0, "a:1"), 0), stalled);

        let own = ClusterError::Own(Failure::new(3, "label out of range"));
        let told = ClusterError::from_cause(own.to_cause(1, "b:1"), 0);
        assert_eq!(told.to_string(), "rank 1 (b:1) failed: label out of range");
        assert_eq!((own.exit_code(), told.exit_code()), (3, 5));
    }

    #[test]
    fn long_messages_are_cut_at_a_character() {
        let own = ClusterError::Own(Failure::new(3, "ü".repeat(5000)));
        assert!(own.to_cause(0, "a:1").message.len() < MESSAGE_BYTES + 8);
    }
}
