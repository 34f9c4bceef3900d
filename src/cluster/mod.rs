//! Several processes as one run. If one process fails, all processes end and report the same first error.
//!
//! | file | content |
//! |---|---|
//! | `hosts`, `secret` | hosts file, rank and size, shared secret |
//! | `config`, `membership`, `rendezvous` | connecting all processes, with a deadline |
//! | `roll_call` | which processes are there, in a run that goes on without lost ones |
//! | `handshake`, `unproven`, `refusals`, `wire` | proof of the secret, keys, and comparison of versions, on one connection |
//! | `control`, `liveness`, `first_failure`, `statuses` | heartbeats, the first error, sending it to all processes; statuses for rank 0 |
//! | `waits`, `duration` | what operators and threads wait for in a stalled run; times in messages |
//! | `execute`, `hook`, `signals` | one timely worker per process, panics and signals as errors |
//! | `launcher`, `child_group`, `child` | the parent of several processes on one machine, or of one rank with restarts |
//!
//! Each pair of ranks has two connections: *data* for timely, *control* for heartbeats. The higher rank connects to the lower rank,
//! which listens. Timely gets a connection only after both sides have proven the shared secret. Between hosts, both are encrypted unless
//! the user chooses otherwise.
//!
//! ```
//! use gnnflow::cluster::{execute, Failure, Membership};
//!
//! let answer = execute(Membership::single(std::time::Duration::from_secs(60)), |worker| Ok::<_, Failure>(worker.index() + worker.peers())).unwrap();
//! assert_eq!(answer, 1);
//! ```

mod busy_watch;
mod child;
mod child_group;
mod config;
mod control;
mod duration;
mod error;
mod execute;
mod first_failure;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod handshake;
mod hook;
mod hosts;
mod launcher;
mod liveness;
mod membership;
mod refusals;
mod rendezvous;
mod roll_call;
mod secret;
mod signals;
mod statuses;
mod unproven;
mod waits;
mod wire;

pub(crate) use busy_watch::STALLS;
pub(crate) use child::{JOINED, Restarted, TELLS_LAUNCHER, bind_to_parent, is_launched, restarted};
#[cfg(feature = "tensor-workers")]
pub(crate) use child::{LISTENER, NOTICE_FD, RESTARTED, USER_SECRET};
pub use child::{config_from_launcher, is_supervised};
pub(crate) use child_group::{ChildGroup, Copied, Ending, Losses, Outcome, Remote};
pub use config::{ClusterConfig, Elastic, Fingerprints};
pub use error::{ClusterError, Failure};
pub use execute::execute;
pub(crate) use hook::{cause_of, exit_if_not_unwinding};
pub use hosts::{RankAssignment, host_numbers, rank_assignment, read_hosts};
pub use launcher::Launcher;
pub(crate) use launcher::print_line;
pub use liveness::{Busy, Deferred, Liveness};
pub use membership::Membership;
pub(crate) use roll_call::Absent;
pub use secret::Secret;
pub(crate) use secret::random_hex;
pub(crate) use signals::Signals;
pub(crate) use statuses::Statuses;
