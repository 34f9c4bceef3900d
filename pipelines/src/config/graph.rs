//! `[graph]`: where the graph comes from and how it is read.

use super::digest::digest;
use super::generate::Generate;
use super::section::{section, words};
use super::tables::Tables;
use super::values::{OneOrMany, Span};
use crate::error::Error;
use gnnflow_data::source::{self, is_url};
use std::path::{Path, PathBuf};

section! {
    /// Where the graph comes from: either Parquet files (`nodes` and `edges`), or a generator (`generate`), or a prepared
    /// dataset (`dataset`).
    pub struct Graph {
        /// Parquet files of nodes: a file, a folder (every `*.parquet` file in it, by name), or a list of them. Each may be a URL:
        /// `s3://`, `gs://` and `az://` of an object or a prefix, `http://` and `https://` of a file. A table has them by
        /// node type: `{ user = "users.parquet", item = "items/" }` ([details](data.md#a-table-for-each-type)).
        #[schemars(extend("x-results" = false), extend("examples" = ["nodes.parquet"]))]
        pub nodes: Option<Tables> = None,
        /// Parquet files of edges: a file, a folder, a URL, or a list of them; or a table of them by edge type.
        #[schemars(extend("x-results" = false), extend("examples" = ["edges.parquet"]))]
        pub edges: Option<Tables> = None,
        /// A synthetic graph, written as Parquet beside the pipeline file (in `.gnnflow/`) the first time.
        pub generate: Option<Generate> = None,
        /// A dataset that `gnnflow prepare` has written: a folder, or a URL (`s3://`, `gs://`, `az://`, `http://`, `https://`) of the folder. The keys for
        /// reading Parquet files do not apply.
        #[schemars(extend("x-results" = false), extend("examples" = ["prepared/cora"]))]
        pub dataset: Option<PathBuf> = None,
        /// Folder on each host for copies of the files of `dataset`. Each process copies the files that it reads, at first those of its partitions, and verifies
        /// them; processes of one host share the folder ([details](several-hosts.md#each-host-has-its-part)). Unset: none for a folder, which is read in place; for a URL, a folder in `.gnnflow/` beside the pipeline file.
        #[schemars(extend("x-results" = false), extend("examples" = ["/scratch/papers"]))]
        pub dataset_cache: Option<PathBuf> = None,
        /// The columns' names in the Parquet files.
        pub columns: Columns = Columns::default(),
        /// Add the reverse of every edge, after duplicates are dropped. The default is true for `generate`.
        pub undirected: bool = false,
        /// What to do with an edge that occurs more than once.
        pub duplicates: Duplicates = Duplicates::Drop,
        /// What to do with an edge from a node to itself.
        pub self_loops: SelfLoops = SelfLoops::Keep,
        /// What to do with an edge whose source or destination is not in the node files.
        pub unknown_nodes: UnknownNodes = UnknownNodes::Fail,
        /// What to do with a node without edges to other nodes, after all other filters.
        pub isolated: Isolated = Isolated::Keep,
        /// Add the reverse of every edge with a separate type: `rev_<name>`, or the number of types plus the type.
        /// Edges without types get the types `forward` (0) and `reverse` (1). For directed message passing; not with `undirected`.
        pub reverse_edges: bool = false,
        /// Keep the largest subgraph in which every node has at least this many neighbors, in either direction. Unset: the entire graph.
        #[schemars(range(min = 1), extend("examples" = [2]))]
        pub k_core: Option<u32> = None,
        /// Keep the largest weakly connected component (of the `k_core`, if set); of equally large ones, that of the first node.
        pub largest_component: bool = false,
        /// How to scale the features while the dataset is prepared.
        pub normalize_features: Normalize = Normalize::None,
        /// The type in which the dataset stores features; or a list, one type for each of `columns.features`. Computation is always in f32.
        #[schemars(extend("examples" = [["f32", "bf16"]]))]
        pub feature_dtype: OneOrMany<FeatureDtype> = OneOrMany::one(FeatureDtype::F32),
        /// Fractions of train, validation and test nodes, drawn by `seed`, for data without a split column.
        /// They sum to at most 1; the rest is in no split.
        #[schemars(length(equal = 3), inner(range(min = 0.0, max = 1.0)), extend("examples" = [[0.6, 0.2, 0.2]]))]
        pub split_fractions: Option<Vec<f64>> = None,
        /// Number of classes, for labels that do not contain all of them. Unset: the largest label plus one.
        #[schemars(range(min = 1), extend("examples" = [7]))]
        pub num_classes: Option<u32> = None,
        /// The folder of a finished run or of a prepared dataset, whose encoding the tables get: its means and deviations with
        /// `normalize_features = "standard"`, and its numbering of the classes of nodes and edges and of the edge types. A model of that run then fits the dataset, also if the
        /// tables lack classes or types. Other columns, settings, labels or types are refused.
        #[schemars(extend("x-results" = false), extend("examples" = ["runs/monday"]))]
        pub encode_like: Option<PathBuf> = None,
        /// Seed of the split.
        #[schemars(range(max = i64::MAX))]
        pub seed: u64 = 1,
        /// How long failed requests to an object store or web server are retried, counted from its last reply.
        #[schemars(extend("x-results" = false))]
        pub retry: Span = Span(source::RETRY),
    }
}

section! {
    /// The columns' names in the Parquet files. A named column must exist. `features`, `label` and `split` are optional:
    /// unset, the column of that name is used if present; an empty name leaves it out.
    pub struct Columns {
        /// Node files: the node's id, an integer or a string.
        pub id: String = "node_id".into(),
        /// Node files: the features, as one list column or several numeric columns. Unset: `features`, if there is such a column.
        #[schemars(extend("examples" = ["features"]))]
        pub features: Option<OneOrMany<String>> = None,
        /// Node files: the label: an integer or a string (a class), a float, or a list of 0 and 1 for several labels. Null means
        /// no label (not in lists), as does -1. Unset: `label`, if there is such a column.
        #[schemars(extend("examples" = ["label"]))]
        pub label: Option<String> = None,
        /// Node files: `train`, `val` (or `valid`, `validation`), `test`, or null. Unset: `split`, if there is such a column and no `split_fractions`.
        #[schemars(extend("examples" = ["split"]))]
        pub split: Option<String> = None,
        /// Node files: the node's type.
        #[schemars(extend("examples" = ["kind"]))]
        pub node_type: Option<String> = None,
        /// Node files: a time, for `train.sampler = "temporal"`: a training node sees only older edges.
        #[schemars(extend("examples" = ["time"]))]
        pub node_time: Option<String> = None,
        /// Edge files: the id of the node that the edge leaves.
        pub src: String = "src".into(),
        /// Edge files: the id of the node that the edge enters.
        pub dst: String = "dst".into(),
        /// Edge files: a weight.
        #[schemars(extend("examples" = ["weight"]))]
        pub weight: Option<String> = None,
        /// Edge files: the edge's type.
        #[schemars(extend("examples" = ["type"]))]
        pub edge_type: Option<String> = None,
        /// Edge files: a time.
        #[schemars(extend("examples" = ["time"]))]
        pub time: Option<String> = None,
        /// Edge files: feature columns of edges.
        #[schemars(extend("examples" = ["edge_features"]))]
        pub edge_features: Option<OneOrMany<String>> = None,
        /// Edge files: the edge's split, for tasks on edges: `train`, `val`, `test`, or null, as for nodes.
        #[schemars(extend("examples" = ["split"]))]
        pub edge_split: Option<String> = None,
        /// Edge files: the edge's class, for tasks on edges: an integer or a string; -1 and null mean no label.
        #[schemars(extend("examples" = ["label"]))]
        pub edge_label: Option<String> = None,
    }
}

words! {
    /// What to do with an edge that occurs more than once.
    pub enum Duplicates {
        /// Keep all.
        Keep = "keep",
        /// Keep one.
        Drop = "drop",
        /// Refuse the input.
        Fail = "fail",
    }
}

words! {
    /// What to do with an edge from a node to itself.
    pub enum SelfLoops {
        /// Keep them.
        Keep = "keep",
        /// Drop them.
        Drop = "drop",
        /// Give every node exactly one.
        Add = "add",
        /// Refuse the input.
        Fail = "fail",
    }
}

words! {
    /// What to do with an edge that names an unknown node.
    pub enum UnknownNodes {
        /// Refuse the input.
        Fail = "fail",
        /// Drop the edge, and count it.
        Drop = "drop",
        /// Add a node with this id after all others: zero features, no label, no split, type 0.
        Create = "create",
    }
}

words! {
    /// What to do with a node without edges to other nodes.
    pub enum Isolated {
        /// Keep it.
        Keep = "keep",
        /// Drop it, and count it.
        Drop = "drop",
        /// Refuse the input.
        Fail = "fail",
    }
}

words! {
    /// How features are scaled while the dataset is prepared.
    pub enum Normalize {
        /// As they are.
        None = "none",
        /// Every node's features sum to 1.
        Row = "row",
        /// Every column has mean 0 and variance 1 over all nodes.
        Standard = "standard",
    }
}

words! {
    /// The stored type of features.
    pub enum FeatureDtype {
        /// 32-bit floating point.
        F32 = "f32",
        /// 16-bit IEEE floating point.
        F16 = "f16",
        /// 16-bit brain floating point.
        Bf16 = "bf16",
    }
}

/// Names of the columns of types, in tables by type.
const NODE_TYPE: &str = "node_type";
const EDGE_TYPE: &str = "edge_type";

/// The problem with fractions of edges that have a split column.
pub(crate) const HAS_SPLITS: &str = "edges have a split column (graph.columns.edge_split); remove this key";

impl Graph {
    /// Sets the default of `dataset_cache` for a URL: a folder in `.gnnflow/` of `folder`.
    pub(super) fn set_dataset_cache(&mut self, folder: &Path) {
        let Some(url) = self.dataset.as_ref().filter(|dataset| is_url(dataset)) else { return };
        let name = url.file_name().unwrap_or_default().to_string_lossy();
        let name = format!("{name}-{}", &digest(&serde_json::json!(url))[..8]);
        self.dataset_cache.get_or_insert_with(|| folder.join(".gnnflow").join(name));
    }

    /// Whether the pipeline names a column with the splits of edges.
    pub(crate) fn splits_edges(&self) -> bool {
        self.dataset.is_none() && self.columns.edge_split.as_ref().is_some_and(|name| !name.is_empty())
    }

    /// Returns the input of `prepare`, without `encode_like`; `None` for a prepared dataset (`dataset`). Reads the schema of the first node
    /// file to find optional columns.
    ///
    /// # Errors
    /// [`Error::Data`] if the first node file is missing or is not Parquet.
    pub(crate) fn source(&self) -> Result<Option<source::GraphSource>, Error> {
        let [nodes, edges] = match (&self.generate, &self.nodes, &self.edges) {
            (Some(generate), ..) => {
                let (nodes, edges) = generate.tables();
                [nodes, edges].map(|path| Tables::One(OneOrMany::one(path)))
            }
            (None, Some(nodes), Some(edges)) => [nodes.clone(), edges.clone()],
            _ => return Ok(None),
        };
        let mut source = source::GraphSource {
            nodes: nodes.paths(),
            node_types: nodes.types(),
            edges: edges.paths(),
            edge_types: edges.types(),
            columns: source::Columns::default(),
            undirected: self.undirected,
            duplicates: self.duplicates.into(),
            self_loops: self.self_loops.into(),
            unknown_nodes: self.unknown_nodes.into(),
            isolated: self.isolated.into(),
            reverse_edges: self.reverse_edges,
            k_core: self.k_core,
            largest_component: self.largest_component,
            normalize_features: self.normalize_features.into(),
            split_fractions: self.split_fractions.as_deref().and_then(|shares| shares.try_into().ok()),
            num_classes: self.num_classes,
            encode_like: None,
            seed: self.seed,
            feature_dtype: self.feature_dtype.0.iter().map(|&dtype| dtype.into()).collect(),
            retry: self.retry.0,
        };
        source.columns = self.columns.resolve(&source.node_columns()?, self.split_fractions.is_some());
        if nodes.are_by_type() {
            source.columns.node_type = Some(NODE_TYPE.into());
        }
        if edges.are_by_type() {
            source.columns.edge_type = Some(EDGE_TYPE.into());
        }
        Ok(Some(source))
    }
}

impl Columns {
    /// Fills in optional columns that are not named, but are `present`.
    fn resolve(&self, present: &[String], own_split: bool) -> source::Columns {
        let named = |name: &String| Some(name.clone()).filter(|name| !name.is_empty());
        let or_default = |column: &Option<String>, default: &str| match column {
            Some(name) => named(name),
            None => present.iter().find(|name| *name == default).cloned(),
        };
        let many =
            |columns: &Option<OneOrMany<String>>| columns.iter().flat_map(|names| &names.0).filter_map(named).collect();
        source::Columns {
            id: self.id.clone(),
            features: match &self.features {
                None => or_default(&None, "features").into_iter().collect(),
                given => many(given),
            },
            label: or_default(&self.label, "label"),
            split: if own_split { None } else { or_default(&self.split, "split") },
            src: self.src.clone(),
            dst: self.dst.clone(),
            weight: self.weight.as_ref().and_then(named),
            edge_type: self.edge_type.as_ref().and_then(named),
            node_type: self.node_type.as_ref().and_then(named),
            node_time: self.node_time.as_ref().and_then(named),
            time: self.time.as_ref().and_then(named),
            edge_features: many(&self.edge_features),
            edge_split: self.edge_split.as_ref().and_then(named),
            edge_label: self.edge_label.as_ref().and_then(named),
        }
    }
}

/// Converts to the enums of `gnnflow-data`.
macro_rules! same_in_data {
    ($($name:ident { $($variant:ident),* })*) => {$(
        impl From<$name> for source::$name {
            fn from(value: $name) -> Self {
                match value { $($name::$variant => Self::$variant,)* }
            }
        }
    )*};
}

same_in_data! {
    Duplicates { Keep, Drop, Fail }
    SelfLoops { Keep, Drop, Add, Fail }
    UnknownNodes { Fail, Drop, Create }
    Isolated { Keep, Drop, Fail }
    Normalize { None, Row, Standard }
    FeatureDtype { F32, F16, Bf16 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn present(names: &[&str]) -> Vec<String> {
        names.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn unnamed_columns_are_used_if_present() {
        let found = Columns::default().resolve(&present(&["node_id", "features", "split"]), false);
        assert_eq!((found.features, found.label, found.split), (vec!["features".into()], None, Some("split".into())));
        let found = Columns::default().resolve(&present(&["node_id", "features", "split"]), true);
        assert_eq!(found.split, None);
    }

    #[test]
    fn named_columns_are_required_and_empty_names_leave_columns_out() {
        let columns = Columns {
            features: Some(OneOrMany(vec!["x".into(), "y".into()])),
            label: Some("lable".into()),
            split: Some(String::new()),
            ..Columns::default()
        };
        let found = columns.resolve(&present(&["node_id", "features", "split"]), false);
        assert_eq!(
            (found.features, found.label, found.split),
            (vec!["x".into(), "y".into()], Some("lable".into()), None)
        );
    }
}
