//! The split of a process's threads between sampling and computation.

use std::sync::Arc;

use gnnflow_data::error::FEWER_THREADS;
use gnnflow_dataflow::sample::sampling_threads::SamplingThreads;

use crate::error::Error;

/// The assumed share of sampling in the work, before it is measured.
const SAMPLING: f64 = 0.2;

/// The share of threads that sample if a GPU computes.
const SAMPLING_BESIDE_GPU: f64 = 0.75;

/// A process's threads. They do not include the timely worker's thread, which fetches, serves requests, and mostly waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Split {
    /// Threads that sample; at least 1.
    pub(crate) sampling: usize,
    /// Threads that compute; at least 1.
    pub(crate) compute: usize,
}

impl Split {
    /// Returns the split of `threads` before a measurement.
    pub(crate) fn planned(threads: usize) -> Self {
        Self::by_share(threads, SAMPLING)
    }

    /// Returns the split of `threads` if a GPU computes batches: few threads prepare its work, and gather rows for inference.
    pub(crate) fn beside_gpu(threads: usize) -> Self {
        Self::by_share(threads, SAMPLING_BESIDE_GPU)
    }

    /// Returns the split of `threads` after `sampling` CPU seconds of the sampling threads, and `compute` wall-clock seconds of
    /// `before.compute` threads.
    pub(crate) fn measured(threads: usize, before: Self, sampling: f64, compute: f64) -> Self {
        let work = sampling + compute * before.compute as f64;
        if work > 0.0 { Self::by_share(threads, sampling / work) } else { before }
    }

    /// A share of less than half a thread adds a sampling thread beside `threads` compute threads.
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
        assert_eq!([1, 2, 4, 16].map(Split::beside_gpu), [split(1, 1), split(1, 1), split(3, 1), split(12, 4)]);
        // Of 2 threads, sampling takes a twentieth: both compute.
        assert_eq!(Split::measured(2, split(1, 2), 1.0, 10.0), split(1, 2));
        // Equal shares of sampling and computation.
        assert_eq!(Split::measured(2, split(1, 2), 20.0, 10.0), split(1, 1));
        assert_eq!(Split::measured(16, split(3, 13), 130.0, 10.0), split(8, 8));
        assert_eq!(Split::measured(16, split(3, 13), 1e9, 1e-9), split(15, 1));
        assert_eq!(Split::measured(8, split(2, 6), 0.0, 0.0), split(2, 6));
    }
}
