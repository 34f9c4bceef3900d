//! Settings of a dump: its files, its columns and the policies for its data. `[graph]` of a pipeline file sets them.

mod features;
mod policies;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use features::{FeatureDtype, Normalize};
pub use policies::{Duplicates, Isolated, SelfLoops, UnknownNodes};

use crate::dataset::{Encoding, LabelKind};
use crate::error::{Error, Result};
use crate::store::{self, DumpFile};

/// A graph in Parquet files, with the settings that control how it is read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GraphSource {
    /// Files, or folders of `*.parquet` (read in order of their names); at least one.
    ///
    /// A URL (`s3://`, `gs://`, `az://`, `http://`, `https://`) names an object, or all `*.parquet` objects directly
    /// below it. HTTP URLs name objects only.
    pub nodes: Vec<PathBuf>,
    /// The type of all rows of each of `nodes`, or empty. [`Columns::node_type`] names the column that such tables get. Tables of types may
    /// lack the label, the split and feature columns. Each type has its own block of feature values; the other values of a row are 0.
    #[serde(default, skip_serializing_if = "is_default")]
    pub node_types: Vec<String>,
    /// Files, folders or URLs, as for `nodes`. An empty list is a graph without edges.
    pub edges: Vec<PathBuf>,
    /// The type of all rows of each of `edges`, or empty. [`Columns::edge_type`] names the column that such tables get. Tables of types may
    /// lack the split and the label.
    #[serde(default, skip_serializing_if = "is_default")]
    pub edge_types: Vec<String>,
    /// Names of the columns.
    pub columns: Columns,
    /// Mirror every edge, after duplicates are dropped if [`Duplicates::Drop`] is set.
    pub undirected: bool,
    /// Policy for edges that occur more than once.
    pub duplicates: Duplicates,
    /// Policy for edges from a node to itself.
    pub self_loops: SelfLoops,
    /// Policy for edges with an end that is not in the node table.
    pub unknown_nodes: UnknownNodes,
    /// Policy for nodes without an edge to another node, after all other filters.
    #[serde(default, skip_serializing_if = "is_default")]
    pub isolated: Isolated,
    /// Add the reverse of every edge with a separate type: `rev_<name>`, or the number of types plus the type. In a
    /// graph without types, forward edges get type 0 and reverse edges type 1. Cannot be combined with `undirected`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub reverse_edges: bool,
    /// Keep the k-core: the largest subgraph in which every node has at least this many neighbors. Neighbors count in
    /// either direction; multiple edges and self-loops do not count.
    #[serde(default, skip_serializing_if = "is_default")]
    pub k_core: Option<u32>,
    /// Keep the largest weakly connected component, after [`k_core`](Self::k_core). Of several, keep the one with the
    /// first node.
    #[serde(default, skip_serializing_if = "is_default")]
    pub largest_component: bool,
    /// How to scale features.
    pub normalize_features: Normalize,
    /// Fractions of train, validation and test nodes among the labeled nodes, for dumps without a split column. Their
    /// sum is at most 1; the remaining nodes are in no split.
    pub split_fractions: Option<[f64; 3]>,
    /// Number of classes; labels must be smaller. `None`: the largest label plus 1.
    pub num_classes: Option<u32>,
    /// Seed of the random split.
    pub seed: u64,
    /// Storage types of features: one for all of [`Columns::features`], or one for each.
    pub feature_dtype: Vec<FeatureDtype>,
    /// The encoding of another dataset: the tables have its columns, and are stored with its means and deviations of features, its classes of nodes and
    /// edges, and its edge types. A label or edge type that it does not have is refused.
    #[serde(default, skip_serializing_if = "is_default")]
    pub encode_like: Option<Encoding>,
    /// Time limit for retries of a server with temporary failures, since its last answer. It never affects the dataset.
    pub retry: Duration,
}

/// The default of [`GraphSource::retry`].
pub const RETRY: Duration = Duration::from_secs(120);

impl GraphSource {
    /// Creates a source with all other settings at their defaults.
    ///
    /// ```
    /// use gnnflow_data::source::GraphSource;
    /// let source = GraphSource::new("cora/nodes.parquet", "cora/edges.parquet");
    /// assert_eq!(source.columns.src, "src");
    /// ```
    pub fn new(nodes: impl Into<PathBuf>, edges: impl Into<PathBuf>) -> Self {
        Self {
            nodes: vec![nodes.into()],
            node_types: Vec::new(),
            edges: vec![edges.into()],
            edge_types: Vec::new(),
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
            encode_like: None,
            retry: RETRY,
        }
    }

    /// Returns the Parquet files of the nodes: folders and prefixes are expanded. Objects are looked up but not read.
    ///
    /// # Errors
    /// When a path or URL does not exist or cannot be read, or when there is no file at all.
    pub fn node_files(&self) -> Result<Vec<DumpFile>> {
        if self.nodes.is_empty() {
            return Err(Error::NoFiles { path: PathBuf::new(), role: "graph.nodes" });
        }
        Ok(with_types(expand_each(&self.nodes, "graph.nodes", self.retry)?, &self.node_types))
    }

    /// Returns the Parquet files of the edges: folders and prefixes are expanded.
    ///
    /// # Errors
    /// When a path or URL does not exist or cannot be read, or when a folder has no Parquet files.
    pub(crate) fn edge_files(&self) -> Result<Vec<DumpFile>> {
        Ok(with_types(expand_each(&self.edges, "graph.edges", self.retry)?, &self.edge_types))
    }

    /// Returns the names of the columns of the first node file; of the first file of each type, if each has its files.
    ///
    /// # Errors
    /// Those of [`GraphSource::node_files`], and a file that is not Parquet.
    pub fn node_columns(&self) -> Result<Vec<String>> {
        let mut files = self.node_files()?;
        files.dedup_by(|next, first| next.row_type() == first.row_type());
        let mut names = Vec::new();
        for file in files {
            names.extend(file.column_names("graph.nodes")?);
        }
        Ok(names)
    }

    /// Checks all that can be checked without data.
    ///
    /// # Errors
    /// [`Error::Setting`] with the key.
    pub fn check(&self) -> Result<()> {
        let tables = [
            ("graph.nodes", &self.nodes, &self.node_types, &self.columns.node_type),
            ("graph.edges", &self.edges, &self.edge_types, &self.columns.edge_type),
        ];
        for (key, paths, types, column) in tables {
            if !types.is_empty() && (types.len() != paths.len() || column.is_none()) {
                let reason = "a table for each type needs a type for every path, and a name for the column of types";
                return Err(Error::Setting { key, reason: reason.into() });
            }
        }
        if self.reverse_edges && self.undirected {
            let reason =
                "cannot be combined with graph.undirected, which adds the same edges without a type".to_string();
            return Err(Error::Setting { key: "graph.reverse_edges", reason });
        }
        if let Some(fractions) = self.split_fractions {
            let reason = if self.columns.split.is_some() {
                "cannot be combined with graph.columns.split; remove one".to_string()
            } else if fractions.iter().any(|f| !(0.0..=1.0).contains(f)) {
                format!("{fractions:?} has a fraction outside 0..1; use fractions from 0 to 1")
            } else if fractions.iter().sum::<f64>() > 1.0 + 1e-9 {
                format!("{fractions:?} adds up to more than 1; use smaller fractions")
            } else {
                return Ok(());
            };
            return Err(Error::Setting { key: "graph.split_fractions", reason });
        }
        Ok(())
    }

    /// Returns the number of classes, if it is known before the labels are read.
    pub fn classes(&self) -> Option<u32> {
        let labels = self.encode_like.as_ref().and_then(|encoding| encoding.labels.as_ref());
        let alike =
            labels.filter(|labels| labels.kind != LabelKind::Value && labels.count > 0).map(|labels| labels.count);
        self.num_classes.or(alike)
    }

    /// Whether a filter may drop nodes of the dump.
    pub(crate) fn drops_nodes(&self) -> bool {
        self.isolated != Isolated::Keep || self.k_core.is_some() || self.largest_component
    }

    /// Whether edges have types, from a column or from their direction.
    pub(crate) fn typed_edges(&self) -> bool {
        self.columns.edge_type.is_some() || self.reverse_edges
    }

    /// Returns whether each row is an edge in both directions.
    pub(crate) fn both_ways(&self) -> bool {
        self.undirected || self.reverse_edges
    }
}

/// Fingerprints omit settings at their defaults, so that datasets prepared before the setting existed stay current.
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
    /// Nodes: the label. Its type decides the task's kind, see [`LabelKind`].
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
    /// Nodes: time, in the unit of edge times. The neighborhood of a training node is sampled as of this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_time: Option<String>,
    /// Edges: time, an integer, date or timestamp. It is stored as the same 64-bit integer.
    pub time: Option<String>,
    /// Edges: features, like those of nodes.
    pub edge_features: Vec<String>,
    /// Edges: the split, for tasks on edges; same values as for nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub edge_split: Option<String>,
    /// Edges: the class, for tasks on edges: an integer, a boolean or a string. −1 and null mean unlabeled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub edge_label: Option<String>,
}

impl Default for Columns {
    /// `node_id`, `src` and `dst` only.
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

/// Returns whether a path that a user wrote is a URL.
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
    Ok(expand_each(paths, role, retry)?.concat())
}

/// Returns the files of all paths. Those of path `i` have the type `types[i]`, if there is one.
fn with_types(files: Vec<Vec<DumpFile>>, types: &[String]) -> Vec<DumpFile> {
    let types = types.iter().map(|name| Some(Arc::from(name.as_str()))).chain(std::iter::repeat(None));
    let of_path = |(files, row_type): (Vec<DumpFile>, Option<Arc<str>>)| {
        files.into_iter().map(move |file| file.with_row_type(row_type.clone()))
    };
    files.into_iter().zip(types).flat_map(of_path).collect()
}

/// Returns the files of each path.
fn expand_each(paths: &[PathBuf], role: &'static str, retry: Duration) -> Result<Vec<Vec<DumpFile>>> {
    let urls: Vec<PathBuf> = paths.iter().filter(|path| is_url(path)).cloned().collect();
    let found = if urls.is_empty() { Vec::new() } else { store::find(urls, role, retry)? };
    let mut found = found.into_iter();
    let files = |path: &PathBuf| match is_url(path) {
        true => Ok(found.next().into_iter().flatten().map(DumpFile::remote).collect()),
        false => Ok(on_disk(path, role)?.into_iter().map(DumpFile::local).collect()),
    };
    paths.iter().map(files).collect()
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
    fn folder_expands_to_its_parquet_files_in_order() {
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
    fn missing_path_error_names_the_path() {
        let error = GraphSource::new("/no/such/nodes.parquet", "/no/e").node_files().unwrap_err();
        assert_eq!(error.to_string(), "/no/such/nodes.parquet: there is no such file or folder (graph.nodes)");
    }

    #[test]
    fn split_fractions_out_of_range_are_refused() {
        for (fractions, word) in [([0.6, 0.6, 0.0], "more than 1"), ([-0.1, 0.5, 0.5], "outside")] {
            let source = GraphSource { split_fractions: Some(fractions), ..GraphSource::new("n", "e") };
            assert!(source.check().unwrap_err().to_string().contains(word));
        }
    }
}
