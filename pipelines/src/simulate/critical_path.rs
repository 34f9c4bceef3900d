//! The chain of tasks that determines when the last one ends.

use std::collections::BTreeMap;

use super::cluster::Cluster;
use super::graph::{Graph, Work};
use super::timeline::Ran;

/// The time that messages need to reach another process, however small they are.
pub const LATENCY: &str = "latency of messages";
/// The time that the bytes of messages need.
pub const BANDWIDTH: &str = "bytes of messages";
/// The time that messages wait for others on the same link.
pub const LINK: &str = "waiting for the link";
/// The time by which tasks take longer because their host has too few cores.
pub const CORES: &str = "waiting for cores";

/// A part of the critical path.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct PathPart {
    /// What is done in this time: jobs, or one of [`LATENCY`], [`BANDWIDTH`], [`LINK`] and [`CORES`].
    pub name: String,
    /// Seconds.
    pub seconds: f64,
}

/// Returns the parts of the critical path, the longest first.
pub(super) fn critical_path(graph: &Graph, ran: &[Ran], cluster: &Cluster) -> Vec<PathPart> {
    let mut parts: BTreeMap<&str, f64> = BTreeMap::new();
    let mut add = |name, seconds: f64| *parts.entry(name).or_default() += seconds;
    let mut at = ran.iter().enumerate().max_by_key(|(_, ran)| ran.end).map(|(task, _)| task);
    while let Some(id) = at {
        let (task, Ran { start, end, cause }) = (&graph.tasks()[id], ran[id]);
        let seconds = (end - start) as f64 / 1e9;
        match task.work {
            Work::Join => {}
            Work::Cpu { alone, .. } => {
                let own = (alone / cluster.hosts[cluster.host_of(task.process)].speed).min(seconds);
                add(&task.name, own);
                add(CORES, seconds - own);
            }
            Work::Send { to, bytes, trips } => {
                let network = cluster.host_of(task.process) != cluster.host_of(to);
                let latency = if network { (trips * cluster.latency).min(seconds) } else { 0.0 };
                let sending = if network { (bytes / cluster.bandwidth).min(seconds - latency) } else { seconds };
                add(LATENCY, latency);
                add(BANDWIDTH, sending);
                add(LINK, seconds - latency - sending);
            }
        }
        at = cause;
    }
    let mut parts: Vec<PathPart> =
        parts.into_iter().map(|(name, seconds)| PathPart { name: name.to_owned(), seconds }).collect();
    parts.retain(|part| part.seconds > 0.0);
    parts.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    parts
}
