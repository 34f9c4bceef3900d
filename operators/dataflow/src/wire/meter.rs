//! Counters of a worker: messages, bytes, and time by stage.

use std::cell::{Cell, RefCell};
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

/// Messages and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Number of messages.
    pub messages: u64,
    /// Number of bytes.
    pub bytes: u64,
}

/// Counters of one worker.
#[derive(Debug, Default)]
pub struct Meter {
    /// By destination.
    sent: RefCell<Vec<Sent>>,
    stages: [Cell<Duration>; 3],
}

impl Meter {
    /// Counts `block` if its destination is not `worker` itself.
    pub fn sent(&self, worker: usize, block: &WireBlock) {
        let to = block.header().to as usize;
        if to != worker {
            self.count(to, Sent { messages: 1, bytes: block.wire_bytes() as u64 });
        }
    }

    // Many operators send; one copy of this is enough.
    #[inline(never)]
    fn count(&self, to: usize, more: Sent) {
        let mut sent = self.sent.borrow_mut();
        if sent.len() <= to {
            sent.resize(to + 1, Sent::default());
        }
        sent[to].messages += more.messages;
        sent[to].bytes += more.bytes;
    }

    /// Returns what was sent to each worker so far. Workers at the end that got nothing may be missing.
    pub fn by_destination(&self) -> Vec<Sent> {
        self.sent.borrow().clone()
    }

    /// Moves what was sent since `before` from this meter to `other`: one dataflow may serve two purposes.
    pub fn hand_over(&self, mut before: Vec<Sent>, other: &Meter) {
        let now = self.by_destination();
        before.resize(now.len(), Sent::default());
        for (to, (now, before)) in now.iter().zip(&before).enumerate() {
            other.count(to, Sent { messages: now.messages - before.messages, bytes: now.bytes - before.bytes });
        }
        self.sent.replace(before);
    }

    /// Returns the number of messages sent so far.
    pub fn messages(&self) -> u64 {
        self.sent.borrow().iter().map(|sent| sent.messages).sum()
    }

    /// Returns the number of bytes sent so far.
    pub fn bytes(&self) -> u64 {
        self.sent.borrow().iter().map(|sent| sent.bytes).sum()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hand_over_keeps_destinations() {
        let (training, other) = (Meter::default(), Meter::default());
        training.count(2, Sent { messages: 1, bytes: 10 });
        let before = training.by_destination();
        training.count(2, Sent { messages: 2, bytes: 7 });
        training.count(3, Sent { messages: 1, bytes: 5 });
        training.hand_over(before, &other);
        assert_eq!((training.messages(), training.bytes()), (1, 10));
        assert_eq!((other.messages(), other.bytes()), (3, 12));
        assert_eq!(other.by_destination()[2], Sent { messages: 2, bytes: 7 });
    }
}
