//! The result of a check of several hosts.

use gnnflow_dataflow::links::Link;
use serde::Serialize;

use super::findings::{Facts, Finding, Severity, findings};
use super::host::Host;

/// The result of a check.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ClusterReport {
    /// Version and build of the program, equal on all hosts.
    pub(crate) build: String,
    /// Whether the connections are encrypted.
    pub(crate) encrypted: bool,
    /// The processes, by rank.
    pub(crate) hosts: Vec<CheckedHost>,
    /// All links, in both directions.
    pub(crate) links: Vec<Link>,
    /// What a run would suffer from, then what may be of interest.
    pub(crate) findings: Vec<Finding>,
}

/// A process and its host.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct CheckedHost {
    pub(crate) rank: usize,
    pub(crate) address: String,
    #[serde(flatten)]
    pub(crate) host: Host,
    /// By how much the clock is ahead of that of rank 0.
    pub(crate) clock_seconds: f64,
    /// The largest error of `clock_seconds`.
    pub(crate) clock_error_seconds: f64,
}

impl ClusterReport {
    /// Makes the report of the processes at `addresses`, whose hosts have `numbers`.
    pub(super) fn new(
        build: String,
        encrypted: bool,
        addresses: Vec<String>,
        numbers: &[usize],
        hosts: Vec<Host>,
        links: Vec<Link>,
    ) -> Self {
        let checked = |(rank, (address, host)): (usize, (String, Host))| {
            let clock = links.iter().find(|link| (link.from, link.to) == (0, rank));
            let (clock_seconds, clock_error_seconds) =
                clock.map_or((0.0, 0.0), |link| (link.clock_seconds, link.clock_error_seconds));
            CheckedHost { rank, address, host, clock_seconds, clock_error_seconds }
        };
        let hosts: Vec<CheckedHost> = addresses.into_iter().zip(hosts).enumerate().map(checked).collect();
        let facts: Vec<Facts<'_>> = hosts
            .iter()
            .zip(numbers)
            .map(|(checked, &number)| Facts {
                name: format!("rank {} ({})", checked.rank, checked.address),
                number,
                host: &checked.host,
                clock_seconds: checked.clock_seconds,
                clock_error_seconds: checked.clock_error_seconds,
            })
            .collect();
        let findings = findings(&facts, &links);
        Self { build, encrypted, hosts, links, findings }
    }

    /// Returns whether a run on these hosts would suffer from nothing that was found.
    pub(crate) fn is_fit(&self) -> bool {
        self.findings.iter().all(|finding| finding.severity == Severity::Note)
    }
}
