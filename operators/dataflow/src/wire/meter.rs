//! What a worker does and sends, counted where it happens.

use std::cell::Cell;
use std::time::{Duration, Instant};

use crate::wire::WireBlock;

/// The worker's own stages (the compute thread measures its own).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Sampling, for its own batches and for its peers'.
    Sample,
    /// Gathering and placing rows, for its own batches and for its peers'.
    Fetch,
    /// Summing across partitions.
    Reduce,
}

/// Counters of one worker.
#[derive(Debug, Default)]
pub struct Meter {
    messages: Cell<u64>,
    bytes: Cell<u64>,
    stages: [Cell<Duration>; 3],
}

impl Meter {
    /// Counts `block` unless it stays at `worker`: blocks for the worker itself cost nothing.
    pub fn sent(&self, worker: usize, block: &WireBlock) {
        if block.header().to as usize != worker {
            self.messages.set(self.messages.get() + 1);
            self.bytes.set(self.bytes.get() + block.wire_bytes() as u64);
        }
    }

    /// Messages and bytes sent so far.
    pub fn so_far(&self) -> [u64; 2] {
        [self.messages.get(), self.bytes.get()]
    }

    /// Counts at `other` what has been sent since `before`, and no longer here: one dataflow may serve two ends.
    pub fn hand_over(&self, before: [u64; 2], other: &Meter) {
        for ((own, other), before) in
            [(&self.messages, &other.messages), (&self.bytes, &other.bytes)].into_iter().zip(before)
        {
            other.set(other.get() + own.get() - before);
            own.set(before);
        }
    }

    /// Messages sent so far.
    pub fn messages(&self) -> u64 {
        self.messages.get()
    }

    /// Bytes sent so far.
    pub fn bytes(&self) -> u64 {
        self.bytes.get()
    }

    /// Does `work` and counts its time for `stage`.
    pub fn time<R>(&self, stage: Stage, work: impl FnOnce() -> R) -> R {
        let start = Instant::now();
        let result = work();
        self.add(stage, start.elapsed());
        result
    }

    /// Counts `spent` for `stage`: of work that other threads did for the worker.
    pub fn add(&self, stage: Stage, spent: Duration) {
        let total = &self.stages[stage as usize];
        total.set(total.get() + spent);
    }

    /// Time spent in `stage` so far.
    pub fn spent(&self, stage: Stage) -> Duration {
        self.stages[stage as usize].get()
    }
}
