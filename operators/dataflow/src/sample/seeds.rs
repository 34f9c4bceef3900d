//! Makes a batch of seeds for each step.
//!
//! *In*: one partition number per step and partition, at the partition's worker. *Out*: one batch for each. *Kept per time*:
//! nothing. *Capabilities*: none.
//!
//! An epoch visits the training nodes of a partition in a random order that is computed, not stored: the `i`-th seed of the
//! epoch is training node `Permutation(seed, partition, epoch).at(i)`. So the seeds of any step can be computed by themselves.

use std::sync::Arc;

use gnnflow_data::rng::{Key, Permutation, Purpose};
use timely::container::CapacityContainerBuilder;
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::generic::operator::Operator;

use crate::batch::mini_batch::{BatchKey, MiniBatch};
use crate::time::{self, MessageTime};

/// The training nodes of the partitions that a worker hosts.
#[derive(Clone, Debug, Default)]
pub struct NodeBatches {
    /// The largest number of seeds in a batch.
    pub batch: usize,
    /// The run's seed.
    pub seed: u64,
    /// Global ids of the training nodes, by partition; empty for partitions of other workers.
    pub train: Vec<Vec<u32>>,
    /// A time for each training node, by partition; empty if hops are not temporal.
    pub times: Vec<Vec<i64>>,
}

/// A source of batches.
pub trait BatchSource {
    /// Returns the batch of a key: its seeds, and their times, pairs or excluded edges. It has no seeds after the partition's last
    /// step.
    fn batch(&self, key: BatchKey) -> MiniBatch;
}

impl BatchSource for NodeBatches {
    /// Returns the batch, with its seeds and their times.
    fn batch(&self, key: BatchKey) -> MiniBatch {
        let batch = MiniBatch::new(key, self.seeds(key));
        match self.times.get(key.partition as usize) {
            Some(times) => batch.with_seed_times(self.positions(key).map(|position| times[position]).collect()),
            None => batch,
        }
    }
}

impl NodeBatches {
    /// Returns the seeds of a batch, in order; none after the partition's last step.
    pub fn seeds(&self, key: BatchKey) -> Vec<u32> {
        let train = &self.train[key.partition as usize];
        self.positions(key).map(|position| train[position]).collect()
    }

    /// Returns the positions of a batch's seeds among the partition's training nodes.
    fn positions(&self, key: BatchKey) -> impl Iterator<Item = usize> {
        let train = &self.train[key.partition as usize];
        let root = Key::new(self.seed, Purpose::Shuffle);
        let order =
            Permutation::new(root.fold(u64::from(key.partition)).fold(u64::from(key.epoch)), train.len() as u64);
        let first = (key.step as usize).saturating_mul(self.batch).min(train.len());
        let end = first.saturating_add(self.batch).min(train.len());
        (first..end).map(move |i| order.at(i as u64) as usize)
    }
}

/// Makes batches of seeds.
pub trait Seeds<'scope> {
    /// Makes the batch of each partition number, with the epoch and step of its time.
    ///
    /// # Example
    /// ```
    /// use std::sync::Arc;
    /// use gnnflow_dataflow::sample::seeds::{NodeBatches, Seeds};
    /// use timely::dataflow::operators::{ToStream, core::Inspect};
    ///
    /// let source = Arc::new(NodeBatches { batch: 2, seed: 1, train: vec![vec![3, 5, 8]], ..NodeBatches::default() });
    /// timely::example(|scope| {
    ///     [0u32].to_stream(scope).container::<Vec<u32>>().seeds(source)
    ///         .inspect(|batch| assert_eq!(batch.num_seeds, 2));
    /// });
    /// ```
    fn seeds(self, source: Arc<dyn BatchSource>) -> StreamVec<'scope, u64, MiniBatch>;
}

impl<'scope> Seeds<'scope> for StreamVec<'scope, u64, u32> {
    fn seeds(self, source: Arc<dyn BatchSource>) -> StreamVec<'scope, u64, MiniBatch> {
        self.unary::<CapacityContainerBuilder<Vec<MiniBatch>>, _, _, _>(Pipeline, "seeds", move |_, _| {
            move |input, output| {
                input.for_each(|time, partitions| {
                    let (epoch, step) = (time::epoch(*time.time()), time::step(*time.time()));
                    let batches =
                        partitions.drain(..).map(|partition| source.batch(BatchKey { epoch, step, partition }));
                    output.session(&time).give_iterator(batches);
                });
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_visits_every_training_node_once_in_another_order() {
        let train = vec![(0..10).collect(), vec![], vec![7]];
        let times = vec![(100..110).collect(), vec![], vec![3]];
        let source = NodeBatches { batch: 3, seed: 9, train, times };
        let epoch = |epoch, partition| -> Vec<u32> {
            (0..5).flat_map(|step| source.seeds(BatchKey { epoch, step, partition })).collect()
        };
        let (first, second) = (epoch(0, 0), epoch(1, 0));
        assert_ne!(first, second);
        for mut seeds in [first, second] {
            assert_ne!(seeds, (0..10).collect::<Vec<_>>());
            seeds.sort_unstable();
            assert_eq!(seeds, (0..10).collect::<Vec<_>>());
        }
        assert!(epoch(0, 1).is_empty());
        assert_eq!(epoch(0, 2), vec![7u32]);
        assert_eq!(source.seeds(BatchKey { epoch: 0, step: 3, partition: 0 }).len(), 1);
        let batch = source.batch(BatchKey { epoch: 0, step: 1, partition: 0 });
        let of_seeds: Vec<i64> = batch.nodes.iter().map(|&node| 100 + i64::from(node)).collect();
        assert_eq!(batch.seed_times, of_seeds);
    }
}
