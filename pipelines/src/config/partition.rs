//! `[partition]`: how the graph is cut.

use super::section::{section, words};
use super::values::{Bytes, OneOrMany, Parts};
use gnnflow_data::dump::PartTable;
use gnnflow_data::{Partitioner, Targets};
use std::path::PathBuf;

/// Partition methods of this version.
pub(super) const METHODS: &[&str] =
    &["random", "range", "spring", "dbh", "greedy", "hdrf", "2ps-l", "ldg", "fennel", "metis", "multilevel", "file"];

section! {
    /// How the graph is cut into partitions. A run's results depend on the number of partitions, never on how many processes share them.
    pub struct Partition {
        /// The partitioner, or the name of a registered one ([methods](partitioners.md)). `file` reads the parts from a table.
        #[schemars(extend("x-known" = METHODS))]
        pub method: String = "multilevel".into(),
        /// Number of partitions; or "auto": one for each of `workers` when the graph fits them, else as many as it takes (SDT-GNN's rule).
        pub parts: Parts = Parts::Count(1),
        /// For `parts = "auto"`: workers that will train.
        #[schemars(range(min = 1))]
        pub workers: u32 = 1,
        /// For `parts = "auto"`: memory of a worker. Unset: this machine's.
        #[schemars(extend("examples" = ["16GiB"]))]
        pub worker_memory: Option<Bytes> = None,
        /// For `parts = "auto"`: how much of it training keeps for itself. Unset: two thirds.
        #[schemars(extend("examples" = ["8GiB"]))]
        pub reserve: Option<Bytes> = None,
        /// How even the partitions have to be.
        pub balance: Balance = Balance::default(),
        /// Where `spring` and the vertex cuts have degrees from. Unset: `exact`.
        #[schemars(extend("examples" = ["online"]))]
        pub degrees: Option<Degrees> = None,
        /// Bound on the volume (sum of degrees) of a cluster, as a share of a partition's mean volume (`spring`, `2ps-l`). Unset: 1.
        #[schemars(extend("exclusiveMinimum" = 0.0), extend("examples" = [0.5]))]
        pub volume: Option<f64> = None,
        /// Hold core nodes to `balance.nodes`, which vertex cuts do not by themselves. Unset: false.
        #[schemars(extend("examples" = [true]))]
        pub hold_balance: Option<bool> = None,
        /// Refinement passes over the edges after any method: nodes move to the part of most of their neighbors, within `balance`.
        /// Stops early when the gain fades.
        #[schemars(range(max = 1000), extend("examples" = [5]))]
        pub refine: u32 = 0,
        /// Parquet with the part of every node (`file`): a file, a folder, or a list of them.
        #[schemars(extend("x-results" = false), extend("examples" = ["parts.parquet"]))]
        pub file: Option<OneOrMany<PathBuf>> = None,
        /// The columns' names in `file`.
        pub file_columns: FileColumns = FileColumns::default(),
        /// Data stored with a partition about its halo nodes (sources of its edges in other partitions).
        /// Unset: `ids`; `features` with `partition-parallel`.
        #[schemars(extend("examples" = ["features"]))]
        pub halo: Option<Halo> = None,
        /// Where the graph's structure is kept while training.
        #[schemars(extend("x-results" = false))]
        pub topology: Topology = Topology::Partitioned,
        /// What `prepare` may keep in memory, everything counted, in each process; more spills to disk.
        #[schemars(extend("x-results" = false))]
        pub memory: Bytes = Bytes(2 << 30),
        /// Seed of random choices: the order of `random`, the hash of `dbh` and `2ps-l`, METIS, and the nodes that refinement moves.
        #[schemars(range(max = i64::MAX))]
        pub seed: u64 = 1,
        /// The folder for the prepared dataset. Unset: `.gnnflow/NAME-HASH` beside the pipeline file, the hash being that of `[graph]` and `[partition]`.
        #[schemars(extend("x-results" = false), extend("examples" = ["prepared/cora"]))]
        pub out: Option<PathBuf> = None,
    }
}

section! {
    /// Bounds on the largest partition over the mean, at least 1. Methods keep those that they can, and the report shows all: the node bound
    /// is kept by all but the vertex cuts, which keep it on request (`hold_balance`).
    pub struct Balance {
        /// Nodes.
        #[schemars(range(min = 1.0))]
        pub nodes: f64 = 1.05,
        /// In-edges of the nodes. Unset: any.
        #[schemars(range(min = 1.0), extend("examples" = [1.1]))]
        pub edges: Option<f64> = None,
        /// Nodes of the train split. Unset: any.
        #[schemars(range(min = 1.0), extend("examples" = [1.05]))]
        pub train: Option<f64> = None,
        /// Nodes of the validation split. Unset: any.
        #[schemars(range(min = 1.0), extend("examples" = [1.05]))]
        pub val: Option<f64> = None,
        /// Nodes of the test split. Unset: any.
        #[schemars(range(min = 1.0), extend("examples" = [1.05]))]
        pub test: Option<f64> = None,
        /// Nodes of every type, each type by itself. Unset: any.
        #[schemars(range(min = 1.0), extend("examples" = [1.1]))]
        pub types: Option<f64> = None,
    }
}

section! {
    /// The columns' names in `partition.file`. Every node stands there once, in any order.
    pub struct FileColumns {
        /// The node's id, as in the node files.
        pub id: String = "node_id".into(),
        /// Its part: an integer from 0, below `partition.parts`.
        pub part: String = "part".into(),
    }
}

impl Balance {
    /// The bounds as partitioners take them.
    pub fn targets(&self) -> Targets {
        let &Self { nodes, edges, train, val, test, types } = self;
        Targets { nodes, edges, train, val, test, types }
    }
}

impl Partition {
    /// The built-in partitioner that the method names, if it is none that was registered.
    pub fn builtin(&self) -> Option<Box<dyn Partitioner>> {
        let degrees = self.degrees.map(|degrees| match degrees {
            Degrees::Exact => gnnflow_partition::Degrees::Exact,
            Degrees::Online => gnnflow_partition::Degrees::Online,
        });
        let FileColumns { id, part } = self.file_columns.clone();
        let file = PartTable { files: self.file.iter().flat_map(|files| files.0.clone()).collect(), id, part };
        let settings =
            gnnflow_partition::Settings { degrees, volume: self.volume, hold_balance: self.hold_balance, file };
        gnnflow_partition::builtin(&self.method, &settings)
    }
}

/// Keys that only some built-in methods have, and which.
pub(super) const KEYS: &[(&str, &[&str])] = &[
    ("degrees", &["spring", "dbh", "greedy", "hdrf", "2ps-l"]),
    ("volume", &["spring", "2ps-l"]),
    ("hold_balance", &["dbh", "greedy", "hdrf", "2ps-l"]),
    ("file", &["file"]),
    ("file_columns", &["file"]),
];

words! {
    /// Where degrees come from.
    pub enum Degrees {
        /// A pass of its own over the edges counts them.
        Exact = "exact",
        /// The degree seen so far: a pass less.
        Online = "online",
    }
}

words! {
    /// What is stored about foreign nodes.
    pub enum Halo {
        /// Their ids.
        Ids = "ids",
        /// Their ids and features, so that a partition can be trained by itself.
        Features = "features",
    }
}

words! {
    /// Where the graph's structure is kept while training.
    pub enum Topology {
        /// Every process maps its own partitions; neighbors are requested over the wire.
        Partitioned = "partitioned",
        /// Every process maps the structure of all partitions; only features cross the wire.
        Replicated = "replicated",
    }
}
