//! The number of training edges that each partition uses in an epoch that samples edges.
//!
//! Every epoch takes a new sample of K of all E edges. A partition with n edges takes K n / E of them, rounded down or up so that
//! all partitions together take K. The rounding is systematic sampling: in the sequence of all partitions' edges, every (E /
//! K)-th edge is counted for its partition, from a random start that depends on the epoch. So small partitions also take part,
//! and all edges are taken equally often on average. A partition takes the first edges of its random order in that epoch
//! ([`EdgeBatches`](super::edge_seeds::EdgeBatches)).

use gnnflow_data::rng::{Key, Purpose};

/// A sample of all partitions' edges.
#[derive(Clone, Debug)]
pub struct EdgeShare {
    /// The number of edges of all earlier partitions, by partition; and the number of all edges.
    before: Vec<u64>,
    taken: u64,
}

impl EdgeShare {
    /// Creates a sample of `taken` edges, or of all if there are fewer. `counts` are the numbers of edges by partition.
    pub fn new(counts: &[u64], taken: u64) -> Self {
        let sums = counts.iter().scan(0, |sum, count| {
            *sum += count;
            Some(*sum)
        });
        let before: Vec<u64> = std::iter::once(0).chain(sums).collect();
        let taken = taken.min(before[counts.len()]);
        Self { before, taken }
    }

    /// Returns the number of edges that `partition` takes in `epoch` of a run with this seed.
    ///
    /// ```
    /// use gnnflow_dataflow::sample::edge_share::EdgeShare;
    ///
    /// let share = EdgeShare::new(&[100, 1, 300], 40);
    /// let of_epoch = |epoch| [0, 1, 2].map(|partition| share.of(partition, epoch, 7));
    /// assert!((0..100).all(|epoch| of_epoch(epoch).iter().sum::<u64>() == 40));
    /// assert!((0..100).any(|epoch| of_epoch(epoch)[1] == 1) && (0..100).any(|epoch| of_epoch(epoch)[1] == 0));
    /// ```
    ///
    /// # Panics
    /// When there is no such partition.
    pub fn of(&self, partition: usize, epoch: u32, seed: u64) -> u64 {
        let all = self.before[self.before.len() - 1];
        if self.taken == all {
            return self.before[partition + 1] - self.before[partition];
        }
        let start = Key::new(seed, Purpose::Shuffle).fold_str("edges_per_epoch").fold(u64::from(epoch)).below(0, all);
        // Products of counts of 2³² and more do not fit into 64 bits.
        let counted = |edges: u64| (u128::from(edges) * u128::from(self.taken) + u128::from(start)) / u128::from(all);
        (counted(self.before[partition + 1]) - counted(self.before[partition])) as u64
    }

    /// Returns the largest number of edges that any partition takes in any epoch.
    pub fn most(&self) -> u64 {
        let all = self.before[self.before.len() - 1].max(1);
        let of = |counts: &[u64]| u128::from(counts[1] - counts[0]) * u128::from(self.taken);
        self.before.windows(2).map(|counts| of(counts).div_ceil(u128::from(all)) as u64).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_take_the_requested_sum_in_proportion_to_their_edges() {
        for counts in [vec![7], vec![10, 0, 3, 87], vec![0, 1, 1, 1, 0, 5], vec![u64::from(u32::MAX), 1 << 40, 12]] {
            let all: u64 = counts.iter().sum();
            for taken in [1, 2, all / 3 + 1, all - 1, all, all + 5] {
                let share = EdgeShare::new(&counts, taken);
                let epochs = 4000;
                let mut sums = vec![0.0; counts.len()];
                for epoch in 0..epochs {
                    let each: Vec<u64> = (0..counts.len()).map(|part| share.of(part, epoch, 3)).collect();
                    assert_eq!(each.iter().sum::<u64>(), taken.min(all), "{counts:?}");
                    assert!(each.iter().zip(&counts).all(|(each, count)| each <= count && *each <= share.most()));
                    sums.iter_mut().zip(each).for_each(|(sum, each)| *sum += each as f64);
                }
                for (sum, &count) in sums.iter().zip(&counts) {
                    let wanted = taken.min(all) as f64 * count as f64 / all as f64;
                    // At most one more or less in an epoch: five deviations of the mean.
                    let within = 5.0 * 0.5 / f64::from(epochs).sqrt();
                    let found = sum / f64::from(epochs);
                    assert!((found - wanted).abs() <= within.max(1e-9 * wanted), "{found}, not {wanted}: {counts:?}");
                }
            }
        }
    }

    #[test]
    fn draws_differ_between_epochs_and_seeds() {
        let share = EdgeShare::new(&[50, 51, 49], 10);
        let starts = |seed| (0..50).map(|epoch| [0, 1, 2].map(|part| share.of(part, epoch, seed))).collect::<Vec<_>>();
        assert_eq!(starts(1), starts(1));
        assert_ne!(starts(1), starts(2));
        assert!(starts(1).windows(2).any(|two| two[0] != two[1]));
    }
}
