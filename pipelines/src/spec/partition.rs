//! `[partition]`: how the graph is cut.

use super::section::{section, words};
use super::values::{Bytes, Parts};
use std::path::PathBuf;

/// Partition methods of this version.
pub(super) const METHODS: &[&str] = &["random", "range"];

/// Partition methods that the design names and that this version does not have.
pub(super) const METHODS_TO_COME: &[&str] =
    &["spring", "dbh", "greedy", "hdrf", "2ps-l", "metis", "multilevel", "file"];

section! {
    /// How the graph is cut into partitions. A run's results depend on the number of partitions, never on how many processes share them.
    pub struct Partition {
        /// The partitioner: `random` (every node by a hash of its position), `range` (equal runs of the node file), or the name of a registered one.
        #[schemars(extend("x-known" = METHODS))]
        pub method: String = "random".into(),
        /// Number of partitions, or "auto".
        pub parts: Parts = Parts::Count(1),
        /// Where the graph's structure is kept while training.
        #[schemars(extend("x-results" = false))]
        pub topology: Topology = Topology::Partitioned,
        /// What `prepare` may keep in memory beside its arrays over all nodes; more spills to disk.
        #[schemars(extend("x-results" = false))]
        pub memory: Bytes = Bytes(2 << 30),
        /// Seed of the `random` method.
        #[schemars(range(max = i64::MAX))]
        pub seed: u64 = 1,
        /// The folder for the prepared dataset. Unset: `.gnnflow/NAME-HASH` beside the pipeline file, the hash being that of `[graph]` and `[partition]`.
        #[schemars(extend("x-results" = false), extend("examples" = ["prepared/cora"]))]
        pub out: Option<PathBuf> = None,
    }
}

words! {
    /// Where the graph's structure is kept while training.
    pub enum Topology {
        /// Every process maps its own partitions; neighbours are asked for over the wire.
        Partitioned = "partitioned",
        /// Every process maps the structure of all partitions; only features cross the wire.
        Replicated = "replicated",
    }
}
