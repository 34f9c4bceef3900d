//! `partition.json`: the quality of a partitioning.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::halo::PAIRS;
use super::recorder::PassRecord;
use super::write_topology::TopologyFile;
use crate::dataset::{Cleaning, Manifest};
use crate::error::{Error, Result};

/// Quality and cost of a partitioning.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Quality {
    /// Partition method.
    pub method: String,
    /// Number of partitions.
    pub parts: u32,
    /// Fraction of the edges between different partitions.
    pub edge_cut: f64,
    /// Mean number of partitions that a node is in, as core node or as in-neighbor of one (full neighbors).
    pub replication_factor: f64,
    /// Largest partition divided by the mean partition.
    pub balance: Balance,
    /// Fraction of the train nodes that other partitions would have to train if all partitions trained equally many.
    #[serde(default)]
    pub remote_seed_share: f64,
    /// `halo[p][q]`: number of nodes of partition `q` from which edges into partition `p` come. Empty for more than 1,024 partitions.
    #[serde(default)]
    pub halo: Vec<Vec<u64>>,
    /// In-edges of the nodes after all policies.
    #[serde(default)]
    pub in_degrees: InDegrees,
    /// Nodes that were created or dropped, as in the manifest.
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
    /// Number of processes that prepared the dataset.
    #[serde(default)]
    pub processes: usize,
    /// Wall time of the preparation in seconds, without earlier preparations that were killed.
    pub seconds: f64,
    /// Wall time of the partition method in seconds.
    pub partition_seconds: f64,
    /// Maximum growth of this process's memory during the partition method, in bytes; 0 if the system does not report it.
    #[serde(default)]
    pub partition_bytes: u64,
    /// Maximum memory of any of the processes, in bytes; 0 if the system does not report it.
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
    /// The median: at least half of the nodes have at most this number.
    pub median: u64,
    /// The 99th percentile.
    pub p99: u64,
    /// Largest.
    pub max: u64,
    /// Number of nodes without in-edges.
    pub none: u64,
}

impl InDegrees {
    /// Computes the distribution from the number of nodes with each degree.
    fn of(counts: &BTreeMap<u32, u64>) -> Self {
        let nodes: u64 = counts.values().sum();
        // Returns the smallest degree that at least `wanted` nodes do not exceed.
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

/// Largest partition divided by the mean partition; 1 is perfect.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Balance {
    /// Core nodes.
    pub nodes: f64,
    /// In-edges of the core nodes.
    pub edges: f64,
    /// Core nodes in the train split; 0 if there are none.
    pub train: f64,
    /// Core and halo nodes: the rows of features that a partition needs.
    #[serde(default)]
    pub features: f64,
}

impl Quality {
    /// Name of the file in the dataset's folder.
    pub const FILE: &'static str = crate::dataset::QUALITY_FILE;

    /// Computes the quality from the manifest and the results of the last pass. The cost is left at 0.
    pub(super) fn of(manifest: &Manifest, topologies: &[TopologyFile]) -> Self {
        let cross = topologies.iter().map(|part| part.cross).sum();
        let mut degrees = BTreeMap::new();
        for (&degree, count) in topologies.iter().flat_map(|part| &part.degrees) {
            *degrees.entry(degree).or_default() += count;
        }
        Self::from_counts(manifest, cross, topologies.iter().map(|part| part.halo.clone()).collect(), &degrees)
    }

    /// Computes the quality from the number of edges between partitions, the halo nodes of each partition (by owner, or one sum), and the
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
                train: if train == 0 { 0.0 } else { imbalance(parts.iter().map(|part| part.train)) },
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
    /// If the report cannot be read or parsed.
    pub fn read(dir: &Path) -> Result<Self> {
        let path = dir.join(Self::FILE);
        let text = std::fs::read_to_string(&path).map_err(Error::io(&path, "read"))?;
        serde_json::from_str(&text).map_err(|e| Error::Damaged { path, reason: e.to_string() })
    }
}

/// Returns the largest size divided by the mean; 1 if all are 0.
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
    fn percentiles_of_degrees_are_nearest_ranks() {
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
