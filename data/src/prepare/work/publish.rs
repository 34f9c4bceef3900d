//! Writes report and manifest, and moves the dataset into place.

use std::time::Instant;

use super::{DropCounts, Preparation, Prepared};
use crate::dataset::{ColumnScale, EdgeColumns, FORMAT, FeatureInfo, Manifest, PartitionInfo, SCHEMA_VERSION};
use crate::error::{Error, Result};
use crate::group::ProcessGroup;
use crate::prepare::arrange::Duplicate;
use crate::prepare::fingerprint::Fingerprint;
use crate::prepare::folder::{self, StagingFolder};
use crate::prepare::quality::Quality;
use crate::prepare::relabel::Relabel;
use crate::prepare::scan::Scan;
use crate::prepare::write_nodes::NodeFiles;
use crate::prepare::write_topology::TopologyFile;
use crate::source::Duplicates;

impl<C: ProcessGroup> Preparation<'_, C> {
    /// Returns the error for the first duplicate edge.
    pub(super) fn duplicate(&self, first_duplicate: Duplicate, scan: &Scan, relabel: &Relabel) -> Result<Error> {
        let (second, first, dst, src) = first_duplicate;
        let id = |global| relabel.index(global).map_or(Ok("?".into()), |index| scan.ids.show(index));
        let first = self.edges.place(first);
        Ok(Error::DuplicateEdge {
            place: self.edges.place(second),
            first: format!("{} row {}", first.path.display(), first.row),
            src: id(src)?,
            dst: id(dst)?,
        })
    }

    pub(super) fn manifest(
        &self,
        wanted: Fingerprint,
        scan: &Scan,
        relabel: &Relabel,
        (mut edge_columns, scales): (EdgeColumns, Vec<ColumnScale>),
        all: &[(usize, NodeFiles, TopologyFile)],
        unknown: DropCounts,
    ) -> Manifest {
        let book = &relabel.book;
        let partition = |(part, nodes, topology): &(usize, NodeFiles, TopologyFile)| {
            let range = book.range(*part);
            PartitionInfo {
                nodes: range.end - range.start,
                edges: topology.edges,
                train: nodes.train,
                topology: topology.file,
                halo: Some(topology.halo_file),
                halo_nodes: topology.halo.iter().sum(),
                node_columns: nodes.nodes,
                features: nodes.features,
            }
        };
        for (.., topology) in all {
            edge_columns.split.iter_mut().for_each(|splits| splits.add_all(&topology.splits));
            if let Some(labels) = &mut edge_columns.label {
                labels.labeled += topology.classes.iter().sum::<u64>();
                labels.counts.iter_mut().zip(&topology.classes).for_each(|(count, more)| *count += more);
            }
        }
        let sum = |what: fn(&TopologyFile) -> u64| all.iter().map(|(.., topology)| what(topology)).sum::<u64>();
        Manifest {
            format: FORMAT.into(),
            schema: SCHEMA_VERSION,
            fingerprint: wanted.digest,
            settings: wanted.settings,
            inputs: wanted.inputs,
            nodes: book.nodes(),
            edges: sum(|part| part.edges),
            edge_rows: self.edges.rows(),
            duplicates_dropped: if self.source.duplicates == Duplicates::Drop { sum(|part| part.dropped) } else { 0 },
            unknown_dropped: unknown.dropped,
            cleaning: unknown.cleaning,
            self_loops: sum(|part| part.loops),
            undirected: self.source.undirected,
            offsets: book.offsets().to_vec(),
            method: self.partitioner.name().to_string(),
            ids: self.nodes.id_kind(),
            halo_features: self.settings.halo_features && self.nodes.feature_width() > 0,
            features: FeatureInfo::new(
                self.nodes.feature_layout(),
                self.source.normalize_features,
                scales,
                self.nodes.feature_columns().columns,
            ),
            labels: scan.labels.as_ref().map(|(info, _)| info.clone()),
            splits: scan.split_counts(),
            node_types: scan.types.clone(),
            node_times: self.nodes.has_times(),
            edge_columns,
            partitions: all.iter().map(partition).collect(),
            updates: Vec::new(),
        }
    }

    /// Writes report and manifest, and moves the dataset into place.
    pub(super) fn publish(&self, staging: StagingFolder, prepared: &Prepared, began: Instant) -> Result<()> {
        std::fs::remove_dir_all(self.scratch).map_err(Error::io(self.scratch, "remove"))?;
        let quality = Quality {
            seconds: began.elapsed().as_secs_f64(),
            partition_seconds: prepared.partitioning.seconds,
            partition_bytes: prepared.partitioning.bytes,
            peak_rss_bytes: prepared.peak_rss,
            processes: self.processes.size(),
            passes: self.progress.records(),
            ..Quality::of(&prepared.manifest, &prepared.topologies)
        };
        let report = serde_json::to_string_pretty(&quality).map_err(|e| Error::Bug(e.to_string()))?;
        folder::write_file(&staging.path().join(Quality::FILE), report.as_bytes())?;
        // The manifest is last, because a folder without it is not a dataset.
        folder::write_file(&staging.path().join(Manifest::FILE), prepared.manifest.to_json()?.as_bytes())?;
        staging.publish()
    }
}
