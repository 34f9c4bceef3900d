//! What a dump is, and how to treat it: plain settings, filled from `[graph]` of a pipeline file.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::dump::DumpFile;
use crate::error::{Error, Result};
use crate::store;

/// A graph in Parquet files, and what to make of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GraphSource {
    /// Files, or folders of `*.parquet` (taken in order of their names). At least one. A URL (`s3://`, `gs://`, `az://`, `http://`,
    /// `https://`) stands for an object or, unless it is of HTTP, for the `*.parquet` directly below it.
    pub nodes: Vec<PathBuf>,
    /// Files, folders or URLs likewise. None at all is a graph without edges.
    pub edges: Vec<PathBuf>,
    /// Which column is what.
    pub columns: Columns,
    /// Mirror every edge, after dropping duplicates when [`Duplicates::Drop`] is set.
    pub undirected: bool,
    /// What to do with edges that occur more than once.
    pub duplicates: Duplicates,
    /// What to do with edges from a node to itself.
    pub self_loops: SelfLoops,
    /// What to do with edges that name a node that is not among the nodes.
    pub unknown_nodes: UnknownNodes,
    /// What to do with nodes that no edge joins with another node, when all other filters are done.
    #[serde(default, skip_serializing_if = "is_default")]
    pub isolated: Isolated,
    /// Add the reverse of every edge as an edge of a type of its own: `rev_<name>`, or the number of types plus the type. In a graph
    /// without types, edges get two: 0 forward, 1 reverse. Not together with `undirected`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub reverse_edges: bool,
    /// Keep the largest part of the graph in which every node has at least so many neighbors (edges in either direction;
    /// multiple edges and edges to oneself do not count).
    #[serde(default, skip_serializing_if = "is_default")]
    pub k_core: Option<u32>,
    /// Keep the largest weakly connected component, after [`k_core`](Self::k_core); of several, that of the first node.
    #[serde(default, skip_serializing_if = "is_default")]
    pub largest_component: bool,
    /// How to scale features.
    pub normalize_features: Normalize,
    /// Shares of train, validation and test among the labelled nodes, when there is no split column. They add up to
    /// at most 1; the rest is in no split.
    pub split_fractions: Option<[f64; 3]>,
    /// Number of classes; `None` = as many as the labels need. Labels must be below it.
    pub num_classes: Option<u32>,
    /// Seed of the random split.
    pub seed: u64,
    /// How features are stored: one type for all of [`Columns::features`], or one for each.
    pub feature_dtype: Vec<FeatureDtype>,
    /// How long a server that fails in passing is asked again, since something last came of it. Never changes the dataset.
    pub retry: Duration,
}

/// The `retry` of a source that says nothing about it.
pub const RETRY: Duration = Duration::from_secs(120);

impl GraphSource {
    /// A source with every setting at its default.
    ///
    /// ```
    /// use gnnflow_data::source::GraphSource;
    /// let source = GraphSource::new("cora/nodes.parquet", "cora/edges.parquet");
    /// assert_eq!(source.columns.src, "src");
    /// ```
    pub fn new(nodes: impl Into<PathBuf>, edges: impl Into<PathBuf>) -> Self {
        Self {
            nodes: vec![nodes.into()],
            edges: vec![edges.into()],
            columns: Columns::default(),
            undirected: false,
            duplicates: Duplicates::default(),
            self_loops: SelfLoops::default(),
            unknown_nodes: UnknownNodes::default(),
            isolated: Isolated::default(),
            reverse_edges: false,
            k_core: None,
            largest_component: false,
            normalize_features: Normalize::default(),
            split_fractions: None,
            num_classes: None,
            seed: 0,
            feature_dtype: vec![FeatureDtype::default()],
            retry: RETRY,
        }
    }

    /// The node files, folders and prefixes replaced by the Parquet files in them. Objects are looked up, not read.
    ///
    /// # Errors
    /// A path or URL where nothing is or that cannot be read, or no file at all.
    pub fn node_files(&self) -> Result<Vec<DumpFile>> {
        if self.nodes.is_empty() {
            return Err(Error::NoFiles { path: PathBuf::new(), role: "graph.nodes" });
        }
        expand(&self.nodes, "graph.nodes", self.retry)
    }

    /// The edge files, folders and prefixes replaced by the Parquet files in them.
    ///
    /// # Errors
    /// A path or URL where nothing is or that cannot be read, or a folder without Parquet files.
    pub fn edge_files(&self) -> Result<Vec<DumpFile>> {
        expand(&self.edges, "graph.edges", self.retry)
    }

    /// Checks what can be checked without reading data.
    ///
    /// # Errors
    /// [`Error::Setting`] with the key.
    pub fn check(&self) -> Result<()> {
        if self.reverse_edges && self.undirected {
            let reason =
                "cannot be combined with graph.undirected, which adds the same edges without a type".to_string();
            return Err(Error::Setting { key: "graph.reverse_edges", reason });
        }
        if let Some(fractions) = self.split_fractions {
            let reason = if self.columns.split.is_some() {
                "cannot be combined with columns.split: choose one".to_string()
            } else if fractions.iter().any(|f| !(0.0..=1.0).contains(f)) {
                format!("{fractions:?} has a share outside 0..1")
            } else if fractions.iter().sum::<f64>() > 1.0 + 1e-9 {
                format!("{fractions:?} adds up to more than 1")
            } else {
                return Ok(());
            };
            return Err(Error::Setting { key: "graph.split_fractions", reason });
        }
        Ok(())
    }

    /// Whether nodes of the dump may be left out.
    pub fn drops_nodes(&self) -> bool {
        self.isolated != Isolated::Keep || self.k_core.is_some() || self.largest_component
    }

    /// Whether edges have types: by a column, or by their direction.
    pub fn typed_edges(&self) -> bool {
        self.columns.edge_type.is_some() || self.reverse_edges
    }

    /// Whether each row stands for an edge in either direction.
    pub fn both_ways(&self) -> bool {
        self.undirected || self.reverse_edges
    }
}

/// Settings that are off leave no trace in a fingerprint: datasets of before there was such a setting stay current.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Names of the columns in the dump.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Columns {
    /// Nodes: the id. Any integer type (`u64` up to `i64::MAX`) or strings.
    pub id: String,
    /// Nodes: the features, concatenated in this order. Each is a number, a boolean, or a list of numbers
    /// (`List`, `LargeList`, `FixedSizeList`) of the same length in every row. Empty = the graph has no features.
    pub features: Vec<String>,
    /// Nodes: the label. Its type decides the task's kind, see [`LabelKind`](crate::dataset::LabelKind).
    pub label: Option<String>,
    /// Nodes: the split. Strings `train`, `val`/`valid`/`validation`, `test`, `none`/`""`, or integers 0 none, 1 train,
    /// 2 validation, 3 test; null is none.
    pub split: Option<String>,
    /// Edges: the source's id.
    pub src: String,
    /// Edges: the destination's id.
    pub dst: String,
    /// Edges: weight, a finite number.
    pub weight: Option<String>,
    /// Edges: type, an integer in 0..65535 or a string.
    pub edge_type: Option<String>,
    /// Nodes: type, an integer in 0..65535 or a string.
    pub node_type: Option<String>,
    /// Nodes: time, as that of edges; of a training node, the time that its neighborhood is seen at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_time: Option<String>,
    /// Edges: time, an integer, date or timestamp; kept as the 64-bit integer that it is stored as.
    pub time: Option<String>,
    /// Edges: features, like those of nodes.
    pub edge_features: Vec<String>,
    /// Edges: the split, for tasks on edges: as that of nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub edge_split: Option<String>,
    /// Edges: the class, for tasks on edges: an integer, a boolean or a string; −1 and null are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub edge_label: Option<String>,
}

impl Default for Columns {
    /// `node_id`, `src`, `dst`, and nothing else.
    fn default() -> Self {
        Self {
            id: "node_id".into(),
            features: Vec::new(),
            label: None,
            split: None,
            src: "src".into(),
            dst: "dst".into(),
            weight: None,
            edge_type: None,
            node_type: None,
            node_time: None,
            time: None,
            edge_features: Vec::new(),
            edge_split: None,
            edge_label: None,
        }
    }
}

/// What to do with edges that occur more than once: with the same source, destination and, when there is a type column,
/// type. Edges that differ in time only are duplicates too; set [`Duplicates::Keep`] for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Duplicates {
    /// Keep the first in dump order. In an undirected graph an edge and its mirror image are the same edge: the first
    /// row of the pair lends its weight, type, time, features, split and label to both directions.
    #[default]
    Drop,
    /// Keep them all.
    Keep,
    /// Stop with the first one's place.
    Fail,
}

/// What to do with edges from a node to itself. They are never mirrored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SelfLoops {
    /// Keep those in the dump.
    #[default]
    Keep,
    /// Drop them.
    Drop,
    /// Give one to every node that has none: weight 1, time 0, edge features 0, in no split, without a label, and with an edge
    /// type of its own, the last.
    Add,
    /// Stop with the first one's place.
    Fail,
}

/// What to do with edges that name a node that is not among the nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UnknownNodes {
    /// Stop with the first one's place.
    #[default]
    Fail,
    /// Drop the edges, and count them.
    Drop,
    /// Make a node of every such id: after the nodes of the dump, by ascending id, with features of zeros (after scaling), no
    /// label (−1, no class, or NaN), in no split, of type 0.
    Create,
}

/// What to do with nodes that no edge joins with another node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Isolated {
    /// Keep them.
    #[default]
    Keep,
    /// Drop them.
    Drop,
    /// Stop with the first one's id.
    Fail,
}

/// How to scale node features.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Normalize {
    /// As they are.
    #[default]
    None,
    /// Each row divided by the sum of its absolute values, or by 1 when that is smaller.
    Row,
    /// Each column with mean 0 and standard deviation 1 over all nodes; constant columns become 0.
    Standard,
}

/// How features are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FeatureDtype {
    /// 32-bit floats.
    #[default]
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of a 32-bit float.
    Bf16,
}

impl FeatureDtype {
    /// Bytes of one value.
    pub const fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    /// Its name in pipelines and files.
    pub const fn word(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        }
    }
}

/// Whether a path that a user wrote is a URL: not relative to anything, and not on this machine.
///
/// ```
/// use gnnflow_data::source::is_url;
/// assert!(is_url("s3://bucket/nodes/".as_ref()) && !is_url("dumps/nodes.parquet".as_ref()));
/// ```
pub fn is_url(path: &Path) -> bool {
    store::is_url(path)
}

/// Replaces folders and prefixes by the `*.parquet` files in them, in order of their names.
pub(crate) fn expand(paths: &[PathBuf], role: &'static str, retry: Duration) -> Result<Vec<DumpFile>> {
    let urls: Vec<PathBuf> = paths.iter().filter(|path| is_url(path)).cloned().collect();
    let found = if urls.is_empty() { Vec::new() } else { store::find(urls, role, retry)? };
    let mut found = found.into_iter();
    let mut files = Vec::new();
    for path in paths {
        match is_url(path) {
            true => files.extend(found.next().into_iter().flatten().map(DumpFile::remote)),
            false => files.extend(on_disk(path, role)?.into_iter().map(DumpFile::local)),
        }
    }
    Ok(files)
}

/// The file, or the Parquet files of the folder.
fn on_disk(path: &Path, role: &'static str) -> Result<Vec<PathBuf>> {
    let meta = std::fs::metadata(path).map_err(|source| match source.kind() {
        std::io::ErrorKind::NotFound => Error::Missing { path: path.to_path_buf(), role },
        _ => Error::io(path, "read")(source),
    })?;
    if !meta.is_dir() {
        return Ok(vec![path.to_path_buf()]);
    }
    let found = in_folder(path)?;
    if found.is_empty() {
        return Err(Error::NoFiles { path: path.to_path_buf(), role });
    }
    Ok(found)
}

fn in_folder(path: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(path).map_err(Error::io(path, "list"))? {
        let file = entry.map_err(Error::io(path, "list"))?.path();
        let hidden = file.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        if !hidden && file.extension().is_some_and(|ext| ext == "parquet") {
            found.push(file);
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_become_their_parquet_files_in_order() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["b.parquet", "a.parquet", "_SUCCESS", ".hidden.parquet", "c.csv"] {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        let source = GraphSource::new(dir.path(), dir.path().join("b.parquet"));
        let names = |files: Vec<DumpFile>| {
            files.iter().map(|f| f.path().file_name().unwrap().to_string_lossy().into_owned()).collect::<Vec<_>>()
        };
        assert_eq!(names(source.node_files().unwrap()), ["a.parquet", "b.parquet"]);
        assert_eq!(names(source.edge_files().unwrap()), ["b.parquet"]);
    }

    #[test]
    fn what_is_not_there_is_named() {
        let error = GraphSource::new("/no/such/nodes.parquet", "/no/e").node_files().unwrap_err();
        assert_eq!(error.to_string(), "/no/such/nodes.parquet: there is no such file or folder (graph.nodes)");
    }

    #[test]
    fn fractions_are_checked() {
        for (fractions, word) in [([0.6, 0.6, 0.0], "more than 1"), ([-0.1, 0.5, 0.5], "outside")] {
            let source = GraphSource { split_fractions: Some(fractions), ..GraphSource::new("n", "e") };
            assert!(source.check().unwrap_err().to_string().contains(word));
        }
    }
}
