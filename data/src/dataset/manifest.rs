//! `manifest.json`: the contents of a prepared dataset, the inputs and settings that it was made from, and the lengths of its files.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::feature_columns::FeatureColumn;
use super::row_layout::{RowLayout, Stretch};
use crate::error::{Error, Result};
use crate::source::{FeatureDtype, Normalize};

/// Version of the layout on disk. A dataset of another version must be prepared again.
pub const SCHEMA_VERSION: u64 = 1;

/// First key of every manifest. A folder whose `manifest.json` lacks it is not a dataset.
pub const FORMAT: &str = "gnnflow-dataset";

/// All data about a prepared dataset except its arrays.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Always [`FORMAT`].
    pub format: String,
    /// Always [`SCHEMA_VERSION`] when read by this build.
    pub schema: u64,
    /// SHA-256 over schema version, settings and inputs, in hexadecimal.
    pub fingerprint: String,
    /// The settings that went into the fingerprint.
    pub settings: serde_json::Value,
    /// The input files that went into the fingerprint, in order.
    pub inputs: Vec<InputFile>,
    /// Number of nodes.
    pub nodes: u64,
    /// Number of directed edges in the dataset, after all policies and mirroring.
    pub edges: u64,
    /// Number of edge rows in the dump.
    pub edge_rows: u64,
    /// Edges that were dropped as duplicates (mirror images included).
    pub duplicates_dropped: u64,
    /// Rows that were dropped because they name an unknown node.
    #[serde(default)]
    pub unknown_dropped: u64,
    /// Nodes that were created or dropped.
    #[serde(default)]
    pub cleaning: Cleaning,
    /// Edges from a node to itself in the dataset.
    pub self_loops: u64,
    /// Whether the edges were mirrored.
    pub undirected: bool,
    /// `offsets[p]..offsets[p + 1]` are the global ids of partition `p`.
    pub offsets: Vec<u64>,
    /// Partition method.
    pub method: String,
    /// Kind of the user's node ids.
    pub ids: IdKind,
    /// Whether the features of halo nodes are stored with every partition.
    #[serde(default)]
    pub halo_features: bool,
    /// Node features.
    pub features: FeatureInfo,
    /// Labels, if there are any.
    pub labels: Option<LabelInfo>,
    /// Sizes of the splits.
    pub splits: SplitCounts,
    /// Node types, if there are any.
    pub node_types: Option<TypeInfo>,
    /// Whether nodes have times.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub node_times: bool,
    /// The columns of edges.
    pub edge_columns: EdgeColumns,
    /// One entry per partition.
    pub partitions: Vec<PartitionInfo>,
    /// Updates since the preparation, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub updates: Vec<UpdateInfo>,
}

impl Manifest {
    /// Name of the file in the dataset's folder.
    pub const FILE: &'static str = "manifest.json";

    /// Number of partitions.
    pub fn parts(&self) -> usize {
        self.partitions.len()
    }

    /// Number of classes: 0 without labels, 1 for values.
    pub fn num_classes(&self) -> usize {
        self.labels.as_ref().map_or(0, |labels| labels.classes as usize)
    }

    /// Reads the manifest in folder `dir`.
    ///
    /// # Errors
    /// [`Error::Missing`] without the folder, [`Error::NotADataset`] without a gnnflow manifest in it, [`Error::SchemaVersion`] for another
    /// version, [`Error::Damaged`] if it does not parse or its checksum is wrong.
    pub fn read(dir: &Path) -> Result<Self> {
        let path = dir.join(Self::FILE);
        if !dir.exists() {
            return Err(Error::Missing { path: dir.to_path_buf(), role: "prepared dataset" });
        }
        let bytes = match std::fs::read(&path) {
            Err(e) if matches!(e.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => {
                let reason = "it has no manifest.json".into();
                return Err(Error::NotADataset { path: dir.to_path_buf(), reason });
            }
            read => read.map_err(Error::io(&path, "read"))?,
        };
        Self::parse(&bytes, dir)
    }

    /// Reads the content of the file in folder `dir`, or below the URL `dir`.
    ///
    /// # Errors
    /// Those of [`Manifest::read`].
    pub(super) fn parse(bytes: &[u8], dir: &Path) -> Result<Self> {
        let path = dir.join(Self::FILE);
        let checksum = Checksum::of(bytes);
        let damaged = |reason: String| Error::Damaged { path: path.clone(), reason };
        let wrong = || damaged("its checksum does not match its content".into());
        let value: serde_json::Value = match serde_json::from_slice(bytes) {
            Err(_) if checksum == Checksum::Wrong => return Err(wrong()),
            parsed => parsed.map_err(|e| damaged(e.to_string()))?,
        };
        if value["format"] != FORMAT {
            if checksum == Checksum::Wrong {
                return Err(wrong());
            }
            let reason = format!("its manifest.json lacks \"format\": \"{FORMAT}\"");
            return Err(Error::NotADataset { path: dir.to_path_buf(), reason });
        }
        // Other versions may use another kind of checksum.
        let found = value["schema"].as_u64().unwrap_or(0);
        if found != SCHEMA_VERSION {
            return Err(Error::SchemaVersion { path, found, expected: SCHEMA_VERSION });
        }
        match checksum {
            Checksum::Right => {}
            Checksum::Wrong => return Err(wrong()),
            // Older versions wrote no checksum, and their last value is a list.
            Checksum::None if ends_with_list(bytes) => {}
            Checksum::None => return Err(damaged("its checksum is missing".into())),
        }
        serde_json::from_value(value).map_err(|e| damaged(e.to_string()))
    }

    /// Returns the text of the manifest, with its checksum as last key.
    pub(crate) fn to_json(&self) -> Result<String> {
        let mut text = serde_json::to_string_pretty(self).map_err(|e| Error::Bug(e.to_string()))?;
        text.truncate(text.len() - END.len());
        text += &checksum_line(text.as_bytes());
        Ok(text)
    }
}

/// The text before the manifest's own checksum: the CRC-32 of all bytes before this text.
const CHECKSUM: &str = ",\n  \"crc32\": ";
/// The end of every manifest.
const END: &str = "\n}";

/// Returns the end of a manifest that begins with `content`.
fn checksum_line(content: &[u8]) -> String {
    format!("{CHECKSUM}{}{END}", crc32fast::hash(content))
}

/// Result of the check of a manifest's own checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Checksum {
    Right,
    Wrong,
    None,
}

impl Checksum {
    fn of(bytes: &[u8]) -> Self {
        let at = bytes.windows(CHECKSUM.len()).rposition(|window| window == CHECKSUM.as_bytes());
        match at.map(|at| bytes.split_at(at)) {
            Some((content, end)) if end == checksum_line(content).as_bytes() => Self::Right,
            Some(_) => Self::Wrong,
            None => Self::None,
        }
    }
}

/// Returns whether the last value of a JSON object is a list.
fn ends_with_list(bytes: &[u8]) -> bool {
    let end = bytes.trim_ascii_end().strip_suffix(b"}").map(<[u8]>::trim_ascii_end);
    end.is_some_and(|end| end.ends_with(b"]"))
}

/// Nodes and edges that cleaning created or dropped, before the graph was partitioned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cleaning {
    /// Nodes that only edges name, created by `unknown_nodes = "create"`.
    pub nodes_created: u64,
    /// Nodes dropped because they are not in the k-core.
    pub outside_core: u64,
    /// Nodes dropped because they are not in the largest component.
    pub outside_component: u64,
    /// Nodes dropped because they have no edge to or from another node.
    pub isolated_dropped: u64,
    /// Rows of edges dropped because they name a dropped node.
    pub edges_dropped: u64,
    /// Number of weakly connected components (of the k-core, if there is one); `None` if they were not computed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub components: Option<u64>,
    /// Nodes of the largest component.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub largest_component: Option<u64>,
    /// Nodes without an edge to or from another node; `None` if they were not counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub isolated: Option<u64>,
}

impl Cleaning {
    /// Returns the number of nodes of the dump that are not in the dataset.
    pub fn nodes_dropped(&self) -> u64 {
        self.outside_core + self.outside_component + self.isolated_dropped
    }
}

/// One file of the dump.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputFile {
    /// "nodes" or "edges".
    pub role: String,
    /// Its name without folders, because a dump may be moved.
    pub name: String,
    /// The type of all its rows, if the dump has a table for each type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub row_type: Option<String>,
    /// Its length in bytes.
    pub bytes: u64,
    /// Digest of its content, see [`fingerprint`](crate::prepare::fingerprint()).
    pub digest: String,
}

/// One [`update`](crate::update::update()) of a dataset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpdateInfo {
    /// The files of each batch; their roles are "nodes", "values", "edges", "remove" and "remove_nodes".
    pub batches: Vec<Vec<InputFile>>,
    /// Its counts.
    pub counts: UpdateCounts,
}

/// Counts of an update.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpdateCounts {
    /// New nodes.
    pub nodes_added: u64,
    /// Nodes of the dataset whose features, label or split the update sets, to other or equal values.
    #[serde(default)]
    pub nodes_changed: u64,
    /// Removed nodes; of these, new ones are also among the added ones.
    #[serde(default)]
    pub nodes_removed: u64,
    /// New directed edges.
    pub edges_added: u64,
    /// Removed directed edges, those of removed nodes included.
    pub edges_removed: u64,
    /// Added edges that existed and were dropped (mirror images included).
    pub duplicates_dropped: u64,
    /// Added rows that were dropped because they name an unknown node.
    pub unknown_dropped: u64,
    /// Added rows that were dropped because they lead from a node to itself.
    pub self_loops_dropped: u64,
    /// Rows to remove without such an edge.
    pub missing_ignored: u64,
    /// Rows to remove without such a node.
    #[serde(default)]
    pub missing_nodes_ignored: u64,
}

/// Kind of the user's node ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IdKind {
    /// 64-bit signed integers.
    Int,
    /// Strings.
    Text,
}

/// Node features.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FeatureInfo {
    /// Values per node; 0 = no features and no `features.arrow`.
    pub dim: usize,
    /// The stored type of all columns or, if types differ, of the first columns.
    pub dtype: FeatureDtype,
    /// The layout of rows if columns have different types; else empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stretches: Vec<Stretch>,
    /// The scaling that was applied.
    pub normalize: Normalize,
    /// The means and deviations of [`Normalize::Standard`], by column. Updates scale by them, too. Empty in datasets of older versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scales: Vec<ColumnScale>,
    /// The columns of the tables. Empty in datasets of older versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub columns: Vec<FeatureColumn>,
}

/// The scaling of a column: values become `(value - mean) * factor`.
///
/// The numbers are stored as their bits, because text in JSON may lose the last one.
///
/// ```
/// use gnnflow_data::dataset::ColumnScale;
///
/// let scale = ColumnScale::new(2.0, 0.5);
/// assert_eq!((scale.mean(), scale.factor(), scale.apply(3.0)), (2.0, 0.5, 0.5));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ColumnScale {
    mean: u64,
    factor: u64,
}

impl ColumnScale {
    /// Creates the scaling by a mean and the inverse of a standard deviation; 0 for a column of equal values.
    pub fn new(mean: f64, factor: f64) -> Self {
        Self { mean: mean.to_bits(), factor: factor.to_bits() }
    }

    /// Returns the mean of the column.
    pub fn mean(self) -> f64 {
        f64::from_bits(self.mean)
    }

    /// Returns the inverse of the standard deviation.
    pub fn factor(self) -> f64 {
        f64::from_bits(self.factor)
    }

    /// Scales a value.
    #[inline]
    pub fn apply(self, value: f32) -> f32 {
        ((f64::from(value) - self.mean()) * self.factor()) as f32
    }
}

impl FeatureInfo {
    /// Describes rows of layout `layout`, from the given columns.
    pub fn new(
        layout: &RowLayout,
        normalize: Normalize,
        scales: Vec<ColumnScale>,
        columns: Vec<FeatureColumn>,
    ) -> Self {
        let stretches = layout.stretches();
        Self {
            dim: layout.dim(),
            dtype: stretches.first().map_or(FeatureDtype::F32, |stretch| stretch.dtype),
            stretches: if stretches.len() > 1 { stretches.to_vec() } else { Vec::new() },
            normalize,
            scales,
            columns,
        }
    }

    /// Returns the layout of stored rows.
    pub fn layout(&self) -> RowLayout {
        match &self.stretches[..] {
            [] => RowLayout::new([(self.dim, self.dtype)]),
            stretches => RowLayout::new(stretches.iter().map(|stretch| (stretch.columns, stretch.dtype))),
        }
    }
}

/// Kind of the labels. It decides the kind of task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LabelKind {
    /// One class per node, from integers (−1 = unlabeled), booleans, or strings (classes in order of their names).
    Class,
    /// Any number of classes per node, from a list column. Booleans are one flag per class. So are integers if all rows have the same
    /// number, at least two, and all are 0 or 1. Other integers are lists of classes.
    Multi,
    /// A number to predict, from a column of floats.
    Value,
}

/// Labels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabelInfo {
    /// Their kind.
    pub kind: LabelKind,
    /// Number of classes; 1 for values.
    pub classes: u32,
    /// Names of the classes if the labels are strings; else empty.
    pub names: Vec<String>,
    /// Number of nodes (or edges) with a label.
    #[serde(rename = "labelled")]
    pub labeled: u64,
    /// Nodes (or edges) per class; empty for values.
    pub counts: Vec<u64>,
    /// What the lists in the dump were, if the labels were lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lists: Option<ListForm>,
}

/// The meaning of lists of labels in a dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ListForm {
    /// One flag for each class.
    Flags,
    /// The classes of the node.
    Classes,
}

/// Names of the types of untyped edges after reverse edges were added.
pub const FORWARD_AND_REVERSE: [&str; 2] = ["forward", "reverse"];

/// Types of nodes or edges.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TypeInfo {
    /// Types are `0..count`.
    pub count: u32,
    /// Their names if the column holds strings (in order) or if [`SelfLoops::Add`](crate::source::SelfLoops) added a type;
    /// else empty.
    pub names: Vec<String>,
}

/// Nodes, or edges, per split.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SplitCounts {
    /// In no split.
    pub none: u64,
    /// Training.
    pub train: u64,
    /// Validation.
    pub val: u64,
    /// Test.
    pub test: u64,
}

impl SplitCounts {
    /// Counts an item of split `which`, see [`split`](super::split).
    pub(crate) fn add(&mut self, which: u8) {
        match which {
            super::split::TRAIN => self.train += 1,
            super::split::VAL => self.val += 1,
            super::split::TEST => self.test += 1,
            _ => self.none += 1,
        }
    }

    /// Counts an item that leaves split `which`.
    pub(crate) fn remove(&mut self, which: u8) {
        let count = match which {
            super::split::TRAIN => &mut self.train,
            super::split::VAL => &mut self.val,
            super::split::TEST => &mut self.test,
            _ => &mut self.none,
        };
        *count = count.saturating_sub(1);
    }

    /// Adds the counts of `other`.
    pub(crate) fn add_all(&mut self, other: &Self) {
        self.none += other.none;
        self.train += other.train;
        self.val += other.val;
        self.test += other.test;
    }
}

/// The columns of edges besides source and destination.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EdgeColumns {
    /// Whether there are weights.
    pub weight: bool,
    /// Edge types, if there are any.
    pub edge_type: Option<TypeInfo>,
    /// Whether there are times.
    pub time: bool,
    /// Values per edge; 0 = no edge features.
    pub features: usize,
    /// The columns of edge features. Empty in datasets of older versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub feature_columns: Vec<FeatureColumn>,
    /// Edges of the dataset per split, mirror images and reverses included; `None` if edges have no splits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub split: Option<SplitCounts>,
    /// Labels (classes), if edges have any. The counts include mirror images and reverses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<LabelInfo>,
}

/// One partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionInfo {
    /// Core nodes.
    pub nodes: u64,
    /// In-edges of the core nodes.
    pub edges: u64,
    /// Core nodes in the train split.
    pub train: u64,
    /// `topology.arrow`.
    pub topology: FileInfo,
    /// `nodes.arrow`.
    pub node_columns: FileInfo,
    /// `features.arrow`; none when the graph has no features.
    pub features: Option<FileInfo>,
    /// `halo.arrow`.
    #[serde(default)]
    pub halo: Option<FileInfo>,
    /// Nodes of other partitions from which edges of this partition come.
    #[serde(default)]
    pub halo_nodes: u64,
}

/// One file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileInfo {
    /// Its length in bytes. Compared whenever the file is opened.
    pub bytes: u64,
    /// Start and end of the columns; headers are before and after them.
    pub body: (u64, u64),
    /// CRC-32 of the headers. Compared whenever the file is opened.
    pub headers_crc32: u32,
    /// CRC-32 of its whole content. Compared before a process uses the file, see [`Dataset::verify_files`](super::Dataset::verify_files).
    pub crc32: u32,
}
