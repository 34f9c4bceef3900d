//! The cluster on which a run is simulated.

use gnnflow_dataflow::graph::placement::Placement;

/// Seconds until another process on the same host receives a small message.
const LATENCY_INSIDE: f64 = 3e-5;
/// Bytes per second between two processes of a host, through its loopback interface, for one core.
const BANDWIDTH_INSIDE: f64 = 1.5e9;

/// The hosts, and how the processes of the run are placed on them: contiguous runs of ranks, as partitions on processes.
///
/// ```
/// use gnnflow_pipelines::simulate::cluster::{Cluster, Host};
///
/// let host = Host { cores: 8, speed: 1.0 };
/// let cluster = Cluster { hosts: vec![host; 4], processes: 4, threads: 8, bandwidth: 1.25e8, latency: 1e-3 };
/// assert_eq!(cluster.host_of(3), 3);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Cluster {
    /// The hosts.
    pub hosts: Vec<Host>,
    /// Number of processes, of all hosts.
    pub processes: usize,
    /// Compute threads of each process.
    pub threads: usize,
    /// Bytes per second that a host sends, and that it receives.
    pub bandwidth: f64,
    /// Seconds until a small message reaches another host.
    pub latency: f64,
}

/// A host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Host {
    /// Number of cores.
    pub cores: usize,
    /// Its speed over that of the machine on which the run was recorded.
    pub speed: f64,
}

/// The connection of two processes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Link {
    /// A network between two hosts.
    Network,
    /// The loopback interface of a host, whose copies take this CPU time.
    Loopback { cpu: f64, latency: f64 },
    /// The memory of a process.
    None,
}

impl Cluster {
    /// Returns the host of a process.
    pub fn host_of(&self, process: usize) -> usize {
        Placement::new(self.processes, self.hosts.len()).worker_of(process)
    }

    /// Returns the connection over which `bytes` are sent in `trips` messages, one after the other.
    pub(super) fn link(&self, from: usize, to: usize, bytes: f64, trips: f64) -> Link {
        match () {
            () if from == to => Link::None,
            () if self.host_of(from) == self.host_of(to) => {
                Link::Loopback { cpu: bytes / BANDWIDTH_INSIDE, latency: trips * LATENCY_INSIDE }
            }
            () => Link::Network,
        }
    }
}
