//! The placement of partitions on workers.

use std::ops::Range;

/// Places a contiguous run of partitions on each worker. The lengths of the runs differ by one at most.
///
/// Results do not depend on the placement: any number of workers up to the number of partitions gives the same bits.
///
/// ```
/// use gnnflow_dataflow::graph::placement::Placement;
///
/// let placement = Placement::new(4, 3);
/// assert_eq!((0..4).map(|part| placement.worker_of(part)).collect::<Vec<_>>(), [0, 0, 1, 2]);
/// assert_eq!(placement.parts_of(0), 0..2);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    parts: usize,
    workers: usize,
}

impl Placement {
    /// Places `parts` partitions on `workers` workers.
    ///
    /// # Panics
    /// Unless `1 <= workers <= parts`, which the pipeline checks.
    pub fn new(parts: usize, workers: usize) -> Self {
        assert!((1..=parts).contains(&workers), "{workers} workers for {parts} partitions");
        Self { parts, workers }
    }

    /// Returns the number of partitions.
    #[inline]
    pub fn parts(&self) -> usize {
        self.parts
    }

    /// Returns the number of workers.
    #[inline]
    pub fn workers(&self) -> usize {
        self.workers
    }

    /// Returns the worker that hosts partition `part`.
    #[inline]
    pub fn worker_of(&self, part: usize) -> usize {
        part * self.workers / self.parts
    }

    /// Returns the partitions that `worker` hosts.
    pub fn parts_of(&self, worker: usize) -> Range<usize> {
        let first = |worker: usize| (worker * self.parts).div_ceil(self.workers);
        first(worker)..first(worker + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_and_owners_agree() {
        for parts in 1..20 {
            for workers in 1..=parts {
                let placement = Placement::new(parts, workers);
                let mut owners = vec![usize::MAX; parts];
                for worker in 0..workers {
                    let run = placement.parts_of(worker);
                    assert!(!run.is_empty() && run.len() <= parts.div_ceil(workers), "{parts} on {workers}: {run:?}");
                    run.for_each(|part| owners[part] = worker);
                }
                assert!((0..parts).all(|part| owners[part] == placement.worker_of(part)), "{parts} on {workers}");
            }
        }
    }
}
