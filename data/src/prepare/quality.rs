//! `partition.json`: how good a partition is.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use super::recorder::PassRecord;
use super::write_topology::TopologyFile;
use crate::dataset::Manifest;
use crate::error::{Error, Result};

/// Quality of a partition, and what it cost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Quality {
    /// Partition method.
    pub method: String,
    /// Number of partitions.
    pub parts: u32,
    /// Share of the edges whose ends lie in different partitions.
    pub edge_cut: f64,
    /// In how many partitions a node is on average, as core node or as in-neighbour of one (full neighbours).
    pub replication_factor: f64,
    /// Largest partition over the mean partition.
    pub balance: Balance,
    /// Share of the train nodes that would have to be trained away from home, were every partition to train equally many.
    #[serde(default)]
    pub remote_seed_share: f64,
    /// `halo[p][q]`: nodes of partition `q` that edges into partition `p` come from. Empty beyond 1,024 partitions.
    #[serde(default)]
    pub halo: Vec<Vec<u64>>,
    /// Number of processes that prepared it together.
    #[serde(default)]
    pub processes: usize,
    /// Wall time of the whole preparation; of the last try, when earlier ones were killed.
    pub seconds: f64,
    /// Of which the partition method took.
    pub partition_seconds: f64,
    /// By how much the process's memory grew at most while the partition method ran; 0 where the system does not tell.
    #[serde(default)]
    pub partition_bytes: u64,
    /// Most memory that any of the processes has ever had in use; 0 where the system does not tell.
    pub peak_rss_bytes: u64,
    /// The passes of the first process, in order.
    #[serde(default)]
    pub passes: Vec<PassRecord>,
}

/// Largest partition over the mean partition; 1 is perfect.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Balance {
    /// Core nodes.
    pub nodes: f64,
    /// In-edges of the core nodes.
    pub edges: f64,
    /// Core nodes in the train split.
    pub train: f64,
    /// Core and halo nodes: the features that a partition works with.
    #[serde(default)]
    pub features: f64,
}

/// Most partitions of which every pair is reported.
pub(crate) const PAIRS: usize = 1024;

impl Quality {
    /// Name of the file in the dataset's folder.
    pub const FILE: &'static str = "partition.json";

    /// What the files tell; what it cost is not known here.
    pub(super) fn of(manifest: &Manifest, topologies: &[TopologyFile]) -> Self {
        let cross = topologies.iter().map(|part| part.cross).sum();
        Self::from_counts(manifest, cross, topologies.iter().map(|part| part.halo.clone()).collect())
    }

    /// The same from the number of edges between partitions, and the halo of each partition by its owners (or in one number).
    pub(crate) fn from_counts(manifest: &Manifest, cross: u64, by_owner: Vec<Vec<u64>>) -> Self {
        let share = |part: u64, whole: u64| if whole == 0 { 0.0 } else { part as f64 / whole as f64 };
        let halo: Vec<u64> = by_owner.iter().map(|part| part.iter().sum()).collect();
        let (n, parts) = (manifest.nodes, &manifest.partitions);
        let train: u64 = parts.iter().map(|part| part.train).sum();
        let fair = train as f64 / parts.len().max(1) as f64;
        let surplus: f64 = parts.iter().map(|part| (part.train as f64 - fair).max(0.0)).sum();
        Self {
            method: manifest.method.clone(),
            parts: parts.len() as u32,
            edge_cut: share(cross, manifest.edges),
            replication_factor: if n == 0 { 1.0 } else { share(n + halo.iter().sum::<u64>(), n) },
            balance: Balance {
                nodes: imbalance(parts.iter().map(|part| part.nodes)),
                edges: imbalance(parts.iter().map(|part| part.edges)),
                train: imbalance(parts.iter().map(|part| part.train)),
                features: imbalance(parts.iter().zip(&halo).map(|(part, halo)| part.nodes + halo)),
            },
            remote_seed_share: if train == 0 { 0.0 } else { surplus / train as f64 },
            halo: if by_owner.len() <= PAIRS { by_owner } else { Vec::new() },
            processes: 1,
            seconds: 0.0,
            partition_seconds: 0.0,
            partition_bytes: 0,
            peak_rss_bytes: 0,
            passes: Vec::new(),
        }
    }

    /// Reads the report in the dataset's folder `dir`.
    ///
    /// # Errors
    /// It cannot be read, or does not parse.
    pub fn read(dir: &Path) -> Result<Self> {
        let path = dir.join(Self::FILE);
        let text = std::fs::read_to_string(&path).map_err(Error::io(&path, "read"))?;
        serde_json::from_str(&text).map_err(|e| Error::Damaged { path, reason: e.to_string() })
    }
}

/// Largest over mean; 1 when all are 0.
pub(super) fn imbalance(sizes: impl Iterator<Item = u64> + Clone) -> f64 {
    let (sum, count) = sizes.clone().fold((0, 0), |(sum, count), size| (sum + size, count + 1));
    match sum {
        0 => 1.0,
        sum => sizes.max().unwrap_or(0) as f64 * f64::from(count) / sum as f64,
    }
}

/// Most memory that this process has had in use, also before a [`PeakWatch`] began.
pub(crate) fn peak_rss() -> u64 {
    status("VmHWM:").max(PEAK.load(Ordering::Relaxed))
}

/// The system's mark as it was when it was last set back.
static PEAK: AtomicU64 = AtomicU64::new(0);

/// Watches by how much this process's memory grows.
pub(super) struct PeakWatch {
    before: Option<u64>,
}

impl PeakWatch {
    /// Begins. Sets the system's high-water mark back, where it lets us.
    pub(super) fn start() -> Self {
        PEAK.fetch_max(status("VmHWM:"), Ordering::Relaxed);
        let set_back = std::fs::write("/proc/self/clear_refs", "5").is_ok();
        Self { before: set_back.then(|| status("VmRSS:")) }
    }

    /// The most so far; 0 where the system does not tell.
    pub(super) fn grown(&self) -> u64 {
        self.before.map_or(0, |before| status("VmHWM:").saturating_sub(before))
    }
}

/// A line of the process's status, in bytes; 0 where the system does not tell.
fn status(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn imbalance_is_largest_over_mean() {
        assert_eq!(imbalance([2, 2, 2].into_iter()), 1.0);
        assert_eq!(imbalance([6, 0, 0].into_iter()), 3.0);
        assert_eq!(imbalance([0, 0].into_iter()), 1.0);
        assert!(peak_rss() > 1 << 20);
        // Other tests share the process: nothing more can be said.
        assert!(PeakWatch::start().grown() < 1 << 40);
    }
}
