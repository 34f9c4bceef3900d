//! `[partition]`: how the graph is partitioned.

use super::section::{section, words};
use super::values::{Bytes, OneOrMany, Parts};
use gnnflow_data::dump::PartTable;
use gnnflow_data::{Partitioner, Targets};
use gnnflow_partition::Refined;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;

/// Partition methods of this version.
pub(super) const METHODS: &[&str] =
    &["random", "range", "spring", "dbh", "greedy", "hdrf", "2ps-l", "ldg", "fennel", "metis", "multilevel", "file"];

section! {
    /// How the graph is partitioned. Results depend on the number of partitions, but not on the number of processes.
    pub struct Partition {
        /// The partitioner, or the name of a registered one ([methods](partitioners.md)). `file` reads the parts from a table.
        #[schemars(extend("x-known" = METHODS))]
        pub method: String = "multilevel".into(),
        /// Number of partitions; or "auto": one per worker if the graph fits, else as many as needed (SDT-GNN's rule).
        pub parts: Parts = Parts::Count(1),
        /// For `parts = "auto"`: number of workers.
        #[schemars(range(min = 1))]
        pub workers: u32 = 1,
        /// For `parts = "auto"`: memory of a worker. Unset: this machine's.
        #[schemars(extend("examples" = ["16GiB"]))]
        pub worker_memory: Option<Bytes> = None,
        /// For `parts = "auto"`: part of `worker_memory` that training needs. Unset: two thirds.
        #[schemars(extend("examples" = ["8GiB"]))]
        pub reserve: Option<Bytes> = None,
        /// Bounds on the imbalance of the partitions.
        pub balance: Balance = Balance::default(),
        /// Source of the degrees that `spring` and the vertex cuts use. Unset: `exact`.
        #[schemars(extend("examples" = ["online"]))]
        pub degrees: Option<Degrees> = None,
        /// Bound on the volume (sum of degrees) of a cluster, as a share of a partition's mean volume (`spring`, `2ps-l`). Unset: 1.
        #[schemars(extend("exclusiveMinimum" = 0.0), extend("examples" = [0.5]))]
        pub volume: Option<f64> = None,
        /// Whether vertex cuts keep the bound `balance.nodes`, too. Unset: false.
        #[schemars(extend("examples" = [true]))]
        pub hold_balance: Option<bool> = None,
        /// Refinement passes over the edges, after any method: nodes move to the partition of most of their neighbors, within `balance`.
        /// Refinement stops early when the gain is small.
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
        /// Where training keeps the graph's structure.
        #[schemars(extend("x-results" = false))]
        pub topology: Topology = Topology::Partitioned,
        /// How a process reads the features of nodes that other processes own.
        #[schemars(extend("x-results" = false))]
        pub features: Features = Features::Shared,
        /// Total memory of each process of `prepare`; more data spills to disk. A budget that is too small is refused with the
        /// amount that is needed.
        #[schemars(extend("x-results" = false))]
        pub memory: Bytes = Bytes(2 << 30),
        /// Memory that the method plans with: the size of coarse graphs and sketches follows from it, and so do the partitions. With more,
        /// `multilevel` cuts large graphs better; with less, it needs less of `memory`. Unset: 2GiB.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schemars(extend("examples" = ["8GiB"]))]
        pub method_memory: Option<Bytes> = None,
        /// Seed of random choices: of the order of `random`, the hash of `dbh` and `2ps-l`, METIS, and refinement.
        #[schemars(range(max = i64::MAX))]
        pub seed: u64 = 1,
        /// The folder for the prepared dataset. Unset: `.gnnflow/NAME-HASH` beside the pipeline file, with the hash of `[graph]` and `[partition]`.
        #[schemars(extend("x-results" = false), extend("examples" = ["prepared/cora"]))]
        pub out: Option<PathBuf> = None,
    }
}

section! {
    /// Bounds on the largest partition over the mean, at least 1; "none" lifts a bound that has a default. Methods keep the bounds
    /// that they support, and the report shows all. All methods keep the node bound, vertex cuts only with `hold_balance`.
    pub struct Balance {
        /// Nodes.
        #[schemars(range(min = 1.0))]
        pub nodes: f64 = 1.05,
        /// In-edges of the nodes. Unset: 1.2 for `multilevel` and `metis`, no bound for other methods.
        #[schemars(extend("examples" = [1.1]))]
        pub edges: Option<Limit> = None,
        /// Nodes of the train split. Unset: 1.1 for `multilevel` and `metis`, no bound for other methods.
        #[schemars(extend("examples" = [1.05]))]
        pub train: Option<Limit> = None,
        /// Nodes of the validation split. Unset: no bound.
        #[schemars(range(min = 1.0), extend("examples" = [1.05]))]
        pub val: Option<f64> = None,
        /// Nodes of the test split. Unset: no bound.
        #[schemars(range(min = 1.0), extend("examples" = [1.05]))]
        pub test: Option<f64> = None,
        /// Nodes of each type, separately. Unset: no bound.
        #[schemars(range(min = 1.0), extend("examples" = [1.1]))]
        pub types: Option<f64> = None,
    }
}

/// The default bounds of `multilevel` and `metis`. DistDGL (section III-B) bounds the same quantities, so that all partitions
/// take equally long in a step.
const EDGE_BALANCE: f64 = 1.2;
const TRAIN_BALANCE: f64 = 1.1;

/// A bound that has a default, and that can be lifted.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Limit {
    /// Largest ratio of the largest partition to the mean.
    AtMost(f64),
    /// No bound.
    Lifted(NoLimit),
}

words! {
    /// The word for no bound.
    pub enum NoLimit {
        /// No bound.
        None = "none",
    }
}

impl JsonSchema for Limit {
    fn schema_name() -> Cow<'static, str> {
        "Limit".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "anyOf": [{ "type": "number", "minimum": 1 }, { "type": "string", "const": "none" }] })
    }
}

section! {
    /// The columns' names in `partition.file`, which has each node once, in any order.
    pub struct FileColumns {
        /// The node's id, as in the node files.
        pub id: String = "node_id".into(),
        /// Its part: an integer from 0, below `partition.parts`.
        pub part: String = "part".into(),
    }
}

impl Balance {
    /// Returns the bounds for the partitioner named `method`.
    pub fn targets(&self, method: &str) -> Targets {
        let &Self { nodes, edges, train, val, test, types } = self;
        let balances_work = ["multilevel", "metis"].contains(&method);
        let or_default = |limit: Option<Limit>, default| match limit {
            Some(Limit::AtMost(ratio)) => Some(ratio),
            Some(Limit::Lifted(NoLimit::None)) => None,
            None => balances_work.then_some(default),
        };
        let (edges, train) = (or_default(edges, EDGE_BALANCE), or_default(train, TRAIN_BALANCE));
        Targets { nodes, edges, train, val, test, types }
    }
}

impl Partition {
    /// Returns the keys that apply to a prepared dataset; the others have their defaults.
    pub(super) fn of_dataset(&self) -> Self {
        let Self { topology, features, memory, method_memory, .. } = *self;
        Self { topology, features, memory, method_memory, ..Self::default() }
    }

    /// Returns the bytes that the method plans with.
    pub fn method_memory(&self) -> u64 {
        self.method_memory.map_or(DEFAULT_METHOD_MEMORY, |memory| memory.0)
    }

    /// Returns the partitioner of `method`: `registered`, or else the built-in one. `None` if there is neither.
    pub(crate) fn partitioner(&self, registered: Option<Arc<dyn Partitioner>>) -> Option<Arc<dyn Partitioner>> {
        let method = registered.or_else(|| self.builtin().map(Arc::from))?;
        Some(match self.refine {
            0 => method,
            passes => Arc::new(Refined::new(method, passes)),
        })
    }

    /// Returns the built-in partitioner; `None` for a registered method.
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

/// The default of `partition.method_memory`.
const DEFAULT_METHOD_MEMORY: u64 = 2 << 30;

/// Keys of some built-in methods only, with these methods.
pub(super) const KEYS: &[(&str, &[&str])] = &[
    ("degrees", &["spring", "dbh", "greedy", "hdrf", "2ps-l"]),
    ("volume", &["spring", "2ps-l"]),
    ("hold_balance", &["dbh", "greedy", "hdrf", "2ps-l"]),
    ("file", &["file"]),
    ("file_columns", &["file"]),
];

words! {
    /// The source of degrees.
    pub enum Degrees {
        /// An extra pass over the edges counts them.
        Exact = "exact",
        /// The degrees so far, without an extra pass.
        Online = "online",
    }
}

words! {
    /// Data stored with a partition about its halo nodes.
    pub enum Halo {
        /// Their ids.
        Ids = "ids",
        /// Their ids and features; `partition-parallel` needs both.
        Features = "features",
    }
}

words! {
    /// How a process reads the features of nodes that other processes own.
    pub enum Features {
        /// The processes of one host map the files of all their partitions, which are in memory once. Features of other hosts are fetched.
        Shared = "shared",
        /// Each process maps its own partitions and fetches all other features from their owners, as if each process had its own host.
        Partitioned = "partitioned",
    }
}

words! {
    /// Where training keeps the graph's structure.
    pub enum Topology {
        /// Each process maps its own partitions and requests other neighbors from their owners.
        Partitioned = "partitioned",
        /// Each process maps the structure of all partitions and requests features only.
        Replicated = "replicated",
    }
}
