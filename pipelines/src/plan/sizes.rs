//! The size of the graph: from the manifest of the prepared dataset, or else from Parquet footers or the generator.

use crate::config::{Config, FeatureDtype};
use crate::error::Error;
use crate::model_file::encode_like;
use crate::task::target_counts::TargetCounts;
use gnnflow_data::Manifest;
use gnnflow_data::prepare::estimate;
use serde::Serialize;

/// The size of the graph.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sizes {
    /// Whether the dataset is prepared. All numbers are exact then.
    pub prepared: bool,
    /// Number of nodes.
    pub nodes: u64,
    /// Number of directed edges; an upper bound before preparation.
    pub edges: u64,
    /// Width of the features.
    pub features: usize,
    /// Bytes of one feature value as stored.
    pub feature_bytes: usize,
    /// Whether partitions have the features of their halo nodes.
    #[serde(skip)]
    pub halo_features: bool,
    /// Number of classes, when known.
    pub classes: Option<u64>,
    /// Number of edge types (0: edges without types), when known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub relations: Option<usize>,
    /// Number of classes of edges, when known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub edge_classes: Option<u64>,
    /// Width of the edges' features (0: edges without features), when known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub edge_features: Option<usize>,
    /// Number of training nodes; `None` before labels and splits are read.
    pub train: Option<u64>,
    /// In tasks on edges, the target edges, if they are counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub targets: Option<TargetCounts>,
    /// Upper bound of the memory of preparation in bytes; 0 if prepared.
    pub prepare_bytes: u64,
    /// Upper bound of the bytes of the dataset; before preparation, including its temporary files.
    pub disk_bytes: u64,
    /// Each partition.
    pub parts: Vec<PartSize>,
}

/// The size of one partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct PartSize {
    /// Core nodes.
    pub nodes: u64,
    /// In-edges of the core nodes.
    pub edges: u64,
    /// Training nodes among the core nodes; all core nodes if unknown.
    pub train: u64,
    /// Halo nodes; an upper bound before preparation.
    pub halo: u64,
    /// Bytes of the structure.
    pub topology_bytes: u64,
    /// Bytes of the features.
    pub feature_bytes: u64,
}

impl Sizes {
    /// Returns the size of the graph of `config`: exact if its dataset is prepared, else estimated from its input, for a
    /// preparation by `processes` processes.
    ///
    /// # Errors
    /// If the input is missing or unreadable, `graph.dataset` is not a dataset, or the dataset to prepare has been updated.
    pub fn of(config: &Config, processes: usize) -> Result<Self, Error> {
        if config.graph.dataset.is_some() {
            return Ok(Self::prepared(config.open_dataset()?.manifest()));
        }
        match Manifest::read(config.dataset_folder()) {
            Ok(manifest) if !manifest.updates.is_empty() => {
                return Err(gnnflow_data::Error::Updated { path: config.dataset_folder().to_owned() }.into());
            }
            Ok(manifest) if manifest.parts() == config.parts() => return Ok(Self::prepared(&manifest)),
            _ => {}
        }
        match &config.graph.generate {
            Some(generate) => {
                let generator = generate.generator();
                let (nodes, rows) = generator.size();
                let fractions = config.graph.split_fractions.as_ref().unwrap_or(&generate.split);
                let train = (nodes as f64 * fractions.first().copied().unwrap_or(0.0)).ceil() as u64;
                let edges = if config.graph.undirected || config.graph.reverse_edges { 2 * rows } else { rows };
                Ok(Self::bound(config, nodes, edges, generator.features(), Some(generator.classes()), Some(train)))
            }
            None => Self::from_footers(config, processes),
        }
    }

    /// Whether the number of training nodes or edges is known.
    pub(super) fn knows_examples(&self) -> bool {
        self.train.is_some() || self.targets.is_some()
    }

    /// Returns the size in the manifest of a prepared dataset.
    pub fn prepared(manifest: &Manifest) -> Self {
        let part = |part: &gnnflow_data::dataset::PartitionInfo| PartSize {
            nodes: part.nodes,
            edges: part.edges,
            train: part.train,
            halo: part.halo_nodes,
            topology_bytes: part.topology.bytes,
            feature_bytes: part.features.map_or(0, |file| file.bytes),
        };
        let files = |part: &gnnflow_data::dataset::PartitionInfo| {
            part.topology.bytes + part.node_columns.bytes + part.features.map_or(0, |file| file.bytes)
        };
        Self {
            prepared: true,
            nodes: manifest.nodes,
            edges: manifest.edges,
            features: manifest.features.dim,
            // Rows of mixed types are f32 in a batch.
            feature_bytes: manifest.features.layout().dtype().unwrap_or_default().size(),
            halo_features: manifest.halo_features,
            classes: manifest.labels.as_ref().map(|labels| u64::from(labels.classes)),
            relations: Some(manifest.edge_columns.edge_type.as_ref().map_or(0, |types| types.count as usize)),
            edge_classes: manifest.edge_columns.label.as_ref().map(|labels| u64::from(labels.classes)),
            edge_features: Some(manifest.edge_columns.features),
            train: Some(manifest.splits.train),
            targets: None,
            prepare_bytes: 0,
            disk_bytes: manifest.partitions.iter().map(files).sum(),
            parts: manifest.partitions.iter().map(part).collect(),
        }
    }

    fn from_footers(config: &Config, processes: usize) -> Result<Self, Error> {
        let source = encode_like::source(config)?.ok_or_else(|| Error::Bug("a pipeline has no graph".into()))?;
        let settings = config.prepare_settings(config.dataset_folder().to_owned());
        let found = estimate(&source, config.partition.partitioner(None).as_deref(), &settings, processes)?;
        let train = source.split_fractions.map(|fractions| (found.nodes as f64 * fractions[0]).ceil() as u64);
        let mut sizes =
            Self::bound(config, found.nodes, found.edges, found.feature_dim, source.classes().map(u64::from), train);
        (sizes.prepare_bytes, sizes.disk_bytes) = (found.memory, found.disk + found.scratch);
        Ok(sizes)
    }

    /// Returns an upper bound of the size before preparation, with partitions of equal size, as by `random` and `range`.
    fn bound(
        config: &Config,
        nodes: u64,
        edges: u64,
        features: usize,
        classes: Option<u64>,
        train: Option<u64>,
    ) -> Self {
        // An upper bound if columns have different types.
        let feature_bytes = if config.graph.feature_dtype.0.contains(&FeatureDtype::F32) { 4 } else { 2 };
        let parts = config.parts() as u64;
        let share = |whole: u64, part: u64| (whole * (part + 1) / parts) - (whole * part / parts);
        let one = |part: u64| {
            let (all, nodes, edges) = (nodes, share(nodes, part), share(edges, part));
            PartSize {
                halo: edges.min(all - nodes),
                nodes,
                edges,
                train: train.map_or(nodes, |train| share(train, part)),
                topology_bytes: 8 * (nodes + 1) + 4 * edges,
                feature_bytes: nodes * (features * feature_bytes) as u64,
            }
        };
        let parts: Vec<PartSize> = (0..parts).map(one).collect();
        let disk_bytes = 21 * nodes + parts.iter().map(|part| part.topology_bytes + part.feature_bytes).sum::<u64>();
        let prepare_bytes = config.partition.memory.0;
        Self {
            prepared: false,
            nodes,
            edges,
            features,
            feature_bytes,
            halo_features: config.stores_halo_features(),
            classes,
            relations: None,
            edge_classes: None,
            edge_features: None,
            train,
            targets: None,
            prepare_bytes,
            disk_bytes,
            parts,
        }
    }
}

#[cfg(test)]
impl Sizes {
    /// A prepared graph of these partitions, with 16 features and 3 classes.
    pub(super) fn of_parts(parts: Vec<PartSize>) -> Self {
        let sum = |of: fn(&PartSize) -> u64| parts.iter().map(of).sum::<u64>();
        Self {
            prepared: true,
            nodes: sum(|part| part.nodes),
            edges: sum(|part| part.edges),
            features: 16,
            feature_bytes: 4,
            halo_features: true,
            classes: Some(3),
            relations: Some(0),
            edge_classes: None,
            edge_features: Some(0),
            train: Some(sum(|part| part.train)),
            targets: None,
            prepare_bytes: 0,
            disk_bytes: 0,
            parts,
        }
    }
}
