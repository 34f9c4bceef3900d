//! The memory of all processes over the time of a run.

use serde::{Deserialize, Serialize};

/// Maximum number of samples. When there are more, every other one is dropped.
const MOST: usize = 600;
/// Maximum number of processes whose memory is kept: the first ones.
const PROCESSES: usize = 64;

/// Samples of resident memory, at equal distances in time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct MemoryOverTime {
    /// Times since the run began.
    pub(crate) seconds: Vec<f64>,
    /// By rank: bytes at these times; 0 where the process had not reported yet.
    pub(crate) bytes: Vec<Vec<u64>>,
}

/// Collects samples.
#[derive(Debug, Default)]
pub(super) struct MemorySampler {
    kept: MemoryOverTime,
    /// Samples that are left out between two that are kept.
    between: usize,
    /// Samples left out since the last one.
    left_out: usize,
}

impl MemorySampler {
    /// Returns the samples so far.
    pub(super) fn samples(&self) -> &MemoryOverTime {
        &self.kept
    }

    /// Adds a sample: the rank and the memory of each process.
    pub(super) fn add(&mut self, seconds: f64, of: impl Iterator<Item = (usize, u64)>) {
        let MemoryOverTime { seconds: times, bytes: by_rank } = &mut self.kept;
        if !times.is_empty() && self.left_out < self.between {
            self.left_out += 1;
            return;
        }
        self.left_out = 0;
        if times.len() == MOST {
            keep_every_other(times);
            by_rank.iter_mut().for_each(keep_every_other);
            self.between = 2 * self.between + 1;
        }
        times.push(seconds);
        for (rank, bytes) in of.filter(|(rank, _)| *rank < PROCESSES) {
            if by_rank.len() <= rank {
                by_rank.resize(rank + 1, Vec::new());
            }
            by_rank[rank].resize(times.len() - 1, 0);
            by_rank[rank].push(bytes);
        }
        by_rank.iter_mut().for_each(|bytes| bytes.resize(times.len(), 0));
    }
}

fn keep_every_other<T: Copy>(values: &mut Vec<T>) {
    *values = values.iter().copied().step_by(2).collect();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_bounded_and_at_equal_distances() {
        let mut sampler = MemorySampler::default();
        for second in 0..10_000u64 {
            let second_process = (second >= 100).then_some((1, 7));
            sampler.add(second as f64, [(0, second)].into_iter().chain(second_process));
        }
        let memory = sampler.samples();
        assert!(memory.seconds.len() <= MOST && memory.seconds.len() >= MOST / 2, "{}", memory.seconds.len());
        let distance = memory.seconds[1] - memory.seconds[0];
        assert!(memory.seconds.windows(2).all(|pair| pair[1] - pair[0] == distance), "{:?}", memory.seconds);
        assert_eq!((memory.seconds[0], distance), (0.0, 32.0));
        assert!(memory.seconds.iter().zip(&memory.bytes[0]).all(|(second, bytes)| *second as u64 == *bytes));
        assert_eq!(memory.bytes[1][..5], [0, 0, 0, 0, 7]);
        assert_eq!(memory.bytes[1].len(), memory.seconds.len());
    }

    #[test]
    fn memory_of_the_first_processes_is_kept() {
        let mut sampler = MemorySampler::default();
        sampler.add(1.0, (0..1000).map(|rank| (rank, 1)));
        assert_eq!(sampler.samples().bytes.len(), PROCESSES);
    }
}
