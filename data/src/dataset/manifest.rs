//! `manifest.json`: what a prepared dataset holds, from what it was made, and how long each of its files is.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::row_layout::{RowLayout, Stretch};
use crate::error::{Error, Result};
use crate::source::{FeatureDtype, Normalize};

/// Version of the layout on disk. A dataset of another version is prepared again, never guessed at.
pub const SCHEMA_VERSION: u64 = 1;

/// First key of every manifest: a folder whose `manifest.json` lacks it is not ours.
pub const FORMAT: &str = "gnnflow-dataset";

/// Everything about a prepared dataset but its bulk.
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
    /// Rows left out because they name a node that is not among the nodes.
    #[serde(default)]
    pub unknown_dropped: u64,
    /// Nodes that were made or left out.
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
    /// What edges carry.
    pub edge_columns: EdgeColumns,
    /// One entry per partition.
    pub partitions: Vec<PartitionInfo>,
    /// What has changed it since it was prepared, in order.
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
    /// [`Error::Missing`] without the folder, [`Error::NotADataset`] without a manifest of ours in it,
    /// [`Error::SchemaVersion`] when another version wrote it, [`Error::Damaged`] when it does not parse or its checksum is wrong.
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
        let checksum = Checksum::of(&bytes);
        let damaged = |reason: String| Error::Damaged { path: path.clone(), reason };
        let wrong = || damaged("its checksum does not match its content".into());
        let value: serde_json::Value = match serde_json::from_slice(&bytes) {
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
        // Another version's checksum may be of another kind.
        let found = value["schema"].as_u64().unwrap_or(0);
        if found != SCHEMA_VERSION {
            return Err(Error::SchemaVersion { path, found, expected: SCHEMA_VERSION });
        }
        match checksum {
            Checksum::Right => {}
            Checksum::Wrong => return Err(wrong()),
            // Older versions wrote none, and a list last of all.
            Checksum::None if ends_with_list(&bytes) => {}
            Checksum::None => return Err(damaged("its checksum is missing".into())),
        }
        serde_json::from_value(value).map_err(|e| damaged(e.to_string()))
    }

    /// The manifest as it is written, with a checksum of itself as its last key.
    pub(crate) fn to_json(&self) -> Result<String> {
        let mut text = serde_json::to_string_pretty(self).map_err(|e| Error::Bug(e.to_string()))?;
        text.truncate(text.len() - END.len());
        text += &checksum_line(text.as_bytes());
        Ok(text)
    }
}

/// Where the manifest's own checksum begins: the CRC-32 of all bytes before this.
const CHECKSUM: &str = ",\n  \"crc32\": ";
/// How every manifest ends.
const END: &str = "\n}";

/// The end of a manifest that begins with `content`.
fn checksum_line(content: &[u8]) -> String {
    format!("{CHECKSUM}{}{END}", crc32fast::hash(content))
}

/// What a manifest says about itself.
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

/// Whether the last value of a JSON object is a list.
fn ends_with_list(bytes: &[u8]) -> bool {
    let end = bytes.trim_ascii_end().strip_suffix(b"}").map(<[u8]>::trim_ascii_end);
    end.is_some_and(|end| end.ends_with(b"]"))
}

/// What became of nodes and edges before the graph was cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cleaning {
    /// Nodes that only edges name, made by `unknown_nodes = "create"`.
    pub nodes_created: u64,
    /// Nodes left out because they are not in the k-core.
    pub outside_core: u64,
    /// Nodes left out because they are not in the largest component.
    pub outside_component: u64,
    /// Nodes left out because no edge joins them with another node.
    pub isolated_dropped: u64,
    /// Rows of edges left out because they name a node that was left out.
    pub edges_dropped: u64,
    /// Weakly connected components, when they were looked for; of the k-core, when there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub components: Option<u64>,
    /// Nodes of the largest component.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub largest_component: Option<u64>,
    /// Nodes without an edge to or from another node, when they were looked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub isolated: Option<u64>,
}

impl Cleaning {
    /// Nodes of the dump that are not in the dataset.
    pub fn nodes_dropped(&self) -> u64 {
        self.outside_core + self.outside_component + self.isolated_dropped
    }
}

/// One file of the dump.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputFile {
    /// "nodes" or "edges".
    pub role: String,
    /// Its name, without folders: a dump may move.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// Digest of its content, see [`fingerprint`](crate::prepare::fingerprint()).
    pub digest: String,
}

/// One [`update`](crate::update::update()) of a dataset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpdateInfo {
    /// The files of each batch: their roles are "nodes", "edges" and "remove".
    pub batches: Vec<Vec<InputFile>>,
    /// What it did.
    pub counts: UpdateCounts,
}

/// What an update did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpdateCounts {
    /// Nodes that are new.
    pub nodes_added: u64,
    /// Directed edges that were not there before.
    pub edges_added: u64,
    /// Directed edges that are there no more.
    pub edges_removed: u64,
    /// Added edges that were there already and left out (mirror images included).
    pub duplicates_dropped: u64,
    /// Added rows that were left out because they name a node that is not there.
    pub unknown_dropped: u64,
    /// Added rows that were left out because they lead from a node to itself.
    pub self_loops_dropped: u64,
    /// Rows to be removed that were not there.
    pub missing_ignored: u64,
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
    /// Values per node; 0 = no features, and no `features.arrow`.
    pub dim: usize,
    /// How they are stored, where all columns are stored alike; else the first ones.
    pub dtype: FeatureDtype,
    /// How they are stored, where columns have types of their own; else empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stretches: Vec<Stretch>,
    /// How they were scaled.
    pub normalize: Normalize,
}

impl FeatureInfo {
    /// Rows of this layout, scaled so.
    pub fn new(layout: &RowLayout, normalize: Normalize) -> Self {
        let stretches = layout.stretches();
        Self {
            dim: layout.dim(),
            dtype: stretches.first().map_or(FeatureDtype::F32, |stretch| stretch.dtype),
            stretches: if stretches.len() > 1 { stretches.to_vec() } else { Vec::new() },
            normalize,
        }
    }

    /// How rows are stored.
    pub fn layout(&self) -> RowLayout {
        match &self.stretches[..] {
            [] => RowLayout::new([(self.dim, self.dtype)]),
            stretches => RowLayout::new(stretches.iter().map(|stretch| (stretch.columns, stretch.dtype))),
        }
    }
}

/// Kind of the labels, which decides the kind of task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LabelKind {
    /// One class per node. From integers (−1 = unlabelled), booleans, or strings (classes in order of their names).
    Class,
    /// Any number of classes per node. From a list column: booleans, or integers of which every row has the same number, at
    /// least two, all of them 0 or 1, are taken as one flag per class; other integers are taken as a list of classes.
    Multi,
    /// A number to be predicted. From a column of floats.
    Value,
}

/// Labels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabelInfo {
    /// Their kind.
    pub kind: LabelKind,
    /// Number of classes; 1 for values.
    pub classes: u32,
    /// Names of the classes when the labels are strings; else empty.
    pub names: Vec<String>,
    /// Number of nodes (or edges) with a label.
    pub labelled: u64,
    /// Nodes (or edges) per class; empty for values.
    pub counts: Vec<u64>,
}

/// Names of the types that edges without types have once each is there the other way round too.
pub const FORWARD_AND_REVERSE: [&str; 2] = ["forward", "reverse"];

/// Types of nodes or edges.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TypeInfo {
    /// Types are `0..count`.
    pub count: u32,
    /// Their names when the column holds strings (in order) or when [`SelfLoops::Add`](crate::source::SelfLoops) added
    /// a type; else empty.
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
    /// Counts one that is in split `which`, see [`split`](super::split).
    pub(crate) fn add(&mut self, which: u8) {
        match which {
            super::split::TRAIN => self.train += 1,
            super::split::VAL => self.val += 1,
            super::split::TEST => self.test += 1,
            _ => self.none += 1,
        }
    }

    /// Adds what was counted elsewhere.
    pub(crate) fn add_all(&mut self, other: &Self) {
        self.none += other.none;
        self.train += other.train;
        self.val += other.val;
        self.test += other.test;
    }
}

/// What edges carry besides their ends.
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
    /// Edges of the dataset per split, mirror images and reverses included, if edges have splits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub split: Option<SplitCounts>,
    /// Labels, if edges have any: classes. Counts are of the dataset's edges, mirror images and reverses included.
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
    /// Foreign nodes that its edges come from.
    #[serde(default)]
    pub halo_nodes: u64,
}

/// One file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileInfo {
    /// Its length. Compared whenever the file is opened.
    pub bytes: u64,
    /// Where its columns begin and end; before and after are headers.
    pub body: (u64, u64),
    /// CRC-32 of the headers. Compared whenever the file is opened.
    pub headers_crc32: u32,
    /// CRC-32 of its whole content. Compared before a process uses the file, see [`Dataset::verify_files`](super::Dataset::verify_files).
    pub crc32: u32,
}
