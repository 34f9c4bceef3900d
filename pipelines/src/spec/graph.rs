//! `[graph]`: where the graph comes from and how it is read.

use super::section::{section, words};
use super::values::OneOrMany;
use std::path::PathBuf;

section! {
    /// Where the graph comes from: Parquet files (`nodes` and `edges`), a generator (`generate`), or a dataset that was
    /// prepared before (`dataset`). Exactly one of the three.
    pub struct Graph {
        /// Parquet files of nodes: a file, a folder (every `*.parquet` file in it, by name), or a list of them.
        #[schemars(extend("x-results" = false), extend("examples" = ["nodes.parquet"]))]
        pub nodes: Option<OneOrMany<PathBuf>> = None,
        /// Parquet files of edges: a file, a folder, or a list of them.
        #[schemars(extend("x-results" = false), extend("examples" = ["edges.parquet"]))]
        pub edges: Option<OneOrMany<PathBuf>> = None,
        /// A synthetic graph, written as Parquet beside the pipeline file (in `.gnnflow/`) the first time.
        pub generate: Option<Generate> = None,
        /// A folder that `gnnflow prepare` wrote, used as it is. The keys that say how to read Parquet do not apply.
        #[schemars(extend("x-results" = false), extend("examples" = ["prepared/cora"]))]
        pub dataset: Option<PathBuf> = None,
        /// The columns' names in the Parquet files.
        pub columns: Columns = Columns::default(),
        /// Add the reverse of every edge; after duplicates are dropped, when `duplicates = "drop"`.
        pub undirected: bool = false,
        /// What to do with an edge that occurs more than once.
        pub duplicates: Duplicates = Duplicates::Drop,
        /// What to do with an edge from a node to itself.
        pub self_loops: SelfLoops = SelfLoops::Keep,
        /// How to scale the features while the dataset is prepared.
        pub normalize_features: Normalize = Normalize::None,
        /// The type in which the prepared dataset stores features. Arithmetic is always f32.
        pub feature_dtype: FeatureDtype = FeatureDtype::F32,
        /// Shares of train, validation and test nodes, drawn by `seed`, for data without a split column. They sum to at
        /// most 1; the rest is in no split.
        #[schemars(length(equal = 3), inner(range(min = 0.0, max = 1.0)), extend("examples" = [[0.6, 0.2, 0.2]]))]
        pub split_fractions: Option<Vec<f64>> = None,
        /// Number of classes, when the labels of this dump do not show all of them. Unset: the largest label plus one.
        #[schemars(range(min = 1), extend("examples" = [7]))]
        pub num_classes: Option<u32> = None,
        /// Seed of the split.
        #[schemars(range(max = i64::MAX))]
        pub seed: u64 = 1,
    }
}

section! {
    /// The columns' names in the Parquet files. A column that is named here must exist; `features`, `label` and `split`
    /// are also looked for under their default names and used when present.
    pub struct Columns {
        /// Node files: the node's id, an integer or a string.
        pub id: String = "node_id".into(),
        /// Node files: the features; one list column, or several numeric ones in this order. Unset: `features` if there is such a column.
        #[schemars(extend("examples" = ["features"]))]
        pub features: Option<OneOrMany<String>> = None,
        /// Node files: the label; an integer class, or a list of 0 and 1 for several labels. Unset: `label` if there is such a column.
        #[schemars(extend("examples" = ["label"]))]
        pub label: Option<String> = None,
        /// Node files: `train`, `val` (or `valid`, `validation`), `test`, or null. Unset: `split` if there is such a column and no `split_fractions`.
        #[schemars(extend("examples" = ["split"]))]
        pub split: Option<String> = None,
        /// Node files: the node's type.
        #[schemars(extend("examples" = ["kind"]))]
        pub node_type: Option<String> = None,
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
    }
}

section! {
    /// A synthetic graph; the same numbers always give the same graph.
    pub struct Generate {
        /// Which generator.
        pub kind: GenerateKind = GenerateKind::Planted,
        /// Number of nodes. `rmat` rounds up to a power of two; give either this or `scale`.
        #[schemars(range(min = 1, max = 4294967294u64), extend("examples" = [10000]))]
        pub nodes: Option<u64> = None,
        /// Number of edges. Unset: `edge_factor` times the nodes.
        #[schemars(range(max = i64::MAX), extend("examples" = [100000]))]
        pub edges: Option<u64> = None,
        /// Two to this power is the number of nodes.
        #[schemars(range(min = 1, max = 31), extend("examples" = [14]))]
        pub scale: Option<u32> = None,
        /// Edges per node, when `edges` is unset.
        #[schemars(range(min = 1, max = 4294967295u64))]
        pub edge_factor: u64 = 16,
        /// Width of the features.
        #[schemars(range(min = 1, max = 65536))]
        pub features: usize = 32,
        /// Number of classes.
        #[schemars(range(min = 2, max = 65536))]
        pub classes: usize = 8,
        /// Seed of the graph.
        #[schemars(range(max = i64::MAX))]
        pub seed: u64 = 1,
        /// The folder for its Parquet files. Unset: `.gnnflow/KIND-HASH` beside the pipeline file, the hash being that of these numbers.
        #[schemars(extend("x-results" = false, "examples" = ["generated/planted"]))]
        pub out: Option<PathBuf> = None,
    }
}

words! {
    /// A generator of synthetic graphs.
    pub enum GenerateKind {
        /// A degree-corrected block model: classes with features, labels and splits, on which a GNN beats an MLP.
        Planted = "planted",
        /// R-MAT, the recursive power-law model of Graph500.
        Rmat = "rmat",
    }
}

words! {
    /// What to do with an edge that occurs more than once.
    pub enum Duplicates {
        /// Keep each of them.
        Keep = "keep",
        /// Keep one of them.
        Drop = "drop",
        /// Refuse the input.
        Fail = "fail",
    }
}

words! {
    /// What to do with an edge from a node to itself.
    pub enum SelfLoops {
        /// Keep what there is.
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
