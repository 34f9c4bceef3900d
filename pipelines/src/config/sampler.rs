//! `train.sampler`: how batches are drawn, with the options of each sampler.

use super::section::{choice, section, words};
use serde::{Deserialize, Serialize};

choice! {
    /// How batches are drawn.
    pub enum Sampler {
        /// Neighbors with equal probabilities.
        Uniform(Replace) = "uniform",
        /// Neighbors in proportion to the weights of their edges.
        Weighted(Replace) = "weighted",
        /// LABOR-0: the fanout is the expected number of neighbors, and batches have fewer nodes.
        Labor = "labor",
        /// Only edges older than the seed (`graph.columns.time`, `graph.columns.node_time`).
        Temporal(Temporal) = "temporal",
        /// LADIES: a fanout is the number of nodes of the whole hop. Needs `sage` with the mean.
        Ladies = "ladies",
        /// FastGCN: a fanout is the number of nodes of the whole hop, drawn from the entire graph. Needs `sage` with the mean.
        FastGcn = "fastgcn",
        /// ClusterGCN: subgraphs of clusters. All layers read all edges of a batch.
        Cluster(ClusterSampler) = "cluster",
        /// GraphSAINT: subgraphs of drawn nodes. Needs `sage` with the mean.
        SaintNode(Saint) = "saint-node",
        /// GraphSAINT: subgraphs of the endpoints of drawn edges. Needs `sage` with the mean.
        SaintEdge(Saint) = "saint-edge",
        /// GraphSAINT: subgraphs of random walks. Needs `sage` with the mean.
        SaintWalk(SaintWalk) = "saint-walk",
        | /// A registered sampler.
        Registered(RegisteredSampler),
    }
}

/// A registered sampler.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegisteredSampler {
    /// Its name.
    kind: String,
}

impl RegisteredSampler {
    fn word(&self) -> &str {
        &self.kind
    }
}

section! {
    /// Options of `uniform` and `weighted`.
    pub struct Replace {
        /// Draw neighbors with replacement.
        pub replace: bool = false,
    }
}

section! {
    /// Options of `temporal`.
    pub struct Temporal {
        /// Which of the older edges are drawn.
        pub take: Take = Take::Uniform,
    }
}

section! {
    /// Options of `cluster`.
    pub struct ClusterSampler {
        /// Clusters of each partition, computed before training. Unset: 100, but at most the nodes of the smallest partition.
        #[schemars(range(min = 1, max = 65535), extend("examples" = [1500]))]
        pub clusters: Option<usize> = None,
        /// Clusters of a partition in a batch, at most `clusters`. Unset: 10.
        #[schemars(range(min = 1, max = 65535), extend("examples" = [20]))]
        pub clusters_per_batch: Option<usize> = None,
    }
}

section! {
    /// Options of `saint-node` and `saint-edge`.
    pub struct Saint {
        /// Mean number of draws of a node before training. They estimate how often it and its edges are in a batch.
        #[schemars(range(min = 1, max = 100000))]
        pub coverage: usize = 50,
    }
}

section! {
    /// Options of `saint-walk`.
    pub struct SaintWalk {
        /// Steps of a walk.
        #[schemars(range(min = 1, max = 1000))]
        pub walk_length: usize = 2,
        /// node2vec's return parameter: the weight of a step back is 1 / p.
        #[schemars(extend("exclusiveMinimum" = 0.0))]
        pub p: f64 = 1.0,
        /// node2vec's in-out parameter: the weight of a step to a node that is not a neighbor of the previous one is 1 / q.
        #[schemars(extend("exclusiveMinimum" = 0.0))]
        pub q: f64 = 1.0,
        /// Mean number of draws of a node before training. They estimate how often it and its edges are in a batch.
        #[schemars(range(min = 1, max = 100000))]
        pub coverage: usize = 50,
    }
}

impl Default for Sampler {
    fn default() -> Self {
        Self::Uniform(Replace::default())
    }
}

impl Sampler {
    /// Whether batches are subgraphs. All layers then read all edges of a batch.
    pub(crate) fn draws_subgraphs(&self) -> bool {
        matches!(self, Self::Cluster(_) | Self::SaintNode(_) | Self::SaintEdge(_) | Self::SaintWalk(_))
    }

    /// Whether a fanout is the number of nodes of a hop, not of neighbors per node.
    pub(crate) fn draws_layers(&self) -> bool {
        matches!(self, Self::Ladies | Self::FastGcn)
    }

    /// Whether only edges older than the seed are drawn.
    pub fn is_temporal(&self) -> bool {
        matches!(self, Self::Temporal(_))
    }

    /// Whether batches have edge weights that layers must read.
    pub(crate) fn weighs_edges(&self) -> bool {
        matches!(self, Self::Ladies | Self::FastGcn | Self::SaintNode(_) | Self::SaintEdge(_) | Self::SaintWalk(_))
    }
}

impl ClusterSampler {
    /// Clusters of each partition. `nodes` has the number of nodes of each; partitions without nodes have no clusters.
    pub fn clusters(&self, nodes: impl Iterator<Item = u64>) -> usize {
        let least = nodes.filter(|&nodes| nodes > 0).min().unwrap_or(1);
        self.clusters.unwrap_or_else(|| usize::try_from(least).unwrap_or(usize::MAX).min(100))
    }

    /// Clusters of a batch, for partitions of `clusters` clusters.
    pub fn clusters_per_batch(&self, clusters: usize) -> usize {
        self.clusters_per_batch.unwrap_or(10).min(clusters)
    }
}

impl SaintWalk {
    /// Steps of a walk.
    pub fn length(&self) -> u32 {
        u32::try_from(self.walk_length).unwrap_or(u32::MAX)
    }

    /// node2vec's p and q; `None` for first-order walks.
    pub fn bias(&self) -> Option<[f64; 2]> {
        ([self.p, self.q] != [1.0, 1.0]).then_some([self.p, self.q])
    }
}

words! {
    /// Which edges older than the seed are drawn.
    pub enum Take {
        /// A uniform subset.
        Uniform = "uniform",
        /// The latest.
        Last = "last",
    }
}
