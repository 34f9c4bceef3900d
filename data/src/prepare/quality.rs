//! `partition.json`: how good a partition is.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::recorder::PassRecord;
use super::write_topology::TopologyFile;
use crate::dataset::{Cleaning, Manifest};
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
    /// In how many partitions a node is on average, as core node or as in-neighbor of one (full neighbors).
    pub replication_factor: f64,
    /// Largest partition over the mean partition.
    pub balance: Balance,
    /// Share of the train nodes that would have to be trained away from home, were every partition to train equally many.
    #[serde(default)]
    pub remote_seed_share: f64,
    /// `halo[p][q]`: nodes of partition `q` that edges into partition `p` come from. Empty beyond 1,024 partitions.
    #[serde(default)]
    pub halo: Vec<Vec<u64>>,
    /// In-edges of the nodes, when all policies are applied.
    #[serde(default)]
    pub in_degrees: InDegrees,
    /// Nodes that were made or left out, as the manifest has it.
    #[serde(default)]
    pub cleaning: Cleaning,
    /// Edges that were dropped as duplicates.
    #[serde(default)]
    pub duplicates_dropped: u64,
    /// Rows of edges that were dropped because they name an unknown node.
    #[serde(default)]
    pub unknown_dropped: u64,
    /// Edges from a node to itself.
    #[serde(default)]
    pub self_loops: u64,
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

/// The distribution of the numbers of in-edges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InDegrees {
    /// Smallest.
    pub min: u64,
    /// Half of the nodes have at most so many.
    pub median: u64,
    /// Of a hundred nodes 99 have at most so many.
    pub p99: u64,
    /// Largest.
    pub max: u64,
    /// Nodes without any.
    pub none: u64,
}

impl InDegrees {
    /// From the number of nodes with each degree.
    fn of(counts: &BTreeMap<u32, u64>) -> Self {
        let nodes: u64 = counts.values().sum();
        // The smallest degree that at least so many nodes do not exceed.
        let at = |wanted: u64| {
            let mut below = 0;
            let found = counts.iter().find(|(_, count)| {
                below += **count;
                below >= wanted
            });
            found.map_or(0, |(degree, _)| u64::from(*degree))
        };
        Self {
            min: at(1),
            median: at(nodes.div_ceil(2)),
            p99: at((99 * nodes).div_ceil(100)),
            max: at(nodes),
            none: counts.get(&0).copied().unwrap_or(0),
        }
    }
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
        let mut degrees = BTreeMap::new();
        for (&degree, count) in topologies.iter().flat_map(|part| &part.degrees) {
            *degrees.entry(degree).or_default() += count;
        }
        Self::from_counts(manifest, cross, topologies.iter().map(|part| part.halo.clone()).collect(), &degrees)
    }

    /// The same from the number of edges between partitions, the halo of each partition by its owners (or in one number), and the
    /// number of nodes with each number of in-edges.
    pub(crate) fn from_counts(
        manifest: &Manifest,
        cross: u64,
        by_owner: Vec<Vec<u64>>,
        degrees: &BTreeMap<u32, u64>,
    ) -> Self {
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
            in_degrees: InDegrees::of(degrees),
            cleaning: manifest.cleaning,
            duplicates_dropped: manifest.duplicates_dropped,
            unknown_dropped: manifest.unknown_dropped,
            self_loops: manifest.self_loops,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn degrees_are_told_by_nearest_rank() {
        let degrees = |all: &[u32]| {
            let mut counts = BTreeMap::new();
            all.iter().for_each(|&degree| *counts.entry(degree).or_default() += 1);
            let InDegrees { min, median, p99, max, none } = InDegrees::of(&counts);
            [min, median, p99, max, none]
        };
        assert_eq!(degrees(&[]), [0; 5]);
        assert_eq!(degrees(&[3, 0, 1]), [0, 1, 3, 3, 1]);
        assert_eq!(degrees(&(0..200).collect::<Vec<_>>()), [0, 99, 197, 199, 1]);
    }

    #[test]
    fn imbalance_is_largest_over_mean() {
        assert_eq!(imbalance([2, 2, 2].into_iter()), 1.0);
        assert_eq!(imbalance([6, 0, 0].into_iter()), 3.0);
        assert_eq!(imbalance([0, 0].into_iter()), 1.0);
    }
}
