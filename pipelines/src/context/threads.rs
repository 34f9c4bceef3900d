//! How a process's threads are split between sampling and arithmetic.

use std::sync::Arc;

use gnnflow_data::error::FEWER_THREADS;
use gnnflow_dataflow::sample::sample_batch::SamplingThreads;

use crate::error::Error;

/// A share of the work that is taken to be sampling before it has been measured.
const SAMPLING: f64 = 0.2;

/// A process's threads, by what they do. Beside them is the worker's own, which mostly waits: it fetches, and serves its peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Split {
    /// Threads that sample; at least 1.
    pub(crate) sampling: usize,
    /// Threads that compute; at least 1.
    pub(crate) compute: usize,
}

impl Split {
    /// The split of `threads` before anything has been measured.
    pub(crate) fn planned(threads: usize) -> Self {
        Self::by_share(threads, SAMPLING)
    }

    /// The split of `threads` after `sampling` seconds on the sampling threads together, and `compute` seconds on the clock of
    /// `before.compute` threads.
    pub(crate) fn measured(threads: usize, before: Self, sampling: f64, compute: f64) -> Self {
        let work = sampling + compute * before.compute as f64;
        if work > 0.0 { Self::by_share(threads, sampling / work) } else { before }
    }

    /// Where sampling's share is less than half a thread, its thread runs in the others' gaps.
    fn by_share(threads: usize, share: f64) -> Self {
        let sampling = (threads as f64 * share).round() as usize;
        Self { sampling: sampling.clamp(1, threads.max(2) - 1), compute: threads.saturating_sub(sampling).max(1) }
    }
}

/// Starts a worker's sampling threads.
pub(crate) fn sampling(threads: usize) -> Result<Arc<SamplingThreads>, Error> {
    let started = SamplingThreads::start(Split::planned(threads).sampling);
    started
        .map(Arc::new)
        .map_err(|error| Error::Machine(format!("cannot start sampling threads: {error}; {FEWER_THREADS}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_split_by_their_work() {
        let split = |sampling, compute| Split { sampling, compute };
        assert_eq!([1, 2, 4, 16].map(Split::planned), [split(1, 1), split(1, 2), split(1, 3), split(3, 13)]);
        // Of 2 threads, sampling takes a twentieth: both compute.
        assert_eq!(Split::measured(2, split(1, 2), 1.0, 10.0), split(1, 2));
        // As much sampling as arithmetic.
        assert_eq!(Split::measured(2, split(1, 2), 20.0, 10.0), split(1, 1));
        assert_eq!(Split::measured(16, split(3, 13), 130.0, 10.0), split(8, 8));
        assert_eq!(Split::measured(16, split(3, 13), 1e9, 1e-9), split(15, 1));
        assert_eq!(Split::measured(8, split(2, 6), 0.0, 0.0), split(2, 6));
    }
}
