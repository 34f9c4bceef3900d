//! `partition.json`: how good a partition is.

use std::path::Path;

use serde::{Deserialize, Serialize};

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
    /// Wall time of the whole preparation.
    pub seconds: f64,
    /// Of which the partition method took.
    pub partition_seconds: f64,
    /// Most memory that this process has ever had in use; 0 where the system does not tell.
    pub peak_rss_bytes: u64,
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
}

impl Quality {
    /// Name of the file in the dataset's folder.
    pub const FILE: &'static str = "partition.json";

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

/// Most memory that this process has had in use.
pub(super) fn peak_rss() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
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
    }
}
