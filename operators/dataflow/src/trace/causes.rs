//! What a worker waits for, over time.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use timely::container::CapacityContainerBuilder;
use timely::worker::Worker;

use super::overlap::{Busy, merged};
use super::spans::{Spans, WAITING};
use crate::flow::waits::{Cause, first_cause};

type CauseLogBuilder = CapacityContainerBuilder<Vec<(Duration, Option<Cause>)>>;

/// The log stream of causes.
const CAUSES: &str = "gnnflow/causes";

/// Maximum number of changes that are kept.
const MOST: usize = 1 << 18;

/// What a worker would wait for, each from its time to that of the next one.
#[derive(Debug, Default)]
pub struct Causes {
    changes: Vec<Change>,
    /// From then on, changes are missing because there were too many.
    end: Option<Duration>,
    dropped: u64,
}

#[derive(Debug)]
struct Change {
    time: Duration,
    cause: Option<Cause>,
}

/// Waiting for one cause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitedFor {
    /// The cause; `None` if no operator held an item.
    pub cause: Option<Cause>,
    /// How long.
    pub time: Duration,
}

/// Records the causes that [`note`] reports for `worker`, by [`Worker::timer`]. Flush as for [`super::worker`]. Returns `None` if timely's logging
/// is disabled.
pub fn record(worker: &Worker) -> Option<Rc<RefCell<Causes>>> {
    let mut register = worker.log_register()?;
    let causes = Rc::new(RefCell::new(Causes::default()));
    let recorded = Rc::clone(&causes);
    register.insert::<CauseLogBuilder, _>(CAUSES, move |_, events| {
        let mut causes = recorded.borrow_mut();
        events.iter_mut().flat_map(|events| events.drain(..)).for_each(|(time, cause)| causes.add(time, cause));
    });
    Some(causes)
}

/// Records what `worker` would wait for now, if its causes are recorded. Call it between two steps of the worker.
pub fn note(worker: &Worker) {
    let log = worker.log_register().and_then(|register| register.get::<CauseLogBuilder>(CAUSES));
    if let Some(log) = log {
        log.log(first_cause());
    }
}

impl Causes {
    fn add(&mut self, time: Duration, cause: Option<Cause>) {
        match self.changes.last() {
            Some(last) if last.cause == cause => {}
            _ if self.changes.len() == MOST => {
                self.end.get_or_insert(time);
                self.dropped += 1;
            }
            _ => self.changes.push(Change { time, cause }),
        }
    }

    /// Returns the number of changes that were not kept because there were too many.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Returns the waiting of `worker` by cause, without the time in which at least one of the threads `others` works. It is that of the pieces
    /// that are kept, until changes are missing.
    pub fn of_waiting(&self, worker: &Spans, others: &[&Spans]) -> Vec<WaitedFor> {
        let busy = merged(others);
        let (mut busy, mut found) = (busy.iter().peekable(), Vec::<WaitedFor>::new());
        let mut add = |start: Duration, end: Duration| {
            let end = self.end.map_or(end, |last| end.min(last));
            let mut at = self.changes.partition_point(|change| change.time <= start);
            let mut start = start;
            while start < end {
                let until = self.changes.get(at).map_or(end, |change| change.time.min(end));
                let cause = at.checked_sub(1).and_then(|before| self.changes[before].cause.clone());
                let time = until - start;
                match found.iter_mut().find(|other| other.cause == cause) {
                    Some(same) => same.time += time,
                    None => found.push(WaitedFor { cause, time }),
                }
                (start, at) = (until, at + 1);
            }
        };
        for own in worker.kept().filter(|own| own.name == WAITING) {
            while busy.next_if(|piece| piece.end <= own.start).is_some() {}
            let mut start = own.start;
            for &Busy { start: from, end: to } in busy.clone().take_while(|piece| piece.start < own.end) {
                if from > start {
                    add(start, from);
                }
                start = to;
            }
            if start < own.end {
                add(start, own.end);
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::super::overlap::tests::{spans, us};
    use super::*;

    #[test]
    fn waiting_is_divided_among_causes() {
        let mut causes = Causes::default();
        let (rank, permit) = (Some(Cause::Workers(vec![1])), Some(Cause::Permit));
        for (time, cause) in [(50, &rank), (60, &rank), (250, &permit), (320, &None)] {
            causes.add(us(time), cause.clone());
        }
        assert_eq!(causes.changes.len(), 3, "a cause is kept when it changes");
        let worker = spans(WAITING, &[(0, 100), (200, 400), (500, 600)]);
        let compute = spans("step", &[(80, 210), (300, 340), (480, 700)]);
        let all = causes.of_waiting(&worker, &[&compute]);
        let of = |cause: &Option<Cause>| all.iter().find(|all| all.cause == *cause).map_or(us(0), |all| all.time);
        assert_eq!([of(&rank), of(&permit), of(&None)], [us(30 + 40), us(50), us(50 + 60)]);
        let all: Duration = causes.of_waiting(&worker, &[]).iter().map(|of| of.time).sum();
        assert_eq!(all, us(400));
    }
}
