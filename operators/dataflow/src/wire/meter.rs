//! Counters of a worker: messages, bytes, and time by stage.

use std::cell::Cell;
use std::time::{Duration, Instant};

use crate::wire::WireBlock;

/// The stages of the worker thread. The compute thread measures its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Sampling, for own batches and for those of other workers.
    Sample,
    /// Gathering and scattering rows, for own batches and for those of other workers.
    Fetch,
    /// Summing over partitions.
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
    /// Counts `block` if its destination is not `worker` itself.
    pub fn sent(&self, worker: usize, block: &WireBlock) {
        if block.header().to as usize != worker {
            self.messages.set(self.messages.get() + 1);
            self.bytes.set(self.bytes.get() + block.wire_bytes() as u64);
        }
    }

    /// Returns the messages and bytes sent so far.
    pub fn so_far(&self) -> [u64; 2] {
        [self.messages.get(), self.bytes.get()]
    }

    /// Moves the messages and bytes sent since `before` from this meter to `other`: one dataflow may serve two purposes.
    pub fn hand_over(&self, before: [u64; 2], other: &Meter) {
        for ((own, other), before) in
            [(&self.messages, &other.messages), (&self.bytes, &other.bytes)].into_iter().zip(before)
        {
            other.set(other.get() + own.get() - before);
            own.set(before);
        }
    }

    /// Returns the number of messages sent so far.
    pub fn messages(&self) -> u64 {
        self.messages.get()
    }

    /// Returns the number of bytes sent so far.
    pub fn bytes(&self) -> u64 {
        self.bytes.get()
    }

    /// Runs `work` and adds its time to `stage`.
    pub fn time<R>(&self, stage: Stage, work: impl FnOnce() -> R) -> R {
        let start = Instant::now();
        let result = work();
        self.add(stage, start.elapsed());
        result
    }

    /// Adds `spent` to `stage`, for work that other threads did for the worker.
    pub fn add(&self, stage: Stage, spent: Duration) {
        let total = &self.stages[stage as usize];
        total.set(total.get() + spent);
    }

    /// Returns the time spent in `stage` so far.
    pub fn spent(&self, stage: Stage) -> Duration {
        self.stages[stage as usize].get()
    }
}
