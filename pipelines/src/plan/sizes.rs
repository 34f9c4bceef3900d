//! How large the graph is: from the prepared dataset's manifest, or, before there is one, from footers or the generator.

use crate::Error;
use crate::spec::{FeatureDtype, Spec};
use arrow::array::{Array, FixedSizeListArray, LargeListArray, ListArray};
use arrow::datatypes::DataType;
use gnnflow_data::Manifest;
use gnnflow_data::source::GraphSource;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ParquetRecordBatchReaderBuilder};
use serde::Serialize;
use std::path::Path;

/// What is known about the graph's size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sizes {
    /// Whether the prepared dataset is there, so that everything is exact.
    pub prepared: bool,
    /// Number of nodes.
    pub nodes: u64,
    /// Number of directed edges; the most there can be, when not prepared.
    pub edges: u64,
    /// Width of the features.
    pub features: usize,
    /// Bytes of one feature value as stored.
    pub feature_bytes: usize,
    /// Number of classes, when known.
    pub classes: Option<u64>,
    /// Number of train nodes; unknown before labels and splits were read.
    pub train: Option<u64>,
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
    /// Core nodes to train on; all of them when unknown.
    pub train: u64,
    /// Bytes of the structure.
    pub topology_bytes: u64,
    /// Bytes of the features.
    pub feature_bytes: u64,
}

impl Sizes {
    /// The sizes of the graph that `spec` names: exact if its dataset is there and readable, else from what is there.
    ///
    /// # Errors
    /// Input that is missing or unreadable; a `graph.dataset` that is none.
    pub fn of(spec: &Spec) -> Result<Self, Error> {
        match Manifest::read(spec.dataset_folder()) {
            Ok(manifest) if spec.graph.dataset.is_some() || manifest.parts() == spec.parts() => {
                return Ok(Self::prepared(&manifest));
            }
            Err(error) if spec.graph.dataset.is_some() => return Err(error.into()),
            _ => {}
        }
        match &spec.graph.generate {
            Some(generate) => {
                let generator = generate.generator();
                let (nodes, rows) = generator.size();
                let train = (nodes as f64 * generate.split.first().copied().unwrap_or(0.0)).ceil() as u64;
                Ok(Self::ahead(spec, nodes, rows, generator.features(), Some(generator.classes()), Some(train)))
            }
            None => Self::from_footers(spec),
        }
    }

    /// From a prepared dataset's manifest.
    pub fn prepared(manifest: &Manifest) -> Self {
        let part = |part: &gnnflow_data::dataset::PartitionInfo| PartSize {
            nodes: part.nodes,
            edges: part.edges,
            train: part.train,
            topology_bytes: part.topology.bytes,
            feature_bytes: part.features.map_or(0, |file| file.bytes),
        };
        Self {
            prepared: true,
            nodes: manifest.nodes,
            edges: manifest.edges,
            features: manifest.features.dim,
            feature_bytes: manifest.features.dtype.size(),
            classes: manifest.labels.as_ref().map(|labels| u64::from(labels.classes)),
            train: Some(manifest.splits.train),
            parts: manifest.partitions.iter().map(part).collect(),
        }
    }

    fn from_footers(spec: &Spec) -> Result<Self, Error> {
        let Some(source) = spec.graph_source()? else {
            return Err(Error::Bug("a pipeline without a source passed its checks".into()));
        };
        let count =
            |files: Vec<std::path::PathBuf>| files.iter().map(|file| Ok(rows(file)?)).sum::<Result<u64, Error>>();
        let node_files = source.node_files()?;
        let width = width(&node_files[0], &source)?;
        let (nodes, edge_rows) = (count(node_files)?, count(source.edge_files()?)?);
        let train = source.split_fractions.map(|shares| (nodes as f64 * shares[0]).ceil() as u64);
        Ok(Self::ahead(spec, nodes, edge_rows, width, source.num_classes.map(u64::from), train))
    }

    /// Before there is a dataset: partitions of equal size, as `random` and `range` make them.
    fn ahead(spec: &Spec, nodes: u64, rows: u64, features: usize, classes: Option<u64>, train: Option<u64>) -> Self {
        let edges = if spec.graph.undirected { 2 * rows } else { rows };
        let feature_bytes = match spec.graph.feature_dtype {
            FeatureDtype::F32 => 4,
            FeatureDtype::F16 | FeatureDtype::Bf16 => 2,
        };
        let parts = spec.parts() as u64;
        let share = |whole: u64, part: u64| (whole * (part + 1) / parts) - (whole * part / parts);
        let one = |part: u64| {
            let (nodes, edges) = (share(nodes, part), share(edges, part));
            PartSize {
                nodes,
                edges,
                train: train.map_or(nodes, |train| share(train, part)),
                topology_bytes: 8 * (nodes + 1) + 4 * edges,
                feature_bytes: nodes * (features * feature_bytes) as u64,
            }
        };
        let parts = (0..parts).map(one).collect();
        Self { prepared: false, nodes, edges, features, feature_bytes, classes, train, parts }
    }
}

/// Rows of a Parquet file, by its footer.
fn rows(path: &Path) -> gnnflow_data::Result<u64> {
    let file = std::fs::File::open(path).map_err(gnnflow_data::Error::io(path, "open"))?;
    let footer = ArrowReaderMetadata::load(&file, Default::default()).map_err(|error| broken(path, error))?;
    Ok(footer.metadata().file_metadata().num_rows().max(0) as u64)
}

/// Width of a node's features, by the schema and, for lists of any length, the first row.
fn width(path: &Path, source: &GraphSource) -> gnnflow_data::Result<usize> {
    let file = std::fs::File::open(path).map_err(gnnflow_data::Error::io(path, "open"))?;
    let builder = ParquetRecordBatchReaderBuilder::try_new(file).map_err(|error| broken(path, error))?;
    let names: Vec<&str> = source.columns.features.iter().map(String::as_str).collect();
    let mask = parquet::arrow::ProjectionMask::columns(builder.parquet_schema(), names.iter().copied());
    let mut reader =
        builder.with_projection(mask).with_batch_size(1).with_limit(1).build().map_err(|error| broken(path, error))?;
    let Some(first) = reader.next().transpose().map_err(|error| broken(path, error))? else { return Ok(0) };
    let of = |column: &dyn Array| match column.data_type() {
        DataType::FixedSizeList(..) => {
            column.as_any().downcast_ref::<FixedSizeListArray>().map_or(1, |list| list.value_length() as usize)
        }
        DataType::List(_) => column.as_any().downcast_ref::<ListArray>().map_or(1, |list| list.value(0).len()),
        DataType::LargeList(_) => {
            column.as_any().downcast_ref::<LargeListArray>().map_or(1, |list| list.value(0).len())
        }
        _ => 1,
    };
    Ok(first.columns().iter().map(|column| of(column.as_ref())).sum())
}

fn broken(path: &Path, error: impl ToString) -> gnnflow_data::Error {
    gnnflow_data::Error::NotParquet { path: path.into(), reason: error.to_string() }
}
