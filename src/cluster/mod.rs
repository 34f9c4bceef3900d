//! Several processes as one run: who takes part, how they meet, how they notice that one of them is gone, and how all of
//! them end with the same first cause.
//!
//! | file | idea |
//! |---|---|
//! | `hosts`, `secret` | who takes part: hosts file, rank and size, shared secret |
//! | `config`, `membership`, `meeting` | meeting: own listener and connectors, start-up messages, deadline |
//! | `handshake`, `wire` | proof of the secret and equality of versions, on one connection |
//! | `control`, `liveness`, `board` | heartbeats, the first cause, telling it to everybody |
//! | `execute`, `hook`, `signals` | one timely worker a process, panics and signals turned into causes |
//! | `launch`, `family`, `child` | the parent of several processes on one machine, or of one rank that is started again |
//!
//! Every pair of ranks has two connections: *data* belongs to timely, *control* to the heartbeats. The higher rank dials,
//! the lower rank listens. Nothing reaches timely before both sides proved the shared secret. What follows the handshake
//! is neither encrypted nor signed: run across hosts on a network that you trust.
//!
//! ```
//! use gnnflow::cluster::{execute, Failure, Membership};
//!
//! let answer = execute(Membership::single(std::time::Duration::from_secs(60)), |worker| Ok::<_, Failure>(worker.index() + worker.peers())).unwrap();
//! assert_eq!(answer, 1);
//! ```

mod child;
mod child_group;
mod config;
mod control;
mod error;
mod execute;
mod first_failure;
mod handshake;
mod hook;
mod hosts;
mod launcher;
mod liveness;
mod membership;
mod rendezvous;
mod secret;
mod signals;
mod wire;

#[cfg(feature = "tensor-workers")]
pub(crate) use child::OWN_SECRET;
pub(crate) use child::is_launched;
pub use child::{is_supervised, seat_from_launcher};
pub use config::{ClusterConfig, Fingerprints};
pub use error::{ClusterError, Failure};
pub use execute::execute;
#[cfg(feature = "tensor-workers")]
pub(crate) use handshake::{mac, same};
pub(crate) use hook::{cause_of, end_unless_it_unwinds};
pub use hosts::{RankAssignment, read_hosts, seat};
pub use launcher::Launcher;
pub use liveness::{Busy, Liveness};
pub use membership::Membership;
pub use secret::Secret;
#[cfg(feature = "tensor-workers")]
pub(crate) use secret::random_hex;
