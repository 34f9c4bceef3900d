//! Batches of clusters of nodes (Chiang, Liu, Si, Li, Bengio, Hsieh: Cluster-GCN. KDD 2019, Algorithm 1 with the multiple
//! clusters of section 3.2).

use gnnflow_data::rng::{Key, Purpose};

use super::saint::subgraph;
use crate::batch::mini_batch::{BatchKey, MiniBatch};

/// The clusters of the partitions that a worker hosts.
///
/// ```
/// use gnnflow_dataflow::sample::clusters::ClusterBatches;
/// use gnnflow_dataflow::batch::mini_batch::BatchKey;
///
/// // Nodes 0 to 5 of one partition in three clusters, two per batch. Nodes 1 and 4 are training nodes.
/// let mut source = ClusterBatches::new(1, 2, 7);
/// source.add(0, 0, &[0, 0, 1, 1, 2, 2], 3);
/// assert_eq!(source.steps(3), 2);
/// let batch = |step| source.batch(BatchKey { step, ..BatchKey::default() }, &[1, 4]);
/// let (first, second) = (batch(0), batch(1));
/// assert_eq!((first.nodes.len(), second.nodes.len()), (4, 2));
/// assert_eq!(first.num_seeds + second.num_seeds, 2);
/// ```
#[derive(Clone, Debug, Default)]
pub struct ClusterBatches {
    per_batch: usize,
    seed: u64,
    /// By partition, by cluster: global ids, ascending.
    clusters: Vec<Vec<Vec<u32>>>,
}

impl ClusterBatches {
    /// Creates a source of batches of `per_batch` clusters, for `parts` partitions without clusters.
    pub fn new(parts: usize, per_batch: usize, seed: u64) -> Self {
        Self { per_batch: per_batch.max(1), seed, clusters: vec![Vec::new(); parts] }
    }

    /// Sets the clusters of partition `part`: the cluster, below `count`, of each node from global id `first` on.
    ///
    /// # Panics
    /// When a cluster is `count` or above.
    pub fn add(&mut self, part: usize, first: u32, cluster_of: &[u16], count: usize) {
        let mut clusters = vec![Vec::new(); count];
        (first..).zip(cluster_of).for_each(|(node, &cluster)| clusters[usize::from(cluster)].push(node));
        self.clusters[part] = clusters;
    }

    /// Returns the number of steps in which a partition of `count` clusters uses each cluster once.
    pub fn steps(&self, count: usize) -> u32 {
        count.div_ceil(self.per_batch) as u32
    }

    /// Returns the batch of all nodes of its clusters. The nodes of `train` come first and are its seeds. Every epoch visits the
    /// clusters of a partition in a random order (Fisher–Yates): for ascending `i`, position `i` is exchanged with position
    /// `i + below(i, n − i)` under `Key(seed, Shuffle).fold(partition).fold(epoch)`.
    pub fn batch(&self, key: BatchKey, train: &[u32]) -> MiniBatch {
        let clusters = &self.clusters[key.partition as usize];
        let first = (key.step as usize).saturating_mul(self.per_batch).min(clusters.len());
        let end = (first + self.per_batch).min(clusters.len());
        let draws = Key::new(self.seed, Purpose::Shuffle).fold(u64::from(key.partition)).fold(u64::from(key.epoch));
        let mut order: Vec<usize> = (0..clusters.len()).collect();
        for i in 0..end {
            order.swap(i, i + draws.below(i as u64, (clusters.len() - i) as u64) as usize);
        }
        let nodes = order[first..end].iter().flat_map(|&cluster| &clusters[cluster]).copied().collect();
        subgraph(key, nodes, train)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::testing::chi_square_limit;

    #[test]
    fn an_epoch_visits_every_cluster_once_and_pairs_of_them_evenly() {
        let clusters: Vec<u16> = (0..30).map(|node| node % 5).collect();
        let mut source = ClusterBatches::new(3, 2, 9);
        source.add(1, 100, &clusters, 5);
        let train: Vec<u32> = (100..130).filter(|node| node % 2 == 0).collect();
        let mut pairs: HashMap<Vec<u32>, f64> = HashMap::new();
        let epochs = 4000;
        for epoch in 0..epochs {
            let mut seen = vec![];
            for step in 0..source.steps(5) {
                let batch = source.batch(BatchKey { epoch, step, partition: 1 }, &train);
                assert!(batch.nodes[..batch.num_seeds].iter().all(|node| train.contains(node)));
                assert!(!batch.nodes[batch.num_seeds..].iter().any(|node| train.contains(node)));
                if step == 0 {
                    let mut pair: Vec<u32> = batch.nodes.iter().map(|node| (node - 100) % 5).collect();
                    pair.sort_unstable();
                    pair.dedup();
                    *pairs.entry(pair).or_default() += 1.0;
                }
                seen.extend(batch.nodes);
            }
            seen.sort_unstable();
            assert_eq!(seen, (100..130).collect::<Vec<_>>());
            assert!(source.batch(BatchKey { epoch, step: 0, partition: 0 }, &train).nodes.is_empty());
        }
        let expected = f64::from(epochs) / 10.0;
        assert_eq!(pairs.len(), 10);
        let chi: f64 = pairs.values().map(|count| (count - expected).powi(2) / expected).sum();
        assert!(chi < chi_square_limit(9.0), "{chi}");
    }
}
