//! How many of its training edges each partition learns from in an epoch, where that is a sample of all partitions' edges.
//!
//! Of E edges in all, K are taken, anew in every epoch. A partition with n of them takes K n / E, rounded down or up so that
//! all together take K: the partitions' edges lie one behind the other, and at every E / K of them, from a start on that the epoch draws, one
//! is counted to the partition that it lies in (systematic sampling). So a partition of few edges has its turn, too, and in the
//! mean every edge is taken equally often. Which of its edges those are is the partition's own draw: the first ones of its order in that
//! epoch ([`EdgeBatches`](super::edge_seeds::EdgeBatches)).

use gnnflow_data::rng::{Key, Purpose};

/// A sample of all partitions' edges.
#[derive(Clone, Debug)]
pub struct EdgeShare {
    /// By partition, how many edges those before it have; and the number of all.
    before: Vec<u64>,
    taken: u64,
}

impl EdgeShare {
    /// Of partitions that have so many edges each, `taken` in an epoch; all where there are no more.
    pub fn new(counts: &[u64], taken: u64) -> Self {
        let sums = counts.iter().scan(0, |sum, count| {
            *sum += count;
            Some(*sum)
        });
        let before: Vec<u64> = std::iter::once(0).chain(sums).collect();
        let taken = taken.min(before[counts.len()]);
        Self { before, taken }
    }

    /// How many edges `partition` takes in `epoch` of a run with this seed.
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
        // Counts of 2³² and more have products that 64 bits do not hold.
        let counted = |edges: u64| (u128::from(edges) * u128::from(self.taken) + u128::from(start)) / u128::from(all);
        (counted(self.before[partition + 1]) - counted(self.before[partition])) as u64
    }

    /// The most that any partition takes in any epoch.
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
    fn all_together_take_so_many_and_each_its_share() {
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
    fn epochs_and_seeds_draw_anew() {
        let share = EdgeShare::new(&[50, 51, 49], 10);
        let starts = |seed| (0..50).map(|epoch| [0, 1, 2].map(|part| share.of(part, epoch, seed))).collect::<Vec<_>>();
        assert_eq!(starts(1), starts(1));
        assert_ne!(starts(1), starts(2));
        assert!(starts(1).windows(2).any(|two| two[0] != two[1]));
    }
}
