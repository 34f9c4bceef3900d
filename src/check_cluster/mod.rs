//! Checks the hosts of a hosts file before a run: their connections, clocks, memory, disks and limits.

mod findings;
mod host;
mod report;

use std::path::PathBuf;
use std::time::Duration;

use gnnflow_data::group::{Json, ProcessGroup};
use gnnflow_dataflow::collective::group::WorkerGroup;
use gnnflow_dataflow::links::{LinkError, expected_time, measure_links};
use gnnflow_pipelines::config::Cluster;

use self::host::Host;
use crate::cluster::{ClusterConfig, Failure, Fingerprints, Membership, execute, host_numbers};
use crate::console::Console;
use crate::error::Error;
use crate::loop_state::report_to;
use crate::stderr;

pub(crate) use self::findings::Severity;
pub(crate) use self::report::{CheckedHost, ClusterReport};

/// Options of a check.
#[derive(Clone, Debug)]
pub(crate) struct CheckOptions {
    /// The hosts file.
    pub(crate) hosts: PathBuf,
    /// This process's line in `hosts`; `None` takes it from the environment.
    pub(crate) rank: Option<usize>,
    /// File with the secret, if the environment has none.
    pub(crate) secret_file: Option<PathBuf>,
    /// As `cluster.encrypt`.
    pub(crate) encrypt: Option<bool>,
    /// As `cluster.start_timeout`.
    pub(crate) wait: Duration,
    /// How long data is sent over each link, in each direction.
    pub(crate) time: Duration,
    /// Shows progress.
    pub(crate) console: Console,
}

/// A finished check.
#[derive(Debug)]
pub(crate) struct Check {
    /// The number of this process.
    pub(crate) rank: usize,
    /// What was found, equal in all processes.
    pub(crate) report: ClusterReport,
}

/// Checks the hosts together with the other processes of the hosts file.
///
/// # Errors
/// Those of [`Membership::join`] and [`execute`].
pub(crate) fn check_cluster(options: &CheckOptions) -> Result<Check, Error> {
    let CheckOptions { hosts, rank, secret_file, encrypt, wait, time, console } = options;
    let defaults = Cluster::default();
    let (build, time) = (Fingerprints::of_build()?, *time);
    let mut encrypted = false;
    let membership = match ClusterConfig::from_hosts(hosts, *rank, secret_file.as_deref(), *encrypt)? {
        None => Membership::single(defaults.stall_timeout.0),
        Some(mut cluster) => {
            stderr::set_rank(cluster.rank);
            encrypted = cluster.encrypts() && cluster.size() > 1;
            // A run and a check cannot meet, nor can checks that measure for different times.
            let pipeline = format!("check-cluster --seconds {}", time.as_secs_f64());
            cluster.fingerprints = Fingerprints { build: build.clone(), pipeline, dataset: String::new() };
            cluster.start_timeout = *wait;
            cluster.heartbeat_timeout = defaults.heartbeat_timeout.0;
            cluster.stall_timeout = defaults.stall_timeout.0;
            Membership::join(cluster)?
        }
    };
    let (rank, addresses, liveness) = (membership.rank(), membership.addresses().to_vec(), membership.liveness());
    let numbers = host_numbers(&addresses);
    if rank == 0 && addresses.len() > 1 {
        let seconds = expected_time(&numbers, time).as_secs_f64().ceil();
        console.say(&format!("measuring the links between {} processes: about {seconds} s", addresses.len()));
    }
    let host = Host::this();
    let own_numbers = numbers.clone();
    let (links, hosts) = execute(membership, move |worker| {
        let report = report_to(&liveness, "checking the cluster");
        let links = measure_links(worker, &own_numbers, time, &report).map_err(failure)?;
        let hosts = WorkerGroup::new(worker, 1, &report).all_gather(Json(host.clone())).map_err(Failure::from)?;
        Ok::<_, Failure>((links, hosts))
    })?;
    let hosts = hosts.into_iter().map(|Json(host)| host).collect();
    Ok(Check { rank, report: ClusterReport::new(build, encrypted, addresses, &numbers, hosts, links) })
}

fn failure(error: LinkError) -> Failure {
    match error {
        LinkError::Group(error) => error.into(),
        silent @ LinkError::Silent { .. } => Failure::new(5, silent.to_string()),
    }
}
