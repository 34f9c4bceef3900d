//! Describes a prepared dataset: manifest, partition report, and degrees from the mapped topology.

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::degrees::{Bin, bins};
use crate::dataset::{Dataset, Manifest, PartitionInfo};
use crate::error::Result;
use crate::prepare::Quality;
use crate::progress::Progress;

/// The description of a prepared dataset.
#[derive(Clone, Debug, Serialize)]
pub struct Prepared {
    /// The folder.
    pub path: PathBuf,
    /// Size of the partitions' files in bytes.
    pub bytes: u64,
    /// In-degrees in the dataset, after mirroring and dropping.
    pub in_degrees: InDegrees,
    /// The report `partition.json` on the quality of the partition, if it exists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quality: Option<Quality>,
    /// Counts, offsets, partitions, settings, fingerprint.
    pub manifest: Manifest,
}

/// In-degrees of all nodes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct InDegrees {
    /// Nodes without in-edges.
    pub zero: u64,
    /// Mean over all nodes.
    pub mean: f64,
    /// Largest.
    pub max: u64,
    /// Numbers of nodes with degree 1, 2–3, 4–7, …
    pub histogram: Vec<Bin>,
}

/// Opens and verifies the dataset, and reads its topology, partition by partition.
pub(super) fn inspect(path: &Path, progress: &dyn Progress) -> Result<Prepared> {
    let dataset = Dataset::open(path)?;
    dataset.verify(progress)?;
    let manifest = dataset.manifest();
    progress.stage("read topology", Some(manifest.nodes), "nodes");
    let (mut zero, mut max, mut by_power) = (0, 0, [0u64; 64]);
    for part in 0..manifest.parts() {
        let topology = dataset.topology(part)?;
        for ends in topology.indptr().windows(2) {
            let degree = (ends[1] - ends[0]) as u64;
            max = max.max(degree);
            match degree.checked_ilog2() {
                Some(power) => by_power[power as usize] += 1,
                None => zero += 1,
            }
        }
        progress.advance(topology.num_nodes() as u64);
    }
    progress.done();
    let mean = manifest.edges as f64 / manifest.nodes.max(1) as f64;
    Ok(Prepared {
        path: path.to_owned(),
        bytes: manifest.partitions.iter().map(part_bytes).sum(),
        in_degrees: InDegrees { zero, mean, max, histogram: bins(&by_power) },
        quality: path.join(Quality::FILE).exists().then(|| Quality::read(path)).transpose()?,
        manifest: manifest.clone(),
    })
}

/// Returns the size of a partition's files in bytes.
pub(super) fn part_bytes(part: &PartitionInfo) -> u64 {
    part.topology.bytes + part.node_columns.bytes + part.features.map_or(0, |file| file.bytes)
}
