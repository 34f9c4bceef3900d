//! Counters of a worker: messages, bytes, and time by stage.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::wire::WireBlock;

/// The stages of the worker thread. The compute thread measures its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
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

impl Sent {
    fn add(&mut self, more: Self) {
        self.messages += more.messages;
        self.bytes += more.bytes;
    }
}

/// What messages have in common that are recorded together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SentIn {
    /// The key of their headers: the time.
    pub time: u64,
    /// The stage that sends them.
    pub stage: Stage,
    /// The receiving worker.
    pub to: usize,
}

/// Maximum number of entries of a record.
const MOST: usize = 1 << 18;

/// Counters of one worker.
#[derive(Debug, Default)]
pub struct Meter {
    /// By destination.
    sent: RefCell<Vec<Sent>>,
    /// What is sent at each time, if it is recorded.
    by_time: RefCell<Option<BTreeMap<SentIn, Sent>>>,
    stages: [Cell<Duration>; 3],
    /// All messages, for other threads.
    messages_sent: Arc<AtomicU64>,
}

impl Meter {
    /// Creates a meter that also adds each message to `messages_sent`, which other threads may read.
    pub fn counting(messages_sent: Arc<AtomicU64>) -> Self {
        Self { messages_sent, ..Self::default() }
    }

    /// Counts `block`, which `stage` sends, if its destination is not `worker` itself.
    pub fn sent(&self, worker: usize, stage: Stage, block: &WireBlock) {
        let header = block.header();
        let to = header.to as usize;
        if to != worker {
            let sent = Sent { messages: 1, bytes: block.wire_bytes() as u64 };
            self.count(to, sent);
            self.messages_sent.fetch_add(1, Ordering::Relaxed);
            if let Some(by_time) = &mut *self.by_time.borrow_mut() {
                let key = SentIn { time: header.key, stage, to };
                if by_time.len() < MOST || by_time.contains_key(&key) {
                    by_time.entry(key).or_default().add(sent);
                }
            }
        }
    }

    /// Begins to record what is sent at each time.
    pub fn record(&self) {
        self.by_time.borrow_mut().get_or_insert_default();
    }

    /// Returns whether the record is full: later times may be missing.
    pub fn is_full(&self) -> bool {
        self.by_time.borrow().as_ref().is_some_and(|by_time| by_time.len() == MOST)
    }

    /// Returns what was sent at each time since [`Meter::record`].
    pub fn by_time(&self) -> BTreeMap<SentIn, Sent> {
        self.by_time.borrow().clone().unwrap_or_default()
    }

    // Many operators send; one copy of this is enough.
    #[inline(never)]
    fn count(&self, to: usize, more: Sent) {
        let mut sent = self.sent.borrow_mut();
        if sent.len() <= to {
            sent.resize(to + 1, Sent::default());
        }
        sent[to].add(more);
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
    use crate::wire::{Header, Rows};

    #[test]
    fn messages_are_recorded_by_time() {
        let meter = Meter::default();
        let message = |key, to| WireBlock::new(Header { key, to, ..Header::default() }, vec![], vec![1], Rows::None);
        meter.sent(0, Stage::Fetch, &message(1, 1));
        meter.record();
        for (key, to) in [(1, 1), (1, 1), (2, 1), (2, 0)] {
            meter.sent(0, Stage::Fetch, &message(key, to));
        }
        meter.sent(0, Stage::Reduce, &message(2, 1));
        let messages: Vec<_> =
            meter.by_time().iter().map(|(key, sent)| (key.time, key.stage, key.to, sent.messages)).collect();
        assert_eq!(messages, [(1, Stage::Fetch, 1, 2), (2, Stage::Fetch, 1, 1), (2, Stage::Reduce, 1, 1)]);
        assert_eq!(meter.messages(), 5);
    }

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
