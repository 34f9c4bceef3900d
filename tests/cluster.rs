//! Several real processes: start, work, failures and end.
//!
//! The members are this test binary, started again with the name of one test and a role in the environment. All traffic
//! stays on loopback addresses that only this test process uses, or in network namespaces created here.

#[path = "cluster/harness.rs"]
mod harness;
#[path = "cluster/launch.rs"]
mod launch;
#[path = "cluster/loss.rs"]
mod loss;
#[path = "cluster/meeting.rs"]
mod meeting;
#[path = "cluster/member.rs"]
mod member;
#[path = "cluster/network.rs"]
mod network;
